package job

import (
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/saves"
	"github.com/shoal-ml/shoal/setting"
)

// The checkpoints of a World, where its levers say that it makes some. They are needed only when
// nobody is left: the next hosts go on from the newest one that was written, as a new run does. The
// methods run within New and World.Step, on the goroutine that uses the World.

// usualSave is how many seconds are between two checkpoints as long as the setting says nothing of
// it, as in a running job.
const usualSave = 600

// save is a checkpoint, or the start of a job.
type save struct {
	step     uint64  // committed steps of which it has the state
	at       float64 // seconds when it was copied
	cursor   cursor.Cursor
	progress float64
	setting  setting.Setting
}

// saving are the checkpoints of a World.
type saving struct {
	newest, whole save // whole is the newest that is written
	meter         saves.Meter
	began         float64 // seconds when this run of the job began
	lost          bool    // nobody has the state any more
}

// newSave returns a checkpoint of the job as it is now.
func (w *World) newSave() save {
	return save{w.cursor.Step, w.now, w.cursor, w.progress, w.setting}
}

// sealIfWritten makes the newest checkpoint that which a new run goes on from, if it is written. It
// returns whether it is.
func (w *World) sealIfWritten() bool {
	s := &w.saving
	if w.now < s.newest.at+w.config.Costs.Write {
		return false
	}
	s.whole = s.newest
	return true
}

// saveIfDue makes a checkpoint if it is time, and the one before is written. It returns for how
// many seconds the workers stand still to copy their state.
func (w *World) saveIfDue() float64 {
	if !w.config.Levers.Save || !w.sealIfWritten() {
		return 0
	}
	before := w.saving.newest
	due := w.now >= before.at+usualSave
	if n := w.setting.Save; n > 0 {
		due = (w.cursor.Step-before.step)*uint64(max(w.cursor.Round, 1)) >= n
	}
	if !due {
		return 0
	}
	w.saving.newest = w.newSave()
	w.saving.newest.at += w.config.Costs.Save
	return w.config.Costs.Save
}

// measureSave takes in what agents see of the newest checkpoint and of the steps around it.
func (w *World) measureSave() {
	s, write := &w.saving, w.config.Costs.Write
	took := min(max(w.now-s.newest.at, 0), write)
	s.meter.Observe(saves.Newest{Step: s.newest.step, Seconds: took, Done: took >= write},
		&w.series)
}

// loseState notes that nobody has the state any more, if no host is left. The next run is to have
// as many members as this one had at its start.
func (w *World) loseState() {
	if w.countHosts() == 0 {
		w.saving.lost = true
		w.setting.Size = w.joining.start
		w.expectAll()
		w.sealIfWritten()
	}
}

// isNewRun reports whether the next step is the first one of a new run, which begins when it has as
// many members as it is to have. A job that makes no checkpoints has one run: somebody always has
// its state.
func (w *World) isNewRun() bool { return w.saving.lost && w.config.Levers.Save }

// NewRun returns with how many members the next run begins, where nobody has the state any more,
// and how many workers are there for it; 0 members = the run of now goes on.
func (w *World) NewRun() (members, there int) {
	if !w.isNewRun() {
		return 0, 0
	}
	return w.joining.expected, w.memberCount() + w.startingCount()
}

// restartFromSave has the hosts that are there now begin a new run, which goes on from the newest
// checkpoint that was written, if it is one. Steps that are made again count as further ones. It
// returns whether they did.
func (w *World) restartFromSave() bool {
	back := w.isNewRun()
	w.saving.lost = false
	if !back {
		return false
	}
	from, step, now := w.saving.whole, w.cursor.Step, w.setting
	w.cursor, w.progress, w.setting = from.cursor.WithShares(nil), from.progress, from.setting
	w.cursor.Step = step
	w.setting.Number, w.setting.Size, w.setting.Shares = now.Number, now.Size, nil
	w.series, w.noise = sense.StepSeries{}, gradients{}
	w.forgetSplit()
	w.conditions++
	w.saving = saving{newest: w.newSave(), whole: w.newSave(), began: w.now}
	return true
}
