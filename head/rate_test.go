package head_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// A policy's change of the rate alone is entered and kept by one entry, on all hosts alike, and
// beside no trial. That of a person is measured as others are.
func TestRateIsKeptAtOnce(t *testing.T) {
	p := newOpenPair(t)
	all := []topo.WorkerID{0, 1, 2, 3}
	c := setting.Change{Phase: setting.Entered, Policy: "batch", Because: "noise"}
	p.endStep(1, all...)
	p.mustChange("A", setting.Setting{Rate: 1.5}, c)
	p.endStep(2, all...)
	want := setting.Change{Number: 1, Phase: setting.Kept, Policy: "batch", Step: 2,
		To: "rate=1.5", Because: "noise"}
	for host := range p.agents {
		a := newestAction[*head.Apply](p, host)
		if a.Change == nil || cmp.Diff(want, *a.Change) != "" || !a.Changed || a.Trial != nil ||
			a.Setting.Rate != 1.5 || a.Setting.Number != 1 || a.Data.Batch != 16 {
			t.Errorf("%s applies %+v, change %+v", host, a, a.Change)
		}
	}
	p.mustChange("A", setting.Setting{Rate: 2}, setting.Change{Phase: setting.Entered, Who: "ada"})
	p.endStep(3, all...)
	if s := p.agents["B"].State(); s.Trial == nil || s.Setting.Rate != 2 {
		t.Errorf("a person's rate: %+v", s)
	}
	if err := p.agents["A"].Change(setting.Setting{Rate: 1.5}, c); err == nil ||
		!strings.Contains(err.Error(), "change 2 is under trial") {
		t.Errorf("beside a trial: %v", err)
	}
}

// withRate returns a change with another measured rate.
func withRate(c setting.Change, rate float64) setting.Change {
	c.Rate = rate
	return c
}
