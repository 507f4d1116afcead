// Package launcher runs the workers of a job on one host, and sees to the job as a whole where it
// is led: it starts the agent and the processes, knows how each worker ended, decides when the job
// is over, keeps the files of the run, and answers people and tools.
//
// Its state is in three types: the supervisor has the processes of this host, the registry has what
// is known of the workers and hosts of the job, and the reporter tells people. Each has a lock,
// which it holds while it calls none of the others and not the agent. So the agent's orders, which
// come on the thread of its engine, wait for no lock that is held for long.
package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/rundir"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/topo"
)

// graceStopped and graceFailed are how long workers may take to end by themselves between SIGTERM
// and SIGKILL: when a person stops the job, and when one of them has failed, where the report is
// promised within a second.
const (
	graceStopped = 2 * time.Second
	graceFailed  = 500 * time.Millisecond
)

// outputWait bounds the wait for the last output of workers that have ended. Only a process that
// they left running, and that holds their output open, uses it up.
const outputWait = 300 * time.Millisecond

// The methods in this file run on the goroutine that has called Run or Serve, unless they say
// another.

// hostAgent is the agent of this host as the launcher sees it. The agent answers by agent.Orders.
// Most methods wait for the engine's thread: any goroutine may call them, but that thread calls
// none but Host, Status and TurnAway, which do not wait.
type hostAgent interface {
	Run(ctx context.Context) error
	Host() string
	Status() agent.Status
	Await(ctx context.Context, fits func(agent.Status) bool) (agent.Status, error)
	Waits() map[int]control.Wait

	ExpectWorker(worker int, late bool) (token string)
	WorkerStarted(worker int)
	WorkerFinished(worker int, how string)
	WorkerLost(worker int, how string)
	TurnAway(worker int)

	Resize(n int, who string) error
	Set(text, who string) error
	PlanSet(text, who string) (setting.Change, error)
	Reshape(mesh, who string) error
	PlanReshape(mesh string) (control.Plan, error)
	Drain(host, who string) error
	Allot(slots map[string]int, who, why string) error
	LimitSending(bytesPerSecond float64) error
	Park(who string) error
	ReleaseWorkers(why string) bool
	ForceHead()
	SuspectHost(host string)

	SendToLauncher(host string, message []byte)
	CountGenerationsFrom(after topo.Generation)
	FixRoutes()
	FollowKungFu()
	LearnMeshes(redundant bool, meshes map[int]string)
	DecideBy(mode act.Mode, startUsers func(g *group.Group) []decide.Policy)
	WhyNot() []act.WhyNot
	SlowHosts() []string
	BytesSent() uint64
	Machines() (agent.Machines, error)
	ReportFailedWorker(how string)
}

// launcher runs the workers that a job wants on this host. Where the job is led it also sees to the
// job as a whole. Its fields are set before the goroutines that read them start, and not changed
// then; tasks, supervisor, registry, reporter, record and reasons lock what they have inside.
type launcher struct {
	cfg     RunConfig
	started time.Time
	place   *proc.Place
	console *proc.Console
	agent   hostAgent                    // nil = run has not come to make it
	group   *group.Group                 // goroutines of the workers
	record  *recording                   // nil = this host keeps no record of the job
	stores  func(url string) store.Store // opens the store of the record, on a host that joins
	// what the record knew when this host began; nil = the job is new
	resumed *resumption

	tasks      *tasks // all else that must not run on the engine's thread
	starts     *tasks // starts and ends of workers, which may wait for a template
	supervisor *supervisor
	registry   *registry
	reporter   *reporter
	reasons    whyNots
	limit      limit
	parkAsked  sync.Mutex // held while the head is asked to park the job
}

// newLauncher makes a launcher of a job that begins on this host, with initial workers on all hosts
// together; 0 = this host joins a job. It makes the place of the run, with a lock file, which run
// removes; what killed launchers have left is removed before.
func newLauncher(cfg RunConfig, initial int) (*launcher, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("launcher: %w", err)
	}
	sockets, err := rundir.Path()
	if err != nil {
		return nil, err
	}
	place, err := proc.NewPlace(sockets)
	if err != nil {
		return nil, err
	}
	console := proc.NewConsole(cfg.Stdout, cfg.Stderr, max(initial, 1), cfg.Color)
	supervisor := newSupervisor(cfg.nodes)
	supervisor.shield = cfg.Manager != ""
	supervisor.slowImport = cmp.Or(cfg.slowImport, slowImport)
	return &launcher{cfg: cfg, started: time.Now(), place: place, console: console,
		tasks: newTasks(), starts: newTasks(), supervisor: supervisor,
		registry: newRegistry(host, initial),
		reporter: newReporter(console, cfg.OnEvent)}, nil
}

// setJob takes what the job is, and makes the directory of the run on disk. program is the path of
// the job's program here. at is added to the name of the directory, on a host that joins a job; ""
// = the job begins here. It is called once: by Run, or as a task where this host joins.
func (l *launcher) setJob(j jobMessage, program, at string) (err error) {
	parent := l.cfg.Dir
	if parent == "" {
		if parent, err = runs.Root(); err != nil {
			return err
		}
	}
	dir, name, err := runs.New(parent, j.Spec.Name+at)
	if err != nil {
		return err
	}
	if at == "" {
		j.Asked, j.Spec.Name = j.Spec.Name, name
	}
	if err := dir.WriteJob(j.Spec, l.place.Run, j.Asked, l.started); err != nil {
		return errors.Join(err, dir.Discard())
	}
	l.reporter.setRun(j.Spec.Name, dir)
	l.supervisor.setProgram(program, l.workerEnvironment(j))
	l.registry.setJob(&j)
	l.starts.add(l.startTemplate)
	return nil
}

// findProgram returns the path of the job's program on this host, found as a shell finds it, in the
// job's PATH or else in that of this process. Any goroutine may call it.
func findProgram(spec job.Spec) (program string, err error) {
	path, set := spec.Env["PATH"]
	if !set {
		path = os.Getenv("PATH")
	}
	return proc.Lookup(spec.Command[0], path)
}

// run starts the agent, the guard and all else, blocks until there is a verdict, and ends
// everything. Closing leave asks for this host to be left; nil = nobody will. It is called once.
func (l *launcher) run(ctx context.Context, leave <-chan struct{}) error {
	socket, err := listenControl(l.place.Control())
	if err != nil {
		return errors.Join(err, l.place.Close())
	}
	a, err := agent.New(l.agentConfig())
	if err != nil {
		return errors.Join(err, socket.Close(), l.place.Close())
	}
	l.agent = a
	l.group = group.New(context.Background()) // the agent's orders start goroutines in it
	if begins := l.registry.setHost(a.Host()); !begins {
		l.console.Forward = l.forwardLine
	}
	if j := l.registry.knownJob(); j != nil {
		l.startPolicyLoop(j.Spec)
	}
	l.openRecord()
	if line := memoryLimitText(os.DirFS("/")); line != "" {
		l.console.Note(line)
	}
	services := group.New(context.Background()) // the agent and the guard: they outlive the workers
	queues := group.New(context.Background())   // they have the ends of workers, whatever fails
	services.Go("agent", l.agent.Run)
	services.Go("reporter", l.reporter.writeLines)
	services.Go("control", func(ctx context.Context) error { return l.serveControl(ctx, socket) })
	if dir := l.reporter.directoryPath(); dir != "" && l.cfg.OnStart != nil {
		l.cfg.OnStart(l.registry.jobName(), dir)
	}
	var v verdict
	if l.startGuard(services) {
		if f := l.cfg.Fleet; f != nil && f.Ready != nil {
			f.Ready()
		}
		queues.Go("tasks", func(ctx context.Context) error {
			l.tasks.run(ctx, l.registry.signalChange)
			return nil
		})
		queues.Go("starts of workers", func(ctx context.Context) error {
			l.starts.run(ctx, l.registry.signalChange)
			return nil
		})
		v, err = l.awaitVerdict(ctx, services, leave)
	}
	stopped := ctx.Err() != nil || l.registry.stoppedBy() != ""
	err = errors.Join(err, l.stopWorkers(stopped), l.registry.stoppedError())
	l.awaitOutput()
	l.endJob(l.failureLine(ctx, v, err))
	queues.Stop(nil)
	services.Stop(nil)
	err = errors.Join(err, queues.Wait(), services.Wait(), l.place.Clear(), l.awaitReaders(),
		l.place.Close())
	if v.fault != noFault {
		err = errors.Join(l.failureReport(v), err)
	}
	return err
}

// agentConfig is what the agent is to serve: a job that begins here, or one to join.
func (l *launcher) agentConfig() agent.Config {
	cfg := agent.Config{Job: "joining", Socket: l.place.Socket(), Linger: lingering,
		Kind:  l.cfg.Kind,
		Nodes: l.supervisor.nodes, Log: slog.New(slog.NewTextHandler(l.cfg.Stderr, nil)),
		OnJoin: l.onWorkerJoined, OnReport: l.onMetrics, OnPark: l.onWorkerParked,
		OnSave:     l.onCheckpointLine,
		OnLostPeer: l.registry.setLostPeer,
		Orders: agent.Orders{Start: l.onStartOrder, Stop: l.onStopOrder, Event: l.onEvent,
			End: l.onJobEnd, Leave: l.onThisHostLeft, Lead: l.onLeaderChange, Gone: l.onHostGone,
			Message: l.onMessage, Row: l.onHistoryRow}}
	if l.record != nil {
		cfg.Orders.Decided = l.record.AddGeneration
	}
	if j := l.registry.knownJob(); j != nil {
		spec := j.Spec
		cfg.Job, cfg.Size, cfg.Min, cfg.Max, cfg.Spares = spec.Name, spec.Workers, spec.Min,
			spec.Max, spec.Spares
		cfg.Fixed, cfg.Redundant, cfg.After = spec.FixedRoutes, spec.Redundant, j.After
		cfg.Meshes = spec.Schedule.MeshesBySize()
		if spec.Grow {
			cfg.Growth = member.GrowOn
		}
	}
	if f := l.cfg.Fleet; f != nil {
		cfg.Link, cfg.Slots = f.Link, cmp.Or(f.Slots, member.NoSlots)
	}
	return cfg
}

// startGuard starts the guard process, kept alive by a goroutine of services, and blocks until it
// runs, which is true, or cannot. No worker is started before: it could outlive the launcher.
func (l *launcher) startGuard(services *group.Group) bool {
	runs := make(chan struct{})
	first := sync.OnceFunc(func() { close(runs) })
	services.Go("guard", func(ctx context.Context) error {
		return l.place.Guard(ctx, func(int) { first() })
	})
	select {
	case <-runs:
		return true
	case <-services.Context().Done():
		return false // services.Wait has the error
	}
}

// awaitVerdict blocks until the job is over or has to be stopped, or this host is not needed any
// more. When somebody asked for the end it has the workers end first. Only where the ends of the
// workers decide is the verdict done; elsewhere it is empty. Closing leave is as in run.
func (l *launcher) awaitVerdict(ctx context.Context, services *group.Group,
	leave <-chan struct{}) (verdict, error) {
	for {
		select {
		case <-l.registry.changed:
			if done, err := l.registry.mayLeave(); done || err != nil {
				return verdict{}, err
			}
			if v := l.registry.verdict(); v.done {
				return v, nil
			}
		case <-leave:
			leave = nil
			l.startLeaving(services)
		case <-l.registry.shutdown.asked:
			return verdict{}, l.endOnRequest(ctx, services)
		case <-ctx.Done():
			return verdict{}, l.interruptedError(ctx)
		case <-services.Context().Done():
			return verdict{}, nil // the error comes from services.Wait
		}
	}
}

// interruptedError is the error of a run whose ctx has ended.
func (l *launcher) interruptedError(ctx context.Context) error {
	return fmt.Errorf("job %s was stopped: %w", l.registry.jobName(), context.Cause(ctx))
}

// startOf returns when a job was started, by the clock of the host where that was, but not after
// this host has come to it; nil = it is not known yet.
func (l *launcher) startOf(j *jobMessage) time.Time {
	if j != nil && j.Started > 0 {
		if t := time.UnixMilli(j.Started); t.Before(l.started) {
			return t
		}
	}
	return l.started
}

// failJob has run end this host's part in the job with an error, and does not wait. Any goroutine
// may call it.
func (l *launcher) failJob(err error) {
	l.registry.setFatal(err)
	l.registry.signalChange()
}

// failureReport returns the report about the worker that v, which has a fault, is about.
func (l *launcher) failureReport(v verdict) *Failure {
	f := l.registry.failureReport(v, l.started, l.reporter.changeOnTrial())
	if p := l.supervisor.processOf(v.culprit.worker); p != nil {
		f.Tail, f.Log = p.output.Tail(), p.output.LogPath()
	}
	return f
}

// runResult returns what result.json is to hold; err is why the run is not OK, nil = it is.
func (l *launcher) runResult(err error) *runs.Result {
	r := l.registry.runResult()
	r.Dir, r.OK, r.Started, r.Seconds = l.reporter.directoryPath(), err == nil, l.started,
		time.Since(l.started).Seconds()
	if f := new(Failure); errors.As(err, &f) && f.Exit.Lost != "" {
		r.LostHost = f.Host
	}
	if err != nil {
		r.Error = err.Error()
	}
	if text, err := os.ReadFile(runs.LedgerPath(r.Dir)); err == nil { // as with events
		entries, _, _ := runs.ParseLedger(text)
		r.Changes = runs.Changes(entries)
		for _, e := range entries {
			r.LostSamples += e.LostSamples
		}
	}
	return r
}
