package act_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/setting"
)

// application is a training job that was measured on four GPUs.
type application struct {
	name           string
	first, largest uint64 // the batches that it begins with and that the GPUs have memory for
	steps          []measuredStep
	noise          []measuredNoise
}

// measuredStep is what a step takes where a GPU has so many samples.
type measuredStep struct{ samples, seconds float64 }

// measuredNoise is the noise scale up to a number of steps of the first batch.
type measuredNoise struct{ until, scale float64 }

// readApplications reads testdata/pollux.txt.
func readApplications(t testing.TB) (list []application) {
	text, err := os.ReadFile("testdata/pollux.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		kind, rest, _ := strings.Cut(line, " ")
		var a *application
		if len(list) > 0 {
			a = &list[len(list)-1]
		}
		switch kind {
		case "app":
			var x application
			_, err = fmt.Sscan(rest, &x.name, &x.first)
			list = append(list, x)
		case "step":
			var x measuredStep
			_, err = fmt.Sscan(rest, &x.samples, &x.seconds)
			a.steps, a.largest = append(a.steps, x), uint64(4*x.samples)
		case "noise":
			var x measuredNoise
			_, err = fmt.Sscan(rest, &x.until, &x.scale)
			a.noise = append(a.noise, x)
		}
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	return list
}

// seconds returns what a step takes where a GPU has so many samples: between two numbers that were
// measured, interpolated in logarithms; with fewer than the least as with that.
func (a application) seconds(samples float64) float64 {
	samples = max(samples, a.steps[0].samples)
	i := max(slices.IndexFunc(a.steps, func(s measuredStep) bool {
		return s.samples >= samples
	}), 1)
	from, to := a.steps[i-1], a.steps[i]
	part := math.Log(samples/from.samples) / math.Log(to.samples/from.samples)
	return math.Exp(math.Log(from.seconds) + part*math.Log(to.seconds/from.seconds))
}

// scale returns the noise scale after so many steps of the first batch.
func (a application) scale(progress float64) float64 {
	i := slices.IndexFunc(a.noise, func(n measuredNoise) bool { return progress < n.until })
	if i < 0 {
		i = len(a.noise) - 1
	}
	return min(a.noise[i].scale, 1e12)
}

// fixed returns the seconds that the job takes with a batch that stays.
func (a application) fixed(batch float64, progress float64) (seconds float64) {
	from, step := 0.0, a.seconds(math.Ceil(batch/4))
	for _, n := range a.noise {
		scale := min(n.scale, 1e12)
		gain := (scale/float64(a.first) + 1) / (scale/batch + 1)
		if until := min(n.until, progress); until > from {
			seconds += (until - from) / gain * step
			from = until
		}
	}
	return seconds
}

// On the profiles of six applications, in the world of the formula of the efficiency, the loop
// takes hardly longer than the best batch that stays, which nobody knows before.
func TestLoopOnProfilesOfPollux(t *testing.T) {
	for _, a := range readApplications(t) {
		r := setting.Range{From: a.first, To: a.largest}
		progress := a.noise[len(a.noise)-1].until
		var times []float64
		for i := range 50 {
			times = append(times, a.fixed(math.Round(float64(r.From)*
				math.Pow(float64(r.To)/float64(r.From), float64(i)/49)), progress))
		}
		slices.Sort(times)
		best, median := times[0], times[len(times)/2]
		j := newJob(newLoop(t, act.Auto, policy.Batch{}), a.first, r)
		j.seconds, j.scale, j.spread = a.seconds, a.scale, 0.03
		took := j.run(t, progress)
		t.Logf("%s: %.3f of the time of the best batch, %.3f of the median; %d changes, in the "+
			"end batch %d after %d steps", a.name, took/best, took/median, j.state.Setting.Number,
			j.batch(), j.state.Step)
		if took > 1.05*best {
			t.Errorf("%s takes %.3f of the time of the best batch: %v", a.name, took/best,
				j.phases())
		}
	}
}
