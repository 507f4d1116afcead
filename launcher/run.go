package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/numa"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/store"
)

// lingering is how long calls wait for a worker that has left. Mostly the worker is about to end,
// of an exception that would otherwise look like an exception of the workers that wait; a process
// with torch takes a second or two to end.
const lingering = 10 * time.Second

// RunConfig says what to run and who looks on. Run changes nothing in it. The callbacks may be nil;
// OnJoin, OnReport and OnEvent may be called from several goroutines at once.
type RunConfig struct {
	Spec job.Spec
	// Dir is the folder in which the directory of the run is made; "" = runs.Root().
	Dir string
	// Kind is the kind of this host, as topo.CheckKind says; "" = not known.
	Kind string
	// Stdout and Stderr get the workers' lines, each after its rank.
	Stdout, Stderr io.Writer
	// Color says that ranks are coloured.
	Color bool
	// Kill is closed when a stop that was asked for by the context shall no longer wait for the
	// workers; nil = never.
	Kill <-chan struct{}
	// Leave is closed when this host asks to be relieved of its workers; it leaves when they are
	// gone. nil = never.
	Leave <-chan struct{}
	// CannotLeave is called when this host was asked to leave, and the job has nobody else to go on
	// with.
	CannotLeave func(why error)
	// OnStart is called when the directory of the run is there.
	OnStart func(job, dir string)
	// OnJoin is called when a worker of this host has joined.
	OnJoin func(rank int, client string)
	// OnReport is called with what a worker of this host reports.
	OnReport func(rank int, metrics map[string]float64)
	// OnEvent is called with each event of the job, once the directory of the run is there, mostly
	// on the engine's thread: it must not wait for the agent.
	OnEvent func(e agent.Event)
	// Fleet says how to reach the other hosts; nil = this host is alone.
	Fleet *Fleet
	// Record says where the record of the job is kept; nil = nowhere.
	Record *RecordConfig
	// Manager is what people call the cluster manager that asks all hosts of the job to leave at
	// once, by SIGTERM to each of their processes: workers do not heed it, and the job is parked
	// where it is led. "" = hosts are asked one by one.
	Manager string

	nodes      []numa.Node   // memory nodes that a test makes up; nil = those of this host
	slowImport time.Duration // that of a test; 0 = the usual one
}

// Fleet is what a job on several hosts needs of who starts it. Functions may be nil but for Link;
// Join, Token and Need may be called from any goroutine.
type Fleet struct {
	// Link opens the network to the other hosts.
	Link func(h fabric.Handler) (fabric.Network, error)
	// Slots is how many workers this host takes; the others are placed elsewhere.
	Slots int
	// Addr is the address at which the other hosts reach this one, for torch's own rendezvous.
	Addr string
	// Ready is called when the network is open.
	Ready func()
	// Join is HOST:PORT where other hosts join.
	Join func() string
	// Token makes a token with which other hosts can join for the time of life.
	Token func(life time.Duration) string
	// Need is called when the room on the hosts changes, with the number of workers that have no
	// place; 0 once the job has begun or is over.
	Need func(missing int)
}

// Run starts the agent and the workers, blocks until the job is over, and leaves no process, socket
// or memory behind. Its error is nil when all workers have ended well, or the job goes on on other
// hosts without this one; a *Stopped when they have not because somebody stopped the job, a
// *Failure when one has not, an error that wraps context.Cause(ctx) when ctx ended, and a
// *job.Error or *proc.CommandError when there was nothing to start. The runs.Result is nil when no
// worker was started.
func Run(ctx context.Context, cfg RunConfig) (*runs.Result, error) {
	if err := proc.Supported(); err != nil {
		return nil, err
	}
	spec := cfg.Spec.WithDefaults()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if cfg.Fleet != nil {
		if err := spec.CheckText(); err != nil {
			return nil, err
		}
	}
	program, err := findProgram(spec) // before anything is made
	if err != nil {
		return nil, err
	}
	l, err := newLauncher(cfg, spec.Workers)
	if err != nil {
		return nil, err
	}
	if err := l.claimJob(ctx, spec.Name); err != nil {
		return nil, errors.Join(err, l.place.Close())
	}
	addr := "127.0.0.1"
	if cfg.Fleet != nil {
		addr = cfg.Fleet.Addr
	}
	if err := l.setJob(
		jobMessage{Spec: spec, Run: l.place.Run, Addr: addr, Port: freePort(),
			Started: l.started.UnixMilli(), After: l.record.earlierGenerations(),
			Record: l.record.recordForHosts()}, program, ""); err != nil {
		l.closeRecord()
		return nil, errors.Join(err, l.place.Close())
	}
	err = l.run(ctx, cfg.Leave)
	l.closeRecord()
	dir := l.reporter.directory()
	began := l.registry.anyEnded() || l.registry.stoppedBy() != "" ||
		l.agent != nil && !l.registry.leads()
	result := l.runResult(err)
	result.Drained = l.registry.isDrained()
	if result.Unstarted = !began && ctx.Err() != nil; result.Unstarted {
		result.Error = fmt.Sprintf("job %s was interrupted before a worker began: %v", result.Job,
			context.Cause(ctx))
	}
	// a full disk makes no good job a bad one
	if wrote := errors.Join(dir.WriteResult(result), dir.Close()); wrote != nil {
		l.console.Note("the files of this run are incomplete: " + wrote.Error())
	}
	if !began {
		result = nil
	}
	return result, err
}

// ServeConfig says how this host takes part in a job that was begun on another. Functions may be
// nil but for Link; Join and Token may be called from any goroutine.
type ServeConfig struct {
	// Link joins the network. It is called again where this host is lost before it was told what
	// to run.
	Link func(h fabric.Handler) (fabric.Network, error)
	// Join is HOST:PORT where other hosts join.
	Join func() string
	// Token makes a token with which other hosts can join for the time of life.
	Token func(life time.Duration) string
	// Slots is how many workers this host can run.
	Slots int
	// Kind is the kind of this host, as topo.CheckKind says; "" = not known.
	Kind string
	// Dir is where the directory of the run is made; "" = runs.Root().
	Dir string
	// Stdout and Stderr get the workers' lines, each after its rank.
	Stdout, Stderr io.Writer
	// Color says that ranks are coloured.
	Color bool
	// Store opens the store of the job's record, where this host must go on with it; nil = this
	// host does not.
	Store func(url string) store.Store
	// Leave is closed when this host asks to be relieved of its workers; it leaves when they are
	// gone. nil = never.
	Leave <-chan struct{}
	// OnJob is called when the directory of the run is there.
	OnJob func(job, dir string)
	// OnEnd is called before Serve returns, if this host has had a part in a job: with how the run
	// has ended, if this host led the job then, or nil, whether the job goes on without it, and the
	// error of Serve.
	OnEnd func(result *runs.Result, goesOn bool, err error)
	// Manager is as in RunConfig, and CannotLeave too.
	Manager     string
	CannotLeave func(why error)
}

// joins is how often a host joins a job that loses it before it has told the host what to run.
const joins = 4

// Serve runs the workers that a job wants on this host, and blocks until the job is over, this host
// has left it, or ctx ends. When the host that leads the job is lost, this one may go on in its
// place: then Serve sees the job through as Run does, and returns the same errors. A host that is
// lost before it was told what to run joins again, a few times. Serve leaves no process, socket or
// memory behind.
func Serve(ctx context.Context, cfg ServeConfig) error {
	if err := proc.Supported(); err != nil {
		return err
	}
	for join := 1; ; join++ {
		err := serveOnce(ctx, cfg)
		if untold := (*untoldError)(nil); !errors.As(err, &untold) || join == joins {
			return err
		}
		fmt.Fprintf(cfg.Stderr, "shoal: %v; joining again\n", err)
	}
}

// serveOnce is Serve of a host that joins once.
func serveOnce(ctx context.Context, cfg ServeConfig) error {
	l, err := newLauncher(
		RunConfig{Dir: cfg.Dir, Kind: cfg.Kind, Stdout: cfg.Stdout, Stderr: cfg.Stderr,
			Color: cfg.Color, Kill: ctx.Done(), OnStart: cfg.OnJob, Manager: cfg.Manager,
			CannotLeave: cfg.CannotLeave, Fleet: &Fleet{Link: cfg.Link, Join: cfg.Join,
				Token: cfg.Token, Slots: cfg.Slots}}, 0)
	if err != nil {
		return err
	}
	if cfg.Store != nil {
		l.record = &recording{Recorder: store.NewRecorder(func(line string) {
			l.console.Note(line)
		})}
		l.stores = cfg.Store
	}
	err = l.run(ctx, cfg.Leave)
	l.closeRecord()
	dir := l.reporter.directory()
	if dir == nil {
		return err
	}
	// a full disk makes no good job a bad one
	var wrote error
	var result *runs.Result
	if leads := l.registry.leads(); leads || l.registry.isDrained() {
		r := l.runResult(err)
		wrote = dir.WriteResult(r)
		if leads {
			result = r
		}
	}
	if cfg.OnEnd != nil {
		cfg.OnEnd(result, l.registry.isDrained(), err)
	}
	if wrote = errors.Join(wrote, dir.Close()); wrote != nil {
		l.console.Note("the files of this run are incomplete: " + wrote.Error())
	}
	return err
}
