package planner_test

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
	"github.com/shoal-ml/shoal/decide/planner/spp"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// bestOwn returns the seconds of the best plan of a chain whose stages have own numbers of
// replicas: all cuts, all numbers of replicas, all sizes of micro-batches, and all numbers of
// micro-batches that stages can hold, by a timeline each.
func (c chain) bestOwn(batch int) float64 {
	best := math.Inf(1)
	for parts := 1; parts <= c.places; parts++ {
		if batch%parts != 0 {
			continue
		}
		micro := batch / parts
		var walk func(starts, replicas, ahead []int, used int)
		walk = func(starts, replicas, ahead []int, used int) {
			if used == c.places {
				stages := c.ownStages(starts, replicas, ahead, parts)
				if line, err := timeline.Run(stages, micro); err == nil {
					best = min(best, line.Seconds)
				}
			}
			if len(starts) == 0 {
				for r := 1; r <= c.places; r++ {
					for held := 1; held <= micro; held++ {
						walk([]int{0}, []int{r}, []int{held}, r)
					}
				}
				return
			}
			last := len(starts) - 1
			for next := starts[last] + 1; next < len(c.layers); next++ {
				for r := 1; r <= c.places-used; r++ {
					for held := 1; held <= ahead[last]; held++ {
						walk(append(slices.Clone(starts), next), append(slices.Clone(replicas), r),
							append(slices.Clone(ahead), held), used+r)
					}
				}
			}
		}
		walk(nil, nil, nil, 0)
	}
	return best
}

// ownStages returns what the stages of one plan take, whose replicas share micro-batches of so many
// samples.
func (c chain) ownStages(starts, replicas, ahead []int, samples int) (list []timeline.Stage) {
	all := c.stages(starts, ahead, 1)
	for s, x := range all {
		r := replicas[s]
		part := float64(samples) / float64(r)
		x.Forward, x.Backward = x.Forward*part, x.Backward*part
		to, params := len(c.layers), int64(0)
		if s+1 < len(starts) {
			to = starts[s+1]
			few := min(r, replicas[s+1])
			x.Down = c.link.SecondsOf(float64(c.out[to-1]) * float64(samples) / float64(few))
			x.Up, x.Latency = x.Down, c.link.Latency
		}
		for i := starts[s]; i < to; i++ {
			params += c.params[i]
		}
		if r > 1 {
			x.Tail += cost.RingSeconds(r, params, c.link.SecondsOf)
		}
		list = append(list, x)
	}
	return list
}

// playOwn returns the seconds of a plan, as the test has them, by the order of a mesh and by the
// list schedule of as many micro-batches.
func (c chain) playOwn(t *testing.T, d *deployment.Deployment) (list []float64) {
	t.Helper()
	var starts, replicas, ahead []int
	workers := 0
	for _, s := range d.Stages {
		starts, replicas = append(starts, s.First), append(replicas, s.Replicas)
		ahead, workers = append(ahead, s.Ahead), workers+s.Replicas
	}
	if workers != c.places {
		t.Errorf("%d workers of %d", workers, c.places)
	}
	stages, micro := c.ownStages(starts, replicas, ahead, d.Micro), d.Batch/d.Micro
	orders, _ := spp.Schedule(stages, micro, ahead)
	for range 2 {
		line, err := timeline.Run(stages, micro)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, line.Seconds)
		for s := range stages {
			stages[s].Order = orders[s]
		}
	}
	return list
}

// TestOwnReplicas compares plans of SpaceAny with the best of all, of many small chains. They are
// no slower than those of SpaceMesh, no bound is above the best, what is guaranteed is kept, and
// they tell how much work went into the proof, as Verify needs.
func TestOwnReplicas(t *testing.T) {
	cases := 120
	if n, err := strconv.Atoi(os.Getenv("PLAN_CASES")); err == nil {
		cases = n // as many as make plan-oracles asks for
	}
	random, own, unlike, better, sum := rand.New(rand.NewPCG(5, 6)), 0, 0, 0, 0.0
	for i := range cases {
		c, batch := randomChain(random), 2*(1+random.IntN(3))
		for l := range c.layers { // averaging costs nothing, or much for some layers
			c.params[l] *= int64(random.IntN(2) * random.IntN(100))
			c.out[l] *= int64(1 + random.IntN(3))
		}
		request := c.request(t, batch)
		mesh, err := planner.Solve(request)
		if err != nil {
			t.Fatal(err)
		}
		request.Space = planner.SpaceAny
		got, err := planner.Solve(request)
		if err != nil {
			t.Fatal(err)
		}
		best, seconds := c.bestOwn(batch), got.Best.Predicted.Seconds
		if seconds > mesh.Best.Predicted.Seconds*(1+1e-9) {
			t.Errorf("case %d: %v s, and a mesh takes %v", i, seconds, mesh.Best.Predicted.Seconds)
		}
		if got.Best.Certificate.Bound > best*(1+1e-9) {
			t.Errorf("case %d: the bound is %v, and the best plan takes %v", i,
				got.Best.Certificate.Bound, best)
		}
		if got.Best.Certificate.Work != mesh.Best.Certificate.Work {
			t.Errorf("case %d: the work of the proof is %v, and of a mesh alone %v", i,
				got.Best.Certificate.Work, mesh.Best.Certificate.Work)
		}
		if g := got.Guarantee; g != nil && g.Seconds < seconds*(1-1e-9) {
			t.Errorf("case %d: %v s, and %v are guaranteed", i, seconds, g.Seconds)
		}
		if got.Best.Mesh == "" {
			own++
			if strings.Contains(got.Best.Runs.WhyNot, "different numbers") {
				unlike++
			}
			if got.Best.Runs.WhyNot == "" || got.Best.Runs.By != "" {
				t.Errorf("case %d: it does not say why nothing runs it", i)
			}
			if played := c.playOwn(t, got.Best); !slices.ContainsFunc(played, func(s float64) bool {
				return math.Abs(s-seconds) < 1e-9*seconds
			}) {
				t.Errorf("case %d: %+v takes %v s, and it is played in %v", i, got.Best, seconds,
					played)
			}
		}
		if seconds < mesh.Best.Predicted.Seconds*(1-1e-9) {
			better++
		}
		sum += max(seconds/best-1, 0) // a list schedule can be better than all numbers
	}
	t.Logf("%d of %d plans are no mesh, %d with different numbers of replicas, %d are faster than "+
		"any; they are %.1f %% above the best "+
		"in the mean", own, cases, unlike, better, 100*sum/float64(cases))
	if unlike < cases/20 {
		t.Errorf("stages have different numbers of replicas in %d of %d plans", unlike, cases)
	}
}

// TestHostsOfKinds lists the hosts of a plan on two kinds of devices: those of both, and no more.
func TestHostsOfKinds(t *testing.T) {
	x := drawMixed(rand.New(rand.NewPCG(3, 4)))
	for i := range x.layers[1] { // the second kind is much faster, so the plan has its device
		x.layers[1][i].Forward, x.layers[1][i].Backward = 1e-3, 1e-3
	}
	x.memory, x.places = [2]int64{1 << 40, 1 << 40}, [2]int{1, 1}
	request := x.request(t)
	all := *request.Cluster
	all.Hosts = nil
	for _, name := range []string{"a1", "c1", "a2", "c2"} {
		all.Hosts = append(all.Hosts, cluster.Host{Name: name, Kind: "a", Places: 1})
	}
	all.Hosts = append(all.Hosts, cluster.Host{Name: "d", Kind: "b", Places: 1})
	fast := cluster.Link{Curve: cluster.Curve{Rate: 1e9}}
	for _, pair := range [][]string{{"a1", "a2"}, {"c1", "c2"}, {"b", "a"}} {
		fast.Between = pair
		all.Links = append([]cluster.Link{fast}, all.Links...)
	}
	request.Cluster, request.Workers = reread(t, all, cluster.Parse), 4
	got, err := planner.Solve(request)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Best.Hosts) != 4 || !slices.Contains(got.Best.Hosts, "d") {
		t.Errorf("%s on %s: hosts %v", got.Best.Mesh, got.Devices, got.Best.Hosts)
	}
}

// TestHostOrder plans over hosts of two racks, which the cluster lists by turns. Neighbours in the
// plan are in one rack.
func TestHostOrder(t *testing.T) {
	c := chain{places: 4, memory: 1 << 40, link: cluster.Link{Inside: true,
		Curve: cluster.Curve{Rate: 1e6}}}
	random := rand.New(rand.NewPCG(1, 1))
	for range 4 {
		one := randomChain(random)
		c.layers = append(c.layers, one.layers[0])
		c.params = append(c.params, 10_000_000)
		c.out = append(c.out, 20_000)
	}
	request := c.request(t, 8)
	all := cluster.Cluster{Shoal: cluster.Version, Kinds: request.Cluster.Kinds}
	for _, name := range []string{"a1", "b1", "a2", "b2"} {
		all.Hosts = append(all.Hosts, cluster.Host{Name: name, Kind: "cpu", Places: 1})
	}
	fast, slow := c.link, c.link
	fast.Inside, slow.Inside, slow.Rate = false, false, 2e5
	for _, pair := range [][]string{{"a1", "a2"}, {"b1", "b2"}} {
		fast.Between = pair
		all.Links = append(all.Links, fast)
	}
	all.Links = append(all.Links, slow)
	request.Cluster = reread(t, all, cluster.Parse)
	got, err := planner.Solve(request)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a1", "a2", "b1", "b2"}, got.Best.Hosts); diff != "" {
		t.Errorf("%s: hosts %v", got.Best.Mesh, got.Best.Hosts)
	}
	if fails, err := verify(request, got.Best); err != nil || len(fails) > 0 {
		t.Errorf("%v, %v", fails, err)
	}

	// A host on which nothing was measured is left out, and mixed up with no other.
	all.Kinds = append(all.Kinds, cluster.Kind{Name: "gpu", Memory: 1 << 40})
	all.Hosts = append([]cluster.Host{{Name: "g", Kind: "gpu", Places: 2}}, all.Hosts...)
	slow.Inside = true
	all.Links = append(all.Links, slow)
	request.Cluster = reread(t, all, cluster.Parse)
	if got, err = planner.Solve(request); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a1", "a2", "b1", "b2"}, got.Best.Hosts); diff != "" {
		t.Errorf("%s: hosts %v", got.Best.Mesh, got.Best.Hosts)
	}
	if !strings.Contains(got.Best.Mesh, "on=cpu") {
		t.Errorf("mesh %s may be on any host", got.Best.Mesh)
	}

	// A plan that leaves hosts out is checked again, also where links name these.
	all.Hosts[0], all.Hosts[1] = all.Hosts[1], all.Hosts[0]
	all.Hosts[1].Places, all.Hosts[2].Places = 1, 1
	request.Cluster, request.Workers = reread(t, all, cluster.Parse), 2
	if got, err = planner.Solve(request); err != nil {
		t.Fatal(err)
	}
	got.Best.Hosts = []string{"a1", "a2"}
	if fails, err := verify(request, got.Best); err != nil {
		t.Errorf("%v, %v", fails, err)
	}
}

// TestVerifyAny judges plans with own numbers of replicas again that are a mesh. A stage that is
// alone holds one micro-batch, as in any mesh.
func TestVerifyAny(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 39))
	for i := range instances(100) {
		c := randomChain(random)
		r := c.request(t, c.places*(1+random.IntN(3)))
		r.Space = planner.SpaceAny
		got, err := planner.Solve(r)
		if err != nil {
			t.Fatal(err)
		}
		d := got.Best
		if len(d.Stages) == 1 && d.Stages[0].Ahead > 1 {
			t.Errorf("case %d: one stage holds %+v", i, d.Stages[0])
		}
		if d.Mesh == "" {
			continue
		}
		r.Space = planner.SpaceMesh
		if fails, err := verify(r, d); err != nil || fails != nil {
			t.Errorf("case %d: %s: %v, %v", i, d.Mesh, fails, err)
		}
	}
}
