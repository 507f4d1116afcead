package head

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// How a job trains is part of its state: its setting, which only entries of the log change. A
// change is entered with the end of a step after which nothing is under way, by the same entry, so
// all members have the same setting in the same step, and whoever leads after a loss knows it. The
// methods of Agent and leader run on its thread and do no I/O; those of State use that value alone.

// Change asks for what a change of the setting says, on the head; elsewhere it returns ErrNotHead.
// An error says why it will not be; then nothing has changed.
//
// With Entered, the job goes to the setting next with the end of a step, and the change is under
// trial from there on. It ends the trial of another one, but one of a policy is refused while that
// of a policy is under trial. A policy's change of the rate alone is kept at once, and refused
// while any is under trial. The head sets the number of next, and Number, Step, From and To of the
// change; where next has no size, or From and To of a policy's change say that it has none, the job
// keeps its own. Members join and leave after that step, as with Resize, which ends the trial of a
// size. With Kept and Void, the trial of the change of that number ends, and next does not count.
// With Reverted it ends with the end of a step, where the job goes to next.
//
// Where a person asks, People of next are those of the job, with what that person sets or leaves to
// policies, as WithRequested returns them; if nothing else changes, the change is kept at once, and
// ends any trial. No policy changes what a person has set.
//
// What waits for the end of a step is lost with the head, and nobody is told: who asked looks at
// the State, and asks the next head again. RequestedChange tells what waits.
func (a *Agent) Change(next setting.Setting, c setting.Change) error {
	return a.askHead(func(r *leader) error { return r.requestChange(next, c) })
}

// CheckChange returns why no change to next can be entered now, but for a trial; nil where one can.
func (a *Agent) CheckChange(next setting.Setting, c setting.Change) error {
	if !a.Leads() {
		return ErrNotHead
	}
	if next.Size == a.leader.wantedSize() {
		next.Size = 0
	}
	return a.leader.checkChange(next, c)
}

// RequestedChange returns the change that waits for the end of a step, on the head; false = none
// does.
func (a *Agent) RequestedChange() (setting.Change, bool) {
	if a.leader == nil || a.leader.entering == nil {
		return setting.Change{}, false
	}
	return a.leader.entering.change, true
}

// requestedChange is a change of the setting that waits for the end of a step.
type requestedChange struct {
	next   setting.Setting // from the end of the step on
	change setting.Change  // Entered, Reverted, or Kept if it IsAtOnce
}

// setPlace makes what a worker has stated the place of the job, and has the next entry of the log
// tell it. That may have the setting of a checkpoint, and then a change that waits is dropped: it
// is one of another setting.
func (r *leader) setPlace(stated wire.Stated) {
	r.entering = nil
	r.state.First = cmp.Or(r.state.First, stated.First, stated.Data.Batch)
	r.state.Setting = r.state.Setting.WithPeople(stated.People)
	now, data := &r.state.Setting, stated.Data
	now.Batch, now.Round, now.Shares = data.Batch, data.Round, data.Shares
	now.Rate, now.Sync, now.Save = stated.Rate, stated.Sync, cmp.Or(stated.Save, now.Save)
	if data.Batch == r.state.First {
		now.Batch = 0
	}
	if data.Round == r.state.Levers.Round {
		now.Round = 0
	}
	data.Round = cmp.Or(data.Round, r.state.Levers.Round)
	r.state.Data = &data
	r.tellSetting = true
}

// requestChange does what Agent.Change says.
func (r *leader) requestChange(next setting.Setting, c setting.Change) error {
	c = c.WithShortTexts()
	if err := c.Validate(); err != nil {
		return err
	}
	if next.Size == r.wantedSize() {
		next.Size = 0 // whatever it is when the change is entered
	}
	if !c.Phase.IsEnd() {
		return r.requestEntry(next, c)
	}
	t := r.measuredChange()
	if t == nil || t.Number != c.Number {
		return fmt.Errorf("change %d is not under trial", c.Number)
	}
	c.Step, c.OptimizerSteps = t.Step, t.OptimizerSteps
	c.From, c.To, c.Policy, c.Who = t.From, t.To, t.Policy, t.Who
	if c.Phase == setting.Reverted {
		if !t.HasPart("size") {
			next.Size = 0
		}
		if err := r.checkChange(next, c); err != nil {
			return err
		}
		r.entering = &requestedChange{next, c}
		return nil
	}
	if r.entering != nil && r.entering.change.Number == c.Number {
		return errChangeWaits
	}
	r.verdict = &c
	r.advanceLog()
	return nil
}

// requestEntry has a setting wait for the end of a step, as a new change; an error says why it will
// not be.
func (r *leader) requestEntry(next setting.Setting, c setting.Change) error {
	if t := r.measuredChange(); t != nil && t.Policy != "" && c.Policy != "" {
		return fmt.Errorf("change %d is under trial: one change at a time, so that what is "+
			"measured has one cause", t.Number)
	}
	if c.Policy != "" && c.From+c.To != "" && !c.HasPart("size") {
		next.Size = 0 // it was decided when the job had another one
	}
	if err := r.checkChange(next, c); err != nil {
		return err
	}
	c.Number = r.state.Setting.Number + 1
	c.From, c.To = r.diffOf(c, next)
	if c.From == "" && c.To == "" {
		return fmt.Errorf("the job has this setting already: %v", r.settingInForce())
	}
	if c.IsAtOnce() {
		if t := r.state.Trial; t != nil && c.Policy != "" {
			return fmt.Errorf("change %d is under trial", t.Number)
		}
		keepAtOnce(&c)
	}
	for _, part := range c.Parts() {
		if when := r.state.Setting.WhenSet(part); when != "" && c.Policy != "" {
			return fmt.Errorf("a person has set %s meanwhile (%s), and it stays", part, when)
		}
	}
	r.entering = &requestedChange{next, c}
	return nil
}

// keepAtOnce makes a change that IsAtOnce one that its entry ends, too: nothing of it is measured.
func keepAtOnce(c *setting.Change) {
	c.Phase, c.Predicted, c.Rate = setting.Kept, setting.Band{}, 0
}

// errChangeWaits refuses a change while another one waits for the end of a step.
var errChangeWaits = errors.New(
	"another change of the setting waits for the end of a step; ask again after that")

// checkChange returns why the job does not go to a setting, as change c says; nil where it does.
// People, and the end of a change, need no lever for the size: they bring what it may be anyway.
func (r *leader) checkChange(next setting.Setting, c setting.Change) error {
	switch v := r.machine.View(); {
	case r.state.Shape != nil:
		return errors.New("this job has a mesh, with which its setting stays as it is; " +
			"shoal reshape changes the mesh")
	case v.Generation == 0 || r.state.View.Generation == 0:
		return errEarly
	case r.state.Data == nil:
		return errors.New("this job states no data (shoal.torch.loader, job.steps, " +
			"client.Train): it has no setting that could change")
	case r.releasing != "" || r.state.AllReleased != "" || r.machine.Record().Done > 0:
		return errors.New("the job is ending")
	case r.machine.IsPaused():
		return errors.New("the job is paused: it waits for workers; ask again when it trains")
	case r.entering != nil:
		return errChangeWaits
	case len(next.Shares) > 0 && len(next.Shares) != r.state.View.Size() &&
		!slices.Equal(next.Shares, r.state.Setting.Shares): // those of a checkpoint, without effect
		return fmt.Errorf("%d shares for %d workers: give each rank one, such as shares=2:1:1 "+
			"for three", len(next.Shares), r.state.View.Size())
	}
	if err := r.checkSize(int(next.Size), c.Phase.IsEnd()); err != nil {
		return err
	}
	now, to := r.settingInForce(), r.withPartsInForce(next)
	if c.Policy == "" || c.Phase.IsEnd() {
		now.Size = to.Size
	}
	return r.agent.Levers().CheckChange(now, to)
}

// measuredChange returns the change that is measured; nil = none is, or its verdict is on the way
// to the log.
func (r *leader) measuredChange() *setting.Change {
	if r.verdict != nil {
		return nil
	}
	return r.state.Trial
}

// popRequestedChange returns the change that is entered with the end of a step, which batch b ends
// and after which the job stands at data, and forgets the request; nil = none is.
func (r *leader) popRequestedChange(b *batch, data *cursor.Cursor) *requestedChange {
	e := r.entering
	if e == nil || data == nil || r.releasing != "" || r.state.Shape != nil ||
		!r.isQuietExcept(b) || !data.TakesBatch() {
		return nil
	}
	r.entering = nil
	if r.restateSizeChange(e) {
		return nil
	}
	return e
}

// endTrial ends the trial that another change replaces, by an entry of its own before that of the
// change.
func (r *leader) endTrial(by *requestedChange) {
	if t := r.state.Trial; t != nil && t.Number != by.change.Number {
		end := *t
		end.Phase, end.Why = setting.Void, fmt.Sprintf("%s asked for %s meanwhile",
			cmp.Or(by.change.Who, by.change.Policy, "somebody"), by.change.To)
		end = end.WithShortTexts()
		r.writeVerdict(&end)
	}
}

// writeVerdict writes an entry of the log that ends the trial without another setting.
func (r *leader) writeVerdict(c *setting.Change) {
	r.state.Trial = nil
	r.writeEntry(wire.Commit{Change: c}, nil)
}

// enterChange makes a change part of the state, and of the entry of the log that is written next.
func (r *leader) enterChange(e *requestedChange, c *wire.Commit) {
	if e.next.Size == 0 {
		e.next.Size = r.wantedSize()
	} else {
		r.sizedBy = e.change.AskedBy()
		r.state.Sized = max(r.state.Sized, r.machine.Record().Sized) + 1
	}
	r.state.Setting = e.next.EnteredBy(e.change, r.state.Setting)
	r.state.Trial, r.state.Joined = nil, 0
	if e.change.Phase != setting.Reverted {
		e.change.Step, e.change.OptimizerSteps = r.state.Steps, r.state.OptimizerSteps()
	}
	if e.change.Phase == setting.Entered {
		r.state.Trial = &e.change
	}
	of := r.withPartsInForce(e.next)
	data := r.state.Data.WithBatch(cmp.Or(of.Batch, r.state.Data.Batch)).WithRound(of.Round)
	data = data.WithShares(e.next.Shares)
	r.state.Data = &data
	c.Changed, c.Change, r.tellSetting = true, &e.change, true
}

// moveShares gives the members of the view that comes the shares of work that they had, and those
// that are new the mean of these. A change that waits gets shares for them as well, and one that
// the same entry of the log begins says theirs; nil = it begins none.
func (r *leader) moveShares(next topo.View, change *setting.Change) {
	if e := r.entering; e != nil && len(e.next.Shares) > 0 {
		e.next.Shares = sharesAfter(e.next.Shares, r.state.View, next)
	}
	if len(r.state.Setting.Shares) == 0 || r.state.Data == nil {
		return
	}
	now := r.withPartsInForce(r.state.Setting)
	r.state.Setting.Shares = sharesAfter(now.Shares, r.state.View, next)
	if change != nil && change.Phase == setting.Entered {
		before, _ := change.Undo(now) // its texts are of the head
		before.Shares = sharesAfter(before.Shares, r.state.View, next)
		change.From, change.To = before.Diff(r.withPartsInForce(r.state.Setting))
	}
	data := r.state.Data.WithShares(r.state.Setting.Shares)
	r.state.Data, r.tellSetting = &data, true
}

// sharesAfter returns the shares of the members of the view after another one; nil = they cannot
// be unequal. Shares stays as it is.
func sharesAfter(shares []uint16, before, next topo.View) []uint16 {
	if len(shares) != before.Size() {
		return nil
	}
	return setting.MoveShares(shares, next.RanksIn(before))
}

// Note is what the shell of an agent has told with SendNote, on the head.
type Note struct {
	Host string // the host of that agent
	Data []byte // the caller's
}

// SendNote has the head of the job emit a Note, also where this agent is the head. It is no part of
// the state: a note is lost where no head is known or can be reached, and may be lost with a head.
// One that is longer than MaxNote is not sent. The agent keeps nothing of note.
func (a *Agent) SendNote(note []byte) {
	// a host that waits for people without a head, perhaps for days, would keep all of them for it
	if len(note) <= wire.MaxNote && a.reaches(a.Head()) {
		a.sendToHead(wire.Noted{Data: append(wire.Opaque(nil), note...)})
	}
	a.finishInput()
}
