package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/rundir"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/pool"
)

// The methods of part in this file run on the goroutine of watch; next and done take the mutex of
// the host. The host calls parseSaved and newPart before it starts that goroutine.

// part is one start of a job on this host, or one join of the host: a launcher or an agent in a
// session of its own. orders, link, seen and over are guarded by the mutex of the host; the rest
// belongs to the goroutine of watch.
type part struct {
	host *host
	name string // of the job
	wake chan struct{}

	orders []pool.Order // that are not carried out yet
	link   int          // how many links with a head there have been
	seen   pool.JobReport
	over   bool // whether it is gone

	saved   saved
	heard   int          // number of the link that allot, invited and refused are of
	job     *control.Job // nil = its launcher has not been found yet
	leads   bool         // whether job answers for the job, which is led from here
	asked   time.Time    // when it was last looked for among all launchers
	begun   time.Time    // when this keeper started it or found it
	killing time.Time    // when it was last told to end at once; zero = never
	token   string       // lets hosts join; "" = nobody has asked for one
	invited uint64       // the last order to invite that is done, or refused; 0 = none is
	allot   pool.Order   // the last one to allot; without a verb there was none
	refused string       // why the last order was not carried out; "" = it was
	parking bool         // whether the last order is to park, and the job has not said why not
	failed  error        // why it could not be started; nil = it could
	child   int          // process id of the launcher, where this keeper started it; else 0
	exit    *syscall.WaitStatus
	lived   bool // whether a process of it has lived while this keeper did
}

// saved is what of a part is in a file, so that the next keeper knows what was started.
type saved struct {
	Attempt int    `json:"attempt"`
	Part    int    `json:"part"`
	Joins   bool   `json:"joins,omitempty"` // whether it joins a job that another host led
	PID     int    `json:"pid"`             // of the launcher; 0 = it may not have been started
	Run     string `json:"run"`             // directory of the run; "" = not known yet
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
	return &part{host: h, name: job, wake: make(chan struct{}, 1), begun: time.Now()}
}

// How often a launcher is asked how its job is: while its workers change, and else. Where another
// host leads, only the end of the agent is looked for, which costs next to nothing.
const (
	quickGlance  = 20 * time.Millisecond
	followGlance = 50 * time.Millisecond
	slowGlance   = 250 * time.Millisecond
)

// joinPatience is how long an agent may try to join a job, which may be gone.
const joinPatience = time.Minute

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
		switch {
		case p.follows():
			wait = followGlance
		case p.moves():
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

// follows reports whether another host leads the job, as far as is known.
func (p *part) follows() bool { return !p.leads && (p.saved.Joins || p.job != nil) }

// moves reports whether the number of workers is about to change, or the job to end.
func (p *part) moves() bool {
	return p.job == nil || p.job.State == "resizing" || p.job.State == "starting" ||
		p.job.State == "stopping" || p.parking || p.job.Alive() != p.job.Want
}

// carryOut carries out the orders that have come, and keeps those that must be tried again.
func (p *part) carryOut(ctx context.Context) {
	for {
		o, link, any := p.next()
		if !any {
			return
		}
		p.parking = p.parking && o.Verb == pool.LimitRun
		err := p.do(ctx, o)
		var no *control.Refusal
		switch {
		case o.Verb == pool.LimitRun && (err == nil || errors.As(err, &no)):
			// what the last order came to stays
		case errors.As(err, &no):
			p.refused = no.Reason
		case err != nil && !errors.Is(err, control.ErrEnded):
			return // a launcher that is stopped, perhaps
		default:
			p.refused = ""
		}
		p.done(link)
	}
}

// next returns the first order that is not carried out, and the number of the link that brought it.
// What earlier links brought is forgotten.
func (p *part) next() (o pool.Order, link int, any bool) {
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	if p.link != p.heard {
		p.heard, p.allot, p.invited, p.refused = p.link, pool.Order{}, 0, ""
	}
	if len(p.orders) == 0 {
		return o, p.link, false
	}
	return p.orders[0], p.link, true
}

// done forgets the first order, which a link has brought, unless a later link has done so.
func (p *part) done(link int) {
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	begins := len(p.orders) > 0 && (p.orders[0].Verb == pool.StartRun ||
		p.orders[0].Verb == pool.JoinRun) // which later links keep
	if p.link == link || begins {
		p.orders = p.orders[1:]
	}
}

// errNotFound means that the launcher of a job does not answer yet.
var errNotFound = errors.New("the launcher has not begun to answer")

// do carries out one order. What only the host that leads can do is left where another one does:
// the head of the pool then asks that one. It may wait for the launcher; after an error the order
// is tried again or refused.
func (p *part) do(ctx context.Context, o pool.Order) error {
	switch o.Verb {
	case pool.StartRun, pool.JoinRun:
		p.failed = p.start(o)
		return nil
	case pool.KillRun:
		p.kill()
		return nil
	}
	switch {
	case p.leads:
	case p.job == nil && o.Verb == pool.StopRun && !p.saved.Joins:
		p.kill()
		return nil
	case p.follows():
		return nil
	default:
		return errNotFound
	}
	by := "pool " + p.host.Name
	switch o.Verb {
	case pool.StopRun:
		return p.job.Stop(ctx, o.Now, o.Who)
	case pool.AllotRun:
		p.allot = o
		return p.giveSlots(ctx)
	case pool.ParkRun:
		err := p.job.Park(ctx, by)
		p.parking = err == nil
		return err
	case pool.RecoverRun:
		err := p.job.Recover(ctx, by)
		if no := new(control.Refusal); errors.As(err, &no) {
			return nil // somebody leads, after all
		}
		return err
	case pool.LimitRun:
		return p.job.Limit(ctx, o.Limit, by)
	case pool.InviteRun:
		i, err := p.job.Invite(ctx, inviteLife, by)
		if err == nil {
			p.token = i.Token
		}
		if no := new(control.Refusal); err == nil || errors.As(err, &no) {
			p.invited = o.Seq
		}
		return err
	}
	return &control.Refusal{Reason: fmt.Sprintf("this version cannot %s a job", o.Verb)}
}

// inviteLife is how long hosts of the pool can join a job with one token.
const inviteLife = 365 * 24 * time.Hour

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
	return p.job.Allot(ctx, p.allot.Allot, "pool "+p.host.Name, reason(p.allot.Because))
}

// resizable reports whether a job trains in steps and has begun to.
func resizable(j *control.Job) bool { return j.Elastic && j.Generation > 0 }

// kill asks the launcher or agent to end the job here, if it runs; look asks again. The first
// signal may only begin what takes until the end of a step. Another process that has its number by
// now gets none: the lock of the part tells them apart.
func (p *part) kill() {
	if !p.held() {
		return
	}
	if p.killing = time.Now(); p.saved.PID == 0 {
		return // who has started it was killed before it wrote the number: look finds it
	}
	process, err := os.FindProcess(p.saved.PID)
	if err != nil {
		return // it has ended
	}
	if proc.HasOpen(p.saved.PID, p.host.path(p.name, lockSuffix)) {
		_ = process.Signal(syscall.SIGTERM) // one that has ended needs none
	}
	_ = process.Release() // it need not be a child
}

// killAgain is after which time a part that still lives is killed once more.
const killAgain = time.Second

// save writes what is known of a part to its file.
func (p *part) save() error {
	text, err := json.Marshal(p.saved)
	if err == nil {
		err = durable.Write(p.host.path(p.name, partSuffix), text)
	}
	return err
}

// errLeft means that processes of an earlier start of a job are left, of which the keeper does not
// know. The part lives as long as they do.
var errLeft = errors.New("processes of an earlier start of it are left on this host")

// start starts a job, or the agent with which this host joins one. That it may run is on the disk
// before, and the lock of the file that its processes inherit tells whether any of them is left,
// whoever is killed meanwhile. What an earlier start has said is gone by then, since it would be
// taken for the words of this one.
func (p *part) start(o pool.Order) error {
	h := p.host
	lock, err := os.OpenFile(h.path(p.name, lockSuffix), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := durable.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err,
		syscall.EWOULDBLOCK) {
		return errLeft
	} else if err != nil {
		return err
	}
	log, err := os.OpenFile(h.path(p.name, logSuffix), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := checkFolder(o.Dir); err != nil {
		return err
	}
	if err := p.save(); err != nil {
		return err
	}
	if err := os.WriteFile(h.path(p.name, specSuffix), []byte(o.Spec), 0o600); err != nil {
		return err
	}
	cmd := exec.Command(h.Program, "run", "--name", p.name, "-n", strconv.Itoa(o.Workers), "-f",
		h.path(p.name, specSuffix))
	switch {
	case o.Verb == pool.JoinRun:
		cmd = exec.Command(h.Program, "agent", "--join", o.Join, "--token-file", "-", "--name",
			o.Name, "--slots", strconv.Itoa(o.Slots))
		token, err := tokenPipe(o.Token)
		if err != nil {
			return err
		}
		defer token.Close()
		cmd.Stdin = token
	case h.listensAt() != "":
		cmd.Args = append(cmd.Args, "--listen", net.JoinHostPort(h.listensAt(), "0"), "--slots",
			strconv.Itoa(o.Slots), "--token-file", h.path(p.name, tokenSuffix))
	}
	cmd.Dir, cmd.Stderr, cmd.ExtraFiles = o.Dir, log, []*os.File{lock}
	sockets, err := rundir.Path()
	if err != nil {
		return err
	}
	cmd.Env = append(withoutSlurm(append(os.Environ(), o.Env...)), rundir.Variable+"="+sockets)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.child, p.lived = cmd.Process.Pid, true
	p.saved.PID = p.child
	_ = cmd.Process.Release() // look reaps it
	return p.save()
}

// checkFolder returns why a job cannot run in the folder in which it was submitted; nil = it can.
func checkFolder(dir string) error {
	info, err := os.Stat(dir)
	switch why := new(fs.PathError); {
	case errors.As(err, &why):
		err = why.Err
	case err == nil && !info.IsDir():
		err = syscall.ENOTDIR
	}
	if err != nil {
		return fmt.Errorf("the folder %s in which it was submitted: %w: submit it in one that "+
			"all hosts of the pool have", dir, err)
	}
	return nil
}

// tokenPipe returns a pipe from which an agent reads a token, whatever becomes of this keeper.
func tokenPipe(token string) (*os.File, error) {
	from, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = to.WriteString(token + "\n") // less than a pipe holds
	if err = errors.Join(err, to.Close()); err != nil {
		from.Close()
		return nil, err
	}
	return from, nil
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
	return durable.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB) != nil
}

// isLauncher reports whether a job that was found is this part. One whose launcher can be seen
// here, by its ledger, and has not the lock of this part, is another one's, such as a person's.
func (p *part) isLauncher(j *control.Job) bool {
	is := j.PID == p.saved.PID
	if p.saved.PID == 0 {
		is = j.Name == p.name || j.RequestedName == p.name
	}
	return is && (proc.HasOpen(j.PID, p.host.path(p.name, lockSuffix)) ||
		!proc.HasOpen(j.PID, runs.LedgerPath(j.Dir)))
}

// look asks the launcher how the job is, and reports whether all of its processes are gone. It also
// kills an agent that has not joined in time, and once more what is to end and still lives.
func (p *part) look(ctx context.Context) (gone bool) {
	if p.failed != nil && p.saved.PID == 0 {
		return !errors.Is(p.failed, errLeft) || !p.held()
	}
	p.reap()
	p.findLauncher(ctx)
	if p.leads && p.saved.Run == "" {
		p.saved.Run, p.saved.PID = p.job.Dir, p.job.PID
		_ = p.save() // it can be found again without that
	}
	if p.saved.Joins && p.saved.Run == "" && p.killing.IsZero() &&
		time.Since(p.begun) > joinPatience && !p.hasJoined() {
		p.kill()
	}
	if !p.killing.IsZero() && time.Since(p.killing) > killAgain {
		p.kill()
	}
	live := p.held()
	p.lived = p.lived || live
	return !live
}

// hasJoined reports whether an agent has said that it takes part in its job.
func (p *part) hasJoined() bool {
	if p.saved.Run = p.runDir(); p.saved.Run != "" {
		_ = p.save()
	}
	return p.saved.Run != ""
}

// findLauncher asks the launcher how the job is, which it looks for as long as it does not know it,
// and gives the job the slots that it does not have yet. Where another host leads, this one is
// asked now and then whether it has come to lead.
func (p *part) findLauncher(ctx context.Context) {
	if p.leads {
		err := p.job.Refresh(ctx)
		if no := new(control.Refusal); errors.As(err, &no) { // it leads no more, or ends
			p.leads = false
		}
		if err != nil {
			return // it is as it was
		}
		if no := new(control.Refusal); errors.As(p.giveSlots(ctx), &no) {
			p.refused = no.Reason
		}
		if p.parking && p.job.ParkError != "" {
			p.parking, p.refused = false, "it could not be parked: "+p.job.ParkError
		}
		return
	}
	if p.follows() && time.Since(p.asked) < slowGlance {
		return
	}
	running, _ := control.List(ctx)
	p.asked = time.Now()
	for _, j := range running {
		if p.isLauncher(j) {
			p.job, p.leads = j, true
		}
	}
}

// reap takes the exit status of a launcher that this keeper has started, once it has ended. One
// that an earlier keeper has started is no child of this one: a child that has its number by now is
// the launcher of another part.
func (p *part) reap() {
	if p.exit != nil || p.child == 0 {
		return
	}
	var status syscall.WaitStatus
	if pid, err := syscall.Wait4(p.child, &status, syscall.WNOHANG, nil); err == nil &&
		pid == p.child {
		p.exit = &status
	}
}
