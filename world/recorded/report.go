package recorded

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/history"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/twin"
	"github.com/shoal-ml/shoal/world/job"
	"github.com/shoal-ml/shoal/world/scenario"
)

// What can be said of a run: how well the job in virtual time does what was recorded, and what
// would come of a what-if. All of it runs on the goroutine that calls Play.

// Report is what can be said of a run. Seconds are medians of steps.
type Report struct {
	Job         string   `json:"job,omitempty"`
	Command     []string `json:"command,omitempty"`
	Version     string   `json:"version,omitempty"`
	Workers     int      `json:"workers,omitempty"` // that it began with
	Generations int      `json:"generations"`
	Changes     int      `json:"changes"`
	// Missing is what is not there or could not be read, and Notes is what was not measured.
	Missing []string `json:"missing,omitempty"`
	Notes   []string `json:"notes,omitempty"`
	// Periods are the sizes and batches that the job had, in the order in which they began.
	Periods []Period `json:"periods,omitempty"`
	// Hosts are what h1, h2 and so on stand for.
	Hosts    []string `json:"hosts,omitempty"`
	Scenario string   `json:"scenario,omitempty"` // the job as it was last
	WhatIf   *WhatIf  `json:"what_if,omitempty"`
}

// Period compares what was measured with what was played, of steps with a size and a batch.
type Period struct {
	Size   int     `json:"size"`
	Batch  uint64  `json:"batch,omitempty"` // 0 = not known
	Round  uint32  `json:"round,omitempty"` // optimizer steps of a round; 0 = there were none
	Steps  float64 `json:"steps"`
	P10    float64 `json:"p10"`
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	Played float64 `json:"played"`
}

// WhatIf is what would come of something else, as the job was last.
type WhatIf struct {
	What        string       `json:"what"`
	Size        int          `json:"size"`
	Batch       uint64       `json:"batch,omitempty"`
	StepSeconds setting.Band `json:"step_seconds"`
	// By which factor steps take longer, samples a second and goodput grow. Goodput is zero where
	// the noise scale is not known.
	Step       setting.Band `json:"step"`
	Throughput setting.Band `json:"throughput"`
	Goodput    setting.Band `json:"goodput"`
}

const (
	// mostSteps is how many steps are played at most, and mostDraws how many steps of workers.
	mostSteps, mostDraws = 400, 1 << 20
	// mostPeriods is how many sizes and batches are fitted and played, those with the most steps.
	mostPeriods = 24
)

// ErrNothing says that nothing can be said of the steps of a run.
var ErrNothing = errors.New("nothing can be said of its steps")

// Play plays a run, and what comes of a what-if; "" = none. The report has what is known even where
// the error is ErrNothing; another error is about the what-if. Chance follows from the seed.
func Play(r *Run, what string, seed uint64) (*Report, error) {
	p := &Report{Job: r.Name, Command: r.Command, Version: r.Version, Workers: r.Workers,
		Generations: r.Generations, Changes: r.Changes, Missing: r.Missing}
	c := calibrate(r.Rows)
	if c == nil {
		if len(r.Rows) > 0 {
			p.Missing = append(slices.Clone(p.Missing),
				"no step was measured that no change has disturbed")
		}
		return p, ErrNothing
	}
	if r.Shares {
		c.notef("ranks had unequal shares of the work, and are played with equal ones: who had " +
			"less is slower than it looks here")
	}
	p.Notes, p.Scenario = c.notes, c.mid.scenarioText(1000)
	for i, name := range c.names {
		p.Hosts = append(p.Hosts, fmt.Sprintf("h%d = %s", i+1, name))
	}
	for _, q := range c.periods {
		m := c.mid
		if q.size%m.workers == 0 {
			m.hosts = q.size / m.workers
		} else {
			m.hosts, m.workers = q.size, 1
		}
		if m.round = q.round; q.batch > 0 {
			m.batch = q.batch
		}
		played, err := playModel(&m, "", seed)
		if err != nil {
			p.Missing = append(slices.Clone(p.Missing), fmt.Sprintf("it cannot be played: %v", err))
			return p, ErrNothing
		}
		if off := math.Abs(portable.Log(played / q.median)); off < 10 {
			c.misfit = max(c.misfit, off)
		}
		one := Period{Size: q.size, Batch: q.batch, Steps: q.steps, P10: q.p10,
			Median: q.median, P90: q.p90, Played: played}
		if q.round > 1 {
			one.Round = q.round
		}
		p.Periods = append(p.Periods, one)
	}
	if what == "" {
		return p, nil
	}
	var err error
	p.WhatIf, err = c.playWhatIf(what, seed, r.Rows)
	return p, err
}

// playModel plays a model with what package scenario reads of a what-if, and returns the median of
// the seconds of its whole steps, each the mean of a round.
func playModel(m *model, what string, seed uint64) (float64, error) {
	each := max(m.hosts*m.workers, 1) * int(max(m.round, 1))
	steps := max(8, min(mostSteps, mostDraws/each))
	s, err := scenario.Parse(m.scenarioText(steps), nil, what)
	if err != nil {
		return 0, err
	}
	s.Job.Seed = seed
	w, err := job.New(s.Job)
	if err != nil {
		return 0, err
	}
	var seconds []float64
	for range steps {
		step, on := w.Step()
		if !on {
			break
		}
		round := max(step.Round, 1)
		whole := step.Samples == step.Batch*uint64(max(s.Job.Data.Round, 1))
		if whole || len(seconds) == 0 {
			seconds = append(seconds, step.Seconds/float64(round))
		}
	}
	slices.Sort(seconds)
	return (seconds[(len(seconds)-1)/2] + seconds[len(seconds)/2]) / 2, nil
}

// playWhatIf plays a what-if by all models that fit.
func (c *calibration) playWhatIf(text string, seed uint64, rows []history.Row) (*WhatIf, error) {
	var factors []float64
	r := &WhatIf{What: text}
	from, to := c.mid, c.mid
	for i, m := range append([]model{c.mid}, c.variants...) {
		before := m
		w, err := c.readWhatIf(text, &m)
		if err != nil {
			return nil, err
		}
		m = m.withWhatIf(w)
		played, err := playModel(&m, w.rest, seed)
		if err != nil {
			return nil, err
		}
		was, err := playModel(&before, "", seed)
		if err != nil {
			return nil, err
		}
		if factor := played / was; factor > 0 && !math.IsInf(factor, 0) {
			factors = append(factors, factor)
		}
		if i == 0 {
			to = m
		}
	}
	if len(factors) == 0 {
		return nil, errors.New("a step takes no time that is known")
	}
	size := to.hosts * to.workers
	r.Size, r.Batch = size, to.batch
	samples := math.Ceil(float64(max(to.batch, 1)) / float64(size))
	wide := portable.Exp(portable.Hypot(c.doubtAt(samples),
		portable.Hypot(c.misfit, c.base.computeError()/c.base.computeSeconds())))
	r.Step = setting.Band{Low: slices.Min(factors) / wide, Mid: factors[0],
		High: slices.Max(factors) * wide}
	r.StepSeconds = scaleBand(r.Step, c.base.median)
	growth := 1.0
	if from.batch > 0 {
		growth = float64(to.batch) / float64(from.batch)
	} else {
		growth = float64(size) / float64(from.hosts*from.workers)
	}
	r.Throughput = setting.Band{Low: growth / r.Step.High, Mid: growth / r.Step.Mid,
		High: growth / r.Step.Low}
	if e := c.efficiencyFactor(to, rows); e.IsKnown() {
		r.Goodput = setting.Band{Low: r.Throughput.Low * e.Low, Mid: r.Throughput.Mid * e.Mid,
			High: r.Throughput.High * e.High}
	}
	return r, nil
}

// scaleBand returns a band of `by` times its numbers.
func scaleBand(b setting.Band, by float64) setting.Band {
	return setting.Band{Low: b.Low * by, Mid: b.Mid * by, High: b.High * by}
}

// efficiencyFactor returns by which factor what a sample brings grows with the batch of another
// model, and the way to synchronise, as the twin of a job says it; zero = the noise scale is not
// known.
func (c *calibration) efficiencyFactor(to model, rows []history.Row) setting.Band {
	now := setting.Setting{Batch: c.base.batch, Sync: setting.Ssgd, Round: 1}
	if c.base.round > 1 {
		now.Sync, now.Round = "local", c.base.round
	}
	o := sense.Observation{Size: c.base.size, Setting: now, Steps: &sense.StepSeries{},
		Split: sense.Split{Seconds: c.base.median, Exposed: c.base.exposed}}
	if c.base.batch == 0 {
		return setting.Band{}
	}
	next := now
	if next.Batch = to.batch; to.sync != "" {
		next.Sync, next.Round = to.sync, to.round
	}
	if next.Equal(now) {
		return setting.Band{Low: 1, Mid: 1, High: 1}
	}
	for _, r := range rows {
		if r.Data != nil {
			o.First = r.Data.First
		}
		if r.Noise != nil && r.Noise.Scale != nil {
			o.Noise = noise.Estimate{Known: true, Scale: *r.Noise.Scale, Above: r.Noise.Above}
		}
	}
	for range 8 { // the twin says nothing of jobs without steps
		o.Step++
		o.Steps.Add(sense.StepSample{Step: o.Step, Seconds: c.base.median, Samples: c.base.batch,
			Batch: c.base.batch, Size: c.base.size, Round: c.base.round})
	}
	var t twin.Twin
	t.Observe(o)
	return t.Predict(decide.Target{Setting: next}).Efficiency
}
