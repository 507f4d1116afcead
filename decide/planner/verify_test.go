package planner_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
)

// verify lists what of a plan does not hold, where all was looked at.
func verify(r planner.Request, d *deployment.Deployment) ([]string, error) {
	v, err := planner.Verify(r, d)
	if err != nil {
		return nil, err
	}
	if v.Unproved != "" {
		return nil, errors.New(v.Unproved)
	}
	return v.Fails, nil
}

// TestVerify finds nothing wrong with plans as they are made, and each figure that somebody has
// changed.
func TestVerify(t *testing.T) {
	edits := []struct {
		want string
		edit func(d *deployment.Deployment)
	}{
		{"predicted.seconds is said", func(d *deployment.Deployment) {
			d.Predicted.Seconds *= 0.9
		}},
		{"predicted.low is said", func(d *deployment.Deployment) { d.Predicted.Low *= 0.9 }},
		{"predicted.high is said", func(d *deployment.Deployment) { d.Predicted.High *= 1.1 }},
		{"stages[0].memory is said", func(d *deployment.Deployment) { d.Stages[0].Memory++ }},
		{"stages[0].layers is said", func(d *deployment.Deployment) { d.Stages[0].Layers++ }},
		{"stages, and its mesh has", func(d *deployment.Deployment) { d.Stages = nil }},
		{"certificate.bound says that no plan takes less", func(d *deployment.Deployment) {
			d.Certificate.Bound *= 2
		}},
		{"certificate.gap is said", func(d *deployment.Deployment) { d.Certificate.Gap += 0.1 }},
	}
	random := rand.New(rand.NewPCG(7, 8))
	for range 20 {
		c := randomChain(random)
		batch := 2 * (1 + random.IntN(3))
		request := c.request(t, batch)
		r, err := planner.Solve(request)
		if err != nil {
			continue // the batch cannot be divided
		}
		if fails, err := verify(request, r.Best); err != nil || fails != nil {
			t.Fatalf("%s: %v, %v", r.Best.Mesh, fails, err)
		}
		for _, e := range edits {
			d := *reread(t, *r.Best, deployment.Parse)
			e.edit(&d)
			fails, err := verify(request, &d)
			if err != nil || !strings.Contains(strings.Join(fails, "\n"), e.want) {
				t.Errorf("%s: %q, %v; want %s", d.Mesh, fails, err, e.want)
			}
		}
	}
}

// TestVerifyWork proves anew with as much work as went into a plan, and so finds the same; and says
// of a proof that is said to have taken less that it is not found.
func TestVerifyWork(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	c := randomChain(random)
	for c.places = 6; len(c.layers) < 60; {
		c.layers = append(c.layers, c.layers[random.IntN(len(c.layers))])
		c.params, c.out = append(c.params, 1<<30), append(c.out, 0)
	}
	request := c.request(t, 6)
	request.Work = planner.Second / 10
	r, err := planner.Solve(request)
	if err != nil {
		t.Fatal(err)
	}
	for _, request.Work = range []int{planner.Second / 1000, 1} { // with less than went into it
		v, err := planner.Verify(request, r.Best)
		if err != nil || v.Fails != nil || !strings.Contains(v.Unproved, "was not proved again") {
			t.Errorf("%s: %+v, %v", r.Best.Mesh, v, err)
		}
	}
	request.Work = 0 // as much as went into it
	if fails, err := verify(request, r.Best); err != nil || fails != nil {
		t.Errorf("%s: %v, %v", r.Best.Mesh, fails, err)
	}
	r.Best.Certificate.Work = 1.0 / planner.Second
	fails, err := verify(request, r.Best)
	if err != nil || !strings.Contains(strings.Join(fails, "\n"), "proof that is found again") {
		t.Errorf("%s: %v, %v", r.Best.Mesh, fails, err)
	}
}

// TestVerifyRefuses names what cannot be judged at all.
func TestVerifyRefuses(t *testing.T) {
	request := randomChain(rand.New(rand.NewPCG(9, 10))).request(t, 2)
	for mesh, want := range map[string]string{
		"":                      "are no mesh",
		"dp=1,pp=1(99;micro=1)": "99 in all, and the model has",
		"dp=1,pp=1(micro=7)":    "were not measured",
	} {
		d := &deployment.Deployment{Mesh: mesh, Batch: 2}
		if _, err := planner.Verify(request, d); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", mesh, err, want)
		}
	}
	d := &deployment.Deployment{Mesh: "dp=1", Hosts: []string{"nowhere"}}
	if _, err := planner.Verify(request, d); err == nil ||
		!strings.Contains(err.Error(), `"nowhere" is no host`) {
		t.Error(err)
	}
}

// TestManyMicroBatches refuses batches of which the timeline of a step would not fit into memory.
func TestManyMicroBatches(t *testing.T) {
	c := randomChain(rand.New(rand.NewPCG(11, 12)))
	c.places = 4
	request := c.request(t, 1<<23)
	for mesh, want := range map[string]string{"dp=1,pp=1(micro=1)": "more than can be played",
		"dp=1,pp=2(micro=1)": "more than can be played"} {
		if _, err := planner.Judge(request, mesh); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", mesh, err)
		}
	}
	request.Batch, request.Workers = 1<<22, 1
	if _, err := planner.Solve(request); err == nil ||
		!strings.Contains(err.Error(), "more micro-batches than can be played for 1 worker") {
		t.Errorf("error %v", err)
	}
	request.Batch, request.Workers = 1<<30, 0
	for _, request.Space = range []planner.Space{planner.SpaceMesh, planner.SpaceAny} {
		if _, err := planner.Solve(request); err == nil ||
			!strings.Contains(err.Error(), "and up to 2097152 can be played") {
			t.Errorf("error %v", err)
		}
	}
}

// FuzzVerify judges deployments that anybody may have written: that ends, and without a panic.
func FuzzVerify(f *testing.F) {
	f.Add("dp=2,pp=2(3/2;micro=1;ahead=2/1)", 4, 1.0, 1.0, 0.0, 2, "a")
	f.Add("pp=3(2/2/1;micro=1),dp=1", 3, 0.5, 0.0, 1.0, 0, "")
	f.Add("dp=3(2/1),tp=1,pp=1(micro=1;chunks=2)", 6, 2.0, 3.0, -1.0, 1, "b")
	c := randomChain(rand.New(rand.NewPCG(11, 12)))
	c.places = 4
	request := c.request(f, 1)
	f.Fuzz(func(t *testing.T, mesh string, batch int, seconds, bound, gap float64, stages int,
		host string) {
		if batch > 64 {
			batch %= 64 // larger ones take long to play
		}
		d := &deployment.Deployment{Mesh: mesh, Batch: batch,
			Predicted:   deployment.Prediction{Seconds: seconds, Low: seconds, High: seconds},
			Certificate: deployment.Certificate{Bound: bound, Gap: gap},
			Stages:      make([]deployment.Stage, max(0, min(stages, 8)))}
		if host != "" {
			d.Hosts = []string{host}
		}
		_, _ = planner.Verify(request, d)
	})
}

// TestVerifyMixed proves plans on two kinds of devices again. It plans for as many workers as the
// plan has, which may be few enough to play all plans, and these were any number before.
func TestVerifyMixed(t *testing.T) {
	const seed = 12
	random, count := rand.New(rand.NewPCG(seed, 6)), 0
	for i := range instances(150) {
		x := drawMixed(random)
		x.places = [2]int{1 + random.IntN(5), 1 + random.IntN(5)}
		x.batch *= 1 + random.IntN(4)
		r := x.request(t)
		got, err := planner.Solve(r)
		if err != nil {
			continue
		}
		count++
		d := reread(t, *got.Best, deployment.Parse)
		if fails, err := verify(r, d); err != nil || fails != nil {
			t.Errorf("seed %d, case %d: %s: %v, %v: %+v", seed, i, d.Mesh, fails, err, x)
		}
	}
	if count < instances(150)/2 {
		t.Errorf("%d have a plan", count)
	}
}
