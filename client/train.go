package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
)

// Data says what a job trains on: the same on every worker.
type Data struct {
	Samples int // number of samples in an epoch
	Batch   int // number of samples of a step over all workers, whatever their number
	// BatchRange is the least and the most that the batch may become while the job trains, as by
	// shoal set; zero = it stays. Count is what it is in a step.
	BatchRange [2]int
	Epochs     int    // number of epochs after which the loop ends; 0 = without end
	Steps      int    // number of steps after which the loop ends too; 0 = no such number
	Seed       uint64 // seed of the order of the samples
	Plain      bool   // whether the samples come in their own order, not shuffled
	// DropLast leaves out of each epoch what would be a smaller batch at its end, of which a worker
	// may get one sample or none: what Batch does not divide, whatever the batch has become.
	// Shuffled epochs leave out other samples each; in their own order it is always the last ones.
	DropLast bool
}

// leftOut returns how many samples an epoch leaves out. It is pure.
func (d Data) leftOut() int {
	if !d.DropLast || d.Batch <= 0 {
		return 0
	}
	return d.Samples % d.Batch
}

// Trainer runs the steps of a training loop. Every sample is trained on exactly once per epoch, and
// every worker holds the same state after every step, whatever workers are lost or join:
//
//	data := client.Data{Samples: n, Batch: 128, Epochs: 3}
//	t, err := client.Train(job, data, client.StateOf("parameters", p))
//	for t.Next(ctx) {
//		gradient(g, p, t.Samples())
//		if err := client.Commit(ctx, t, g); err != nil { … }
//		update(p, g)
//	}
//	err = t.Err()
//
// A worker that comes while the job runs enters at its first Next, and receives the state there.
// One that is released, because the job was made smaller, sees the loop end; Released tells. One
// goroutine uses it, that of the loop. Only Next and the functions that commit wait for other
// workers.
type Trainer struct {
	job         *Job          // the program's, which closes it
	data        Data          // as given to Train
	state       []State       // what new members receive, and checkpoints have
	cursor      cursor.Cursor // place of the job in the data
	checkpoints *checkpoints  // nil = none are written
	toldBatch   uint64        // the batch for which the agent knows the last step; 0 = for none
	samples     []int64       // this worker's samples of the step; at least one
	weight      float64       // number of samples that count; 0 = this worker has no part
	joined      int           // number of new members, which wait for the state
	begun       bool          // whether Next was called
	open        bool          // whether Next has given out a step that is not committed
	released    bool          // whether this worker is no member any more
	stopped     int           // number of members when the job was stopped; 0 = it was not
	parks       bool          // whether the job is to be parked before the next step
	stepBegan   time.Time     // when Next gave out the step; zero = it has given out none
	err         error         // what ended the loop before its time; nil = nothing
}

// Train returns a Trainer that begins a loop, and tells the agent of its data. state is what a
// worker that joins later receives from the others, in the memory that it gives here. It waits for
// the agent's answer. A job has one Trainer, which need not be closed.
func Train(job *Job, d Data, state ...State) (*Trainer, error) {
	out := d.leftOut()
	if d.Samples > 0 && out == d.Samples {
		return nil, fmt.Errorf("client: with DropLast no batch is left: there are %d samples, "+
			"fewer than a Batch of %d", d.Samples, d.Batch)
	}
	c, err := cursor.New(uint64(max(d.Samples-out, 0)), uint64(max(d.Batch, 0)), d.Seed, !d.Plain)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if r := d.BatchRange; r != [2]int{} && (r[0] < 1 || r[0] > d.Batch || r[1] < d.Batch) {
		return nil, fmt.Errorf("client: a BatchRange from %d to %d does not contain the Batch of "+
			"%d: give the least, from 1 on, and the most", r[0], r[1], d.Batch)
	}
	if d.Epochs < 0 || d.Steps < 0 {
		return nil, fmt.Errorf("client: a training of %d Epochs and %d Steps: give numbers from 1 "+
			"on, or 0 for one that has no such end", d.Epochs, d.Steps)
	}
	for _, x := range state {
		if !x.dtype.Valid() {
			return nil, fmt.Errorf("client: the State called %q has no memory: make it with "+
				"StateOf, of a slice", x.Name)
		}
	}
	if job.trains.Load() {
		return nil, errors.New("client: the job has a Trainer, whose steps its agent counts: " +
			"train in one loop, with as many Epochs or Steps as all have together")
	}
	t := &Trainer{job: job, data: d, state: state, cursor: c}
	err = t.declareData(c, nil)
	job.trains.Store(err == nil)
	return t, err
}

// declareData tells the agent what the job trains on, in the order of c, and with its encoding from
// which place; nil = from the beginning. It waits for the answer.
func (t *Trainer) declareData(c cursor.Cursor, place []byte) error {
	if t.job.solo {
		return nil
	}
	r := &api.DataRequest{Samples: c.Samples, Batch: uint64(t.data.Batch), Seed: c.Seed,
		Shuffle: !c.Plain, Cursor: place}
	if t.data.BatchRange != [2]int{} {
		r.BatchRange = []uint64{uint64(t.data.BatchRange[0]), uint64(t.data.BatchRange[1])}
	}
	if c := t.checkpoints; c != nil {
		r.People = c.people
		if c.auto {
			r.Save, r.SaveSteps = true, c.steps
		}
	}
	_, err := t.job.request(r, &api.DataReply{}, 0)
	return err
}

// resumeOrBegin goes on from the newest checkpoint, if there is one, and tells the agent whether
// the job may choose when the next ones are made. It may wait for other workers, and waits for the
// agent.
func (t *Trainer) resumeOrBegin(ctx context.Context) error {
	err := t.resume(ctx)
	if err == nil && t.checkpoints.auto && t.cursor.Committed() == 0 { // else resume has told it
		err = t.declareData(t.cursor, nil)
	}
	return err
}

// mayHave reports whether the job may be at a place of a checkpoint: in the same data, with the
// same batch or one of BatchRange.
func (t *Trainer) mayHave(place cursor.Cursor) bool {
	r := t.data.BatchRange
	return place.SameSamples(t.cursor) && (place.Batch == t.cursor.Batch ||
		place.Batch >= uint64(r[0]) && place.Batch <= uint64(r[1]))
}

// Next begins the next step; false after the last one, when this worker is released, or with an
// error. It may wait for other workers: to enter, to hand the state to new ones, or to make a
// checkpoint. Where the job is parked it does not return: the process is ended by SIGTERM. In a
// program that catches SIGTERM, and ends ctx, the error is ErrParked then.
func (t *Trainer) Next(ctx context.Context) bool {
	if t.err == nil {
		t.err = t.prepareStep(ctx)
	}
	if t.err == nil {
		t.err = t.parkIfAsked(ctx)
	}
	switch {
	case t.err != nil || t.checkpoints == nil:
	case !t.released:
		t.err = t.saveIfDue(ctx)
	case t.stopped > 0:
		t.err = t.checkpoints.makeAlone(ctx, t, t.stopped)
	}
	if t.err != nil || t.released || t.isOver() {
		return false
	}
	if t.err = t.tellGoal(); t.err != nil {
		return false
	}
	t.setSamples()
	t.stepBegan, t.open = time.Now(), true
	return true
}

// isOver reports whether the loop has made all of its steps.
func (t *Trainer) isOver() bool {
	return t.data.Epochs > 0 && t.Epoch() >= t.data.Epochs ||
		t.data.Steps > 0 && t.Step() >= t.data.Steps
}

// tellGoal tells the agent how many steps the training has, if it has an end, and again where the
// batch has changed.
func (t *Trainer) tellGoal() error {
	if t.job.solo || t.toldBatch == t.cursor.Batch || t.data.Epochs <= 0 && t.data.Steps <= 0 ||
		t.job.goal.Load() > 0 { // the program has told it
		return nil
	}
	t.toldBatch = t.cursor.Batch
	goal := t.goal()
	if goal >= maxGoal { // it is as good as without end
		return nil
	}
	return t.job.sendWithoutReply(&api.GoalRequest{Steps: goal})
}

// goal returns how many steps the training has that is not over, as long as no worker is lost and
// the batch stays; 0 = it has no end, maxGoal or more = more than are told.
func (t *Trainer) goal() uint64 {
	goal, c := uint64(max(t.data.Steps, 0)), t.cursor
	if t.data.Epochs <= 0 {
		return goal
	}
	batches := func(samples uint64) uint64 { return (samples + c.Batch - 1) / c.Batch }
	each, epochs := batches(c.Samples), uint64(t.data.Epochs)-c.Epoch-1
	n := uint64(maxGoal)
	if epochs < maxGoal/each {
		n = c.Step + batches((c.Epoch+1)*c.Samples-c.Committed()) + each*epochs
	}
	if goal == 0 {
		return n
	}
	return min(goal, n)
}

// saveIfDue makes a checkpoint between two steps, or after the last one, if it is time. It may wait
// for other workers, as makeIfDue and makeLast do.
func (t *Trainer) saveIfDue(ctx context.Context) error {
	if t.isOver() {
		return t.checkpoints.makeLast(ctx, t)
	}
	return t.checkpoints.makeIfDue(ctx, t)
}

// prepareStep does what comes before a step: the first time it enters or resumes, later it hands
// the state to new members. It may wait for other workers, as enterJob, resume and giveState do.
func (t *Trainer) prepareStep(ctx context.Context) error {
	switch {
	case !t.begun:
		t.begun = true
		if t.job.aside.Load() && !t.job.solo {
			return t.enterJob(ctx)
		}
		if t.checkpoints != nil {
			return t.resumeOrBegin(ctx)
		}
		return nil
	case t.open:
		return fmt.Errorf("client: the step was not committed: call Commit with the gradient in " +
			"every turn of the loop")
	}
	if t.joined > 0 && !t.released {
		return t.giveState(ctx)
	}
	return nil
}

// setSamples sets t.samples and t.weight to this rank's part of the batch. A rank without a part
// gets one sample of weight 0, so that the loop's body works.
func (t *Trainer) setSamples() {
	order := t.cursor.Order()
	t.samples = t.samples[:0]
	for _, s := range t.cursor.Part(t.job.rank, t.job.size) {
		n := len(t.samples)
		t.samples = slices.Grow(t.samples, int(s.Len()))[:n+int(s.Len())]
		order.Fill(t.samples[n:], s)
	}
	t.weight = float64(len(t.samples))
	if len(t.samples) == 0 {
		t.samples = append(t.samples, int64(order.At(0)))
	}
	if out := int64(t.data.leftOut()); out > 0 && !t.data.Plain {
		// What the cursor deals are the samples that are not left out: those of the data turn by
		// as many in each epoch, so that each epoch leaves out others.
		all, turn := int64(t.data.Samples), int64(t.cursor.Epoch)*out
		for i := range t.samples {
			t.samples[i] = (t.samples[i] + turn) % all
		}
	}
}

// Samples returns the samples that this worker trains on in the step, as numbers from 0 in the
// data: at least one. The list is valid until the next Next, and not to be altered.
func (t *Trainer) Samples() []int64 { return t.samples }

// Weight returns the number of samples that count: len(Samples), or 0 for a worker that the tail of
// the epoch leaves without.
func (t *Trainer) Weight() float64 { return t.weight }

// Count returns the number of samples of the step over all workers.
func (t *Trainer) Count() int { return int(t.cursor.Count()) }

// Epoch returns the number of the epoch, from 0.
func (t *Trainer) Epoch() int { return int(t.cursor.Epoch) }

// Step returns the number of steps that the job has committed.
func (t *Trainer) Step() int { return int(t.cursor.Step) }

// Seen returns the number of samples that the job has trained on, over all epochs and workers.
func (t *Trainer) Seen() int { return int(t.cursor.Committed()) }

// Released reports whether the job goes on without this worker, or was stopped. It keeps its rank
// then, in a job of one.
func (t *Trainer) Released() bool { return t.released }

// Err returns what ended the loop before its time; nil otherwise.
func (t *Trainer) Err() error { return t.err }

// errNoStep is of a Commit outside of a step, such as a second one in it, which would count as a
// step of samples that nobody has trained on.
var errNoStep = errors.New("client: there is no step to commit: call Commit once for each Next " +
	"that returns true, with the whole gradient; AllReduce with More takes parts of it before")

// Commit averages the gradient over the samples of all workers, in place, and ends the step. The
// goroutine of the loop calls it, and it blocks until all workers have called it, or are lost.
func Commit[T Element](ctx context.Context, t *Trainer, gradient []T) error {
	return CommitInto(ctx, t, gradient, gradient)
}

// CommitInto is Commit with the average in other memory, such as a shared result; the gradient
// stays as it is. The goroutine of the loop calls it, and it blocks until all workers have called
// it, or are lost.
func CommitInto[T Element](ctx context.Context, t *Trainer, average, gradient []T) error {
	took := min(time.Since(t.stepBegan).Microseconds(), math.MaxUint32)
	err := errNoStep
	if t.open {
		err = AllReduceInto(ctx, t.job, average, gradient, collective.Mean, Weight(t.weight),
			EndStep(), func(c *call) { c.told.Compute = uint32(took) })
		if err == nil {
			err = t.advance()
		}
	}
	if t.err == nil {
		t.err = err
	}
	return err
}

// advance moves t.cursor to the next batch: by itself, or as the view says when the members have
// changed.
func (t *Trainer) advance() error {
	t.open, t.joined = false, 0
	if t.job.solo || !t.job.calls.changedSinceLastCall() {
		t.cursor = t.cursor.Commit(1, []bool{true}) // all of the batch, whoever took it
		return nil
	}
	return t.adoptView()
}

// adoptView reads the view that the agent wrote, and sets the members and the place in the data
// from it, and from the setting of the job, for which it asks the agent, when checkpoints are made.
func (t *Trainer) adoptView() error {
	v, err := t.job.adoptView()
	if err != nil {
		return err
	}
	t.released, t.joined, t.parks = v.Released, v.Joined, v.Park
	if v.Stopped && !t.stepBegan.IsZero() { // not when this worker enters a job that was stopped
		t.stopped = v.Size
	}
	if t.cursor, err = cursor.Parse(v.Cursor); err != nil {
		return fmt.Errorf("client: the agent's view: %w", err)
	}
	if !v.Setting || t.checkpoints == nil {
		return nil
	}
	now := &api.SettingReply{}
	if _, err := t.job.request(&api.SettingRequest{}, now, 0); err != nil {
		return err
	}
	t.checkpoints.setStepsBetween(now.Save)
	t.checkpoints.people = now.People
	return nil
}
