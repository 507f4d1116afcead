// Command lube measures in virtual time what predictions and late binding are worth to policy
// shares, which gives slow hosts less work, as Lube does (Wang and Li, HotCloud 2017). It prints
// the tables of docs/experiments/lube.md: the same command prints the same bytes.
//
//	go run ./bench/lube [-seed 1] [-seeds 10] [-seconds 900] [-ahead 1]
package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/predict"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/world/job"
	"github.com/shoal-ml/shoal/world/play"
	"github.com/shoal-ml/shoal/world/scenario"
)

// One goroutine runs the program. Only main reads flags, and run and print write to out; everything
// else is a function of values.

func main() {
	var m measurement
	flag.Uint64Var(&m.seed, "seed", 1, "of the first run")
	flag.IntVar(&m.seeds, "seeds", 10, "runs of each kind")
	flag.Float64Var(&m.seconds, "seconds", 900, "virtual seconds of a run")
	flag.IntVar(&m.ahead, "ahead", 1, "seconds ahead that are predicted")
	flag.Parse()
	err := m.check(flag.Args())
	if err == nil {
		err = m.run(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lube:", err)
		os.Exit(1)
	}
}

// check returns what is wrong with the flags, and with arguments, of which the program takes none.
func (m measurement) check(arguments []string) error {
	switch {
	case len(arguments) > 0:
		return fmt.Errorf("there are no arguments, but it got %q; all flags: lube -help", arguments)
	case m.seeds < 1:
		return fmt.Errorf("-seeds %d: it takes 1 or more", m.seeds)
	case !(m.seconds > 0) || math.IsInf(m.seconds, 0):
		return fmt.Errorf("-seconds %v: it takes a number above 0", m.seconds)
	case m.ahead < 0:
		return fmt.Errorf("-ahead %d: it takes 0 or more", m.ahead)
	}
	return nil
}

// measurement is what is measured.
type measurement struct {
	seed    uint64 // of the first run
	seeds   int
	seconds float64 // virtual seconds of a run
	ahead   int     // for which second from now on it is predicted how slow workers are
}

// disturbance is how long a host is disturbed, and how long none is before the next one: between
// two bounds, all factors between them alike probable.
type disturbance struct {
	name    string
	on, off [2]float64 // seconds
}

// disturbances are those that are measured.
var disturbances = []disturbance{
	{"0.5 to 3 s", [2]float64{0.5, 3}, [2]float64{2, 10}},
	{"5 to 20 s", [2]float64{5, 20}, [2]float64{5, 20}},
	{"30 to 120 s", [2]float64{30, 120}, [2]float64{20, 60}},
	{"0.5 to 120 s", [2]float64{0.5, 120}, [2]float64{2, 60}},
}

// predictors are the ways in which it is predicted how slow a worker will be.
var predictors = []struct {
	name string
	make func() predict.Predictor // nil = what was measured counts
}{
	{"none", nil},
	{"last value", func() predict.Predictor { return &predict.Last{} }},
	{"ewma", func() predict.Predictor { return &predict.EWMA{} }},
	{"arima", func() predict.Predictor { return &predict.ARIMA{} }},
	{"slidhmm", func() predict.Predictor { return &predict.SlidHMM{} }},
	{"the best of them", func() predict.Predictor { return predict.NewBest(predict.All()...) }},
}

// hosts is how many hosts a job has, and batch how many samples a step.
const hosts, batch = 4, 128

// fixed and each are the seconds that a worker computes in a step, and those for each sample.
const fixed, each = 0.002, 0.001

// row is a line of a table.
type row struct {
	name, late        string
	of                []float64 // by run: the goodput as a part of the oracle's
	changes, reverted float64   // a run
}

// run plays all runs, and writes the tables to out.
func (m measurement) run(out io.Writer) error {
	fmt.Fprintf(out, "seeds %d to %d, %.0f s each, predicted for %d s ahead\n", m.seed,
		m.seed+uint64(m.seeds)-1, m.seconds, m.ahead)
	for _, d := range disturbances {
		var rows []row
		add := func(name, late string, p decide.Policy, make func() predict.Predictor) error {
			r, err := m.play(d, p, make)
			r.name, r.late = name, late
			rows = append(rows, r)
			return err
		}
		if err := add("work stays equal", "", equal{}, nil); err != nil {
			return err
		}
		for late, word := range []string{"no", "yes"} {
			for _, p := range predictors {
				err := add(p.name, word, policy.Shares{AtOnce: late == 0}, p.make)
				if err != nil {
					return err
				}
			}
		}
		print(out, d, rows)
	}
	return nil
}

// print writes the table of a disturbance to out.
func print(out io.Writer, d disturbance, rows []row) {
	fmt.Fprintf(out, "\nDisturbances of %s, every %g to %g s\n\n"+
		"| predictor | late binding | goodput, of the oracle's | beside none, late | changes | "+
		"taken back |\n|---|---|---|---|---|---|\n", d.name, d.off[0], d.off[1])
	base := rows[1+len(predictors)].of
	for _, r := range rows {
		differences := slices.Clone(r.of)
		for i := range differences {
			differences[i] -= base[i]
		}
		mean, meanError := meanOf(r.of)
		change, changeError := meanOf(differences)
		fmt.Fprintf(out, "| %s | %s | %.1f ± %.1f %% | %+.1f ± %.1f | %.1f | %.1f |\n", r.name,
			r.late, 100*mean, 100*meanError, 100*change, 100*changeError, r.changes, r.reverted)
	}
}

// meanOf returns the mean of numbers, and its standard error; 0 for a single one.
func meanOf(list []float64) (mean, standardError float64) {
	for _, x := range list {
		mean += x / float64(len(list))
	}
	for _, x := range list {
		standardError += (x - mean) * (x - mean) / float64(len(list)*max(len(list)-1, 1))
	}
	return mean, math.Sqrt(standardError)
}

// equal is a policy shares that leaves all work equal.
type equal struct{ policy.Shares }

// Decide implements decide.Policy: it leaves everything as it is.
func (equal) Decide(sense.Observation, decide.Twin, []byte) (decide.Decision, []byte) {
	return decide.NoChange("work stays equal"), nil
}

// play plays a run for each seed under the policy p, and returns the row of the table that has
// their results. make makes the predictors of how slow hosts will be; nil = there are none.
func (m measurement) play(d disturbance, p decide.Policy,
	make func() predict.Predictor) (out row, err error) {
	for i := range m.seeds {
		f := &forecast{make: make, ahead: m.ahead}
		r, err := play.Play(disturbedJob(d, m.seed+uint64(i), m.seconds),
			[]decide.Policy{p}, f.withForecast)
		if err != nil {
			return out, err
		}
		out.of = append(out.of, ratio(r))
		for _, c := range r.Entries {
			switch c.Phase {
			case setting.Entered:
				out.changes += 1 / float64(m.seeds)
			case setting.Reverted:
				out.reverted += 1 / float64(m.seeds)
			}
		}
	}
	return out, nil
}

// ratio returns the progress of a run as a part of what the best shares of work would have brought
// in each step, by who knows of all disturbances.
func ratio(r *play.Result) float64 {
	made, best := 0., 0.
	for i, p := range r.Periods {
		end := r.Seconds
		if i+1 < len(r.Periods) {
			end = r.Periods[i+1].At
		}
		made += p.Goodput * (end - p.At)
		best += p.Best * (end - p.At)
	}
	return made / best
}

// disturbedJob returns a job whose hosts are disturbed by turns: one whose processors others use,
// one whose cable is slow, one whose disk is busy.
func disturbedJob(d disturbance, seed uint64, seconds float64) *scenario.Scenario {
	c := job.Config{Seed: seed, Network: cost.Default(), Gradients: 5_000_000}
	c.Data, _ = cursor.New(1_000_000, batch, seed, true)
	const cable = 8 / 10e9
	for i := range hosts {
		c.Cores = append(c.Cores, 1)
		c.Hosts = append(c.Hosts, job.Host{Machine: i, Workers: 1, Fixed: fixed, PerSample: each,
			Residuals: job.ResidualFactors(0.05), Cable: cable})
	}
	random := rand.New(rand.NewPCG(seed, 0x10be))
	// between draws a number from bounds, whose factors are alike probable.
	between := func(b [2]float64) float64 {
		return b[0] * math.Pow(b[1]/b[0], random.Float64())
	}
	for at, n := between(d.off), 0; at < seconds; n++ {
		on := between(d.on)
		host, size := random.IntN(hosts), 2+random.Float64()
		begin, end := job.Event{Host: host, Timed: true, At: at}, job.Event{Host: host, Timed: true,
			At: at + on}
		switch n % 3 {
		case 0:
			begin.What, begin.Value, begin.Text = job.Slow, size, "processors"
			end.What, end.Value = job.Slow, 1
		case 1:
			begin.What, begin.Value, begin.Text = job.Cable, 10*cable, "cable"
			end.What, end.Value = job.Cable, cable
		default:
			begin.What, begin.Value, begin.Text = job.Disk, each*(size-1), "disk"
			end.What, end.Value = job.Disk, 0
		}
		end.Text = begin.Text + " free"
		c.Events = append(c.Events, begin, end)
		at += on + between(d.off)
	}
	return &scenario.Scenario{Job: c, Seconds: seconds, Policies: []string{"shares"}}
}
