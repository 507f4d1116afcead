package planner_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/model"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
	"github.com/shoal-ml/shoal/state/layout"
)

// A chain is a model with what one host of some places has for it, for the tests.
type chain struct {
	layers []model.Cost // for a micro-batch of one sample
	params []int64
	out    []int64
	memory int64
	link   cluster.Link
	places int
}

// randomChain draws a chain of some layers.
func randomChain(random *rand.Rand) chain {
	c := chain{places: 1 + random.IntN(3), memory: 1 << 40,
		link: cluster.Link{Inside: true, Curve: cluster.Curve{Latency: 1e-3 * random.Float64(),
			Rate: 1e6 * (1 + random.Float64())}}}
	for range c.places + random.IntN(4) {
		c.layers = append(c.layers, model.Cost{Forward: 0.02 + 0.1*random.Float64(),
			Backward: 0.02 + 0.2*random.Float64(), Update: 0.01 * random.Float64(), Kept: 1000})
		c.params = append(c.params, random.Int64N(20_000))
		c.out = append(c.out, random.Int64N(20_000))
	}
	return c
}

// request returns the request for a plan of a chain, as it is read from files.
func (c chain) request(t testing.TB, batch int) planner.Request {
	t.Helper()
	m := model.Model{Shoal: model.Version, Name: "test"}
	point := model.Point{Device: "cpu", Micro: 1, Layers: map[string]model.Cost{}}
	for i, l := range c.layers {
		id := strconv.Itoa(i)
		m.Layers = append(m.Layers, model.Layer{ID: id, Params: c.params[i],
			State: 3 * c.params[i], Out: c.out[i]})
		point.Layers[id] = l
	}
	m.Points = []model.Point{point}
	all := cluster.Cluster{Shoal: cluster.Version,
		Kinds: []cluster.Kind{{Name: "cpu", Memory: c.memory}},
		Hosts: []cluster.Host{{Name: "a", Kind: "cpu", Places: c.places}},
		Links: []cluster.Link{c.link}}
	return planner.Request{Model: reread(t, m, model.Parse), Cluster: reread(t, all, cluster.Parse),
		Batch: batch}
}

// reread writes a value and reads it as people's files are read.
func reread[T any](t testing.TB, value T, parse func([]byte) (*T, error)) *T {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// bestOf returns the seconds of the best plan of a chain: all degrees, all cuts, and all numbers of
// micro-batches that stages can hold, by a timeline each.
func (c chain) bestOf(batch int) float64 {
	best := math.Inf(1)
	for replicas := 1; replicas <= c.places; replicas++ {
		stages := c.places / replicas
		if c.places%replicas != 0 || batch%replicas != 0 || stages > len(c.layers) {
			continue
		}
		micro := batch / replicas
		var walk func(starts, ahead []int)
		walk = func(starts, ahead []int) {
			if len(starts) == stages && !c.fits(starts, ahead) {
				return
			}
			if len(starts) == stages {
				if line, err := timeline.Run(c.stages(starts, ahead, replicas), micro); err == nil {
					best = min(best, line.Seconds)
				}
				return
			}
			for next := starts[len(starts)-1] + 1; next < len(c.layers); next++ {
				for held := 1; held <= ahead[len(ahead)-1]; held++ {
					walk(append(starts[:len(starts):len(starts)], next),
						append(ahead[:len(ahead):len(ahead)], held))
				}
			}
		}
		for held := 1; held <= micro; held++ {
			walk([]int{0}, []int{held})
		}
	}
	return best
}

// fits reports whether the stages of one cut fit into memory, with the micro-batches that they
// hold and two on each way in and out.
func (c chain) fits(starts, ahead []int) bool {
	for s, from := range starts {
		to, need := len(c.layers), int64(0)
		if from > 0 {
			need += 2 * c.out[from-1]
		}
		if s+1 < len(starts) {
			to = starts[s+1]
			need += 2 * c.out[to-1]
		}
		for i := from; i < to; i++ {
			need += 3*c.params[i] + c.layers[i].Kept*int64(ahead[s])
		}
		if need > c.memory {
			return false
		}
	}
	return true
}

// stages returns what the stages of one cut take.
func (c chain) stages(starts, ahead []int, replicas int) (list []timeline.Stage) {
	for s, from := range starts {
		to := len(c.layers)
		if s+1 < len(starts) {
			to = starts[s+1]
		}
		x := timeline.Stage{Ahead: ahead[s], Down: c.link.Seconds(c.out[to-1]),
			Up: c.link.Seconds(c.out[to-1]), Latency: c.link.Latency}
		var params int64
		for i := from; i < to; i++ {
			x.Forward, x.Backward = x.Forward+c.layers[i].Forward, x.Backward+c.layers[i].Backward
			x.Tail, params = x.Tail+c.layers[i].Update, params+c.params[i]
		}
		x.Tail += cost.RingSeconds(replicas, params, c.link.SecondsOf)
		list = append(list, x)
	}
	return list
}

// TestBestOfAll compares plans with the best of all, of many small chains; no bound is above it.
func TestBestOfAll(t *testing.T) {
	comparePlans(t, instances(300), true, func(random *rand.Rand) (chain, int) {
		return randomChain(random), 1 + random.IntN(5)
	})
}

// TestBestOfMany does the same with chains that have too many plans for the planner to play all.
func TestBestOfMany(t *testing.T) {
	comparePlans(t, instances(400)/20, false, func(random *rand.Rand) (chain, int) {
		c := randomChain(random)
		c.places = 3 + random.IntN(2)
		for c.link.Rate *= 100; len(c.layers) < 9; { // averaging costs little to much
			c.layers = append(c.layers, c.layers[random.IntN(len(c.layers))])
			c.params, c.out = append(c.params, random.Int64N(200_000)), append(c.out, 100_000)
		}
		return c, 6 + random.IntN(3)
	})
}

// TestBestOfTight does the same with memory that few plans fit into, of which stages hold little:
// no bound that rules plans out by their memory is above the best.
func TestBestOfTight(t *testing.T) {
	comparePlans(t, instances(400)/20, false, func(random *rand.Rand) (chain, int) {
		c := randomChain(random)
		c.places = 3 + random.IntN(2)
		for len(c.layers) < 9 {
			c.layers = append(c.layers, c.layers[random.IntN(len(c.layers))])
			c.params, c.out = append(c.params, random.Int64N(20_000)), append(c.out, 10_000)
		}
		all := int64(0)
		for i := range c.layers {
			c.layers[i].Kept = 10_000 + random.Int64N(20_000)
			all += 3*c.params[i] + c.layers[i].Kept
		}
		c.memory = all/int64(c.places) + random.Int64N(all)
		return c, 6 + random.IntN(3)
	})
}

// instances returns how many random chains a test looks at: some, or what PLAN_CASES says.
func instances(some int) int {
	if n, err := strconv.Atoi(os.Getenv("PLAN_CASES")); err == nil {
		return n
	}
	return some
}

// comparePlans compares plans of so many random chains with the best of all plans, which they are
// known to be if all is set.
func comparePlans(t *testing.T, cases int, all bool, draw func(*rand.Rand) (chain, int)) {
	t.Helper()
	random, missed, worst, open := rand.New(rand.NewPCG(3, 4)), 0, 0.0, 0
	for range cases {
		c, batch := draw(random)
		best := c.bestOf(batch)
		if math.IsInf(best, 1) {
			continue
		}
		r, err := planner.Solve(c.request(t, batch))
		if err != nil {
			t.Fatal(err)
		}
		got := r.Best.Predicted.Seconds
		if r.Best.Certificate.Bound > best*(1+1e-9) {
			t.Errorf("%+v: the bound is %v, the best plan takes %v", c,
				r.Best.Certificate.Bound, best)
		}
		if r.Best.Certificate.Gap > 1e-9 {
			open++
		}
		if got < best*(1-1e-9) {
			t.Errorf("%+v: a plan of %v s, and the best of all takes %v", c, got, best)
		}
		if got > best*(1+1e-9) {
			missed, worst = missed+1, max(worst, got/best-1)
		}
		if _, err := layout.ParseMesh(r.Best.Mesh); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d of %d plans are not the best, by %.2f %% at most; %d are not proved to be",
		missed, cases, 100*worst, open)
	if all && open > 0 {
		t.Errorf("%d of %d plans are not proved to be the best", open, cases)
	}
	if missed > 0 {
		t.Errorf("%d of %d plans are not the best, by up to %.2f %%", missed, cases, 100*worst)
	}
}

// TestMemory gives workers ever less memory: plans hold fewer micro-batches, and then none fits,
// which is said with what is missing.
func TestMemory(t *testing.T) {
	c := chain{places: 2, memory: 1 << 20, link: cluster.Link{Inside: true,
		Curve: cluster.Curve{Rate: 1e9}}}
	for range 4 {
		c.layers = append(c.layers, model.Cost{Forward: 1, Backward: 2, Kept: 1 << 10})
		c.params, c.out = append(c.params, 1<<20), append(c.out, 64)
	}
	for i := range c.params {
		c.params[i] = 1 << 10 // of which state is thrice
	}
	roomy, err := planner.Solve(c.request(t, 8))
	if err != nil {
		t.Fatal(err)
	}
	c.memory = 9<<10 + 512
	tight, err := planner.Solve(c.request(t, 8))
	if err != nil {
		t.Fatal(err)
	}
	if most := tight.Best.Stages[0].Memory; most > c.memory {
		t.Errorf("%d bytes of %d", most, c.memory)
	}
	if roomy.Best.Predicted.Seconds >= tight.Best.Predicted.Seconds {
		t.Errorf("with memory %v s, without %v", roomy.Best.Predicted.Seconds,
			tight.Best.Predicted.Seconds)
	}
	c.memory = 4 << 10
	if r, err := planner.Solve(c.request(t, 8)); err == nil ||
		!strings.Contains(err.Error(), "no plan fits into memory") {
		t.Errorf("%+v, error %v", r, err)
	}
}

// TestGaps plans chains that are too large to play all plans of, with transfers that take up to
// as long as a layer: the gap that is proved is small.
func TestGaps(t *testing.T) {
	random, sum, worst := rand.New(rand.NewPCG(5, 6)), 0.0, 0.0
	const cases = 20
	for range cases {
		c := randomChain(random)
		c.places = 2 << random.IntN(3)
		for len(c.layers) < 24+random.IntN(24) {
			c.layers = append(c.layers, model.Cost{Forward: 0.02 + 0.1*random.Float64(),
				Backward: 0.02 + 0.2*random.Float64()})
			c.params, c.out = append(c.params, 200_000), append(c.out, random.Int64N(200_000))
		}
		r, err := planner.Solve(c.request(t, 4*c.places))
		if err != nil {
			t.Fatal(err)
		}
		gap := r.Best.Certificate.Gap
		sum, worst = sum+gap, max(worst, gap)
	}
	t.Logf("gap %.2f %% in the mean, %.2f %% at most", 100*sum/cases, 100*worst)
	if sum/cases > 0.002 {
		t.Errorf("the gap is %.2f %% in the mean", 100*sum/cases)
	}
}

// TestJudge judges the meshes of plans: they take what was predicted, and no bound is above it.
func TestJudge(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for range 50 {
		r := randomChain(random).request(t, 1+random.IntN(5))
		plan, err := planner.Solve(r)
		if err != nil {
			continue // it has fewer layers than workers, and no other degrees divide the batch
		}
		got, err := planner.Judge(r, plan.Best.Mesh)
		if err != nil {
			t.Fatal(err)
		}
		if got.Best.Predicted != plan.Best.Predicted || got.Best.Mesh != plan.Best.Mesh {
			t.Errorf("judged %+v, planned %+v", got.Best, plan.Best)
		}
		if least := got.Best.Certificate.Bound; least > got.Best.Predicted.Seconds {
			t.Errorf("%s: a bound of %v s, and it takes %v", got.Best.Mesh, least,
				got.Best.Predicted.Seconds)
		}
	}
}
