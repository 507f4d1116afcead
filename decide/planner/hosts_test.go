package planner_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// spread is a chain on several hosts with as many places each, for the tests: its link is that
// inside them.
type spread struct {
	chain
	hosts   int
	between cluster.Curve
	mode    string
}

// drawSpread draws one with few layers and places. Links between hosts are mostly slower, and half
// of the models have much to average and send the same after each layer.
func drawSpread(random *rand.Rand) spread {
	x := spread{chain: randomChain(random), hosts: 2 + random.IntN(2),
		mode: []string{cluster.Overlapped, cluster.Exchange, cluster.Blocking}[random.IntN(3)]}
	x.places = 1 + random.IntN(2)
	x.between = cluster.Curve{Latency: 1e-3 * random.Float64(),
		Rate: 1e5 * (1 + 9*random.Float64())}
	if random.IntN(2) == 0 {
		for i := range x.params {
			x.params[i], x.out[i] = 20*x.params[i], 10_000
		}
	}
	return x
}

// request returns the request for a plan of it.
func (x spread) request(t *testing.T, batch int) planner.Request {
	t.Helper()
	r := x.chain.request(t, batch)
	all := cluster.Cluster{Shoal: cluster.Version, Transfer: x.mode, Kinds: r.Cluster.Kinds,
		Links: []cluster.Link{x.link, {Curve: x.between}}}
	for i := range x.hosts {
		all.Hosts = append(all.Hosts, cluster.Host{Name: fmt.Sprint(i), Kind: "cpu",
			Places: x.places})
	}
	r.Cluster = reread(t, all, cluster.Parse)
	return r
}

// bestOf returns the seconds of the best plan by its number of replicas: both ways to lay ranks
// over hosts, all cuts and all numbers of held micro-batches.
func (x spread) bestOf(batch int) map[int]float64 {
	list, workers := map[int]float64{}, x.hosts*x.places
	for replicas := 1; replicas <= workers; replicas++ {
		best, stages := math.Inf(1), workers/replicas
		if workers%replicas != 0 || batch%replicas != 0 || stages > len(x.layers) {
			continue
		}
		for _, near := range []bool{false, true} { // whether replicas of a stage are neighbours
			link := func(r, s, q, u int) cluster.Curve {
				host := func(r, s int) int {
					if near {
						return (s*replicas + r) / x.places
					}
					return (r*stages + s) / x.places
				}
				if host(r, s) == host(q, u) {
					return x.link.Curve
				}
				return x.between
			}
			mixed{params: x.params, batch: batch / replicas}.eachCut(stages,
				func(starts, ahead []int) {
					best = min(best, x.step(link, batch/replicas, replicas, starts, ahead))
				})
		}
		list[replicas] = best
	}
	return list
}

// step returns the seconds of a step of a plan, whose worker of replica r and stage s has a link to
// that of q and u; +Inf where it cannot be played.
func (x spread) step(link func(r, s, q, u int) cluster.Curve, micro, replicas int,
	starts, ahead []int) float64 {
	list := make([]timeline.Stage, len(starts))
	for s, from := range starts {
		to := len(x.layers)
		if s+1 < len(starts) {
			to = starts[s+1]
		}
		y, params := &list[s], int64(0)
		y.Ahead = ahead[s]
		y.Transfer = map[string]timeline.Transfer{cluster.Overlapped: timeline.Overlapped,
			cluster.Exchange: timeline.Exchange, cluster.Blocking: timeline.Blocking}[x.mode]
		for i := from; i < to; i++ {
			y.Forward, y.Backward = y.Forward+x.layers[i].Forward, y.Backward+x.layers[i].Backward
			y.Tail += x.layers[i].Update
			params += x.params[i]
		}
		average := 0.0
		for r := range replicas {
			ring := link(r, s, (r+1)%replicas, s)
			average = max(average, cost.RingSeconds(replicas, params, ring.SecondsOf))
			if s+1 == len(starts) {
				continue
			}
			way := link(r, s, r, s+1)
			if took := way.Seconds(x.out[to-1]); took > y.Down {
				y.Down, y.Up, y.Latency = took, took, way.Latency
			}
		}
		y.Tail += average
	}
	line, err := timeline.Run(list, micro)
	if err != nil {
		return math.Inf(1)
	}
	return line.Seconds
}

// TestOverHosts compares plans over several hosts with the best of all, of many small models, and
// what is proved of them, as on one kind of device and as on several, where it is less.
func TestOverHosts(t *testing.T) {
	const seed = 23
	random, count, proved := rand.New(rand.NewPCG(seed, 2)), 0, 0.0
	for i := range instances(150) {
		x, batch := drawSpread(random), 1+random.IntN(4)
		list := x.bestOf(batch)
		best := math.Inf(1)
		r := x.request(t, batch)
		for replicas, seconds := range list {
			best = min(best, seconds)
			stages := x.hosts * x.places / replicas
			mesh := fmt.Sprintf("dp=%d,pp=%d(micro=1;ahead=%s)", replicas, stages,
				strings.Repeat("/1", stages)[1:])
			judged, err := planner.Judge(r, mesh)
			if err != nil || judged.Best.Certificate.Bound > seconds*(1+1e-9) {
				t.Errorf("seed %d, case %d: %s: %+v, %v; the best of these takes %v s: %+v", seed,
					i, mesh, judged, err, seconds, x)
			}
		}
		got, err := planner.Solve(r)
		if err != nil {
			if !math.IsInf(best, 1) {
				t.Errorf("seed %d, case %d: %v, and a plan takes %v s: %+v", seed, i, err, best, x)
			}
			continue
		}
		if p := got.Best.Predicted.Seconds; math.Abs(p-best) > 1e-9*best ||
			got.Best.Certificate.Bound > best*(1+1e-9) {
			t.Errorf("seed %d, case %d: %s takes %v s, at least %v, and the best of all takes %v: "+
				"%+v", seed, i, got.Best.Mesh, p, got.Best.Certificate.Bound, best, x)
		}
		least, err := planner.MixedBound(r, 1.5*best)
		if err != nil || least > best*(1+1e-9) {
			t.Errorf("seed %d, case %d: %v s are proved, and the best of all takes %v: %+v, %v",
				seed, i, least, best, x, err)
		}
		count, proved = count+1, proved+least/best
	}
	t.Logf("%d plans; as on several kinds %.0f %% of the best is proved in the mean", count,
		100*proved/float64(count))
	if count < instances(150)*2/3 {
		t.Errorf("%d cases have a plan", count)
	}
}

// TestSharedCard plays stages on hosts that are far from each other, whose workers share a network
// card: that is busy with what they send or get for as long as it takes, not as long as the link of
// one of them is; with one direction at a time, for twice as long.
func TestSharedCard(t *testing.T) {
	const micro = 50
	for _, c := range []struct {
		name       string
		halfDuplex bool
		places     []int // of each host
		times      float64
		most       float64 // times as long; replicas on two hosts average over the link too
	}{
		{"from one host to one", false, []int{4, 4}, 1, 1.2},
		{"one direction at a time", true, []int{4, 4}, 2, 1.2},
		{"from one host to two", false, []int{4, 2, 2}, 1, 1.4},
		{"from two hosts to one", false, []int{2, 2, 4}, 1, 1.4},
	} {
		x := spread{chain: alike(2, 4), hosts: len(c.places),
			between: cluster.Curve{Latency: 0.03, Rate: 1e6}}
		for i := range x.layers {
			x.layers[i].Forward, x.layers[i].Backward, x.out[i] = 1e-3, 1e-3, 1000
		}
		r := x.request(t, 4*micro)
		all := *r.Cluster
		all.Links[1].Shared, all.Links[1].HalfDuplex = &cluster.Curve{Rate: 2.5e5}, c.halfDuplex
		for i, n := range c.places {
			all.Hosts[i].Places = n
		}
		r.Cluster = reread(t, all, cluster.Parse)
		got, err := planner.Judge(r, "pp=2(1/1;micro=1;ahead=50/1),dp=4")
		if err != nil {
			t.Fatal(err)
		}
		card := c.times * micro * 4 * 1000 / 2.5e5
		if s := got.Best.Predicted.Seconds; s < card || s > c.most*card {
			t.Errorf("%s: the step takes %v s, and the card is busy for %v", c.name, s, card)
		}
	}
}

// TestLinkOfEstimates has estimates take the link between hosts wherever there are two, and that
// inside a host for a kind that one host alone has.
func TestLinkOfEstimates(t *testing.T) {
	x := drawMixed(rand.New(rand.NewPCG(1, 2)))
	x.places = [2]int{1, 2}
	r := x.request(t)
	link := func(a, b string) *cluster.Link {
		l, err := planner.LinkOf(r, a, b)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	inside, between := &r.Cluster.Links[1], &r.Cluster.Links[2]
	if link("a", "a") != nil || link("b", "b") != inside {
		t.Error("with a host of each kind: another link than that inside it")
	}
	if link("a", "b") != between || link("b", "a") != between {
		t.Error("with a host of each kind: another link than that between them")
	}
	all := *r.Cluster
	all.Hosts = append(all.Hosts, cluster.Host{Name: "host-b-2", Kind: "b", Places: 2})
	all.Links = slices.Clone(all.Links)
	all.Links[2].Between = nil
	r.Cluster = reread(t, all, cluster.Parse)
	if link("b", "b") != &r.Cluster.Links[2] {
		t.Error("with two hosts of a kind: another link than that between them")
	}
}

// TestLinksOfKinds has what is proved take all links that workers on a kind of device may have, and
// for averages between such alone none that is between this kind and another one.
func TestLinksOfKinds(t *testing.T) {
	x := drawMixed(rand.New(rand.NewPCG(1, 2)))
	x.places = [2]int{1, 2}
	r := x.request(t)
	all, host := *r.Cluster, r.Cluster.Hosts[1].Name // of kind b
	list := [][]string{nil, {"a", "a"}, {"a", "b"}, {"b", "b"}, {"a", host}, {host, host}}
	all.Links = nil
	for _, between := range list {
		link := r.Cluster.Links[2]
		link.Between = between
		all.Links = append(all.Links, link)
	}
	r.Cluster = &all
	for _, c := range []struct {
		kind  string
		alike bool
		want  []int // numbers in the list
	}{{"a", false, []int{0, 1, 2, 4, 5}}, {"a", true, []int{0, 1, 4, 5}},
		{"b", false, []int{0, 2, 3, 4, 5}}, {"b", true, []int{0, 3, 5}}} {
		got, err := planner.LinksOf(r, c.kind, c.alike)
		if err != nil {
			t.Fatal(err)
		}
		var want [][]string
		for _, i := range c.want {
			want = append(want, list[i])
		}
		if !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("kind %s, alike %v: links between %v, want %v", c.kind, c.alike, got, want)
		}
	}
}
