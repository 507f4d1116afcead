package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/launcher"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/pool"
)

// part is one start of a job on this host: a launcher in a session of its own. orders, seen and
// over are guarded by the mutex of the host; the rest belongs to the goroutine of watch.
type part struct {
	host *host
	name string // of the job
	wake chan struct{}

	orders []pool.Order // that are not carried out yet
	seen   pool.JobReport
	over   bool // whether it is gone

	saved   saved
	job     *control.Job // nil = its launcher has not been found yet
	allot   pool.Order   // the last one to allot; without a verb there was none
	refused string       // why the last order was not carried out; "" = it was
	parking bool         // whether the last order is to park, and the job has not said why not
	failed  error        // why it could not be started; nil = it could
	exit    *syscall.WaitStatus
}

// saved is what of a part is in a file, so that the next keeper knows what was started.
type saved struct {
	Attempt int    `json:"attempt"`
	Part    int    `json:"part"`
	PID     int    `json:"pid"` // of the launcher; 0 = it may not have been started
	Run     string `json:"run"` // directory of the run; "" = not known yet
}

// parseSaved reads the file of a part. One that cannot be is of an attempt of which nothing is
// known, so that processes of it that are left have their slots until they are gone.
func parseSaved(text []byte) (s saved) {
	if json.Unmarshal(text, &s) != nil || s.Attempt < 0 || s.Part < 0 || s.PID < 0 {
		return saved{}
	}
	return s
}

// newPart returns a part of which nothing is known.
func newPart(h *host, job string) *part {
	return &part{host: h, name: job, wake: make(chan struct{}, 1)}
}

// How often a launcher is asked how its job is: while its workers change, and else.
const (
	quickGlance = 20 * time.Millisecond
	slowGlance  = 250 * time.Millisecond
)

// watch carries out the orders for a part, and looks how it is, until it is gone or ctx ends.
func (p *part) watch(ctx context.Context) error {
	for {
		p.carryOut(ctx)
		gone := p.look(ctx)
		p.host.show(p, p.report(gone), gone)
		if gone {
			return nil
		}
		wait := slowGlance
		if p.moves() {
			wait = quickGlance
		}
		timer := time.NewTimer(wait)
		select {
		case <-p.wake:
		case <-timer.C:
		case <-ctx.Done(): // the job goes on
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}

// moves reports whether the number of workers is about to change, or the job to end.
func (p *part) moves() bool {
	return p.job == nil || p.job.State == "resizing" || p.job.State == "starting" ||
		p.job.State == "stopping" || p.parking || p.job.Alive() != p.job.Want
}

// carryOut carries out the orders that have come, and keeps those that must be tried again.
func (p *part) carryOut(ctx context.Context) {
	p.host.mu.Lock()
	list := p.orders
	p.host.mu.Unlock()
	done := 0
	for _, o := range list {
		p.parking = false
		err := p.do(ctx, o)
		var no *control.Refusal
		switch {
		case errors.As(err, &no):
			p.refused = no.Reason
		case err != nil && !errors.Is(err, control.ErrEnded):
			p.drop(done) // a launcher that is stopped, perhaps
			return
		default:
			p.refused = ""
		}
		done++
	}
	p.drop(done)
}

// drop forgets the first n orders.
func (p *part) drop(n int) {
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	p.orders = p.orders[n:]
}

// errNotFound means that the launcher of a job does not answer yet.
var errNotFound = errors.New("the launcher has not begun to answer")

// do carries out one order.
func (p *part) do(ctx context.Context, o pool.Order) error {
	switch o.Verb {
	case pool.StartRun:
		p.failed = p.start(o)
	case pool.KillRun:
		p.kill()
	case pool.StopRun:
		if p.job == nil {
			p.kill()
			return nil
		}
		return p.job.Stop(ctx, o.Now, o.Who)
	case pool.AllotRun:
		if p.job == nil {
			return errNotFound
		}
		p.allot = o
		return p.giveSlots(ctx)
	case pool.ParkRun:
		if p.job == nil {
			return errNotFound
		}
		err := p.job.Park(ctx, "pool "+p.host.Name)
		p.parking = err == nil
		return err
	default:
		return &control.Refusal{Reason: fmt.Sprintf("this version cannot %s a job", o.Verb)}
	}
	return nil
}

// hasSlots reports whether the job has taken the last order to allot.
func (p *part) hasSlots() bool {
	return p.allot.Verb != "" && maps.Equal(p.allot.Allot, pool.Slots(p.job.Allotted))
}

// giveSlots gives the job the slots that it is to have, unless it has them or does not train in
// steps yet.
func (p *part) giveSlots(ctx context.Context) error {
	if p.allot.Verb == "" || !resizable(p.job) || p.hasSlots() {
		return nil
	}
	return p.job.Allot(ctx, p.allot.Allot, "pool "+p.host.Name, p.allot.Because)
}

// resizable reports whether a job trains in steps and has begun to.
func resizable(j *control.Job) bool { return j.Elastic && j.Generation > 0 }

// kill asks the launcher to end the job, if it runs.
func (p *part) kill() {
	if p.saved.PID > 0 && p.held() {
		_ = syscall.Kill(p.saved.PID, syscall.SIGTERM)
	}
}

// save writes what is known of a part to its file.
func (p *part) save() error {
	text, err := json.Marshal(p.saved)
	if err == nil {
		err = durable.Write(p.host.path(p.name, partSuffix), text)
	}
	return err
}

// start starts a job. That it may run is on the disk before, and the lock of the file that its
// processes inherit tells whether any of them is left, whoever is killed meanwhile.
func (p *part) start(o pool.Order) error {
	h := p.host
	_ = os.Remove(h.path(p.name, lockSuffix)) // of an attempt that is over
	lock, err := os.OpenFile(h.path(p.name, lockSuffix), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := proc.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	if err := p.save(); err != nil {
		return err
	}
	if err := os.WriteFile(h.path(p.name, specSuffix), []byte(o.Spec), 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(h.path(p.name, logSuffix), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(h.Program, "run", "--name", p.name, "-n", strconv.Itoa(o.Workers), "-f",
		h.path(p.name, specSuffix))
	cmd.Dir, cmd.Stderr, cmd.ExtraFiles = o.Dir, log, []*os.File{lock}
	cmd.Env = append(os.Environ(), o.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.saved.PID = cmd.Process.Pid
	_ = cmd.Process.Release() // look reaps it
	return p.save()
}

// held reports whether a process of the part is left.
func (p *part) held() bool {
	lock, err := os.OpenFile(p.host.path(p.name, lockSuffix), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true // it is not known
	}
	defer lock.Close()
	return proc.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB) != nil
}

// isLauncher reports whether a job that was found is this part.
func (p *part) isLauncher(j *control.Job) bool {
	if p.saved.PID > 0 {
		return j.PID == p.saved.PID
	}
	return j.Name == p.name || j.RequestedName == p.name
}

// look asks the launcher how the job is, and reports whether all of its processes are gone.
func (p *part) look(ctx context.Context) (gone bool) {
	if p.failed != nil && p.saved.PID == 0 {
		return true
	}
	p.reap()
	if p.job == nil {
		running, _ := control.List(ctx)
		for _, j := range running {
			if p.isLauncher(j) {
				p.job = j
			}
		}
	} else if p.job.Refresh(ctx) == nil { // where it does not answer, it is as it was
		if no := new(control.Refusal); errors.As(p.giveSlots(ctx), &no) {
			p.refused = no.Reason
		}
		if p.parking && p.job.ParkError != "" {
			p.parking, p.refused = false, "it could not be parked: "+p.job.ParkError
		}
	}
	if p.job != nil && p.saved.Run == "" {
		p.saved.Run, p.saved.PID = p.job.Dir, p.job.PID
		_ = p.save() // it can be found again without that
	}
	return !p.held()
}

// reap takes the exit status of a launcher that this process has started, once it has ended.
func (p *part) reap() {
	if p.exit != nil || p.saved.PID == 0 {
		return
	}
	var status syscall.WaitStatus
	if pid, err := syscall.Wait4(p.saved.PID, &status, syscall.WNOHANG, nil); err == nil &&
		pid == p.saved.PID {
		p.exit = &status
	}
}

// report says how a part is; gone says that its processes are gone.
func (p *part) report(gone bool) pool.JobReport {
	r := pool.JobReport{Job: p.name, Attempt: p.saved.Attempt, Part: p.saved.Part, Live: !gone,
		Refused: p.refused}
	switch {
	case gone:
		if r.End = p.end(); p.job != nil {
			r.Led = led(p.job)
			r.Led.Steps = max(r.Led.Steps, lastStep(p.saved.Run))
		}
	case p.job != nil:
		if r.Led = led(p.job); p.hasSlots() {
			r.Led.Allotted = p.allot.Seq
		}
	}
	return r
}

// lastStep returns the number of committed steps in the last entry of the ledger of a run, which
// may be newer than what its launcher last said; 0 = there is none.
func lastStep(dir string) (step uint64) {
	text, _ := os.ReadFile(launcher.LedgerPath(dir))
	entries, _, _ := launcher.ParseLedger(text)
	for _, e := range entries {
		step = max(step, e.Step)
	}
	return step
}

// filesIn finds the directory of a run in what its launcher says first.
var filesIn = regexp.MustCompile(`(?m)^shoal: job .*, files in (.*)$`)

// end returns how a part has ended whose processes are gone.
func (p *part) end() *pool.End {
	p.reap()
	if p.failed != nil && p.saved.PID == 0 {
		return &pool.End{Final: true, Error: "it could not be started: " + p.failed.Error()}
	}
	text, _ := os.ReadFile(p.host.path(p.name, logSuffix)) // nothing where it was never started
	if m := filesIn.FindSubmatch(text); p.saved.Run == "" && m != nil {
		p.saved.Run = string(m[1])
	}
	x := &pool.End{Dir: p.saved.Run}
	if p.saved.Run == "" { // it has not begun
		if p.saved.PID > 0 && (p.exit == nil || !p.exit.Signaled()) {
			x.Final, x.Error = true, lastLine(string(text))
		}
		return x
	}
	result, err := launcher.ReadResult(p.saved.Run)
	switch {
	case errors.Is(err, fs.ErrNotExist): // its launcher was killed
	case err != nil:
		x.Final, x.Error = true, err.Error()
	case result.GoesOn == "":
		x.Final, x.OK, x.Error = true, result.OK, result.Error
		x.Stopped, x.Parked = result.StoppedBy, result.Parked
	}
	return x
}

// lastLine returns the last line of a text, without its newline.
func lastLine(text string) string {
	text = strings.TrimRight(text, "\n")
	return strings.TrimPrefix(text[strings.LastIndexByte(text, '\n')+1:], "shoal: ")
}

// led returns what a launcher says of a job, as the pool has it.
func led(j *control.Job) *pool.Led {
	l := &pool.Led{Host: j.Head, Size: j.Size, Want: j.Want, Workers: map[string]int{},
		Elastic: resizable(j), Steps: j.Steps, Goal: j.Goal, Dir: j.Dir, Join: j.Join}
	if n := j.OptimizerSteps; n > 0 { // it trains in rounds of several, and its steps are rounds
		l.Goal = (j.Goal*j.Steps + n - 1) / n
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
	return l
}
