package launcher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/sense/history"
	"github.com/shoal-ml/shoal/setting"
)

// reporter tells people about the job: on the terminal, in the files of the run, and by the
// callback OnEvent. Any goroutine may call its methods, which hold mu for a moment, and not while
// they write. Only writeLines writes events on the terminal; the goroutine that calls writes files
// and calls OnEvent.
type reporter struct {
	console    *proc.Console
	onEvent    func(e agent.Event) // nil = nobody asks for events
	linesReady chan struct{}       // holds a token when there are lines for the terminal

	mu       sync.Mutex    // guards what follows
	job      string        // name of the job; "" = not known yet
	dir      *runs.Dir     // directory of the run; nil = the job is not known yet
	lines    []string      // lines that writeLines is to write on the terminal
	finished []agent.Event // events of workers that ended well, not shown on the terminal yet
	stopping bool          // the launcher ends the workers, whose loss is no news
	jobOver  bool          // the job is over, and what hosts and workers do now is no news

	// toldOfLogs says that people were told of lines of other hosts' workers that no log has.
	toldOfLogs bool

	trial *setting.Change   // the change of the setting that is measured; nil = none is
	open  []*setting.Change // that and those of routes, the newest last
}

// newReporter returns a reporter to a console, without a job; writeLines must run to have it write
// events there. onEvent is called with each event for the ledger; nil = nobody asks for events.
func newReporter(c *proc.Console, onEvent func(e agent.Event)) *reporter {
	return &reporter{console: c, onEvent: onEvent, linesReady: make(chan struct{}, 1)}
}

// setRun stores the name of the job, and the directory of the run, which Run or Serve closes.
func (r *reporter) setRun(job string, dir *runs.Dir) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.job, r.dir = job, dir
}

// directory is the directory of the run; nil = there is none yet.
func (r *reporter) directory() *runs.Dir {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dir
}

// directoryPath is the path of the directory of the run; "" = there is none yet.
func (r *reporter) directoryPath() string {
	if dir := r.directory(); dir != nil {
		return dir.Path()
	}
	return ""
}

// beginStop stores that the launcher ends the workers from now on.
func (r *reporter) beginStop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = true
}

// setJobOver stores that this host's part in the job is over.
func (r *reporter) setJobOver() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.jobOver = true
}

// isJobOver reports whether the job is over.
func (r *reporter) isJobOver() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.jobOver
}

// reportEvent reports a change: on the terminal if people care about it, in the run's ledger, and
// to OnEvent. It mostly runs on the engine's thread: it writes the ledger and calls OnEvent, and
// leaves the terminal to writeLines. Before there is a ledger an event is for the terminal only,
// and after the end of the job nobody gets one, but that the ledger and OnEvent get the end of a
// wait. A full disk must not end a training run, so it is no error if the files lack an event.
func (r *reporter) reportEvent(e agent.Event) {
	r.mu.Lock()
	over, dir := r.jobOver, r.dir
	if !over {
		if !r.stopping {
			r.queueLines(e)
		}
		if e.Change != nil {
			r.trackMeasuredChange(e.Change)
		}
	}
	r.mu.Unlock()
	if dir == nil || over && e.What != "waited" { // in the ledger every wait has its end
		return
	}
	r.writeEvent(dir, e)
}

// trackMeasuredChange keeps which changes are measured. r.mu is held.
func (r *reporter) trackMeasuredChange(c *setting.Change) {
	r.open = slices.DeleteFunc(r.open, func(o *setting.Change) bool {
		return o.Name() == c.Name()
	})
	if !c.Phase.IsEnd() {
		r.open = append(r.open, c)
	}
	if c.Policy != setting.Routes {
		if r.trial = nil; !c.Phase.IsEnd() {
			r.trial = c
		}
	}
}

// writeEvent has writeLines write what is queued, writes an event into the ledger in dir, and calls
// OnEvent with it.
func (r *reporter) writeEvent(dir *runs.Dir, e agent.Event) {
	select {
	case r.linesReady <- struct{}{}:
	default:
	}
	_ = dir.AppendEvent(e, time.Now())
	if r.onEvent != nil {
		r.onEvent(e)
	}
}

// changeOnTrial is the change of the setting that is measured, or was when the job ended; nil =
// none was. Nobody alters it.
func (r *reporter) changeOnTrial() *setting.Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trial
}

// endJob stores that the job is over, which has the status s. Changes that were measured are void:
// their ends are written into the ledger, and on the terminal unless the job was led elsewhere.
func (r *reporter) endJob(s agent.Status, elsewhere bool) {
	r.mu.Lock()
	over, dir := r.jobOver, r.dir
	r.jobOver = true
	var ends []agent.Event
	for _, o := range r.open {
		c := o.EndWithJob(false)
		e := agent.Event{What: runs.ChangeEvent(c), Generation: s.Generation, Size: s.Size,
			Step: s.Steps, OptimizerSteps: s.OptimizerSteps, Because: c.Because, Change: &c,
			Elsewhere: elsewhere}
		if ends = append(ends, e); !over && dir != nil {
			r.queueLines(e)
		}
	}
	r.mu.Unlock()
	if over || dir == nil {
		return
	}
	for _, e := range ends {
		r.writeEvent(dir, e)
	}
}

// queueLines adds the lines of an event that people care about to those that writeLines writes.
// They care that workers have finished only when the others have made steps since: at the end of a
// job all workers finish. r.mu is held.
func (r *reporter) queueLines(e agent.Event) {
	change := e.What == "generation"
	if change && len(r.finished) > 0 && e.Step > r.finished[0].Step {
		for _, before := range r.finished {
			r.lines = append(r.lines, printableText(before.String()))
		}
		r.finished = nil
	}
	switch line := printableText(e.String()); {
	case e.What == "route" || e.Elsewhere || e.Change != nil && !e.Change.IsNews():
	case !change || !e.First && len(e.Joined)+len(e.Lost)+len(e.Released)+len(e.Again) > 0:
		if (e.What == "wait" || e.What == "pause") && r.job != "" {
			line += "; shoal explain " + r.job + " says what can be done"
		}
		r.lines = append(r.lines, line)
	case len(e.Finished) > 0:
		r.finished = append(r.finished, e)
	}
}

// writeLines writes queued lines on the terminal until ctx ends, which may block, and then the last
// ones. It has a goroutine of its own: a terminal that takes no more, as that of a pager does, must
// not hold up the engine's thread, which calls reportEvent. Its error is always nil.
func (r *reporter) writeLines(ctx context.Context) error {
	for last := false; !last; {
		select {
		case <-r.linesReady:
		case <-ctx.Done():
			last = true
		}
		r.mu.Lock()
		lines := r.lines
		r.lines = nil
		r.mu.Unlock()
		for _, line := range lines {
			r.console.Note(line)
		}
	}
	return nil
}

// appendMetrics writes what a worker reports into the files of the run, if there is a directory.
func (r *reporter) appendMetrics(worker int, metrics map[string]float64) {
	if dir := r.directory(); dir != nil {
		_ = dir.AppendMetrics(worker, metrics, time.Now()) // as with events
	}
}

// onHistoryRow writes what is kept of some steps of the job, and why policies have left things as
// they are, and tells people once if it cannot write the former. It runs on the goroutine on which
// the agent gives rows to the launcher, and waits for policies that decide.
func (l *launcher) onHistoryRow(row history.Row, now time.Time) {
	if dir := l.reporter.directory(); dir != nil {
		if err := dir.AppendHistory(row, now); err != nil {
			l.console.Note(err.Error())
		}
	}
	_ = l.publishWhyNots() // as with events
}

// closeLog closes the log of a worker of another host that has ended.
func (r *reporter) closeLog(worker int) {
	if dir := r.directory(); dir != nil {
		_ = dir.CloseLog(worker) // as with events
	}
}

// showHostLine shows a line of this host about a worker on the terminal, which may block, and
// writes it into the worker's log.
func (r *reporter) showHostLine(worker int, text string) {
	r.console.WorkerLine(worker, true, text)
	if dir := r.directory(); dir != nil {
		_ = dir.AppendHostLine(worker, text) // as with events
	}
}

// showWorkerLine shows a line of a worker whose output is not read here on the terminal, which may
// block, and writes it into the worker's log. It says once if that cannot be done, as on a full
// disk.
func (r *reporter) showWorkerLine(worker int, stderr bool, text string) {
	r.console.WorkerLine(worker, stderr, text)
	dir := r.directory()
	if dir == nil {
		return
	}
	err := dir.AppendLine(worker, text)
	r.mu.Lock()
	tell := err != nil && !r.toldOfLogs
	r.toldOfLogs = r.toldOfLogs || tell
	r.mu.Unlock()
	if tell {
		r.console.Note(fmt.Sprintf("logs here lack lines of workers of other hosts: %v; the logs "+
			"on those hosts have them", err))
	}
}
