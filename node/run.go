package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/node/proc"
)

// lingering keeps the others waiting for a worker that has left. It is mostly about to end, of an exception that would
// else look like the exception of whoever waits for it; torch takes a second or two to end.
const lingering = 10 * time.Second

// RunConfig says what to run and who looks on. The callbacks may be nil; OnJoin and OnReport may be called from several
// goroutines at once.
type RunConfig struct {
	Spec           job.Spec
	Dir            string          // the run gets a directory in here; "" = RunsDir()
	Stdout, Stderr io.Writer       // where the workers' lines go, behind their ranks
	Color          bool            // colour the ranks
	Kill           <-chan struct{} // when closed, a stop that was asked for by ctx no longer waits for the workers
	OnStart        func(job, dir string)
	OnJoin         func(rank int, client string)
	OnReport       func(rank int, metrics map[string]float64)
	OnEvent        func(e Event) // a change of the membership
	Fleet          *Fleet        // other hosts; nil = this one alone
}

// Result says how a run went. It is what result.json holds.
type Result struct {
	Job       string         `json:"job"`
	Dir       string         `json:"dir"`
	OK        bool           `json:"ok"`
	Error     string         `json:"error,omitempty"`
	Alone     bool           `json:"alone"`                // nobody joined: each process was a job of its own
	StoppedBy string         `json:"stopped_by,omitempty"` // who asked for its end
	Started   time.Time      `json:"started"`
	Seconds   float64        `json:"seconds"`
	Workers   []WorkerResult `json:"workers"` // in the order in which they ended
}

// WorkerResult says how one worker ended.
type WorkerResult struct {
	Rank    int     `json:"rank"`
	PID     int     `json:"pid"`
	How     string  `json:"how"`     // "exited with code 0", "was killed by SIGKILL"
	Stopped bool    `json:"stopped"` // shoal ended it
	Seconds float64 `json:"seconds"`
}

// Run starts the agent and the workers, waits until the job is over, and leaves no process, socket or memory behind. It
// returns nil when all workers have ended well, a *Stopped when they have not because somebody stopped the job, a *Failure when one has not, an error that wraps context.Cause(ctx) when
// ctx ended, and a *job.Error or *proc.CommandError when there was nothing to start. The Result is nil when no worker
// was started.
func Run(ctx context.Context, cfg RunConfig) (*Result, error) {
	if err := proc.Supported(); err != nil {
		return nil, err
	}
	spec := cfg.Spec.WithDefaults()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	path, set := spec.Env["PATH"]
	if !set {
		path = os.Getenv("PATH")
	}
	program, err := proc.Lookup(spec.Command[0], path)
	if err != nil {
		return nil, err
	}
	l := &launch{cfg: cfg, spec: spec, changed: make(chan struct{}, 1), told: make(chan struct{}, 1), stopping: -1,
		reports: map[int]map[string]float64{}, farewell: newFarewell()}
	if err := l.settle(); err != nil {
		return nil, err
	}
	err = l.run(ctx, program)
	if len(l.ended) == 0 && l.stoppedBy() == "" {
		return nil, errors.Join(err, l.dir.close())
	}
	result := l.result(err)
	if wrote := errors.Join(l.dir.writeResult(result), l.dir.close()); wrote != nil { // a full disk makes no good job a bad one
		l.console.Note("the files of this run are incomplete: " + wrote.Error())
	}
	return result, err
}

// settle makes the place, the run directory and the agent.
func (l *launch) settle() (err error) {
	if l.host, err = os.Hostname(); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	runtimeDir, err := proc.RuntimeDir()
	if err != nil {
		return err
	}
	parent := l.cfg.Dir
	if parent == "" {
		if parent, err = RunsDir(); err != nil {
			return err
		}
	}
	if l.place, err = proc.NewPlace(runtimeDir); err != nil {
		return err
	}
	if l.dir, l.spec.Name, err = newRunDir(parent, l.spec.Name); err != nil {
		return errors.Join(err, l.place.Close())
	}
	l.started, l.port = time.Now(), freePort()
	l.console = proc.NewConsole(l.cfg.Stdout, l.cfg.Stderr, l.spec.Workers, l.cfg.Color)
	if err := l.dir.writeJob(l.spec, l.place.Run, l.started); err != nil {
		return errors.Join(err, l.place.Close(), l.dir.close())
	}
	return nil
}

// run starts everything, waits for a verdict, and ends everything.
func (l *launch) run(ctx context.Context, program string) error {
	control, err := listenControl(l.place.Control())
	if err != nil {
		return errors.Join(err, l.place.Close())
	}
	agent, err := NewAgent(AgentConfig{Job: l.spec.Name, Socket: l.place.Socket(), Tokens: make([]string, l.spec.Workers), Min: l.spec.Min, Max: l.spec.Max,
		OnJoin: l.onJoin, OnReport: l.onReport, Orders: Orders{Start: l.onStart, Stop: l.onStop, Event: l.onEvent, End: l.onEnd},
		Linger: lingering, Log: slog.New(slog.NewTextHandler(l.cfg.Stderr, nil)), Hosts: l.fleet()})
	if err != nil {
		return errors.Join(err, control.Close(), l.place.Close())
	}
	l.agent, l.host = agent, agent.Host()
	house := group.New(context.Background()) // the agent and the guard: they outlive the workers
	house.Go("agent", agent.Run)
	house.Go("herald", l.herald)
	house.Go("hosts", l.hosts.attend)
	house.Go("control", func(ctx context.Context) error { return l.serveControl(ctx, control) })
	if l.cfg.OnStart != nil {
		l.cfg.OnStart(l.spec.Name, l.dir.path)
	}
	l.program, l.group = program, group.New(context.Background())
	if l.guard(house) {
		err = l.startAll()
	}
	var v verdict
	if err == nil {
		v, err = l.await(ctx, house)
	}
	err = errors.Join(err, l.stop(ctx.Err() != nil || l.stoppedBy() != ""), l.outcome())
	l.hearOut()
	l.agent.Dismiss()
	house.Stop(nil)
	err = errors.Join(err, house.Wait(), l.place.Clear(), l.drain(l.group), l.place.Close())
	if v.fault != noFault {
		err = errors.Join(l.failure(v), err)
	}
	return err
}

// guard starts the guard and returns when it runs, or false when it cannot: a worker before that could outlive us.
func (l *launch) guard(house *group.Group) bool {
	runs := make(chan struct{})
	first := sync.OnceFunc(func() { close(runs) })
	house.Go("guard", func(ctx context.Context) error { return l.place.Guard(ctx, func(int) { first() }) })
	select {
	case <-runs:
		return true
	case <-house.Context().Done():
		return false // house.Wait has the error
	}
}

// await blocks until the job is over or has to be stopped.
func (l *launch) await(ctx context.Context, house *group.Group) (verdict, error) {
	for {
		select {
		case <-l.changed:
			if v := l.judge(); v.done {
				return v, nil
			}
			if err := l.obey(); err != nil {
				return verdict{}, err
			}
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
	return fmt.Errorf("job %s was stopped: %w", l.spec.Name, context.Cause(ctx))
}

// newToken makes a secret by which an agent knows a worker.
func newToken() string {
	var secret [16]byte
	rand.Read(secret[:])
	return hex.EncodeToString(secret[:])
}
