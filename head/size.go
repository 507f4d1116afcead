package head

import (
	"cmp"
	"fmt"

	"github.com/shoal-ml/shoal/setting"
)

// How many members a job is asked to have is a part of its setting, where members may come and go.
// The membership decides who they are, and the log says how many are wanted: an entry that changes
// the size has the membership resize, and what the membership changes by itself, for those who are
// lost or because a person has resized the job, the next entry says. So a head that comes to lead
// knows what was wanted, and the trial of it. The methods of leader run on the thread of the Agent
// and do no I/O.

// Levers returns what may change of the setting of the job: what its program has opened, and how
// many members it may have where it has a maximum, as far as the hosts have room for them. That the
// head alone knows.
func (a *Agent) Levers() setting.Levers {
	levers, record := a.follower.state.Levers, a.Record()
	if record.Max == 0 || record.FollowsHosts() || !a.follower.state.HasSize() ||
		a.leader != nil && a.leader.machine.FollowsHosts() { // no generation says so yet
		return levers
	}
	levers.Size = setting.Range{From: uint64(record.Min), To: uint64(record.Max)}
	if slots := a.slots(); slots > 0 {
		levers.Size.To = min(levers.Size.To, uint64(max(slots, record.Min)))
	}
	return levers
}

// slots is how many workers the hosts of the job have room for, on the head; 0 = any number, or
// this agent does not lead.
func (a *Agent) slots() int {
	if a.leader == nil {
		return 0
	}
	return a.leader.machine.TotalSlots()
}

// resize asks the membership for another number of workers, and carries out what it orders. What
// was asked for before counts no more: the trial of another size ends.
func (r *leader) resize(n int, who string) error {
	if err := cmp.Or(r.checkResizable(), r.machine.CheckUnallotted()); err != nil {
		return err
	}
	err := r.machine.ResizeAndHold(n, who)
	if err == nil {
		r.endSizeTrial(fmt.Sprintf("%s asked for size=%d meanwhile", who, n))
	}
	r.carryOutOrders()
	r.advanceLog()
	return err
}

// endSizeTrial ends the trial of a size, and forgets a change of the size that waits; why says what
// counts in place of them.
func (r *leader) endSizeTrial(why string) {
	t := r.measuredChange()
	ofSize := t != nil && t.HasPart("size")
	if e := r.entering; e != nil && (e.next.Size > 0 || ofSize && e.change.Phase.IsEnd()) {
		r.entering = nil
	}
	if ofSize {
		end := *t
		end.Phase, end.Why = setting.Void, why
		end = end.WithShortTexts()
		r.verdict = &end
	}
}

// checkSize returns why the job does not go to a size, 0 = to the one that it has; nil where it
// does. back says that it goes back there, as far as there is room.
func (r *leader) checkSize(n int, back bool) error {
	if n == 0 {
		return nil
	}
	if err := cmp.Or(r.checkResizable(), r.machine.CheckSettable()); err != nil {
		return err
	}
	if err := r.machine.CheckSize(n); err != nil {
		return err
	}
	if slots := r.machine.TotalSlots(); !back && slots > 0 && n > slots && n > r.machine.Want() {
		return fmt.Errorf("no host has room for size=%d: all of them have %d slots; let another "+
			"host join (shoal agent --join), or use shoal resize, which waits for one", n, slots)
	}
	return nil
}

// restateSizeChange has a change say its size as against the one that the job has now, and reports
// whether the change is dropped: the job has come to all of it by itself, or to the size, and what
// is left cannot be entered beside a trial.
func (r *leader) restateSizeChange(e *requestedChange) bool {
	if e.next.Size == 0 || e.change.Phase.IsEnd() {
		return false
	}
	e.change.From, e.change.To = r.diffOf(e.change, e.next)
	if e.change.IsAtOnce() { // the rate alone is left, or what policies may change
		e.next.Size = 0
		keepAtOnce(&e.change)
		return r.state.Trial != nil && e.change.Policy != ""
	}
	return e.change.To == "" && e.change.From == ""
}

// diffOf returns the parts in which the setting that a change brings differs from that in force.
func (r *leader) diffOf(c setting.Change, to setting.Setting) (before, after string) {
	now, next := r.settingInForce(), r.withPartsInForce(to)
	if c.IsRequest() {
		return now.DiffRequested(next)
	}
	return now.Diff(next)
}

// resizeToSetting has the membership resize to what a change has made the size of the job, after
// the entry of the log that says so.
func (r *leader) resizeToSetting() {
	who := r.sizedBy
	if who == "" {
		return
	}
	r.sizedBy = ""
	// One that is ending takes nobody in, and the next entry says what it has.
	_ = r.machine.Resize(int(r.state.Setting.Size), who)
	r.machine.SetSized(r.state.Sized)
}

// recordWantedSize makes the size of the job what the membership wants, in the entry of the log
// that is written next. Where that entry brings another size, the membership hears of it after the
// entry.
func (r *leader) recordWantedSize() {
	if size := r.wantedSize(); r.state.Setting.Size != size && r.sizedBy == "" {
		r.state.Setting.Size, r.tellSetting = size, true
	}
}

// wantedSize returns how many members the membership wants; 0 = the setting of the job has no size.
func (r *leader) wantedSize() uint32 {
	if !r.state.HasSize() {
		return 0
	}
	return uint32(min(r.machine.Want(), setting.MaxSize))
}

// withPartsInForce returns a setting with the parts that count where it does not say them.
func (r *leader) withPartsInForce(of setting.Setting) setting.Setting {
	of.Size = cmp.Or(of.Size, r.wantedSize())
	return of.WithStated(r.state.First, r.state.Levers)
}

// settingInForce returns how the job trains now. The log may not have its size yet.
func (r *leader) settingInForce() setting.Setting {
	now := r.state.Setting
	now.Size = 0
	return r.withPartsInForce(now)
}

// adoptSize has the membership of a new head want what the log says, where a change has brought
// another size of which the newest generation does not know: a record has the size as it was when
// its generation was proposed. So it is, too, where the record is behind a change of which nobody
// that is left has the entry. Else the record is newer: who is lost is wanted no more.
func (r *leader) adoptSize() {
	s := &r.state
	if s.HasSize() && s.Setting.Size > 0 && s.Sized != r.machine.Record().Sized {
		r.machine.RestoreWant(int(s.Setting.Size), s.Sized)
		r.resized = true
	}
}

// orderMissingWorkers orders the workers that a head before this one has ordered, or was to order,
// for the size that adoptSize has taken from the log, and that no host has reported; and lets those
// go who are too many.
func (r *leader) orderMissingWorkers() {
	if r.resized {
		r.resized = false
		_ = r.machine.Resize(r.machine.Want(), r.agent.cfg.Self+", which leads now,")
	}
}

// Allot asks for so many workers on each host, on the head; elsewhere it returns ErrNotHead. Who
// allots, and why, people read. Until that ends, with no slots at all, nobody else changes the size
// of the job. An error says why it will not be; then nothing has changed.
func (a *Agent) Allot(slots map[string]int, who, why string) error {
	return a.askHead(func(r *leader) error { return r.allot(slots, who, why) })
}

// allot does what Agent.Allot says. What was asked for before counts no more: the trial of another
// size ends.
func (r *leader) allot(slots map[string]int, who, why string) error {
	if err := r.checkResizable(); err != nil {
		return err
	}
	err := r.machine.Allot(slots, who, why)
	if err == nil {
		r.endSizeTrial(who + " allotted the slots of the job meanwhile")
	}
	r.carryOutOrders()
	r.advanceLog()
	return err
}
