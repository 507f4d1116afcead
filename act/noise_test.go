package act

import (
	"math"
	"testing"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
)

// What is remembered of the noise becomes older by the optimizer steps that were made since, of
// which the commits of each round were as many as it had then.
func TestNoiseAgesBySteps(t *testing.T) {
	l := &Loop{}
	known := noise.Estimate{Known: true, Scale: setting.Band{Low: 400, Mid: 512, High: 640}}
	// look has the loop look at a job that trains in rounds since an earlier step.
	look := func(since, step uint64, sync string, round uint32, n noise.Estimate) setting.Band {
		s := setting.Setting{Batch: 64, Sync: sync, Round: round}
		l.EntryApplied(Entry{Step: since, Setting: s})
		l.Observe(sense.Observation{Step: step, Size: 4, Setting: s, Noise: n})
		return l.now.Noise.Scale
	}
	look(0, 100, setting.Ssgd, 1, known)
	look(100, 1100, "local", 4, noise.Estimate{})
	got := look(1100, 1101, "local", 64, noise.Estimate{})
	roots := math.Sqrt((1000*4 + 64) / staleSteps)
	if want := 640 * math.Pow(staleHigh, roots); math.Abs(got.High/want-1) > 1e-9 {
		t.Errorf("after 4064 steps the scale is up to %v, want %v", got.High, want)
	}
}
