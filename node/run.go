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
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/node/proc"
)

// How long workers may take to end by themselves between SIGTERM and SIGKILL: when a person stops the job, and when one
// of them has failed, where the report is promised within a second.
const (
	graceStopped = 2 * time.Second
	graceFailed  = 500 * time.Millisecond
)

// lingering keeps the others waiting for a worker that has left. It is mostly about to end, of an exception that would
// else look like the exception of whoever waits for it; torch takes a second or two to end.
const lingering = 10 * time.Second

// draining bounds the wait for the last output of dead workers; only a stranger that holds their pipe uses it up.
const draining = 500 * time.Millisecond

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
}

// Result says how a run went. It is what result.json holds.
type Result struct {
	Job     string         `json:"job"`
	Dir     string         `json:"dir"`
	OK      bool           `json:"ok"`
	Error   string         `json:"error,omitempty"`
	Alone   bool           `json:"alone"` // nobody joined: each process was a job of its own
	Started time.Time      `json:"started"`
	Seconds float64        `json:"seconds"`
	Workers []WorkerResult `json:"workers"` // in the order in which they ended
}

// WorkerResult says how one worker ended.
type WorkerResult struct {
	Rank    int     `json:"rank"`
	PID     int     `json:"pid"`
	How     string  `json:"how"`     // "exited with code 0", "was killed by SIGKILL"
	Stopped bool    `json:"stopped"` // shoal ended it
	Seconds float64 `json:"seconds"`
}

// launch is one run on this host.
type launch struct {
	cfg     RunConfig
	spec    job.Spec
	host    string
	started time.Time
	place   *proc.Place
	dir     *runDir
	agent   *Agent
	console *proc.Console
	outputs []*proc.Output
	workers []*proc.Worker

	program string
	around  surroundings
	group   *group.Group // the workers

	changed  chan struct{} // holds a token when a worker has joined or ended, or the membership wants something
	mu       sync.Mutex
	ended    []ending
	wanted   int   // workers that the membership has ordered and that are not started
	unwanted []int // seats of workers that the membership wants to end
	stopping int   // how many had ended when the launcher began to stop the others
}

// Run starts the agent and the workers, waits until the job is over, and leaves no process, socket or memory behind. It
// returns nil when all workers have ended well, a *Failure when one has not, an error that wraps context.Cause(ctx) when
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
	l := &launch{cfg: cfg, spec: spec, changed: make(chan struct{}, 1), stopping: -1}
	if err := l.settle(); err != nil {
		return nil, err
	}
	err = l.run(ctx, program)
	if len(l.ended) == 0 {
		return nil, errors.Join(err, l.dir.close())
	}
	result := l.result(err)
	return result, errors.Join(err, l.dir.writeResult(result), l.dir.close())
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
	if l.dir, l.spec.Name, err = newRunDir(parent, l.spec.Name); err != nil {
		return err
	}
	if l.place, err = proc.NewPlace(runtimeDir); err != nil {
		return errors.Join(err, l.dir.close())
	}
	l.started = time.Now()
	l.console = proc.NewConsole(l.cfg.Stdout, l.cfg.Stderr, l.spec.Workers, l.cfg.Color)
	if err := l.dir.writeJob(l.spec, l.place.Run, l.started); err != nil {
		return errors.Join(err, l.place.Close(), l.dir.close())
	}
	return nil
}

// run starts everything, waits for a verdict, and ends everything.
func (l *launch) run(ctx context.Context, program string) error {
	tokens := newTokens(l.spec.Workers)
	agent, err := NewAgent(AgentConfig{Job: l.spec.Name, Socket: l.place.Socket(), Tokens: tokens, Min: l.spec.Min, Max: l.spec.Max,
		OnJoin: l.onJoin, OnReport: l.onReport, Orders: Orders{Start: l.onStart, Stop: l.onStop, Event: l.onEvent},
		Linger: lingering, Log: slog.New(slog.NewTextHandler(l.cfg.Stderr, nil))})
	if err != nil {
		return errors.Join(err, l.place.Close())
	}
	l.agent = agent
	house := group.New(context.Background()) // the agent and the guard: they outlive the workers
	house.Go("agent", agent.Run)
	house.Go("guard", func(ctx context.Context) error { return l.place.Guard(ctx, nil) })
	if l.cfg.OnStart != nil {
		l.cfg.OnStart(l.spec.Name, l.dir.path)
	}
	l.program, l.group = program, group.New(context.Background())
	l.around = surroundings{base: os.Environ(), spec: l.spec, socket: l.place.Socket(), mark: l.place.Mark(), cores: runtime.GOMAXPROCS(0), port: freePort()}
	for seat := 0; err == nil && seat < l.spec.Workers; seat++ {
		err = l.start(seat, l.around.environment(seat, tokens[seat]))
	}
	var v verdict
	if err == nil {
		v, err = l.await(ctx, house)
	}
	err = errors.Join(err, l.stop(ctx.Err() != nil))
	house.Stop(nil)
	err = errors.Join(err, house.Wait(), l.place.Clear(), l.drain(l.group), l.place.Close())
	if v.fault != noFault {
		err = errors.Join(l.failure(v), err)
	}
	return err
}

// start runs the process of one seat.
func (l *launch) start(seat int, env []string) error {
	out, err := proc.NewOutput(l.console, seat, l.dir.log(seat))
	if err != nil {
		return err
	}
	l.outputs = append(l.outputs, out)
	w, err := proc.Start(l.group, proc.Command{Path: l.program, Args: l.spec.Command, Env: env}, out, func(e proc.Exit) { l.onExit(seat, e) })
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.workers = append(l.workers, w)
	l.mu.Unlock()
	return nil
}

// obey starts and stops the workers that the membership wants started and stopped.
func (l *launch) obey() error {
	l.mu.Lock()
	wanted, unwanted := l.wanted, l.unwanted
	l.wanted, l.unwanted = 0, nil
	l.mu.Unlock()
	for range wanted {
		seat, token := l.agent.Seat()
		l.agent.Started(seat)
		if err := l.start(seat, l.around.lateEnvironment(seat, token, freePort())); err != nil {
			return err
		}
	}
	for _, seat := range unwanted {
		l.workers[seat].Signal(syscall.SIGTERM)
	}
	return nil
}

func (l *launch) onStart(count int, why string) {
	l.mu.Lock()
	l.wanted += count
	l.mu.Unlock()
	l.wake()
}

func (l *launch) onStop(seat int, why string) {
	l.mu.Lock()
	l.unwanted = append(l.unwanted, seat)
	l.mu.Unlock()
	l.wake()
}

// await blocks until the job is over or has to be stopped.
func (l *launch) await(ctx context.Context, house *group.Group) (verdict, error) {
	for {
		select {
		case <-l.changed:
			if v := judge(l.launched(), l.endings(), l.agent.Joined); v.done {
				return v, nil
			}
			if err := l.obey(); err != nil {
				return verdict{}, err
			}
		case <-ctx.Done():
			return verdict{}, fmt.Errorf("job %s was stopped: %w", l.spec.Name, context.Cause(ctx))
		case <-house.Context().Done():
			return verdict{}, nil // the error comes from house.Wait
		}
	}
}

// stop ends the workers that still run: politely, then not.
func (l *launch) stop(asked bool) error {
	l.mu.Lock()
	l.stopping = len(l.ended)
	l.mu.Unlock()
	grace, kill := graceFailed, (<-chan struct{})(nil)
	if asked {
		grace, kill = graceStopped, l.cfg.Kill
	}
	l.signal(syscall.SIGTERM)
	// Only now do the others hear of it: most have ended by then, and the output shows one exception and not one a rank.
	for _, e := range l.endings() {
		l.agent.Lost(e.rank, e.exit.String())
	}
	if l.allEnd(time.After(grace), kill) {
		return nil
	}
	l.signal(syscall.SIGKILL)
	if l.allEnd(time.After(graceStopped), nil) {
		return nil
	}
	return errors.New("node: workers were killed but do not end; look at their state in ps")
}

func (l *launch) signal(sig syscall.Signal) {
	for _, w := range l.workers {
		w.Signal(sig)
	}
}

// allEnd waits until all started workers have ended, or one of the channels says that it has been long enough.
func (l *launch) allEnd(timeout <-chan time.Time, hurry <-chan struct{}) bool {
	for len(l.endings()) < len(l.workers) {
		select {
		case <-l.changed:
		case <-timeout:
			return false
		case <-hurry:
			return false
		}
	}
	return true
}

// drain waits for the last output, after every process that could write has been swept away.
func (l *launch) drain(workers *group.Group) error {
	for _, w := range l.workers {
		w.Drain(draining)
	}
	err := workers.Wait()
	for _, out := range l.outputs {
		_ = out.Close() // the console has said what is missing from a log
	}
	return err
}

func (l *launch) onJoin(rank int, client string) {
	l.wake()
	if l.cfg.OnJoin != nil {
		l.cfg.OnJoin(rank, client)
	}
}

func (l *launch) onReport(rank int, metrics map[string]float64) {
	// A full disk must not end a training run; what is missing shows in the file.
	_ = l.dir.report(rank, metrics, time.Now())
	if l.cfg.OnReport != nil {
		l.cfg.OnReport(rank, metrics)
	}
}

func (l *launch) onExit(seat int, e proc.Exit) {
	survived := !e.OK() && l.survives(seat, e)
	l.mu.Lock()
	l.ended = append(l.ended, ending{seat, e, survived})
	stopping := l.stopping >= 0
	l.mu.Unlock()
	switch {
	case e.OK():
		l.agent.Finished(seat, e.String())
	case survived || stopping:
		l.agent.Lost(seat, e.String())
	} // else stop tells
	l.wake()
}

// survives reports whether the job goes on without a worker that ended like this: a worker that was killed is weather; one
// that failed by itself is a fault that somebody should see, unless the user said how many workers are enough, or it came
// late and the job was well without it.
func (l *launch) survives(seat int, e proc.Exit) bool {
	return (e.Signal != 0 || l.spec.Min > 0 || seat >= l.spec.Workers) && l.agent.Status().Elastic
}

// launched is the number of workers that were started or are about to be.
func (l *launch) launched() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.workers) + l.wanted
}

// onEvent tells of a change of the membership: on the terminal, in the run's ledger, and to who asked for it.
func (l *launch) onEvent(e Event) {
	if e.What != "generation" || e.Generation > 1 {
		l.console.Note(e.String())
	}
	_ = l.dir.event(e, time.Now()) // as with reports
	if l.cfg.OnEvent != nil {
		l.cfg.OnEvent(e)
	}
}

func (l *launch) wake() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *launch) endings() []ending {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended[:len(l.ended):len(l.ended)]
}

func (l *launch) failure(v verdict) *Failure {
	out, e := l.outputs[v.culprit.rank], v.culprit.exit
	return &Failure{Job: l.spec.Name, Rank: v.culprit.rank, Size: len(l.workers), Host: l.host, Exit: e,
		After: e.Ended.Sub(l.started), Early: v.fault == neverJoined, Tail: out.Tail(), Log: out.LogPath()}
}

func (l *launch) result(err error) *Result {
	r := &Result{Job: l.spec.Name, Dir: l.dir.path, OK: err == nil, Started: l.started,
		Seconds: time.Since(l.started).Seconds(), Alone: !anyJoined(len(l.workers), l.agent.Joined)}
	if err != nil {
		r.Error = err.Error()
	}
	for i, e := range l.endings() {
		r.Workers = append(r.Workers, WorkerResult{Rank: e.rank, PID: e.exit.PID, How: e.exit.String(), Stopped: i >= l.stopping,
			Seconds: e.exit.Ended.Sub(e.exit.Started).Seconds()})
	}
	return r
}

// newTokens makes the secrets by which the agent knows its workers.
func newTokens(n int) []string {
	tokens := make([]string, n)
	for i := range tokens {
		tokens[i] = newToken()
	}
	return tokens
}

func newToken() string {
	var secret [16]byte
	rand.Read(secret[:])
	return hex.EncodeToString(secret[:])
}
