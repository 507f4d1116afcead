package act_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/twin"
)

// application is a training job that was measured on four GPUs.
type application struct {
	name           string
	first, largest uint64 // the batches that it begins with and that the GPUs have memory for
	steps          []measuredStep
	noise          []measuredNoise
	targets        []measuredTarget
}

// measuredStep is what a step takes where a GPU has so many samples.
type measuredStep struct{ samples, seconds float64 }

// measuredNoise is the noise scale up to a number of steps of the first batch.
type measuredNoise struct{ until, scale float64 }

// measuredTarget is when runs of several batches were as good as the best of the first batch, but
// for some percent.
type measuredTarget struct {
	percent   int
	iteration float64 // of the first batch
	runs      []measuredRun
}

// measuredRun is when a run of a batch was as good, and when it was to be by the noise of its own
// gradients, in iterations.
type measuredRun struct{ batch, iteration, expected float64 }

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
		case "target":
			var x measuredTarget
			_, err = fmt.Sscan(rest, &x.percent, &x.iteration)
			a.targets = append(a.targets, x)
		case "run":
			var x measuredRun
			_, err = fmt.Sscan(rest, &x.batch, &x.iteration, &x.expected)
			t := &a.targets[len(a.targets)-1]
			t.runs = append(t.runs, x)
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
// takes hardly longer than the best batch that stays, which nobody knows before. The rates that it
// sets count nearly as many steps of the first batch as the noise of each step would.
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
		counted := j.counted / j.progress
		t.Logf("%s: rates count %.3f of the progress", a.name, counted)
		if !(counted > 0.92 && counted < 1.01) {
			t.Errorf("%s: rates count %.3f of the progress: %v", a.name, counted, j.phases())
		}
		if took > 1.05*best {
			t.Errorf("%s takes %.3f of the time of the best batch: %v", a.name, took/best,
				j.phases())
		}
	}
}

// How many samples a larger batch takes to be as good is predicted from the run of the first batch
// as well as by the formula of AdaScale, in which the twin's efficiency is another way to say the
// same. The statistical epochs of a run, by the noise of its own gradients, are nearer to the truth
// on average.
func TestSamplesToTargetsOnProfilesOfPollux(t *testing.T) {
	const trusted = 8 // times the first batch
	bars := []struct {
		percent int
		error   float64 // of the formula, in percent
	}{{90, 10}, {95, 7}, {97, 6}, {99, 13}}
	predicted, counted := map[int][]float64{}, map[int][]float64{}
	for _, a := range readApplications(t) {
		for _, target := range a.targets {
			for _, run := range target.runs {
				if run.batch <= trusted*float64(a.first) {
					p := a.iterations(run.batch, target.iteration)
					predicted[target.percent] = append(predicted[target.percent],
						math.Abs(p/run.iteration-1))
					counted[target.percent] = append(counted[target.percent],
						math.Abs(run.expected/run.iteration-1))
				}
			}
		}
	}
	for _, bar := range bars {
		percent := bar.percent
		p, c := predicted[percent], counted[percent]
		t.Logf("%d %%: the twin is off by %.1f %% in the median of %d runs, %.1f %% on average; "+
			"statistical epochs by %.1f %%, %.1f %%", percent, 100*medianOf(p), len(p),
			100*mean(p), 100*medianOf(c), 100*mean(c))
		if math.Round(100*medianOf(p)) > bar.error {
			t.Errorf("at %d %% the twin is off by %.1f %%, the formula by %v %%", percent,
				100*medianOf(p), bar.error)
		}
		if mean(c) > mean(p) {
			t.Errorf("at %d %% statistical epochs are off by %.3f, what the twin predicts by %.3f",
				percent, mean(c), mean(p))
		}
	}
}

// iterations returns in how many iterations a batch is predicted to come as far as the first batch
// does in so many, by the noise of that run.
func (a application) iterations(batch, until float64) (sum float64) {
	from := 0.0
	for _, n := range a.noise {
		if to := min(n.until, until); to > from {
			scale := min(n.scale, 1e12)
			tw := &twin.Twin{}
			var steps sense.StepSeries
			for i := range uint64(4) {
				steps.Add(sense.StepSample{Step: i + 1, Batch: a.first, Samples: a.first, Size: 4,
					Seconds: 1})
			}
			tw.Observe(sense.Observation{Step: 4, Size: 4, First: a.first, Steps: &steps,
				Setting: setting.Setting{Batch: a.first}, Noise: noise.Estimate{Known: true,
					Scale: setting.Band{Low: scale, Mid: scale, High: scale}}})
			p := tw.Predict(decide.Target{Setting: setting.Setting{Batch: uint64(batch)}})
			sum += (to - from) * float64(a.first) / (p.Efficiency.Mid * batch)
			from = to
		}
	}
	return sum
}

// medianOf returns the median of some numbers, which it sorts.
func medianOf(list []float64) float64 {
	slices.Sort(list)
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}

// mean returns the mean of some numbers.
func mean(list []float64) (sum float64) {
	for _, x := range list {
		sum += x / float64(len(list))
	}
	return sum
}
