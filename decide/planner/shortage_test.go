package planner_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/model"
)

// fitsSomehow reports whether some cut into as many stages as there are places fits into memory,
// if each stage holds one micro-batch.
func (c chain) fitsSomehow() bool {
	var walk func(stage, from int) bool
	walk = func(stage, from int) bool {
		need := int64(0)
		if from > 0 {
			need += 2 * c.out[from-1]
		}
		for to := from + 1; to <= len(c.layers); to++ {
			need += 3*c.params[to-1] + c.layers[to-1].Kept
			sent := 2 * c.out[to-1]
			if to == len(c.layers) {
				sent = 0
			}
			if need+sent > c.memory {
				continue // the next layer may give less to the one after it
			}
			if stage+1 == c.places && to == len(c.layers) || stage+1 < c.places &&
				walk(stage+1, to) {
				return true
			}
		}
		return false
	}
	return walk(0, 0)
}

// TestTight plans chains on workers whose memory is about what the leanest plan takes, too many
// plans to play all: there is a plan exactly where some cut fits.
func TestTight(t *testing.T) {
	const seed = 21
	random, fit := rand.New(rand.NewPCG(seed, 1)), 0
	for i := range 60 {
		c := randomChain(random)
		for c.places = 3; len(c.layers) < 11; {
			c.layers = append(c.layers, model.Cost{Forward: 0.1, Backward: random.Float64()})
			c.params, c.out = append(c.params, 0), append(c.out, random.Int64N(20_000))
		}
		for l := range c.layers {
			c.params[l], c.layers[l].Kept = random.Int64N(10_000), random.Int64N(10_000)
		}
		c.memory = 80_000 + random.Int64N(90_000)
		r := c.request(t, 11)
		r.Work = -1
		_, err := planner.Solve(r)
		if want := c.fitsSomehow(); want != (err == nil) {
			t.Errorf("seed %d, case %d: some cut fits: %v, and the planner says %v", seed, i, want,
				err)
		} else if want {
			fit++
		}
	}
	t.Logf("%d of 60 fit", fit)
	if fit < 15 || fit > 45 {
		t.Errorf("%d of 60 fit", fit)
	}
}

// onHosts puts the places of a request on hosts of one place each.
func onHosts(t *testing.T, r planner.Request, count int) planner.Request {
	t.Helper()
	all := *r.Cluster
	all.Hosts, all.Links = nil, []cluster.Link{{Curve: cluster.Curve{Rate: 1e9}}}
	for i := range count {
		all.Hosts = append(all.Hosts, cluster.Host{Name: fmt.Sprint("host-", i), Kind: "cpu",
			Places: 1})
	}
	r.Cluster = reread(t, all, cluster.Parse)
	return r
}

// TestShortage asks for plans that do not fit into memory: errors say for what it is, and what
// would fit.
func TestShortage(t *testing.T) {
	for _, x := range []struct {
		places, workers, micro int
		memory                 int64
		mesh, want             string
	}{
		{2, 0, 1, 5 << 10, "", "dp=1,pp=2 with micro-batches of 1, a worker of stage 0, layers 0 " +
			"to 1, needs 8.12 KiB (state 6 KiB, kept for backward 2 KiB, transfers 128 B), and a " +
			"cpu has 5 KiB; it would fit with 2 more devices of cpu (--workers 4): dp=1,pp=4(1/1/" +
			"1/1;micro=1;ahead=1/1/1/1) fits, with 4.25 KiB on the fullest worker and 96 s a " +
			"step, or with 8.12 KiB of memory on each cpu"},
		{6, 0, 1, 5 << 10, "", "it would fit with 4 workers (--workers 4): dp=1,pp=4(1/1/1/1;" +
			"micro=1;ahead=1/1/1/1) fits"},
		{4, 1, 1, 9 << 10, "", "it would fit with 2 workers (--workers 2): dp=1,pp=2(2/2;micro=1;"},
		{2, 0, 1, 3 << 10, "", "it would fit with 8.12 KiB of memory on each cpu"},
		{4, 0, 2, 4<<10 + 256, "", "or with smaller micro-batches, if those were measured " +
			"(--micro 1)"},
		{2, 0, 1, 9 << 10, "pp=2(2/2;micro=1)", "stage 0, layers 0 to 1, needs 10.1 KiB (state " +
			"6 KiB, kept for backward 4 KiB, transfers 128 B), and a cpu has 9 KiB; dp=1,pp=2(2/" +
			"2;micro=1;ahead=1/1) fits, with 8.12 KiB on the fullest worker and 96 s a step"},
		{4, 0, 1, 5 << 10, "pp=2(micro=1)", "and a cpu has 5 KiB; dp=1,pp=4(1/1/1/1;micro=1;" +
			"ahead=1/1/1/1) fits"},
		{2, 0, 1, 5 << 10, "pp=2(micro=1)", "; no other mesh on these hosts fits; shoal plan " +
			"without --mesh says what would"},
	} {
		c := alike(4, 1)
		c.memory = x.memory
		r := onHosts(t, c.request(t, 8), x.places)
		r.Workers, r.Model.Points[0].Micro = x.workers, x.micro
		var err error
		if x.mesh != "" {
			_, err = planner.Judge(r, x.mesh)
		} else {
			_, err = planner.Solve(r)
		}
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

// TestTightMixed plans on two kinds of devices whose memory is too small for 1F1B, where there are
// too many plans to play all: stages hold fewer micro-batches, and where that does not fit either,
// the error says with how many more devices a plan does.
func TestTightMixed(t *testing.T) {
	x := mixed{places: [2]int{3, 3}, batch: 12, memory: [2]int64{4000, 4000}}
	for range 12 {
		for k := range x.layers {
			x.layers[k] = append(x.layers[k], model.Cost{Forward: 1, Backward: 1, Kept: 1000})
		}
		x.params, x.out = append(x.params, 0), append(x.out, 0)
	}
	for i, between := range [][]string{{"a", "a"}, {"b", "b"}, nil} {
		x.links[i] = cluster.Link{Between: between, Inside: i < 2,
			Curve: cluster.Curve{Rate: 1e9}}
	}
	got, err := planner.Solve(x.request(t))
	if err != nil {
		t.Fatal(err)
	}
	if got.Workers != 6 || got.Memory[got.Fullest].Sum() > 4000 {
		t.Errorf("%+v", got.Best)
	}
	x.memory = [2]int64{1500, 1500}
	const want = "it would fit with 6 more devices of a: dp=1,pp=12("
	if _, err := planner.Solve(x.request(t)); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}

// TestHugeMemory judges meshes of models that need more bytes than can be counted.
func TestHugeMemory(t *testing.T) {
	c := alike(2, 2)
	c.layers[0].Kept = 1 << 49
	r := c.request(t, 1<<15)
	const mesh = "dp=1,pp=2(1/1;micro=1;ahead=32768/1)"
	if _, err := planner.Judge(r, mesh); err == nil ||
		!strings.Contains(err.Error(), "does not fit into memory") {
		t.Errorf("2^64 bytes are kept: %v", err)
	}
	c.layers[0].Kept, c.out[0] = 0, 1<<49
	r = c.request(t, 1<<16)
	r.Model.Points[0].Micro = 1 << 15
	if _, err := planner.Judge(r, "dp=1,pp=2(1/1;micro=32768;ahead=1/1)"); err == nil ||
		!strings.Contains(err.Error(), "does not fit into memory") {
		t.Errorf("2^64 bytes are sent: %v", err)
	}
}
