package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/collective"
)

// Checkpoint says where a training loop writes checkpoints, and how often.
type Checkpoint struct {
	// Folder is where checkpoints are written: a folder that all workers on all hosts share, or
	// s3://BUCKET/PREFIX, which takes an agent.
	Folder string
	Every  time.Duration // time between two checkpoints; with Steps 0 as well: 10 minutes
	Steps  int           // steps between two checkpoints, instead of a time; 0 = a time
	// Auto leaves the steps between two checkpoints to the job, as shoal run --auto or shoal set
	// JOB save=100 decides; until then Every counts.
	Auto bool
	Keep int // how many of the newest checkpoints stay; 0 = 2
	// Say tells what became of a checkpoint, on any goroutine; nil = a line on standard error.
	Say func(line string)
}

// scheduleNote is the name under which workers that join are told when the next checkpoint is due.
// Python uses the same name.
const scheduleNote = "when to make a checkpoint"

// seedNote is the name under which workers that join are told checkpoints.shared. Python uses the
// same name.
const seedNote = "the name of the last checkpoint"

// farAway is a number of steps that is not reached.
const farAway = 1 << 40

// checkpoints makes the checkpoints of one trainer. Workers have to decide alike before which steps
// they make one, so they ask each other with a collective. The goroutine of the loop uses it,
// without a lock; only makeRoom may run on another, which making tells, and has room and lacking
// meanwhile.
type checkpoints struct {
	folder snapshot.Folder
	auto   bool          // steps is what the setting of the job says
	steps  uint64        // steps between two checkpoints; 0 = every says when
	every  time.Duration // time between two checkpoints; 0 = steps says when
	writer writer        // writes this worker's share
	people []string      // parts of the setting that people have set

	next     uint64        // step before which the workers next ask each other
	last     uint64        // step of the newest checkpoint; math.MaxUint64 = there is none
	begun    time.Time     // start of the newest checkpoint
	looked   time.Time     // when the workers last asked each other
	lookedAt uint64        // step before which the workers last asked each other
	seed     uint64        // seed of the checkpoint that was agreed on
	shared   uint64        // seed that all workers have, for one that is not agreed on
	room     []byte        // memory for the copy of the share; the writer's while it writes
	lacking  int           // bytes of memory that could not be had; 0 = none
	making   chan struct{} // closed when a goroutine has made room; nil = none makes any
}

// Checkpoint has the loop write checkpoints of its state, each worker an equal share, while
// training goes on: it stops only to copy that share. The first Next goes on from the newest
// checkpoint that is there and whole, on any number of workers, and at the exact sample. It must be
// called before that, on every worker alike. A checkpoint of a Python program is as good when what
// its workers have in common is the same arrays under the same names. What cannot be written is
// told by c.Say, and training goes on. It does no I/O.
func (t *Trainer) Checkpoint(c Checkpoint) error {
	root, err := strings.TrimSuffix(c.Folder, "/"), error(nil)
	if !snapshot.IsURL(c.Folder) {
		root, err = filepath.Abs(c.Folder)
	}
	switch {
	case t.begun:
		return fmt.Errorf("client: Checkpoint comes before the first Next")
	case t.checkpoints != nil:
		return fmt.Errorf("client: the checkpoints are written to %s already: a job has one folder",
			t.checkpoints.folder.Root)
	case c.Folder == "":
		return errors.New("client: Checkpoint.Folder is empty: say where checkpoints are written")
	case err != nil:
		return fmt.Errorf("client: %q is no folder for checkpoints: %w", c.Folder, err)
	case snapshot.IsURL(c.Folder) && t.job.solo:
		return fmt.Errorf("client: %s is read and written by the agent, and there is none: "+
			"start the program with shoal run", root)
	case c.Steps < 0 || c.Every < 0 || c.Keep < 0:
		return fmt.Errorf("client: Checkpoint has Steps %d, Every %v and Keep %d: none can be "+
			"negative, and what is 0 is as if left out", c.Steps, c.Every, c.Keep)
	case c.Steps > 0 && (c.Every > 0 || c.Auto):
		return fmt.Errorf("client: Checkpoint has Steps %d, and Every or Auto as well: leave "+
			"Steps out, or both of these", c.Steps)
	}
	names := map[string]bool{}
	for _, s := range t.state {
		if names[snapshot.PlainName(s.Name)] {
			return fmt.Errorf("client: two states are called %q: give each a name of its own, "+
				"in printable ASCII", s.Name)
		}
		names[snapshot.PlainName(s.Name)] = true
	}
	if c.Steps == 0 && c.Every == 0 {
		c.Every = 10 * time.Minute
	}
	if c.Keep == 0 {
		c.Keep = 2
	}
	if c.Say == nil {
		c.Say = func(line string) { fmt.Fprintln(os.Stderr, "shoal: "+line) }
	}
	now := time.Now()
	t.checkpoints = &checkpoints{folder: snapshot.Folder{Root: root, Keep: c.Keep, Log: c.Say},
		auto: c.Auto, steps: uint64(c.Steps), every: c.Every, writer: t.job.newWriter(),
		next: uint64(max(c.Steps, 1)), last: math.MaxUint64, begun: now, looked: now}
	return nil
}

// setStepsBetween has a checkpoint follow each so many steps after the one before, as the setting
// of the job says; 0 = it says nothing of that. Where the program says when, nothing changes.
func (c *checkpoints) setStepsBetween(steps uint64) {
	if !c.auto || steps == c.steps {
		return
	}
	if c.steps, c.next = steps, 0; steps > 0 {
		c.next = c.last + steps
		if c.last == math.MaxUint64 { // there is none
			c.next = steps
		}
	}
}

// makeIfDue makes a checkpoint between two steps, if all workers agree that it is time. It may wait
// for the other workers, in a collective, and does not wait until the checkpoint is written.
func (c *checkpoints) makeIfDue(ctx context.Context, t *Trainer) error {
	if t.cursor.Step < c.next {
		return nil
	}
	ok, err := c.agree(ctx, t, c.steps > 0, false)
	if err != nil || !ok {
		return err
	}
	return c.writeShare(t, t.job.size)
}

// makeLast makes the last checkpoint after the last step, and blocks until this host's parts of it
// are there. It makes none where the last step has one, or where the workers do not agree.
func (c *checkpoints) makeLast(ctx context.Context, t *Trainer) error {
	if err := c.awaitWriter(ctx); err != nil || t.cursor.Step == c.last {
		return err
	}
	ok, err := c.agree(ctx, t, true, true)
	if err != nil || !ok {
		return err
	}
	if err := c.writeShare(t, t.job.size); err != nil {
		return err
	}
	return c.writer.wait(ctx)
}

// makeAlone makes the last checkpoint of a job of so many workers that was asked to end, and blocks
// until this worker's part is written. No worker waits for another: where the job was stopped they
// are a job of one each. It makes none where the last step has one.
func (c *checkpoints) makeAlone(ctx context.Context, t *Trainer, workers int) error {
	if err := c.awaitWriter(ctx); err != nil || t.cursor.Step == c.last {
		return err
	}
	c.last, c.seed = t.cursor.Step, c.shared
	if err := c.writeShare(t, workers); err != nil {
		return err
	}
	return c.writer.wait(ctx)
}

// awaitWriter blocks until no room is being made and no part is being written. The end of ctx does
// not end the wait for the room.
func (c *checkpoints) awaitWriter(ctx context.Context) error {
	if c.making != nil {
		<-c.making
	}
	return c.writer.wait(ctx)
}

// agree reports whether all workers make a checkpoint here: it is time, and no worker still writes
// the one before. It asks them in a collective, for which it waits, and sets when they ask next.
// With due it is time whatever the clock says; with ended the training is over, and it waits for
// memory.
func (c *checkpoints) agree(ctx context.Context, t *Trainer, due, ended bool) (bool, error) {
	now, step := time.Now(), t.cursor.Step
	due = due || now.Sub(c.begun) >= c.every
	each := now.Sub(c.looked) / time.Duration(max(step-c.lookedAt, 1))
	away := int64(c.begun.Add(c.every).Sub(now) / 2 / max(each, time.Microsecond))
	c.looked, c.lookedAt = now, step
	busy, err := c.writer.busy()
	if err != nil {
		return false, err
	}
	room := int64(1)
	switch {
	case busy || c.isMaking():
		room = 0
	case due:
		room = c.findRoom(t, ended)
	}
	// The least of all, and so the same everywhere, whoever is lost meanwhile.
	said := []int64{0, room, min(max(away, 1), farAway), int64(drawSeed())}
	if due {
		said[0] = -1
	}
	if err := AllReduce(ctx, t.job, said, collective.Min); err != nil {
		return false, err
	}
	c.seed = uint64(said[3])
	if said[0] < 0 && said[1] != 0 {
		c.next, c.begun = step+max(c.steps, 1), now
		if said[1] > 0 {
			c.last = step
		}
		return said[1] > 0, nil
	}
	c.next = step + 1
	if said[0] == 0 {
		c.next = step + uint64(said[2])
	}
	return false, nil
}

// drawSeed returns a random number of 62 bits. Any goroutine may call it.
func drawSeed() uint64 {
	var seed [8]byte
	rand.Read(seed[:])
	return binary.LittleEndian.Uint64(seed[:]) >> 2
}

// isMaking reports whether a goroutine makes room now. It does not block.
func (c *checkpoints) isMaking() bool {
	if c.making == nil {
		return false
	}
	select {
	case <-c.making:
		return false
	default:
		return true
	}
}

// findRoom returns 1 when there is memory for the copy, -1 when there is none, so that nobody makes
// this checkpoint, and 0 while a goroutine, which it starts, gets it. Fresh memory has to be
// touched, which takes far longer than to copy; with wait it is touched before findRoom returns.
// Not while a goroutine makes room.
func (c *checkpoints) findRoom(t *Trainer, wait bool) int64 {
	n := snapshot.Bytes(t.describeState().Share(t.job.rank))
	switch {
	case n <= len(c.room):
		return 1
	case wait:
		c.makeRoom(n)
	case c.lacking < n:
		done := make(chan struct{})
		c.making = done
		t.job.tasks.Go("memory for checkpoints", func(context.Context) error {
			defer close(done)
			c.makeRoom(n)
			return nil
		})
		return 0
	}
	c.lacking = 0 // the next one tries again
	if n > len(c.room) {
		return -1
	}
	return 1
}

// makeRoom replaces c.room, which was too small, by n bytes, for which it may ask the agent. Where
// there is no memory, c.room is nil, and c.lacking says how much is missing. It runs on the
// goroutine of the loop, or on the one that findRoom starts, and never on both at a time.
func (c *checkpoints) makeRoom(n int) {
	old := c.room
	c.room = nil
	room, err := c.writer.room(n, old)
	if err != nil {
		c.lacking = n
		if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrLost) { // else training is over
			c.folder.Log(fmt.Sprintf(
				"there is no memory for a checkpoint in %s, and training goes on: %v",
				c.folder.Root, err))
		}
		return
	}
	c.room = room
}

// writeShare copies this worker's share, among so many workers, to c.room, and has it written from
// there while training goes on. The writer has no other part to write. Where there is no memory,
// the share is not written and the result nil.
func (c *checkpoints) writeShare(t *Trainer, workers int) error {
	s := t.describeState()
	s.Workers = workers
	runs := s.Share(t.job.rank)
	// a worker was lost just now, and this one has more to write
	if n := snapshot.Bytes(runs); n > len(c.room) {
		if c.makeRoom(n); c.room == nil {
			return nil
		}
	}
	body := c.room[:0]
	for _, run := range runs {
		body = append(body, t.state[run.Tensor].bytes[run.From:run.To]...)
	}
	text, err := s.AppendJSON(nil)
	if err != nil {
		return err
	}
	own, err := json.Marshal(c.scheduleNotes())
	if err != nil {
		return err
	}
	return c.writer.write(
		&snapshot.Part{Folder: c.folder, Seed: c.seed, Rank: t.job.rank, State: text, Own: own,
			Body: body})
}

// scheduleNotes returns what a checkpoint says of the checkpoints of its job, under scheduleNote:
// before which step the workers next ask each other, the step of the newest, and how many steps the
// job has chosen to have between two, if it has.
func (c *checkpoints) scheduleNotes() map[string]any {
	list := []int64{int64(c.next), int64(c.last)}
	if c.auto && c.steps > 0 {
		list = append(list, int64(c.steps))
	}
	return map[string]any{scheduleNote: list}
}

// adoptSteps takes over how many steps are between two checkpoints from what scheduleNotes has
// returned, if this program leaves that to the job, and returns the rest.
func (c *checkpoints) adoptSteps(notes map[string]json.RawMessage) (schedule [3]int64, err error) {
	if err = json.Unmarshal(notes[scheduleNote], &schedule); err == nil && c.auto {
		c.steps = uint64(max(schedule[2], 0))
	}
	return schedule, err
}

// joinerNotes returns what a worker that joins must know of the checkpoints.
func (c *checkpoints) joinerNotes() map[string]any {
	notes := c.scheduleNotes()
	notes[seedNote] = c.shared
	return notes
}

// adoptNotes sets when the next checkpoint is due from the notes of another worker. An error means
// that the other worker runs another program.
func (c *checkpoints) adoptNotes(notes map[string]json.RawMessage) error {
	schedule, err := c.adoptSteps(notes)
	if err != nil {
		return fmt.Errorf("client: the others write no checkpoints, or in another way: run the "+
			"same program everywhere: %w", err)
	}
	c.next, c.last = uint64(schedule[0]), uint64(schedule[1])
	if err := json.Unmarshal(notes[seedNote], &c.shared); err != nil {
		return fmt.Errorf("client: the others write checkpoints in another way: run the same "+
			"program everywhere: %w", err)
	}
	return nil
}
