package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/node/proc"
	"github.com/shoal-ml/shoal/topo"
)

// ServeConfig says how this host takes part in a job whose head is on another.
type ServeConfig struct {
	Link           func(h fabric.Handler) (fabric.Mesh, error) // joins the mesh
	Slots          int                                         // workers that this host can run
	Dir            string                                      // where the directory of the run is made; "" = RunsDir()
	Stdout, Stderr io.Writer
	Color          bool
	Leave          <-chan struct{}       // when closed, this host asks to be relieved of its workers, and leaves when they are gone
	OnJob          func(job, dir string) // may be nil
}

// outpost runs the workers of a job on a host that is not the head's.
type outpost struct {
	cfg     ServeConfig
	place   *proc.Place
	agent   *Agent
	console *proc.Console
	group   *group.Group // the workers
	addr    string

	mu      sync.Mutex
	spec    job.Spec
	dir     *runDir
	around  surroundings
	program string
	workers map[int]*proc.Worker
	outputs map[int]*proc.Output
	running int
	started time.Time
	over    bool
	why     error
	changed chan struct{}
	errands []func() error
}

// Serve runs the workers that the head of a job wants on this host, until the job is over, this host has left it, or ctx ends. It
// leaves no process, socket or memory behind.
func Serve(ctx context.Context, cfg ServeConfig) (err error) {
	if err := proc.Supported(); err != nil {
		return err
	}
	runtimeDir, err := proc.RuntimeDir()
	if err != nil {
		return err
	}
	o := &outpost{cfg: cfg, workers: map[int]*proc.Worker{}, outputs: map[int]*proc.Output{}, changed: make(chan struct{}, 1), started: time.Now()}
	if o.place, err = proc.NewPlace(runtimeDir); err != nil {
		return err
	}
	o.console = proc.NewConsole(cfg.Stdout, cfg.Stderr, 1, cfg.Color)
	o.console.Forward = o.forward
	o.agent, err = NewAgent(AgentConfig{Job: "joining", Socket: o.place.Socket(), Linger: lingering, Log: slog.New(slog.NewTextHandler(cfg.Stderr, nil)),
		Follow: &Follow{Link: cfg.Link, Slots: cfg.Slots, Size: o.size,
			Errands: Errands{Job: o.onJob, Start: o.onStart, Signal: o.onSignal, Over: o.onOver}}})
	if err != nil {
		return errors.Join(err, o.place.Close())
	}
	house := group.New(context.Background())
	house.Go("agent", o.agent.Run)
	o.group = group.New(context.Background())
	guarded := make(chan struct{})
	first := sync.OnceFunc(func() { close(guarded) })
	house.Go("guard", func(ctx context.Context) error { return o.place.Guard(ctx, func(int) { first() }) })
	select {
	case <-guarded:
		err = o.serve(ctx, house)
	case <-house.Context().Done():
	}
	o.end()
	house.Stop(nil)
	return errors.Join(err, house.Wait(), o.place.Clear(), o.drain(), o.place.Close())
}

// serve carries out what the head wants.
func (o *outpost) serve(ctx context.Context, house *group.Group) error {
	leave := o.cfg.Leave
	for {
		o.mu.Lock()
		errands, over, why, idle := o.errands, o.over, o.why, o.running == 0
		o.errands = nil
		o.mu.Unlock()
		for _, errand := range errands {
			if err := errand(); err != nil {
				return err
			}
		}
		switch {
		case len(errands) > 0:
			continue
		case why != nil, over && idle: // those that were released may still save a model, say
			return why
		case leave == nil && o.cfg.Leave != nil && idle:
			return nil
		}
		select {
		case <-o.changed:
		case <-leave:
			leave = nil
			o.agent.sayLeaving("it was asked to stop")
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-house.Context().Done():
			return nil // house.Wait has the error
		}
	}
}

func (o *outpost) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.spec.Workers
}

func (o *outpost) wake() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// later has serve do something, outside of the engine's thread.
func (o *outpost) later(f func() error) {
	o.mu.Lock()
	o.errands = append(o.errands, f)
	o.mu.Unlock()
	o.wake()
}

func (o *outpost) onJob(j jobNote) {
	o.mu.Lock()
	o.spec = j.Spec
	o.mu.Unlock()
	o.later(func() error { return o.settle(j) })
}

// settle makes the directory of the run and finds the program.
func (o *outpost) settle(j jobNote) (err error) {
	parent := o.cfg.Dir
	if parent == "" {
		if parent, err = RunsDir(); err != nil {
			return err
		}
	}
	if o.dir, _, err = newRunDir(parent, j.Spec.Name+"@"+o.agent.Host()); err != nil {
		return err
	}
	path, set := j.Spec.Env["PATH"]
	if !set {
		path = os.Getenv("PATH")
	}
	if o.program, err = proc.Lookup(j.Spec.Command[0], path); err != nil {
		return fmt.Errorf("the job's program is not on this host: %w", err)
	}
	o.around = surroundings{base: os.Environ(), spec: j.Spec, socket: o.place.Socket(), mark: o.place.Mark(), cores: runtime.GOMAXPROCS(0),
		here: o.cfg.Slots, addr: j.Addr, port: j.Port}
	if o.cfg.OnJob != nil {
		o.cfg.OnJob(j.Spec.Name, o.dir.path)
	}
	return o.dir.writeJob(j.Spec, o.place.Run, o.started)
}

func (o *outpost) onStart(seat int, late bool) {
	token := o.agent.Expect(seat, late)
	o.later(func() error {
		w, err := o.start(seat, late, token)
		n := &startNote{Worker: topo.Worker(seat)}
		if err != nil {
			n.Error = err.Error()
		} else {
			n.PID = w.PID()
		}
		o.agent.tellHead(&letter{Started: n})
		return nil
	})
}

func (o *outpost) start(seat int, late bool, token string) (*proc.Worker, error) {
	at := place{seat: seat, token: token, rank: seat, size: o.spec.Workers, port: o.around.port, local: len(o.workers), here: o.cfg.Slots}
	around := o.around
	if late {
		at = place{seat: seat, token: token, size: 1, port: freePort()}
		around.addr = "127.0.0.1"
	}
	out, err := proc.NewOutput(o.console, seat, o.dir.log(seat))
	if err != nil {
		return nil, err
	}
	o.outputs[seat] = out
	o.mu.Lock()
	o.running++
	o.mu.Unlock()
	w, err := proc.Start(o.group, proc.Command{Path: o.program, Args: o.spec.Command, Env: around.environment(at)}, out, func(e proc.Exit) { o.onExit(seat, e) })
	if err != nil {
		o.mu.Lock()
		o.running--
		o.mu.Unlock()
		return nil, err
	}
	o.mu.Lock()
	o.workers[seat] = w
	o.mu.Unlock()
	return w, nil
}

func (o *outpost) onExit(seat int, e proc.Exit) {
	o.later(func() error {
		out := o.outputs[seat]
		if e.Signal == syscall.SIGKILL { // which hits one process, and not those that load data for it
			_ = proc.SweepGroup(o.place.Run, e.PID) // what it misses goes with the job
		}
		o.workers[seat].Drain(draining)
		o.mu.Lock()
		o.running--
		o.mu.Unlock()
		o.agent.tellHead(&letter{Ended: &endedNote{Worker: topo.Worker(seat), PID: e.PID, Code: e.Code, Signal: int(e.Signal),
			Seconds: e.Ended.Sub(e.Started).Seconds(), Tail: out.Tail(), Log: out.LogPath()}})
		return nil
	})
}

func (o *outpost) onSignal(seat, sig int) {
	o.mu.Lock()
	w := o.workers[seat]
	o.mu.Unlock()
	if w != nil {
		w.Signal(syscall.Signal(sig))
	}
}

func (o *outpost) onOver(err error) {
	o.mu.Lock()
	if !o.over || o.running > 0 { // that the head goes when the job is over is no news
		o.over, o.why = true, err
	}
	o.mu.Unlock()
	o.wake()
}

func (o *outpost) forward(seat int, stderr bool, line string) {
	o.agent.tellHead(&letter{Line: &lineNote{topo.Worker(seat), stderr, line}})
}

func (o *outpost) signal(sig syscall.Signal) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.workers {
		w.Signal(sig)
	}
}

// end ends the workers that still run: politely, then not.
func (o *outpost) end() {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		o.signal(sig)
		grace := time.After(graceStopped)
		for waiting := true; waiting; {
			o.mu.Lock()
			errands, idle := o.errands, o.running == 0
			o.errands = nil
			o.mu.Unlock()
			for _, errand := range errands {
				_ = errand() // what fails now is of no interest any more
			}
			if idle {
				return
			}
			select {
			case <-o.changed:
			case <-grace:
				waiting = false
			}
		}
	}
}

// drain waits for the last output, after every process that could write has been swept away.
func (o *outpost) drain() error {
	for _, w := range o.workers {
		w.Drain(draining)
	}
	err := o.group.Wait()
	for _, out := range o.outputs {
		_ = out.Close() // the console has said what is missing from a log
	}
	if o.dir != nil {
		err = errors.Join(err, o.dir.close())
	}
	return err
}
