package watch

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/sense/history"
)

// What is to be shown of a run, and what is new of it. Like all of Run, the methods are for one
// goroutine at a time; they change nothing of the run, and nothing here does I/O.

// state returns how the run is: whether it lasts, and how it has ended.
func (r *Run) state() State {
	switch f := r.result; {
	case f != nil && f.GoesOn != "":
		return State{"left", "this host has left the job, which goes on on host " + f.GoesOn, true,
			r.endSeconds()}
	case f != nil && f.Parked:
		return State{"parked", fmt.Sprintf("it is parked after %s, and goes on where it is "+
			"started again", durationText(f.Seconds)), true, r.endSeconds()}
	case f != nil && f.OK:
		by := ""
		if f.StoppedBy != "" {
			by = "was stopped by " + f.StoppedBy + " and "
		}
		return State{"ended", fmt.Sprintf("it %sended well after %s", by, durationText(f.Seconds)),
			true, r.endSeconds()}
	case f != nil:
		// the lines after the first have the output of a worker, which is in no report
		why, _, _ := strings.Cut(f.Error, "\n")
		return State{"failed", fmt.Sprintf("it failed after %s: %s", durationText(f.Seconds),
			firstNonEmpty(why, "its result does not say why")), true, r.endSeconds()}
	case r.live != nil:
		return State{string(r.live.State), "it is " + string(r.live.State), false, r.heard}
	case strings.Contains(r.why, "led from host"):
		return State{"elsewhere", r.why, false, r.heard}
	case r.why != "":
		return State{"silent", "its launcher does not answer: " + r.why, false, r.heard}
	}
	s := NoResult(r.dir)
	if r.notes[fileResult] != "" {
		s.Text = "its result cannot be read, and its launcher does not run"
	}
	s.At = max(r.heard, r.latest)
	return s
}

// NoResult returns how a run in a directory is which has no result and no launcher any more. One
// that ended well on a full disk has none either: its files do not tell the two apart.
func NoResult(dir string) State {
	if strings.Contains(path.Base(dir), "@") { // of a host that has joined the job
		return State{Word: "left", Over: true, Text: "it has no result here: the host that led " +
			"the job last has it, unless that was killed"}
	}
	return State{Word: "killed", Over: true,
		Text: "it has no result: its launcher was killed, or the disk had no room for it"}
}

// endSeconds returns when the run has ended, as its result has it; 0 = not known.
func (r *Run) endSeconds() float64 {
	if t := Seconds(r.result.Started); t > 0 {
		return t + r.result.Seconds
	}
	return 0
}

// durationText writes seconds for people.
func durationText(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Minute {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// endedWorkers returns how workers ended, as the result has it. Where neither that nor the launcher
// says anything, they are the newest of those whose output is there, and no end of them is known.
func (r *Run) endedWorkers() []Ended {
	list := []Ended{}
	switch {
	case r.result != nil:
		list = append(list, r.result.Workers...)
	case r.LacksWorkers():
		for _, worker := range r.outputs[max(len(r.outputs)-maxOutputs, 0):] {
			list = append(list, Ended{Rank: worker, How: "has no known end"})
		}
	}
	return list
}

// updateID names what of the run is known now: Since takes it, and returns what has come later.
func (r *Run) updateID() string {
	return r.epoch + "-" + strconv.FormatUint(r.seq+uint64(len(r.recent)), 10)
}

// View returns all that is to be shown at a time. It shares nothing with the run but what nobody
// changes.
func (r *Run) View(now float64) View {
	state := r.state()
	v := View{ID: r.updateID(), Made: now, Job: r.name, Dir: r.dir, Command: r.command,
		Version: r.ranBy, Started: r.started, State: state, Notes: r.allNotes(),
		Series: []SeriesView{}, Marks: append([]Mark{}, r.marks...), LeftOut: r.leftOut,
		Changes: append([]ChangeView{}, r.changes...), Coverage: r.coverage(), Newest: r.newest,
		Hosts: r.allHosts(), Need: r.need(), Live: r.live, WhyNot: r.allWhyNot(),
		Ended: r.endedWorkers()}
	for i := range v.Changes {
		v.Changes[i].endWithRun(state)
	}
	for _, name := range r.allSeries() {
		s, worker := r.series(name)
		v.Series = append(v.Series, s.view(name, worker))
	}
	return v
}

// allHosts returns the hosts, never nil.
func (r *Run) allHosts() []history.Host { return append([]history.Host{}, r.hosts...) }

// allWhyNot returns why policies have changed nothing, never nil.
func (r *Run) allWhyNot() []control.WhyNot { return append([]control.WhyNot{}, r.whyNot...) }

// allSeries returns the names of the series that have points.
func (r *Run) allSeries() (list []string) {
	for _, name := range []string{"steps", "split", "pace"} {
		if s, _ := r.series(name); s.points > 0 {
			list = append(list, name)
		}
	}
	for _, name := range r.names {
		list = append(list, "metric "+name)
	}
	return list
}

// series returns a series by its name, and the worker that it is of; -1 = of no single one.
func (r *Run) series(name string) (*Series, int) {
	switch name {
	case "steps":
		return r.steps, -1
	case "split":
		return r.split, -1
	case "pace":
		return r.pace, -1
	}
	m := r.metrics[strings.TrimPrefix(name, "metric ")]
	return m.series, m.worker
}

// Since returns what has come after what a view or an update with an ID had. It reports false where
// that is too long ago, or of another Run: then a View is needed.
func (r *Run) Since(id string, now float64) (u Update, ok bool) {
	text, ok := strings.CutPrefix(id, r.epoch+"-")
	if !ok {
		return u, false
	}
	from, err := strconv.ParseUint(text, 10, 64)
	if err != nil || from < r.seq || from > r.seq+uint64(len(r.recent)) {
		return u, false
	}
	u = Update{ID: r.updateID(), Made: now, State: r.state(), Notes: r.allNotes(),
		Series: []SeriesView{}, Marks: []Mark{}, Changes: []ChangeView{},
		Coverage: r.coverage(), Newest: r.newest, Hosts: r.allHosts(), Need: r.need(), Live: r.live,
		WhyNot: r.allWhyNot(), Ended: r.endedWorkers()}
	for _, i := range r.recent[from-r.seq:] {
		switch {
		case i.mark != nil:
			u.Marks = append(u.Marks, *i.mark)
		case i.change != "":
			u.addChange(r.changes, i.change)
		default:
			s, worker := r.series(i.series)
			u.addPoint(i, s.columns, worker)
		}
	}
	for i := range r.changes {
		if u.State.Over && !r.changes[i].Phase.IsEnd() {
			u.addChange(r.changes, r.changes[i].Name)
		}
	}
	for i := range u.Changes {
		u.Changes[i].endWithRun(u.State)
	}
	return u, true
}

// endWithRun ends a change that was measured when a run ended whose ledger does not have that end.
func (v *ChangeView) endWithRun(s State) {
	if s.Over && !v.Phase.IsEnd() {
		v.Change = v.Change.EndWithJob(s.Word == "left")
	}
}

// addChange adds the change of a name, from all changes, unless the update has it.
func (u *Update) addChange(all []ChangeView, name string) {
	has := func(v ChangeView) bool { return v.Name == name }
	if i := slices.IndexFunc(all, has); i >= 0 && !slices.ContainsFunc(u.Changes, has) {
		u.Changes = append(u.Changes, all[i])
	}
}

// addPoint adds a point to its series in the update, which it begins with these columns and this
// worker where it is not there yet.
func (u *Update) addPoint(p item, columns []string, worker int) {
	i := slices.IndexFunc(u.Series, func(v SeriesView) bool { return v.Name == p.series })
	if i < 0 {
		i = len(u.Series)
		u.Series = append(u.Series, SeriesView{Name: p.series, Worker: worker, Columns: columns,
			Values: make([]numbers, len(columns))})
	}
	v := &u.Series[i]
	v.Points++
	v.Times = append(v.Times, p.time)
	for k := range v.Values {
		v.Values[k] = append(v.Values[k], p.values[k])
	}
}
