// Package launcher runs the workers of a job on one host, and sees to the job as a whole where it
// is led: it starts the agent and the processes, knows how each worker ended, decides when the job
// is over, keeps the files of the run, and answers people and tools.
package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/numa"
	"github.com/shoal-ml/shoal/internal/rundir"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/store"
)

// How long workers may take to end by themselves between SIGTERM and SIGKILL: when a person stops
// the job, and when one of them has failed, where the report is promised within a second.
const (
	graceStopped = 2 * time.Second
	graceFailed  = 500 * time.Millisecond
)

// draining bounds the wait for the last output of workers that have ended; only a process that they
// left running, and that holds their output open, uses it up.
const draining = 300 * time.Millisecond

// launch is the launcher of one host: it runs the workers that the job wants here. Where the job is
// led it also sees to the job as a whole: when it is over, and what tools and people are told.
type launch struct {
	cfg     RunConfig
	host    string // in the job
	machine string // as it calls itself
	started time.Time
	place   *proc.Place
	console *proc.Console
	agent   *agent.Agent
	group   *group.Group // the workers
	least   int          // workers that the job begins with, on the host that begins it
	record  *recording   // nil = the job has none, as far as this host is concerned
	stores  func(url string) store.Store
	resumed *resumption // what the record knew when this host began; nil = the job is new
	nodes   []numa.Node // memory nodes of this host; nil = there is no choice
	homes   []numa.Node // of these, what workers are bound to

	known   chan struct{} // closed when the host knows what the job is
	changed chan struct{} // holds a token when there is something to decide about
	told    chan struct{} // holds a token when there is news for the terminal
	due     chan struct{} // holds a token when there are errands

	mu      sync.Mutex
	job     *jobNote // what the job is; nil = not known yet
	dir     *runDir
	program string
	around  surroundings
	errands []func()
	orders  []agent.StartOrder // that wait for the job to be known
	ordered int                // workers that are to be started here
	hands   map[int]*hand
	ended   []ending
	faults  []ending // of workers of this host that the membership has not heard of
	candid  bool     // the membership hears of faults at once
	telling int      // endings that the membership is being told of
	// hosts that have yet to tell what they know, on a host that leads anew
	expected map[string]bool
	rooms    map[string]bool   // the other hosts that have offered room, on the host that leads
	machines map[string]string // what these call themselves, where that is not their name
	leader   string
	// who led, is lost, and has no successor yet; until this host has said that it is stuck
	mourned string
	lost    bool // no member is left, and none has finished its work
	over    bool // this host is not needed any more
	leaving bool // it was asked to leave
	// denied has the hosts that were asked to leave when the job could not do without them; on the
	// host that leads
	denied   map[string]bool
	fatal    error         // why the job cannot go on here
	muted    bool          // the job is over: what hosts do now is no news
	news     []string      // lines for the terminal
	finished []agent.Event // workers that ended well, of which nobody was told
	// how many had ended when the launcher began to stop the others; -1 = it has not
	stopping int
	reports  map[int]map[string]float64
	farewell farewell
}

func newLaunch(cfg RunConfig) (*launch, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	runtimeDir, err := rundir.Path()
	if err != nil {
		return nil, err
	}
	l := &launch{cfg: cfg, host: host, machine: host, started: time.Now(),
		known: make(chan struct{}), changed: make(chan struct{}, 1), told: make(chan struct{}, 1),
		due:   make(chan struct{}, 1),
		hands: map[int]*hand{}, rooms: map[string]bool{}, machines: map[string]string{},
		expected: map[string]bool{}, stopping: -1, reports: map[int]map[string]float64{},
		farewell: newFarewell()}
	l.survey(cfg.nodes)
	if l.place, err = proc.NewPlace(runtimeDir); err != nil {
		return nil, err
	}
	return l, nil
}

// settle learns what the job is, and makes the directory of the run. A host that joins has its name
// in there.
func (l *launch) settle(j jobNote, program, at string) (err error) {
	parent := l.cfg.Dir
	if parent == "" {
		if parent, err = RunsDir(); err != nil {
			return err
		}
	}
	dir, name, err := newRunDir(parent, j.Spec.Name+at)
	if err != nil {
		return err
	}
	if at == "" {
		j.Spec.Name = name
	}
	if err := dir.writeJob(j.Spec, l.place.Run, l.started); err != nil {
		return errors.Join(err, dir.close())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.job, l.dir, l.program = &j, dir, program
	l.around = l.surround(j)
	close(l.known)
	return nil
}

// find looks for the job's program on this host.
func find(spec job.Spec) (program string, err error) {
	path, set := spec.Env["PATH"]
	if !set {
		path = os.Getenv("PATH")
	}
	return proc.Lookup(spec.Command[0], path)
}

// run starts everything, waits for a verdict, and ends everything.
func (l *launch) run(ctx context.Context, leave <-chan struct{}) error {
	control, err := listenControl(l.place.Control())
	if err != nil {
		return errors.Join(err, l.place.Close())
	}
	l.console = proc.NewConsole(l.cfg.Stdout, l.cfg.Stderr, max(l.least, 1), l.cfg.Color)
	if l.agent, err = agent.New(l.agentConfig()); err != nil {
		return errors.Join(err, control.Close(), l.place.Close())
	}
	l.host = l.agent.Host()
	if l.least > 0 {
		l.leader = l.host
	} else {
		l.console.Forward = l.forward
	}
	l.openRecord()
	house := group.New(context.Background()) // the agent and the guard: they outlive the workers
	house.Go("agent", l.agent.Run)
	house.Go("herald", l.herald)
	house.Go("control", func(ctx context.Context) error { return l.serveControl(ctx, control) })
	if l.dir != nil && l.cfg.OnStart != nil {
		l.cfg.OnStart(l.name(), l.dir.path)
	}
	l.group = group.New(context.Background())
	var v verdict
	if l.guard(house) {
		if f := l.cfg.Fleet; f != nil && f.Ready != nil {
			f.Ready()
		}
		house.Go("errands", l.attend)
		v, err = l.await(ctx, house, leave)
	}
	err = errors.Join(err, l.stop(ctx.Err() != nil || l.stoppedBy() != ""), l.outcome())
	l.hearOut()
	l.sayGoodbye(l.shortly(ctx, v, err))
	house.Stop(nil)
	err = errors.Join(err, house.Wait(), l.place.Clear(), l.drain(l.group), l.place.Close())
	if v.fault != noFault {
		err = errors.Join(l.failure(v), err)
	}
	return err
}

// agentConfig is what the agent serves: a job that begins here, or one to join.
func (l *launch) agentConfig() agent.Config {
	cfg := agent.Config{Job: "joining", Socket: l.place.Socket(), Linger: lingering, Nodes: l.nodes,
		Log: slog.New(slog.NewTextHandler(l.cfg.Stderr, nil)), OnJoin: l.onJoin,
		OnReport: l.onReport, OnSave: l.onSave, OnBereft: l.onBereft,
		Orders: agent.Orders{Start: l.onStart, Stop: l.onStop, Event: l.onEvent, End: l.onEnd,
			Leave: l.onLeave, Lead: l.onLead, Gone: l.onGone, Note: l.onNote}}
	if l.record != nil {
		cfg.Orders.Decided = l.record.Decided
	}
	if l.job != nil {
		spec := l.job.Spec
		cfg.Job, cfg.Size, cfg.Min, cfg.Max, cfg.Spares = spec.Name, spec.Workers, spec.Min,
			spec.Max, spec.Spares
		cfg.Fixed, cfg.Redundant, cfg.After = spec.FixedRoutes, spec.Redundant, l.job.After
	}
	if f := l.cfg.Fleet; f != nil {
		cfg.Link, cfg.Slots = f.Link, cmp.Or(f.Slots, member.NoSlots)
	}
	return cfg
}

// guard starts the guard and returns when it runs, or false when it cannot: a worker before that
// could outlive us.
func (l *launch) guard(house *group.Group) bool {
	runs := make(chan struct{})
	first := sync.OnceFunc(func() { close(runs) })
	house.Go("guard", func(ctx context.Context) error {
		return l.place.Guard(ctx, func(int) { first() })
	})
	select {
	case <-runs:
		return true
	case <-house.Context().Done():
		return false // house.Wait has the error
	}
}

// await blocks until the job is over or has to be stopped, or this host is not needed any more.
func (l *launch) await(ctx context.Context, house *group.Group, leave <-chan struct{}) (verdict,
	error) {
	for {
		select {
		case <-l.changed:
			if done, err := l.dismissed(); done || err != nil {
				return verdict{}, err
			}
			if v := l.judge(); v.done {
				return v, nil
			}
		case <-leave:
			leave = nil
			l.later(l.sayLeaving)
		case <-l.farewell.asked:
			return verdict{}, l.part(ctx, house)
		case <-ctx.Done():
			return verdict{}, l.interrupted(ctx)
		case <-house.Context().Done():
			return verdict{}, nil // the error comes from house.Wait
		}
	}
}

func (l *launch) interrupted(ctx context.Context) error {
	return fmt.Errorf("job %s was stopped: %w", l.name(), context.Cause(ctx))
}

// judge decides about the job from the workers that have ended, where it is led. A head that is new
// waits for what all hosts know.
func (l *launch) judge() verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leader != l.host || l.job == nil || l.telling > 0 || len(l.expected) > 0 {
		return verdict{}
	}
	return judge(max(len(l.hands)+l.ordered, l.least), l.ended, l.hasJoined, l.anyJoined(), l.lost)
}

// dismissed reports whether this host is not needed any more and its workers have ended: those that
// were let go may still save a model, say.
func (l *launch) dismissed() (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	idle := l.ordered == 0
	for _, h := range l.hands {
		idle = idle && (h.host != l.host || h.exit != nil)
	}
	return idle && (l.over || l.leaving && l.leader != l.host), l.fatal
}

func (l *launch) wake() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// name is what the job is called.
func (l *launch) name() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.job == nil {
		return "joining"
	}
	return l.job.Spec.Name
}

func (l *launch) spec() job.Spec {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.job == nil {
		return job.Spec{}
	}
	return l.job.Spec
}

// leads reports whether this host leads the job.
func (l *launch) leads() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leader == l.host
}

func (l *launch) endings() []ending {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended[:len(l.ended):len(l.ended)]
}

func (l *launch) failure(v verdict) *Failure {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, e := l.hands[v.culprit.rank], v.culprit.exit
	f := &Failure{Job: l.job.Spec.Name, Rank: v.culprit.rank, Size: max(len(l.hands), l.least),
		Host: h.host, Exit: e,
		After: e.Ended.Sub(l.started), Early: v.fault == neverJoined, Because: h.because,
		Tail: h.tail, Log: h.log}
	if h.output != nil {
		f.Tail, f.Log = h.output.Tail(), h.output.LogPath()
	}
	return f
}

func (l *launch) result(err error) *Result {
	r := &Result{Job: l.name(), Dir: l.dir.path, OK: err == nil, StoppedBy: l.stoppedBy(),
		Started: l.started, Seconds: time.Since(l.started).Seconds()}
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Alone = !l.anyJoined()
	if l.leader != l.host {
		r.GoesOn = l.leader
	}
	if err != nil {
		r.Error = err.Error()
	}
	for i, e := range l.ended {
		r.Workers = append(r.Workers,
			WorkerResult{Rank: e.rank, PID: e.exit.PID, How: e.exit.String(),
				Stopped: l.stopping >= 0 && i >= l.stopping ||
					slices.Contains(l.farewell.dismissed, e.rank),
				Seconds: e.exit.Ended.Sub(e.exit.Started).Seconds()})
	}
	return r
}
