package keeper

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/pattern"
	cut "github.com/shoal-ml/shoal/internal/shorten"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/pool"
)

// What a keeper reports of a part, of its job, and of how it has ended. The methods of part run on
// the goroutine of part.watch, and read files of the part and of its run; the functions keep
// nothing.

// report returns what the keeper of this host reports of a part; gone says that its processes are
// gone.
func (p *part) report(gone bool) pool.JobReport {
	r := pool.JobReport{Job: p.name, Attempt: p.saved.Attempt, Part: p.saved.Part, Live: !gone,
		Refused: p.refused}
	switch {
	case gone:
		r.End = p.end()
		r.End.Lost = r.End.Lost || !p.lived && p.failed == nil && !r.End.Final
		if p.job != nil {
			r.Led = led(p.job)
			r.Led.Steps = max(r.Led.Steps, lastStep(p.saved.Run))
		}
	case p.leads && p.job.State == api.Stuck:
		r.Stuck = true
	case p.leads:
		if r.Led = led(p.job); p.hasSlots() {
			r.Led.Allotted = p.allot.Seq
		}
		r.Led.Token, r.Led.Invited = p.token, p.invited
	}
	r.Refused = shorten(r.Refused, maxRefused)
	if r.End != nil {
		r.End.Error = shorten(r.End.Error, maxWhy)
	}
	return r
}

// Bounds of texts that the record of a job keeps, in characters: of why it has failed, which may be
// a whole report of launcher.Failure, and of why it did not do what it was told, which each of its
// changes may have.
const (
	maxWhy     = 4000
	maxRefused = 500
)

// shorten returns a text as UTF-8 with so many characters at most, and "…" after them if there are
// more.
func shorten(text string, most int) string {
	for i := range text {
		if most--; most < 0 {
			text = text[:i] + "…"
			break
		}
	}
	return strings.ToValidUTF8(text, string(utf8.RuneError))
}

// reason returns a text as a launcher takes it as the reason for slots: one line of what can be
// printed, of so many bytes.
func reason(text string) string {
	line := strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return ' '
	}, text)
	return cut.Text(line, member.MaxWho)
}

// lastStep returns the number of optimizer steps in the last entry of the ledger of a run, which
// may be newer than what its launcher last said; 0 = there is none.
func lastStep(dir string) (step uint64) {
	text, _ := os.ReadFile(runs.LedgerPath(dir))
	entries, _, _ := runs.ParseLedger(text)
	for _, e := range entries {
		step = max(step, cmp.Or(e.OptimizerSteps, e.Step))
	}
	return step
}

// filesIn finds the directory of a run in what its launcher or agent says first.
var filesIn = pattern.New(
	`(?m)^shoal: (?:job|this host takes up to) .*, files in (.*)$`)

// runDir returns the directory of the run, as the launcher or agent has said it; "" = it has not.
func (p *part) runDir() string {
	text, _ := os.ReadFile(p.host.path(p.name, logSuffix)) // nothing where it was never started
	if m := filesIn.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return ""
}

// end returns how a part has ended whose processes are gone.
func (p *part) end() *pool.End {
	p.reap()
	if errors.Is(p.failed, errLeft) { // which is no fault of the job
		return &pool.End{Lost: true, Error: p.failed.Error()}
	}
	if p.failed != nil && p.saved.PID == 0 {
		return &pool.End{Final: !p.saved.Joins,
			Error: "it could not be started: " + p.failed.Error()}
	}
	if p.saved.Run == "" {
		p.saved.Run = p.runDir()
	}
	x := &pool.End{Dir: p.saved.Run}
	if p.saved.Run == "" { // it has not begun
		text, _ := os.ReadFile(p.host.path(p.name, logSuffix))
		said := lastLine(string(text))
		ended := p.exit != nil && !p.exit.Signaled() // else it may have been killed
		if p.saved.PID > 0 && (ended || p.exit == nil && said != "") {
			x.Final, x.Error = !p.saved.Joins, said
		}
		return x
	}
	result, err := runs.ReadResult(p.saved.Run)
	switch {
	case errors.Is(err, fs.ErrNotExist): // its launcher was killed, or another host led
		if p.endedWell() {
			x.Final, x.OK, x.Stopped = true, true, p.job.StoppedBy
		}
	case err != nil:
		x.Final, x.Error = !p.saved.Joins, err.Error()
	case result.Unstarted: // as if its launcher was killed: it may be started again
	case result.LostHost != "": // which is no fault of the job: it may be started again
		x.Error, x.Lost = result.Error, true
	case result.GoesOn == "":
		x.Final, x.OK, x.Error = true, result.OK, result.Error
		x.Stopped, x.Parked = result.StoppedBy, result.Parked
	}
	return x
}

// endedWell reports whether the launcher, which has left no result, has ended the job well all the
// same: there may have been no room for the result on the disk. It says so by its exit code, which
// is the same where the job is parked or goes on on other hosts.
func (p *part) endedWell() bool {
	return p.exit != nil && p.exit.Exited() && p.exit.ExitStatus() == 0 && p.job != nil &&
		len(p.job.Hosts) <= 1 && !p.parking && p.job.ParkedBy == "" && !p.job.Parked
}

// lastLine returns the last line of a text, without its newline and the "shoal: " that it begins
// with.
func lastLine(text string) string {
	text = strings.TrimRight(text, "\n")
	return strings.TrimPrefix(text[strings.LastIndexByte(text, '\n')+1:], "shoal: ")
}

// led returns what the launcher of a job says of it, in the form in which the machine of the pool
// takes it.
func led(j *control.Job) *pool.Led {
	l := &pool.Led{Host: j.Head, Size: j.Size, Want: j.Want, Workers: map[string]int{},
		Elastic: resizable(j), Steps: cmp.Or(j.OptimizerSteps, j.Steps), Goal: j.Goal, Dir: j.Dir,
		Join: j.Join}
	if !j.Elastic { // its program makes its steps by itself
		for _, w := range j.Workers {
			if n := w.Metrics["step"]; n >= 1 && n < 1<<53 {
				l.Steps = max(l.Steps, uint64(n))
			}
		}
	}
	if j.Generation == 0 { // a program that does not join, or has not yet
		l.Size = j.Alive()
	}
	if l.Host == "" {
		l.Host = "here"
	}
	for _, w := range j.Workers {
		if host := w.Host; w.Running {
			if host == "" {
				host = l.Host
			}
			l.Workers[host]++
		}
	}
	if j.Pace != nil && j.Size == j.Want {
		l.Pace = j.Pace.Median
	}
	l.Limit = j.Job.Limit
	if t := j.Traffic; t != nil {
		l.Sent, l.Waits = t.Sent, min(max(t.Waits, 0), 1)
	}
	return l
}
