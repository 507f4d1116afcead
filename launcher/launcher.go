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

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/rundir"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/member"
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

// hostAgent is the agent of this host as the launcher sees it. The agent answers by agent.Orders.
type hostAgent interface {
	Run(ctx context.Context) error
	Host() string
	Status() agent.Status
	Await(ctx context.Context, fits func(agent.Status) bool) (agent.Status, error)
	Waits() map[int]control.Wait

	Expect(worker int, late bool) (token string)
	Started(worker int)
	Finished(worker int, how string)
	Lost(worker int, how string)
	TurnAway(worker int)

	Resize(n int, who string) error
	Reshape(mesh, who string) error
	PlanReshape(mesh string) (control.Plan, error)
	Drain(host, who string) error
	Release(why string) bool
	Force()

	Send(host string, message []byte)
	CountFrom(after topo.Generation)
	FixRoutes()
	KeepRedundant()
}

// launcher runs the workers that a job wants on this host. Where the job is led it also sees to the
// job as a whole.
type launcher struct {
	cfg     RunConfig
	started time.Time
	place   *proc.Place
	console *proc.Console
	agent   hostAgent                    // nil = nothing has begun
	group   *group.Group                 // goroutines of the workers
	record  *recording                   // nil = this host keeps no record of the job
	stores  func(url string) store.Store // opens the store of the record, on a host that joins
	// what the record knew when this host began; nil = the job is new
	resumed *resumption

	tasks      *tasks
	supervisor *supervisor
	registry   *registry
	reporter   *reporter
}

// newLauncher makes a launcher of a job that begins on this host with so many workers, or of one to
// join, if there are none.
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
	return &launcher{cfg: cfg, started: time.Now(), place: place, console: console,
		tasks: newTasks(), supervisor: newSupervisor(cfg.nodes),
		registry: newRegistry(host, initial),
		reporter: newReporter(console, cfg.OnEvent)}, nil
}

// learn takes what the job is, and makes the directory of the run. at is added to the name of the
// directory, on a host that joins a job; "" = the job begins here.
func (l *launcher) learn(j jobMessage, program, at string) (err error) {
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
	l.reporter.learn(j.Spec.Name, dir)
	l.supervisor.learn(program, l.environment(j))
	l.registry.learn(&j)
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

// run starts the agent, the guard and all else, waits for a verdict, and ends everything. Closing
// leave asks for this host to be left.
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
	if begins := l.registry.join(a.Host()); !begins {
		l.console.Forward = l.forward
	}
	l.openRecord()
	if line := memoryLimit(os.DirFS("/")); line != "" {
		l.console.Note(line)
	}
	services := group.New(context.Background()) // the agent and the guard: they outlive the workers
	services.Go("agent", l.agent.Run)
	services.Go("reporter", l.reporter.run)
	services.Go("control", func(ctx context.Context) error { return l.serveControl(ctx, socket) })
	if dir := l.reporter.path(); dir != "" && l.cfg.OnStart != nil {
		l.cfg.OnStart(l.registry.name(), dir)
	}
	l.group = group.New(context.Background())
	var v verdict
	if l.guard(services) {
		if f := l.cfg.Fleet; f != nil && f.Ready != nil {
			f.Ready()
		}
		services.Go("tasks", func(ctx context.Context) error {
			l.tasks.run(ctx, l.registry.wake)
			return nil
		})
		v, err = l.await(ctx, services, leave)
	}
	stopped := ctx.Err() != nil || l.registry.stoppedBy() != ""
	err = errors.Join(err, l.stop(stopped), l.registry.outcome())
	l.awaitOutput()
	l.endJob(l.failureLine(ctx, v, err))
	services.Stop(nil)
	err = errors.Join(err, services.Wait(), l.place.Clear(), l.drain(), l.place.Close())
	if v.fault != noFault {
		err = errors.Join(l.failure(v), err)
	}
	return err
}

// agentConfig is what the agent is to serve: a job that begins here, or one to join.
func (l *launcher) agentConfig() agent.Config {
	cfg := agent.Config{Job: "joining", Socket: l.place.Socket(), Linger: lingering,
		Nodes: l.supervisor.nodes, Log: slog.New(slog.NewTextHandler(l.cfg.Stderr, nil)),
		OnJoin: l.onJoin, OnReport: l.onReport, OnSave: l.onSave,
		OnLostPeer: l.registry.lostPeer,
		Orders: agent.Orders{Start: l.onStart, Stop: l.onStop, Event: l.onEvent, End: l.onEnd,
			Leave: l.onLeave, Lead: l.onLead, Gone: l.onGone, Message: l.onMessage}}
	if l.record != nil {
		cfg.Orders.Decided = l.record.AddGeneration
	}
	if j := l.registry.whatJob(); j != nil {
		spec := j.Spec
		cfg.Job, cfg.Size, cfg.Min, cfg.Max, cfg.Spares = spec.Name, spec.Workers, spec.Min,
			spec.Max, spec.Spares
		cfg.Fixed, cfg.Redundant, cfg.After = spec.FixedRoutes, spec.Redundant, j.After
	}
	if f := l.cfg.Fleet; f != nil {
		cfg.Link, cfg.Slots = f.Link, cmp.Or(f.Slots, member.NoSlots)
	}
	return cfg
}

// guard starts the guard process and returns when it runs, or false when it cannot. No worker is
// started before: it could outlive the launcher.
func (l *launcher) guard(services *group.Group) bool {
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

// await blocks until the job is over or has to be stopped, or this host is not needed any more.
func (l *launcher) await(ctx context.Context, services *group.Group,
	leave <-chan struct{}) (verdict, error) {
	for {
		select {
		case <-l.registry.changed:
			if done, err := l.registry.mayLeave(); done || err != nil {
				return verdict{}, err
			}
			if v := l.registry.judge(); v.done {
				return v, nil
			}
		case <-leave:
			leave = nil
			l.tasks.add(l.askToLeave)
		case <-l.registry.shutdown.asked:
			return verdict{}, l.endOnRequest(ctx, services)
		case <-ctx.Done():
			return verdict{}, l.interrupted(ctx)
		case <-services.Context().Done():
			return verdict{}, nil // the error comes from services.Wait
		}
	}
}

// interrupted is the error of a run whose ctx has ended.
func (l *launcher) interrupted(ctx context.Context) error {
	return fmt.Errorf("job %s was stopped: %w", l.registry.name(), context.Cause(ctx))
}

// fail ends this host's part in the job, with an error.
func (l *launcher) fail(err error) {
	l.registry.fail(err)
	l.registry.wake()
}

// failure is the report about a worker that has failed.
func (l *launcher) failure(v verdict) *Failure {
	f := l.registry.failure(v, l.started)
	if p := l.supervisor.process(v.culprit.worker); p != nil {
		f.Tail, f.Log = p.output.Tail(), p.output.LogPath()
	}
	return f
}

// result is what result.json is to hold.
func (l *launcher) result(err error) *Result {
	r := l.registry.result()
	r.Dir, r.OK, r.Started, r.Seconds = l.reporter.path(), err == nil, l.started,
		time.Since(l.started).Seconds()
	if err != nil {
		r.Error = err.Error()
	}
	return r
}
