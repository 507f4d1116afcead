package planner_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/model"
)

// alike returns a chain of so many layers that are alike, on one host of some places.
func alike(layers, places int) chain {
	c := chain{places: places, memory: 1 << 40,
		link: cluster.Link{Inside: true, Curve: cluster.Curve{Rate: 1e9}}}
	for range layers {
		c.layers = append(c.layers, model.Cost{Forward: 1, Backward: 2, Kept: 1 << 10})
		c.params, c.out = append(c.params, 1<<10), append(c.out, 64)
	}
	return c
}

// TestUndivided asks for plans of batches that cannot be divided: errors say which can. All that
// they propose can be planned.
func TestUndivided(t *testing.T) {
	for _, x := range []struct {
		layers, places, micro, tp, batch, workers int
		want                                      string
	}{
		{1, 3, 1, 1, 7, 0, "among 3 workers with the micro-batches that were measured, [1], and " +
			"1 layer: take a batch of 6 or 9, or unequal shares of it (--mesh " +
			"'dp=3(3/2/2),pp=1(micro=1)', 9 s a step), or 1 worker (--workers 1)"},
		{1, 2, 4, 1, 12, 0, "take a batch of 8 or 16, or unequal shares of it (--mesh " +
			"'dp=2(2/1),pp=1(micro=4)', 6 s a step), or 1 worker (--workers 1)"},
		{1, 4, 2, 1, 3, 0, "take a batch of 8"},
		{4, 2, 2, 1, 7, 0, "take a batch of 6 or 8"},
		{4, 3, 1, 2, 8, 0, "3 workers cannot be divided into stages and replicas: there are 4 " +
			"stages at most, one a layer, and [2] ranks that share layers must be on one host: " +
			"take other workers, or 2 workers (--workers 2)"},
		{2, 3, 1, 1, 4, 3, "take a batch of 3 or 6, or unequal shares of it (--mesh " +
			"'dp=3(2/1/1),pp=1(micro=1)', 12 s a step), or 2 workers (--workers 2)"},
	} {
		r := alike(x.layers, x.places).request(t, x.batch)
		r.Model.Points[0].Micro, r.Workers = x.micro, x.workers
		if x.tp > 1 {
			r.Model.Points[0].TP = x.tp
		}
		if _, err := planner.Solve(r); err == nil || !strings.HasSuffix(err.Error(), x.want) {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

// TestUndividedUnlike asks for a plan of a batch that could be divided among replicas on two kinds
// of devices if there were places for them on both.
func TestUndividedUnlike(t *testing.T) {
	x := drawMixed(rand.New(rand.NewPCG(1, 2)))
	x.layers = [2][]model.Cost{x.layers[0][:2], x.layers[1][:2]}
	x.params, x.out = x.params[:2], x.out[:2]
	x.places, x.batch = [2]int{4, 1}, 3
	r := x.request(t)
	r.Workers = 4
	if _, err := planner.Solve(r); err == nil || !strings.HasSuffix(err.Error(),
		": take a batch of 2 or 4, or 3 workers (--workers 3)") {
		t.Error(err)
	}
}

// TestUndividedLarge asks for plans of very many workers, layers and samples: errors come soon.
func TestUndividedLarge(t *testing.T) {
	c := alike(2, 1)
	r := onHosts(t, c.request(t, 1<<30-1), 4096)
	if _, err := planner.Solve(r); err == nil || !strings.HasSuffix(err.Error(),
		": take a batch of 1073739776 or 1073741824, or 3906 workers (--workers 3906)") {
		t.Error(err)
	}
}

// TestUndividedMixed does the same on two kinds of devices.
func TestUndividedMixed(t *testing.T) {
	x := mixed{places: [2]int{1, 1}, batch: 3, memory: [2]int64{1 << 40, 1 << 40}}
	for k := range x.layers {
		x.layers[k] = []model.Cost{{Forward: 1, Backward: 1}}
	}
	x.params, x.out = []int64{1}, []int64{1}
	for i, between := range [][]string{{"a", "a"}, {"b", "b"}, nil} {
		x.links[i] = cluster.Link{Between: between, Inside: i < 2,
			Curve: cluster.Curve{Rate: 1e9}}
	}
	for _, c := range []struct {
		batch, workers int
		want           string
	}{
		{3, 0, "among 2 workers with the micro-batches that were measured, [2], and 1 layer: " +
			"take a batch of 2 or 4"},
		{2, 2, "among 2 workers with the micro-batches that were measured, [2], and 1 layer: " +
			"take a batch of 4, or 1 worker (--workers 1)"},
	} {
		x.batch = c.batch
		r := x.request(t)
		r.Workers = c.workers
		for i := range r.Model.Points {
			r.Model.Points[i].Micro = 2
		}
		if _, err := planner.Solve(r); err == nil || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestUnmeasuredKind says what to do where nothing was measured on the devices of any host.
func TestUnmeasuredKind(t *testing.T) {
	r := alike(4, 1).request(t, 4)
	r.Model.Points[0].Device = "gpu"
	if _, err := planner.Solve(r); err == nil || !strings.Contains(err.Error(), "nothing was "+
		"measured on cpu; the model has points of gpu: measure it on that kind (python3 -m "+
		"shoal.torch.profile … --device-name cpu)") {
		t.Error(err)
	}
}

// TestUnmeasuredPoint judges a mesh whose degree of tp, or whose micro-batch, was not measured, and
// one for a kind that was not.
func TestUnmeasuredPoint(t *testing.T) {
	r := alike(4, 2).request(t, 4)
	r.Cluster = reread(t, cluster.Cluster{Shoal: cluster.Version,
		Links: append(r.Cluster.Links, cluster.Link{Curve: cluster.Curve{Rate: 1e9}}),
		Kinds: []cluster.Kind{{Name: "cpu", Memory: 1 << 40}, {Name: "gpu", Memory: 1 << 40}},
		Hosts: []cluster.Host{{Name: "a", Kind: "cpu", Places: 2},
			{Name: "b", Kind: "gpu", Places: 2}},
	}, cluster.Parse)
	for mesh, want := range map[string]string{
		"pp=1(on=cpu),tp=2(micro=1)": "layers that 2 ranks share were not measured on cpu " +
			"(tp=2); those of tp=[1] were",
		"dp=1(micro=7;on=cpu)":         "were not measured on cpu with tp=1; those of [1] were",
		"dp=2(1/1;micro=1;on=cpu/gpu)": "nothing was measured on gpu; the model has points of cpu",
	} {
		if _, err := planner.Judge(r, mesh); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", mesh, err, want)
		}
	}
	r.Workers = 3
	_, err := planner.Solve(r)
	want := "3 workers; the hosts have places for 2 on cpu, and nothing was measured on the other 2"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
