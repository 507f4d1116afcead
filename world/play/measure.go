package play

import (
	"math"
	"math/bits"
	"slices"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/world/job"
	"github.com/shoal-ml/shoal/world/scenario"
)

// What is measured of a scenario while it is played, and compared with what is expected. One
// goroutine plays a scenario, and uses the player, the oracle, the tally and the audit.

// oracle knows what the job would do with every batch and size: it asks the world, which nobody who
// decides can.
type oracle struct {
	world      *job.World
	options    []option  // the first has the stated batch and the members of the start
	seconds    []float64 // by option: mean of a step
	conditions int       // of the world, that seconds are of
	ideal      bool      // the best also has the best shares of work
	pairs      bool      // it has from when workers average in pairs
	even       float64   // mean seconds of a step of the first option, all having the same part
}

// option is how the job could train.
type option struct {
	members int // 0 = as many as there are
	batch   float64
	sync    string // "" = as it is
	round   uint32 // likewise
}

// oracleNumbers is how many batches or sizes of a range the best is looked for among.
const oracleNumbers = 33

// newOracle returns an oracle of a world whose levers are open. Ideal is whether the best also has
// the best shares of work.
func newOracle(w *job.World, l setting.Levers, first uint64, ideal bool) oracle {
	o := oracle{world: w, ideal: ideal}
	ways := []setting.Setting{{}}
	if l.Auto {
		ways = append([]setting.Setting{{Sync: l.Sync, Round: l.Round}}, policy.SyncCandidates()...)
	}
	for _, members := range numbersOf(l.Size, float64(w.Setting().Size)) {
		for _, batch := range numbersOf(l.Batch, float64(first)) {
			for _, way := range ways {
				o.options = append(o.options, option{int(members), batch, way.Sync, way.Round})
			}
		}
	}
	o.seconds = make([]float64, len(o.options))
	return o
}

// numbersOf returns a number and those of a range, at equal factors.
func numbersOf(r setting.Range, first float64) []float64 {
	list := []float64{first}
	if r.IsOpen() {
		growth := portable.Log(float64(r.To) / float64(r.From))
		for i := range oracleNumbers {
			part := float64(i) / (oracleNumbers - 1)
			x := math.Round(float64(r.From) * portable.Exp(part*growth))
			if !slices.Contains(list, x) {
				list = append(list, x)
			}
		}
	}
	return list
}

// secondsOf returns how many seconds a step of option x takes in the mean, as the job is now; ideal
// is as in oracle.
func (o *oracle) secondsOf(x option, ideal bool) float64 {
	w := o.world
	if x.sync != "" {
		w = w.CopyWithSync(x.sync, x.round)
	}
	if x.members == 0 {
		return w.MeanSeconds(uint64(x.batch), ideal)
	}
	return w.MeanSecondsOf(x.members, uint64(x.batch), ideal)
}

// efficiency returns how much a sample brings to option x, compared with one in the stated batch.
func (o *oracle) efficiency(x option) float64 {
	if x.sync != "" {
		return o.world.EfficiencyIn(x.sync, x.round, x.batch)
	}
	return o.world.Efficiency(x.batch)
}

// goodput returns the progress a second of the first option and of the best one, as the job is now.
func (o *oracle) goodput() (first, best float64) {
	if o.conditions != o.world.Conditions() {
		o.conditions = o.world.Conditions()
		sync := o.world.Setting().WithStated(0, o.world.Levers()).Sync
		o.ideal = o.ideal || o.pairs && setting.MeetsInPairs(sync)
		for i, x := range o.options {
			o.seconds[i] = o.secondsOf(x, o.ideal)
		}
		o.even = o.secondsOf(o.options[0], false)
	}
	for i, x := range o.options {
		rate := x.batch * o.efficiency(x) / o.seconds[i]
		if i == 0 {
			first = rate * o.seconds[0] / o.even
		}
		best = max(best, rate)
	}
	return first, best
}

// sums are what was counted of some steps.
type sums struct {
	steps    float64
	seconds  float64
	samples  float64
	progress float64
	first    float64 // progress that the first batch would have made in the same time
	best     float64 // progress that the best one would have made
}

// add adds the sums o of other steps to s.
func (s *sums) add(o sums) {
	s.steps += o.steps
	s.seconds += o.seconds
	s.samples += o.samples
	s.progress += o.progress
	s.first += o.first
	s.best += o.best
}

// tally is what was counted so far, of the period under way and of the whole. late has, by
// expectation, the sums of the steps that count for it.
type tally struct {
	period    sums
	late      []sums
	lastEvent uint64 // committed steps before the newest event
	progress  float64
	size      int
	batch     uint64
}

// addStep counts a step in the result.
func (p *player) addStep(s job.Step) {
	// What another batch would have made in the time of this step, in which whatever happens to
	// the hosts holds it up as well.
	first, best := p.oracle.goodput()
	time := s.Seconds - s.Pause
	one := sums{1, s.Seconds, float64(s.Samples), s.Progress - p.tally.progress, first * time,
		best * time}
	p.tally.progress, p.tally.size, p.tally.batch = s.Progress, s.Size, s.Batch
	for _, e := range s.Events {
		p.begun = append(p.begun, e.Text)
		p.tally.lastEvent = s.Step - 1
		clear(p.tally.late)
	}
	if c := p.currentPeriod(); len(p.begun) == 0 && c.Workers > s.Size {
		p.begun = append(p.begun, plural.Of(s.Size, "worker")+" left")
	} else if len(p.begun) == 0 && c.Workers < s.Size {
		p.begun = append(p.begun, plural.Of(s.Size, "worker")+" now")
	}
	if len(p.begun) > 0 {
		p.result.Periods = append(p.result.Periods, Period{From: s.Step - 1, At: s.At - s.Seconds,
			Events: p.begun, Hosts: s.Hosts, Workers: s.Size, Batch: s.Batch})
		p.begun, p.tally.period = nil, sums{}
	}
	p.tally.period.add(one)
	t, c := p.tally.period, p.currentPeriod()
	c.To, c.StepRate, c.Rate = s.Step, t.steps/t.seconds, t.samples/t.seconds
	c.Goodput, c.Best = t.progress/t.seconds, t.best/t.seconds
	if p.tally.late == nil {
		p.tally.late = make([]sums, len(p.Expected))
	}
	for i, e := range p.Expected {
		if s.Step > p.tally.lastEvent+e.After {
			p.tally.late[i].add(one)
		}
	}
	r := &p.result
	r.Steps, r.Seconds, r.Progress = s.Step, s.At, s.Progress
	r.Samples += s.Samples
	r.Workers += float64(float64(s.Size) * s.Seconds)
}

// currentPeriod returns the period that is not over; nil before the first.
func (p *player) currentPeriod() *Period {
	if n := len(p.result.Periods); n > 0 {
		return &p.result.Periods[n-1]
	}
	return nil
}

// compareExpectations compares the result with what is expected.
func (p *player) compareExpectations() {
	p.recordWhyNots()
	for i, e := range p.Expected {
		var late sums
		if p.tally.late != nil {
			late = p.tally.late[i]
		}
		value := p.expectationValue(e, late)
		c := Check{Line: e.Line, Text: e.Text, Value: Number(value), Holds: e.Holds(value)}
		if e.What == "samples" {
			c.Holds = value == 0
		}
		p.result.Checks = append(p.result.Checks, c)
	}
}

// expectationValue returns what came of what an expectation is about, where the steps that count
// for it have these sums.
func (p *player) expectationValue(e scenario.Expectation, late sums) float64 {
	switch e.What {
	case "goodput":
		if e.Of == "first" {
			return late.progress / late.first
		}
		return late.progress / late.best
	case "changes":
		return float64(p.result.countPhase(setting.Entered))
	case "reverted":
		return float64(p.result.countPhase(setting.Reverted))
	case "batch":
		return float64(p.tally.batch)
	case "size":
		return float64(p.tally.size)
	case "save":
		return float64(p.world.Setting().Save)
	case "cost":
		return p.result.Workers / 3600 * p.Price
	case "steps/s":
		return late.steps / late.seconds
	case "samples/s":
		return late.samples / late.seconds
	case "time":
		if p.result.Progress < p.result.Target || p.result.Ended != "" {
			return math.Inf(1)
		}
		return p.result.Seconds
	}
	return float64(p.audit.wrongSamples())
}

// audit counts which samples of an epoch have counted. One goroutine uses it.
type audit struct {
	samples uint64
	epoch   uint64
	counted []uint64 // a bit a sample of the epoch
	faults  uint64   // samples that have counted twice, or not at all in an epoch that is over
}

// newAudit returns an audit of epochs of so many samples.
func newAudit(samples uint64) *audit {
	return &audit{samples: samples, counted: make([]uint64, (samples+63)/64)}
}

// countSamples counts the samples of an epoch that are in these spans as trained on once more.
func (a *audit) countSamples(epoch uint64, spans []cursor.Span) {
	if epoch != a.epoch {
		for _, word := range a.counted {
			a.faults -= uint64(bits.OnesCount64(word))
		}
		a.faults += a.samples * (epoch - a.epoch)
		clear(a.counted)
		a.epoch = epoch
	}
	for _, s := range spans {
		for i := s.From; i < s.To; i++ {
			bit := uint64(1) << (i % 64)
			if a.counted[i/64]&bit != 0 {
				a.faults++
			}
			a.counted[i/64] |= bit
		}
	}
}

// wrongSamples returns how many samples have not counted exactly once in the epochs that are over,
// and how many twice in the newest.
func (a *audit) wrongSamples() uint64 { return a.faults }
