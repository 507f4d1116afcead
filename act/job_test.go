package act_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/sim"
)

// job is a job in virtual time whose head enters what its loop orders. One goroutine uses it.
type job struct {
	seconds func(batch float64) float64    // of a step, by the samples of a worker
	scale   func(progress float64) float64 // the noise scale, by the progress; 0 = it is unknown
	spread  float64                        // of the logarithms of the seconds
	// sized, if it is not nil, returns in place of seconds what a step takes with so many members
	// and samples of a worker, and of that the exposed communication.
	sized func(members int, samples float64) (seconds, exposed float64)
	epoch uint64 // steps of an epoch; 0 = it never ends
	joins int    // steps from an order of members to the first that joins, and from one to the next
	rng   *rand.Rand

	loop     *act.Loop
	state    act.Entry
	steps    sense.StepSeries
	events   sim.Queue[func()] // what happens by itself
	seen     sense.Observation // the newest
	first    uint64            // the batch that the program states
	size     int
	moves    int             // steps since a member has come or left, or was ordered to
	members  uint64          // generation of the members
	now      float64         // seconds
	sums                     // of all steps
	waiting  *act.Order      // that is entered at the end of the next step
	saves    sense.Saves     // what is known of its checkpoints
	estimate *noise.Estimate // of the noise, whatever it is; nil = by its scale
	refuse   error           // why the head refuses the next order; nil = it does not
	log      []act.Order
	said     []act.Order // orders that were only said
}

// sums are what the steps of a job add up to.
type sums struct {
	worked   float64 // seconds of all members together
	progress float64 // steps of the stated batch without noise in their seconds
	counted  float64 // progress as the rates of the setting say
}

// newJob returns a job of four workers that is to train by a batch in a range, and is led by the
// loop here.
func newJob(loop *act.Loop, batch uint64, r setting.Range) *job {
	j := &job{loop: loop, first: batch, size: 4, members: 1, rng: rand.New(rand.NewPCG(1, 2)),
		seconds: func(x float64) float64 { return 0.05 + 0.0005*x },
		scale:   func(float64) float64 { return 600 }}
	j.state = act.Entry{Setting: setting.Setting{}, Levers: setting.Levers{Batch: r}, Leads: true}
	loop.EntryApplied(j.state)
	return j
}

// batch returns the batch in force.
func (j *job) batch() uint64 {
	if b := j.state.Setting.Batch; b > 0 {
		return b
	}
	return j.first
}

// gain returns how many steps of the stated batch a step of a batch is worth.
func (j *job) gain(batch, scale float64) float64 {
	return (scale/float64(j.first) + 1) / (scale/batch + 1)
}

// stepUnobserved trains by one step at which nobody looks.
func (j *job) stepUnobserved() {
	batch, scale := float64(j.batch()), j.scale(j.progress)
	j.moveMembers()
	took, _ := j.secondsWith(j.size, math.Ceil(batch/float64(j.size)))
	took *= math.Exp(j.spread * j.rng.NormFloat64())
	j.now += took
	j.worked += took * float64(j.size)
	j.progress += j.gain(batch, scale)
	j.counted += cmp.Or(j.state.Setting.Rate, 1)
	j.state.Step++
	j.steps.Add(sense.StepSample{Step: j.state.Step, Seconds: took, Samples: j.batch(),
		Batch: j.batch(), Size: j.size, Generation: j.members, Change: j.state.Setting.Number,
		Deal: sense.DealOf(j.state.Setting.Shares)})
}

// secondsWith returns what a step takes with so many members and samples of a worker, and of that
// the exposed communication.
func (j *job) secondsWith(members int, samples float64) (seconds, exposed float64) {
	if j.sized != nil {
		return j.sized(members, samples)
	}
	return j.seconds(samples), 0
}

// moveMembers has a member join, or all leave that are too many, if it is time to.
func (j *job) moveMembers() {
	wanted := int(j.state.Setting.Size)
	j.moves++
	switch {
	case wanted == 0 || wanted == j.size || j.moves < j.joins && wanted > j.size:
		return
	case wanted > j.size:
		j.size++
	default:
		j.size = wanted
	}
	j.moves = 0
	j.members++
}

// step trains by one step, and lets the head enter what waits and the loop observe it.
func (j *job) step(t testing.TB) {
	j.stepUnobserved()
	for j.events.Len() > 0 {
		at, happen := j.events.Next()
		if at > j.now {
			j.events.Add(at, happen)
			break
		}
		happen()
	}
	j.enterWaiting(t)
	j.observe(t)
}

// enterWaiting has the head enter what waits, or nothing, and tells the loop.
func (j *job) enterWaiting(t testing.TB) {
	j.state.Change = nil
	if o := j.waiting; o != nil {
		j.waiting = nil
		c := o.Change
		switch {
		case !c.Phase.IsEnd():
			if j.state.Trial != nil && c.Who == "" {
				t.Fatalf("%+v is entered beside %+v", c, j.state.Trial)
			}
			if err := j.state.Levers.CheckChange(j.state.Setting, o.Next); err != nil {
				j.loop.OrderRefused(err) // it was closed meanwhile
				break
			}
			c.Number, c.Step = j.state.Setting.Number+1, j.state.Step
			if c.From+c.To == "" {
				c.From, c.To = j.state.Setting.Diff(o.Next)
			}
			j.moves = 0
			j.state.Setting = o.Next.EnteredBy(c, j.state.Setting)
			j.state.Trial, j.state.Change = &c, &c
			if c.IsAtOnce() {
				c.Phase, j.state.Trial = setting.Kept, nil
			}
		case j.state.Trial != nil && j.state.Trial.Number == c.Number:
			j.state.Setting = o.Next.EnteredBy(c, j.state.Setting)
			j.state.Trial, j.state.Change = nil, &c
		default:
			t.Fatalf("%+v ends, and %+v is under trial", c, j.state.Trial)
		}
		if j.state.Change != nil {
			j.log = append(j.log, act.Order{Next: j.state.Setting, Change: c})
		}
	}
	j.loop.EntryApplied(j.state)
}

// observe lets the loop observe the job, and keeps what it orders for the next step.
func (j *job) observe(t testing.TB) {
	s := j.state.Setting
	s.Batch = j.batch()
	j.seen = sense.Observation{Step: j.state.Step, Size: j.size, First: j.first, Setting: s,
		Now: sense.Duration(j.now * 1e9), Levers: j.state.Levers, Steps: &j.steps,
		Saves: j.saves}
	if j.epoch > 0 {
		j.seen.Epoch, j.seen.Samples = j.state.Step/j.epoch, j.epoch*s.Batch
	}
	if j.sized != nil {
		j.seen.Split.Seconds, j.seen.Split.Exposed = j.secondsWith(j.size,
			math.Ceil(float64(s.Batch)/float64(j.size)))
	}
	scale, limit := j.scale(j.progress), 8*float64(j.batch())
	switch {
	case scale > limit: // an estimator does not see more
		j.seen.Noise = noise.Estimate{Known: true, SquaredNorm: 1, Variance: scale, Above: true,
			Scale: setting.Band{Low: limit, Mid: limit, High: limit}}
	case scale > 0:
		j.seen.Noise = noise.Estimate{Known: true, SquaredNorm: 1, Variance: scale,
			Scale: setting.Band{Low: 0.85 * scale, Mid: scale, High: 1.2 * scale}}
	default:
		j.seen.Noise.Why = "nobody has told of it"
	}
	if j.estimate != nil {
		j.seen.Noise = *j.estimate
	}
	for _, o := range j.loop.Observe(j.seen) {
		if c := o.Change; j.seen.Noise.NotFinite && c.Policy == "batch" && !c.Phase.IsEnd() {
			t.Fatalf("%+v is ordered by gradients that are not finite", c)
		}
		switch {
		case o.Watch:
			j.said = append(j.said, o)
		case j.waiting != nil:
			t.Fatalf("%+v is ordered, and %+v waits", o, j.waiting)
		case j.refuse != nil:
			j.loop.OrderRefused(j.refuse)
			j.refuse = nil
		default:
			if err := j.state.Levers.CheckChange(s, o.Next); err != nil && !o.Change.Phase.IsEnd() {
				t.Fatalf("%+v is ordered: %v", o, err)
			}
			j.waiting = &o
		}
	}
}

// run trains until so much progress is made, and returns the seconds that it took.
func (j *job) run(t testing.TB, progress float64) float64 {
	begin := j.now
	for j.progress < progress {
		j.step(t)
	}
	return j.now - begin
}

// bestFixed returns the batch of a range that reaches a progress soonest if it stays, and the
// seconds that it takes.
func (j *job) bestFixed(r setting.Range, progress float64) (best uint64, seconds float64) {
	seconds = math.Inf(1)
	for b := r.From; b <= r.To; b += max(1, b/16) {
		step := j.seconds(math.Ceil(float64(b) / float64(j.size)))
		took := 0.0
		for p := 0.0; p < progress && took < seconds; took += step {
			p += j.gain(float64(b), j.scale(p))
		}
		if took < seconds {
			best, seconds = b, took
		}
	}
	return best, seconds
}

// count returns how many changes have come to a phase.
func (j *job) count(phase setting.Phase) (n int) {
	for _, o := range j.log {
		if o.Change.Phase == phase {
			n++
		}
	}
	return n
}

// phases returns what became of the changes of the job, in a few words each.
func (j *job) phases() (list []string) {
	for _, o := range j.log {
		c := o.Change
		list = append(list, fmt.Sprintf("%d:%s %s>%s %.2f", c.Number, c.Phase, c.From, c.To,
			c.Measured))
	}
	return list
}

// bytesOf returns orders as bytes.
func bytesOf(t testing.TB, orders []act.Order) string {
	text, err := json.Marshal(orders)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
