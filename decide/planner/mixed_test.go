package planner_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
	"github.com/shoal-ml/shoal/decide/planner/model"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// mixed is a model on two kinds of devices, one host of each, for the tests.
type mixed struct {
	layers [2][]model.Cost // by kind, for a micro-batch of one sample
	params []int64
	out    []int64
	places [2]int
	memory [2]int64
	links  [3]cluster.Link // inside a host of each kind, and between them
	mode   string
	batch  int
}

// drawMixed draws one with few layers and places.
func drawMixed(random *rand.Rand) mixed {
	x := mixed{places: [2]int{1 + random.IntN(2), 1 + random.IntN(2)}, batch: 1 + random.IntN(4),
		mode:   []string{cluster.Overlapped, cluster.Exchange, cluster.Blocking}[random.IntN(3)],
		memory: [2]int64{1 << 40, 1 << 40}}
	if random.IntN(3) == 0 {
		x.memory[random.IntN(2)] = 100_000 + random.Int64N(150_000)
	}
	for range 2 + random.IntN(4) {
		for k, slower := range []float64{1, 1 + 2*random.Float64()} {
			x.layers[k] = append(x.layers[k], model.Cost{Kept: 1000,
				Forward:  slower * (0.02 + 0.1*random.Float64()),
				Backward: slower * (0.02 + 0.2*random.Float64()), Update: 0.01 * random.Float64()})
		}
		x.params = append(x.params, random.Int64N(20_000))
		x.out = append(x.out, random.Int64N(20_000))
	}
	for i := range x.links {
		x.links[i].Curve = cluster.Curve{Latency: 1e-3 * random.Float64(),
			Rate: 1e5 * (1 + 9*random.Float64())}
	}
	x.links[0].Between, x.links[0].Inside = []string{"a", "a"}, true
	x.links[1].Between, x.links[1].Inside = []string{"b", "b"}, true
	return x
}

// request returns the request for a plan of it, as it is read from files.
func (x mixed) request(t *testing.T) planner.Request {
	t.Helper()
	m := model.Model{Shoal: model.Version, Name: "test"}
	for i := range x.params {
		m.Layers = append(m.Layers, model.Layer{ID: strconv.Itoa(i), Params: x.params[i],
			State: 3 * x.params[i], Out: x.out[i]})
	}
	all := cluster.Cluster{Shoal: cluster.Version, Transfer: x.mode, Links: x.links[:]}
	for k, kind := range []string{"a", "b"} {
		point := model.Point{Device: kind, Micro: 1, Layers: map[string]model.Cost{}}
		for i, c := range x.layers[k] {
			point.Layers[strconv.Itoa(i)] = c
		}
		m.Points = append(m.Points, point)
		all.Kinds = append(all.Kinds, cluster.Kind{Name: kind, Memory: x.memory[k]})
		all.Hosts = append(all.Hosts, cluster.Host{Name: "host-" + kind, Kind: kind,
			Places: x.places[k]})
	}
	return planner.Request{Model: reread(t, m, model.Parse), Cluster: reread(t, all, cluster.Parse),
		Batch: x.batch}
}

// bestOf returns the seconds of the best plan: all kinds of stages and of replicas, all cuts, all
// shares and all numbers of held micro-batches, each by timelines; +Inf where none fits.
func (x mixed) bestOf() float64 {
	best := math.Inf(1)
	for replicas := 1; replicas <= x.places[0]+x.places[1]; replicas++ {
		for stages := 1; stages <= len(x.params); stages++ {
			x.eachKinds(replicas, stages, func(kind func(r, s int) int, unlike bool) {
				eachSum(x.batch, replicas, func(shares []int) {
					for _, share := range shares {
						if !unlike && share != shares[0] {
							return
						}
					}
					x.eachCut(stages, func(starts, ahead []int) {
						best = min(best, x.step(kind, shares, starts, ahead))
					})
				})
			})
		}
	}
	return best
}

// eachKinds calls yield with all ways to put stages of replicas on kinds of which there are enough
// places: a kind for each stage, or for each replica.
func (x mixed) eachKinds(replicas, stages int, yield func(kind func(r, s int) int, unlike bool)) {
	for bits := range 1 << stages {
		used := [2]int{}
		for s := range stages {
			used[bits>>s&1] += replicas
		}
		if used[0] <= x.places[0] && used[1] <= x.places[1] {
			yield(func(_, s int) int { return bits >> s & 1 }, false)
		}
	}
	for first := 1; first < replicas; first++ { // replicas on the first kind
		if first*stages <= x.places[0] && (replicas-first)*stages <= x.places[1] {
			yield(func(r, _ int) int {
				if r < first {
					return 0
				}
				return 1
			}, true)
		}
	}
}

// eachSum calls yield with all lists of so many numbers above 0 that are n in all.
func eachSum(n, numbers int, yield func([]int)) {
	var walk func(list []int, left int)
	walk = func(list []int, left int) {
		if len(list) == numbers-1 {
			if left > 0 {
				yield(append(list[:len(list):len(list)], left))
			}
			return
		}
		for i := 1; i < left; i++ {
			walk(append(list[:len(list):len(list)], i), left-i)
		}
	}
	walk(nil, n)
}

// eachCut calls yield with all cuts into stages, and all numbers of micro-batches that these hold.
func (x mixed) eachCut(stages int, yield func(starts, ahead []int)) {
	var walk func(starts, ahead []int)
	walk = func(starts, ahead []int) {
		if len(starts) == stages {
			yield(starts, ahead)
			return
		}
		for next := starts[len(starts)-1] + 1; next < len(x.params); next++ {
			for held := 1; held <= ahead[len(ahead)-1]; held++ {
				walk(append(starts[:len(starts):len(starts)], next),
					append(ahead[:len(ahead):len(ahead)], held))
			}
		}
	}
	for held := 1; held <= x.batch; held++ {
		walk([]int{0}, []int{held})
	}
}

// step returns the seconds of a step of a plan; +Inf where it does not fit or cannot be played. A
// host has one kind, so that where the ranks of a kind are on it makes no difference.
func (x mixed) step(kind func(r, s int) int, shares, starts, ahead []int) (seconds float64) {
	stages := len(starts)
	tails, ends := make([]float64, stages), make([]float64, stages)
	for r, share := range shares {
		list := make([]timeline.Stage, stages)
		for s, from := range starts {
			to := len(x.params)
			if s+1 < stages {
				to = starts[s+1]
			}
			y, k := &list[s], kind(r, s)
			y.Ahead = ahead[s]
			y.Transfer = map[string]timeline.Transfer{cluster.Overlapped: timeline.Overlapped,
				cluster.Exchange: timeline.Exchange, cluster.Blocking: timeline.Blocking}[x.mode]
			var params, update, need = int64(0), 0.0, int64(0)
			for i := from; i < to; i++ {
				c := x.layers[k][i]
				y.Forward, y.Backward = y.Forward+c.Forward, y.Backward+c.Backward
				update += c.Update
				params += x.params[i]
				need += 3*x.params[i] + c.Kept*int64(min(ahead[s], share))
			}
			if from > 0 {
				need += 2 * x.out[from-1]
			}
			if s+1 < stages {
				link := x.link(k, kind(r, s+1))
				y.Down = link.Seconds(x.out[to-1])
				y.Up, y.Latency = y.Down, link.Latency
				need += 2 * x.out[to-1]
			}
			if need > x.memory[k] {
				return math.Inf(1)
			}
			average := 0.0
			for i := range shares {
				link := x.link(kind(i, s), kind((i+1)%len(shares), s))
				average = max(average,
					cost.RingSeconds(len(shares), params, link.SecondsOf))
			}
			tails[s] = max(tails[s], average+update)
		}
		line, err := timeline.Run(list, share)
		if err != nil {
			return math.Inf(1)
		}
		for s := range ends {
			ends[s] = max(ends[s], line.Ends[s])
		}
	}
	for s := range ends {
		seconds = max(seconds, ends[s]+tails[s])
	}
	return seconds
}

// link returns the link between workers on two kinds.
func (x mixed) link(a, b int) cluster.Link {
	if a == b {
		return x.links[a]
	}
	return x.links[2]
}

// TestBestOfMixed compares plans on two kinds of devices with the best of all, of many small
// models: kinds of stages and of replicas, cuts, shares of the batch, held micro-batches.
func TestBestOfMixed(t *testing.T) {
	const seed = 11
	cases := instances(150)
	random, feasible := rand.New(rand.NewPCG(seed, 2)), 0
	for i := range cases {
		x := drawMixed(random)
		best := x.bestOf()
		r, err := planner.Solve(x.request(t))
		if err != nil {
			if !math.IsInf(best, 1) {
				t.Errorf("seed %d, case %d: %v, and a plan takes %v s: %+v", seed, i, err, best, x)
			}
			continue
		}
		feasible++
		got := r.Best.Predicted.Seconds
		if math.Abs(got-best) > 1e-9*best || r.Best.Certificate.Bound > best*(1+1e-9) {
			t.Errorf("seed %d, case %d: %s takes %v s, at least %v, and the best of all takes %v: "+
				"%+v", seed, i, r.Best.Mesh, got, r.Best.Certificate.Bound, best, x)
		}
		judged, err := planner.Judge(x.request(t), r.Best.Mesh)
		if err != nil || math.Abs(judged.Best.Predicted.Seconds-got) > 1e-9*got {
			t.Errorf("seed %d, case %d: %s is judged otherwise: %+v, %v", seed, i, r.Best.Mesh,
				judged, err)
		}
	}
	t.Logf("%d of %d have a plan", feasible, cases)
	if feasible < cases*2/3 {
		t.Errorf("%d of %d have a plan", feasible, cases)
	}
}

// TestFewLayersMixed compares plans of models with fewer layers than a kind has places with the
// best of all: there may be more replicas of a kind than layers, and each has some of the batch,
// also where another one would end before it.
func TestFewLayersMixed(t *testing.T) {
	const seed = 7
	random := rand.New(rand.NewPCG(seed, 77))
	for i := range instances(100) {
		x := drawMixed(random)
		n := 1 + random.IntN(2)
		x.layers = [2][]model.Cost{x.layers[0][:n], x.layers[1][:n]}
		x.params, x.out = x.params[:n], x.out[:n]
		x.places = [2]int{1 + random.IntN(4), 1 + random.IntN(4)}
		x.batch = 1 + random.IntN(6)
		best := x.bestOf()
		if math.IsInf(best, 1) {
			continue
		}
		r, err := planner.Solve(x.request(t))
		if err != nil {
			t.Errorf("seed %d, case %d: %v, and a plan takes %v s: %+v", seed, i, err, best, x)
			continue
		}
		if got := r.Best.Predicted.Seconds; math.Abs(got-best) > 1e-9*best ||
			r.Best.Certificate.Bound > best*(1+1e-9) {
			t.Errorf("seed %d, case %d: %s takes %v s, at least %v, and the best of all takes %v: "+
				"%+v", seed, i, r.Best.Mesh, got, r.Best.Certificate.Bound, best, x)
		}
	}
}

// TestSharesMixed compares a plan with the best of all where many micro-batches are dealt among
// replicas of several stages on two kinds of devices: what is proved counts for all shares.
func TestSharesMixed(t *testing.T) {
	const seed = 99
	random := rand.New(rand.NewPCG(seed, 78))
	x := drawMixed(random)
	x.layers = [2][]model.Cost{x.layers[0][:2], x.layers[1][:2]}
	x.params, x.out = x.params[:2], x.out[:2]
	x.places, x.batch = [2]int{2, 2}, 15
	for l := range x.links {
		x.links[l].Rate *= 100
	}
	best := x.bestOf()
	r, err := planner.Solve(x.request(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Best.Predicted.Seconds; math.Abs(got-best) > 1e-9*best ||
		r.Best.Certificate.Bound > best*(1+1e-9) {
		t.Errorf("%s takes %v s, at least %v, and the best of all takes %v", r.Best.Mesh, got,
			r.Best.Certificate.Bound, best)
	}
}

// TestFullestMixed says of replicas on two kinds of devices, those on the one with more memory need
// more, what those need that have least left.
func TestFullestMixed(t *testing.T) {
	x := drawMixed(rand.New(rand.NewPCG(1, 2)))
	x.places, x.batch, x.memory = [2]int{1, 1}, 2, [2]int64{1 << 40, 1 << 20}
	x.layers[0][0].Kept = 1 << 30
	r, err := planner.Judge(x.request(t), "dp=2(1/1;on=a/b),pp=1(micro=1)")
	if err != nil {
		t.Fatal(err)
	}
	if m := r.Memory[r.Fullest]; r.Has != 1<<20 || m.Sum() > r.Has || m.Kept > 100_000 {
		t.Errorf("%+v of %d bytes", m, r.Has)
	}
}

// TestFormulasMixed says of each kind of device that a plan is on from what its times come.
func TestFormulasMixed(t *testing.T) {
	r := drawMixed(rand.New(rand.NewPCG(1, 2))).request(t)
	r.Model.Points[0].Formula, r.Model.Points[1].Formula = "1 TFLOP/s", "2 TFLOP/s"
	for mesh, want := range map[string]string{
		"dp=1,pp=1(micro=1;on=b)":       "2 TFLOP/s",
		"dp=1,pp=2(1/1;micro=1;on=a/b)": "1 TFLOP/s; 2 TFLOP/s",
	} {
		got, err := planner.Judge(r, strings.Replace(mesh, "1/1", fmt.Sprintf("1/%d",
			len(r.Model.Layers)-1), 1))
		if err != nil || got.Best.Predicted.Formula != want {
			t.Errorf("%s: %+v, %v; want %s", mesh, got, err, want)
		}
	}
}

// TestMixedBound compares what is proved of large mixes of devices with the best of all plans of
// small ones: it is never above it.
func TestMixedBound(t *testing.T) {
	const seed = 13
	random, sum, count := rand.New(rand.NewPCG(seed, 2)), 0.0, 0.0
	for i := range instances(150) {
		x := drawMixed(random)
		if random.IntN(2) == 0 { // slow links leave nothing but replicas, and fast ones all
			for l := range x.links {
				x.links[l].Rate *= 1000
			}
		}
		best := x.bestOf()
		if math.IsInf(best, 1) {
			continue
		}
		got, err := planner.MixedBound(x.request(t), 1.5*best)
		if err != nil || got > best*(1+1e-9) {
			t.Errorf("seed %d, case %d: %v s are proved, and the best of all takes %v: %+v, %v",
				seed, i, got, best, x, err)
		}
		sum, count = sum+got/best, count+1
	}
	t.Logf("the bound is %.0f %% of the best plan in the mean", 100*sum/count)
	if sum < 0.8*count {
		t.Error("the bound says little")
	}
}

// TestUnmeasured plans on the devices on which layers were measured, and leaves out the others.
func TestUnmeasured(t *testing.T) {
	x := drawMixed(rand.New(rand.NewPCG(1, 2)))
	x.places = [2]int{2, 1}
	r := x.request(t)
	r.Model.Points = r.Model.Points[:1]
	got, err := planner.Solve(r)
	if err != nil || got.Workers != 2 || got.Devices != "a" {
		t.Errorf("%+v, error %v", got, err)
	}
}

// TestNothingProved plans where each layer takes no time on some kind of device: nothing is proved,
// which a file can say. A kind on which no layer takes any is refused.
func TestNothingProved(t *testing.T) {
	x := drawMixed(rand.New(rand.NewPCG(1, 2)))
	x.places, x.memory, x.batch = [2]int{6, 6}, [2]int64{1 << 40, 1 << 40}, 8
	x.mode = cluster.Overlapped
	for k := range x.layers {
		x.layers[k] = make([]model.Cost, 12)
		for i := k; i < 12; i += 2 {
			x.layers[k][i] = model.Cost{Forward: 0.1, Backward: 0.2}
		}
	}
	x.params, x.out = make([]int64, 12), make([]int64, 12)
	got, err := planner.Solve(x.request(t))
	if err != nil {
		t.Fatal(err)
	}
	d := reread(t, *got.Best, deployment.Parse)
	if d.Certificate.Bound != 0 || d.Certificate.Gap != -1 {
		t.Errorf("%s: %+v", d.Mesh, d.Certificate)
	}
	if fails, err := verify(x.request(t), d); err != nil || fails != nil {
		t.Errorf("%v, %v", fails, err)
	}
	clear(x.layers[1])
	if _, err := planner.Solve(x.request(t)); err == nil ||
		!strings.Contains(err.Error(), "no layer takes any time on b") {
		t.Error(err)
	}
}

// TestMixedFreeLayers plans where most layers take no time, as reshapes in profiles:
// what is proved comes from the others.
func TestMixedFreeLayers(t *testing.T) {
	x := drawMixed(rand.New(rand.NewPCG(1, 2)))
	x.places, x.memory, x.batch = [2]int{6, 6}, [2]int64{1 << 40, 1 << 40}, 8
	for k := range x.layers {
		x.layers[k] = make([]model.Cost, 16)
		for i := 0; i < 16; i += 4 {
			x.layers[k][i] = model.Cost{Forward: 0.1 * float64(k+1), Backward: 0.2 * float64(k+1)}
		}
	}
	x.params, x.out = make([]int64, 16), make([]int64, 16)
	got, err := planner.Solve(x.request(t))
	if err != nil {
		t.Fatal(err)
	}
	if c := got.Best.Certificate; !(c.Bound > 0 && c.Gap >= 0 && c.Gap < 10) {
		t.Errorf("%s: %+v", got.Best.Mesh, c)
	}
}

// TestManyLayers plans a model of a thousand layers on two kinds of devices whose memory holds a
// few hundred each. Stages begin at some layers only, with about the same time between them, and
// the plan is good all the same.
func TestManyLayers(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	x := drawMixed(rand.New(rand.NewPCG(1, 2)))
	x.layers, x.params, x.out = [2][]model.Cost{}, nil, nil
	x.places, x.memory = [2]int{4, 4}, [2]int64{1_000_000, 700_000}
	x.batch, x.mode = 32, cluster.Overlapped
	for range 1000 {
		forward := 0.01 + 0.02*random.Float64()
		for k, slower := range []float64{1, 1.5 + random.Float64()} {
			x.layers[k] = append(x.layers[k], model.Cost{Kept: 10, Forward: slower * forward,
				Backward: 2 * slower * forward, Update: 1e-4})
		}
		x.params, x.out = append(x.params, 1000), append(x.out, 100)
	}
	for i := range x.links {
		x.links[i].Curve = cluster.Curve{Latency: 1e-4, Rate: 1e7}
	}
	r := x.request(t)
	begins, err := planner.Begins(r)
	if err != nil {
		t.Fatal(err)
	}
	count, total, since, most := 0, 0.0, 0.0, 0.0
	for l, c := range x.layers[0] {
		if begins[l] {
			count, since = count+1, 0
		}
		total, since = total+c.Forward, since+c.Forward
		most = max(most, since)
	}
	if !begins[0] || count > 129 || most > total/128+0.03 {
		t.Errorf("stages begin at %d layers, with %.3f of %.3f s between two", count, most, total)
	}
	got, err := planner.Solve(r)
	if err != nil {
		t.Fatal(err)
	}
	// With all layers the search takes half a minute, and finds this plan.
	if mesh, _, _ := strings.Cut(got.Best.Mesh, ";"); mesh != "dp=2,pp=4(328/167/173/332" {
		t.Errorf("the plan is %s, gap %.2f %%", got.Best.Mesh, 100*got.Best.Certificate.Gap)
	}
}
