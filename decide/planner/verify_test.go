package planner_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
)

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
		if fails, err := planner.Verify(request, r.Best); err != nil || fails != nil {
			t.Fatalf("%s: %v, %v", r.Best.Mesh, fails, err)
		}
		for _, e := range edits {
			d := *reread(t, *r.Best, deployment.Parse)
			e.edit(&d)
			fails, err := planner.Verify(request, &d)
			if err != nil || !strings.Contains(strings.Join(fails, "\n"), e.want) {
				t.Errorf("%s: %q, %v; want %s", d.Mesh, fails, err, e.want)
			}
		}
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
