package sched_test

import (
	"testing"

	"github.com/shoal-ml/shoal/decide/sched"
)

// A job that is too young to change its size yet, by what that costs, gets slots that are free when
// it is old enough, though nothing happens until then.
func TestGoodputTakesWhatIsFreeLater(t *testing.T) {
	policy, err := sched.Named("goodput")
	if err != nil {
		t.Fatal(err)
	}
	m := sched.New(sched.Config{Policy: policy,
		Costs: sched.Costs{Resize: sched.Estimate{Mean: 900_000}}})
	if err := m.Host(sched.Host{Name: "a", Slots: 8}); err != nil {
		t.Fatal(err)
	}
	submit(t, m, rigid("other", 0, 6, 1e6), elasticJob("job", 1e6))
	m.Ready()
	m.Tick(1000)
	if err := m.Ended("other"); err != nil {
		t.Fatal(err)
	}
	m.Ready()
	if got := slotsOf(m); got != "job2" {
		t.Fatalf("%s: it is a second old", got)
	}
	for asked := 0; slotsOf(m) == "job2"; asked++ {
		if m.Next() == sched.Never || asked > 2 {
			t.Fatalf("it has %s for ever, asked again %d times until %d ms", slotsOf(m), asked,
				m.Now())
		}
		m.Tick(m.Next())
		m.Ready()
	}
	if got, after := slotsOf(m), m.Now()/1000; got != "job4" || after < 900 || after > 901 {
		t.Errorf("%s after %d s", got, after)
	}
}
