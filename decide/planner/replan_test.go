package planner_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/importer"
	"github.com/shoal-ml/shoal/decide/planner/model"
	"github.com/shoal-ml/shoal/decide/planner/zoo"
)

// TestRepair makes plans for two kinds of devices fit for other numbers of them, of many small
// models. What it finds is a plan that can be, no faster than the best of all and not much slower;
// and Solve, which begins with it, finds the best of all.
func TestRepair(t *testing.T) {
	const seed = 17
	random, count, sum := rand.New(rand.NewPCG(seed, 2)), 0, 0.0
	for i := range instances(150) {
		x := drawMixed(random)
		last, err := planner.Solve(x.request(t))
		if err != nil {
			continue
		}
		x.places = [2]int{1 + random.IntN(2), 1 + random.IntN(2)}
		best := x.bestOf()
		r := x.request(t)
		first, err := planner.Repair(r, last.Best.Mesh)
		if err != nil {
			if !strings.Contains(err.Error(), "no plan near the last one") {
				t.Errorf("seed %d, case %d: %v", seed, i, err)
			}
			continue
		}
		got := first.Best.Predicted.Seconds
		judged, err := planner.Judge(r, first.Best.Mesh)
		if err != nil || math.Abs(judged.Best.Predicted.Seconds-got) > 1e-9*got ||
			got < best*(1-1e-9) {
			t.Errorf("seed %d, case %d: %s for %s takes %v s, and the best of all %v; it is "+
				"judged %+v, %v", seed, i, first.Best.Mesh, last.Best.Mesh, got, best, judged, err)
		}
		r.From = first.Best.Mesh
		again, err := planner.Solve(r)
		if err != nil || math.Abs(again.Best.Predicted.Seconds-best) > 1e-9*best {
			t.Errorf("seed %d, case %d: from %s %+v, %v; the best of all takes %v s", seed, i,
				r.From, again, err, best)
		}
		count, sum = count+1, sum+got/best
	}
	t.Logf("%d plans, in the mean %.3f times the best", count, sum/float64(count))
	if count < instances(150)/2 || sum > 1.1*float64(count) {
		t.Error("few plans are made fit, or they are slow")
	}
}

// TestRepairTight makes plans fit for machines whose memory is too small for what 1F1B holds: the
// plan that they have, as it is, and one for others.
func TestRepairTight(t *testing.T) {
	c := alike(3, 3)
	c.memory = 3*1<<10 + 4*64 + 2*1<<10 // state and transfers of one layer, and two micro-batches
	r := c.request(t, 6)
	best, err := planner.Solve(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, last := range []string{best.Best.Mesh, "dp=1,pp=2(2/1;micro=1)"} {
		got, err := planner.Repair(r, last)
		if err != nil {
			t.Errorf("%s, for %s: %v", best.Best.Mesh, last, err)
			continue
		}
		judged, err := planner.Judge(r, got.Best.Mesh)
		if err != nil || judged.Best.Predicted.Seconds != got.Best.Predicted.Seconds {
			t.Errorf("%s, for %s: %+v, %v", got.Best.Mesh, last, judged, err)
		}
		if last == best.Best.Mesh && got.Best.Predicted.Seconds > best.Best.Predicted.Seconds {
			t.Errorf("%s becomes %s", last, got.Best.Mesh)
		}
	}
}

// TestRepairRefuses refuses texts that are no plan, and says so where no plan can be.
func TestRepairRefuses(t *testing.T) {
	x := drawMixed(rand.New(rand.NewPCG(1, 2)))
	r := x.request(t)
	for _, mesh := range []string{"dp", "ep=2", "tp=2,pp=2"} {
		if got, err := planner.Repair(r, mesh); err == nil ||
			!strings.Contains(err.Error(), "the last plan, "+mesh) {
			t.Errorf("%s: %+v, %v", mesh, got, err)
		}
	}
	x.memory = [2]int64{1, 1}
	if got, err := planner.Repair(x.request(t), "dp=1,pp=2"); err == nil ||
		!strings.Contains(err.Error(), "no plan near the last one, dp=1,pp=2, fits") {
		t.Errorf("%+v, %v", got, err)
	}
	r.Cluster.Kinds, r.Cluster.Hosts, r.Cluster.Links = nil, nil, x.links[2:]
	for i := range 5 {
		point := r.Model.Points[0]
		point.Device = fmt.Sprint("kind-", i)
		r.Model.Points = append(r.Model.Points, point)
		r.Cluster.Kinds = append(r.Cluster.Kinds, cluster.Kind{Name: point.Device, Memory: 1 << 40})
		r.Cluster.Hosts = append(r.Cluster.Hosts, cluster.Host{Name: "host-" + point.Device,
			Kind: point.Device, Places: 1})
	}
	r.Model = reread(t, *r.Model, model.Parse)
	r.Cluster = reread(t, *r.Cluster, cluster.Parse)
	if got, err := planner.Repair(r, "dp=1,pp=2"); err == nil ||
		!strings.Contains(err.Error(), "devices of 5 kinds") {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestFrom begins searches that may spend little work with plans that one with more work has found:
// they find nothing slower, and what they prove can be proved again. A plan that cannot be compared
// is refused.
func TestFrom(t *testing.T) {
	random, better := rand.New(rand.NewPCG(19, 2)), 0
	for range 6 {
		c := randomChain(random)
		for c.places = 8; len(c.layers) < 60; {
			c.layers = append(c.layers, c.layers[random.IntN(len(c.layers))])
			c.layers[len(c.layers)-1].Forward *= 0.5 + random.Float64()
			c.params, c.out = append(c.params, 1<<20), append(c.out, random.Int64N(20_000))
		}
		r := c.request(t, 16)
		most, err := planner.Solve(r)
		if err != nil {
			t.Fatal(err)
		}
		r.Work = -1
		alone, err := planner.Solve(r)
		if err != nil {
			t.Fatal(err)
		}
		r.From = most.Best.Mesh
		got, err := planner.Solve(r)
		if err != nil {
			t.Fatal(err)
		}
		if got.Best.Predicted.Seconds > most.Best.Predicted.Seconds*(1+1e-9) {
			t.Errorf("from %s, of %v s: %s, of %v s", r.From, most.Best.Predicted.Seconds,
				got.Best.Mesh, got.Best.Predicted.Seconds)
		}
		if alone.Best.Predicted.Seconds > got.Best.Predicted.Seconds*(1+1e-9) {
			better++
		}
		r.Work = planner.Second / 20
		if got, err = planner.Solve(r); err != nil {
			t.Fatal(err)
		}
		if fails, err := verify(c.request(t, 16), got.Best); err != nil || fails != nil ||
			got.Best.Certificate.From != r.From {
			t.Errorf("%+v: %v, %v", got.Best.Certificate, fails, err)
		}
		for mesh, want := range map[string]string{"pp=2(micro=1)": "it is for 2 workers",
			"dp=2(3/1),pp=4(micro=1)": "on one kind of devices", "x": "the plan to begin with, x"} {
			r.From = mesh
			if _, err := planner.Solve(r); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", mesh, err)
			}
		}
	}
	if better == 0 {
		t.Error("no search with little work was slower without a plan to begin with")
	}
}

// TestTightMemory plans for devices whose memory holds few plans, one kind of them: no plan is
// slower than what the search over kinds finds, which looks for cuts by memory.
func TestTightMemory(t *testing.T) {
	for _, hosts := range []int{15, 16} {
		r := sailorRequest(t, on("V100-16", hosts))
		r.Work = -1
		got, err := planner.Solve(r)
		if err != nil {
			t.Fatal(err)
		}
		r.Workers = 4 * hosts
		other, err := planner.SolveMixed(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d hosts: %s, %.1f s, gap %.0f %%; by kinds %s, %.1f s", hosts, got.Best.Mesh,
			got.Best.Predicted.Seconds, 100*got.Best.Certificate.Gap, other.Best.Mesh,
			other.Best.Predicted.Seconds)
		if got.Best.Predicted.Seconds > other.Best.Predicted.Seconds*(1+1e-9) {
			t.Errorf("%d hosts: %s takes %v s, and %s %v", hosts, got.Best.Mesh,
				got.Best.Predicted.Seconds, other.Best.Mesh, other.Best.Predicted.Seconds)
		}
	}
}

// zooRequest returns a request for a model by formula on so many hosts of eight A100.
func zooRequest(t testing.TB, name string, hosts int) planner.Request {
	t.Helper()
	c := cluster.Cluster{Shoal: cluster.Version,
		Kinds: []cluster.Kind{{Name: "a100", Memory: 80 << 30}},
		Links: []cluster.Link{
			{Inside: true, Curve: cluster.Curve{Latency: 1e-5, Rate: 2.5e11}},
			{Curve: cluster.Curve{Latency: 2e-5, Rate: 2.5e10}}}}
	for i := range hosts {
		c.Hosts = append(c.Hosts, cluster.Host{Name: fmt.Sprint(i), Kind: "a100", Places: 8})
	}
	all := reread(t, c, cluster.Parse)
	shape, err := zoo.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	devices, err := zoo.Devices(all)
	if err != nil {
		t.Fatal(err)
	}
	return planner.Request{Model: shape.Model(devices, []int{1, 2, 4, 8}), Cluster: all,
		Batch: 1680}
}

// BenchmarkReplan makes plans fit for a host more or less, on up to 64 devices: the median of the
// milliseconds is what a job waits for a first plan. It counts what the process had of a processor
// too, which other load of the machine changes less. The seconds of a step are those of the first
// plan, and of what Solve finds that begins with it.
func BenchmarkReplan(b *testing.B) {
	mix := func(a100, v100, gh int) planner.Request {
		var hosts []importer.SailorHosts
		for _, h := range []importer.SailorHosts{on("A100-40", a100), on("V100-16", v100),
			on("GH-96", gh)} {
			if h.Count > 0 {
				hosts = append(hosts, h)
			}
		}
		return sailorRequest(b, hosts...)
	}
	for _, x := range []struct {
		name     string
		from, to planner.Request
	}{
		{"GPT-Neo/A100=32,V100=32/A100-4", mix(8, 8, 0), mix(7, 8, 0)},
		{"GPT-Neo/A100=28,V100=32/A100+4", mix(7, 8, 0), mix(8, 8, 0)},
		{"GPT-Neo/A100=8,V100=56/V100-4", mix(2, 14, 0), mix(2, 13, 0)},
		{"GPT-Neo/A100=20,V100=20,GH=24/A100-4", mix(5, 5, 6), mix(4, 5, 6)},
		{"GPT-Neo/A100=16,V100=20,GH=24/A100+4", mix(4, 5, 6), mix(5, 5, 6)},
		{"GPT-Neo/A100=64/A100-4", mix(16, 0, 0), mix(15, 0, 0)},
		{"GPT-Neo/A100=60/A100+4", mix(15, 0, 0), mix(16, 0, 0)},
		{"GPT-Neo/V100=64/V100-4", mix(0, 16, 0), mix(0, 15, 0)},
		{"llama-8b/A100=64/A100-8", zooRequest(b, "llama-8b", 8), zooRequest(b, "llama-8b", 7)},
		{"llama-70b/A100=56/A100+8", zooRequest(b, "llama-70b", 7), zooRequest(b, "llama-70b", 8)},
	} {
		last, err := planner.Solve(x.from)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(x.name, func(b *testing.B) {
			var wall, processor []float64
			var first *planner.Result
			for b.Loop() {
				began, had := time.Now(), processorSeconds(b)
				if first, err = planner.Repair(x.to, last.Best.Mesh); err != nil {
					b.Fatal(err)
				}
				wall = append(wall, 1e3*time.Since(began).Seconds())
				processor = append(processor, 1e3*(processorSeconds(b)-had))
			}
			r := x.to
			r.From = first.Best.Mesh
			then, err := planner.Solve(r)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(median(wall), "median-ms")
			b.ReportMetric(median(processor), "processor-ms")
			b.ReportMetric(first.Best.Predicted.Seconds, "first-s")
			b.ReportMetric(then.Best.Predicted.Seconds, "then-s")
		})
	}
}

// processorSeconds returns how long this process has had a processor.
func processorSeconds(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
