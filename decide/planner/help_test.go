package planner_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/model"
)

// TestHelps compares what changes would bring to plans with what the mesh takes where the model,
// the links or the batch are so.
func TestHelps(t *testing.T) {
	random, seen := rand.New(rand.NewPCG(9, 10)), map[string]int{}
	for range 60 {
		c, batch := randomChain(random), 2+random.IntN(5)
		plan, err := planner.Solve(c.request(t, batch))
		if err != nil {
			continue // the batch cannot be divided
		}
		for _, h := range plan.Helps {
			seen[strings.Fields(h.What)[0]]++
			if n := 0; strings.HasPrefix(h.What, "fewer workers") {
				if _, err := fmt.Sscanf(h.What, "fewer workers (--workers %d)", &n); err != nil {
					t.Fatal(err)
				}
				fewer := c
				fewer.places = n // with the same memory and links
				want := plan.Best.Predicted.Seconds/fewer.bestOf(batch) - 1
				if n >= c.places || math.Abs(h.Gain-want) > 1e-6 || h.Gain < 1e-3 {
					t.Errorf("%s: %s brings %v, the best plan of these %v", plan.Best.Mesh, h.What,
						h.Gain, want)
				}
				continue
			}
			changed := c.request(t, batch)
			name, layer := strings.CutPrefix(strings.TrimSuffix(h.What, " 10 % faster"), "layer ")
			switch {
			case layer:
				point := &changed.Model.Points[0]
				took := point.Layers[name]
				point.Layers[name] = model.Cost{Forward: 0.9 * took.Forward,
					Backward: 0.9 * took.Backward, Update: took.Update, Kept: took.Kept}
			case h.What == "links twice as fast":
				faster := c
				faster.link.Latency, faster.link.Rate = c.link.Latency/2, 2*c.link.Rate
				changed = faster.request(t, batch)
			case h.What == "twice the batch":
				changed.Batch *= 2
			}
			got, err := planner.Judge(changed, plan.Best.Mesh)
			if err != nil {
				t.Fatal(err)
			}
			rate := float64(changed.Batch) / got.Best.Predicted.Seconds
			want := rate*plan.Best.Predicted.Seconds/float64(batch) - 1
			if math.Abs(h.Gain-want) > 1e-6 || h.Gain < 1e-3 {
				t.Errorf("%s: %s brings %v, judged %v", plan.Best.Mesh, h.What, h.Gain, want)
			}
		}
	}
	for _, what := range []string{"layer", "links", "twice", "fewer"} {
		if seen[what] == 0 {
			t.Errorf("nobody was told of %s", what)
		}
	}
}

// TestHelpsMixed compares what a larger batch would bring where replicas on two kinds of devices
// have unequal shares with what the same mesh takes for that batch.
func TestHelpsMixed(t *testing.T) {
	const mesh = "dp=2(2/1;on=a/b),pp=1(micro=1)"
	x := drawMixed(rand.New(rand.NewPCG(1, 2)))
	x.places, x.batch, x.memory = [2]int{1, 1}, 3, [2]int64{1 << 40, 1 << 40}
	for i := range x.params {
		x.params[i] = 100_000 // to average, which a larger batch does as seldom
	}
	plan, err := planner.Judge(x.request(t), mesh)
	if err != nil {
		t.Fatal(err)
	}
	x.batch *= 2
	twice, err := planner.Judge(x.request(t), mesh)
	if err != nil {
		t.Fatal(err)
	}
	want := 2*plan.Best.Predicted.Seconds/twice.Best.Predicted.Seconds - 1
	i := slices.IndexFunc(plan.Helps, func(h planner.Help) bool {
		return h.What == "twice the batch"
	})
	if i < 0 || math.Abs(plan.Helps[i].Gain-want) > 1e-6 || want < 0.01 {
		t.Errorf("%+v, and twice the batch brings %v", plan.Helps, want)
	}
}

// TestMemoryHelps gives workers less memory than the best plan takes: more of it helps, which is
// said.
func TestMemoryHelps(t *testing.T) {
	c := chain{places: 2, memory: 9<<10 + 512}
	c.link.Inside, c.link.Rate, c.link.Latency = true, 1e9, 0.5
	for range 4 {
		c.layers = append(c.layers, model.Cost{Forward: 1, Backward: 2, Kept: 1 << 10})
		c.params, c.out = append(c.params, 1<<10), append(c.out, 64)
	}
	tight, err := planner.Solve(c.request(t, 8))
	if err != nil {
		t.Fatal(err)
	}
	parts := tight.Memory[0]
	if int64(parts.Sum()) != tight.Best.Stages[0].Memory || parts.State != 6<<10 ||
		parts.Kept == 0 || parts.Sent == 0 {
		t.Errorf("%+v of %+v", parts, tight.Best.Stages)
	}
	for _, h := range tight.Helps {
		if strings.Contains(h.What, "of memory in place of") {
			return
		}
	}
	t.Errorf("%s: %+v says nothing of memory", tight.Best.Mesh, tight.Helps)
}
