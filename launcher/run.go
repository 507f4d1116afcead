package launcher

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/numa"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/store"
)

// lingering keeps the others waiting for a worker that has left. It is mostly about to end, of an
// exception that would else look like the exception of whoever waits for it; torch takes a second
// or two to end.
const lingering = 10 * time.Second

// RunConfig says what to run and who looks on. The callbacks may be nil; OnJoin and OnReport may be
// called from several goroutines at once.
type RunConfig struct {
	Spec           job.Spec
	Dir            string    // the run gets a directory in here; "" = RunsDir()
	Stdout, Stderr io.Writer // where the workers' lines go, behind their ranks
	Color          bool      // colour the ranks
	// when closed, a stop that was asked for by ctx no longer waits for the workers
	Kill <-chan struct{}
	// when closed, this host asks to be relieved of its workers, and leaves when they are gone; nil
	// = never
	Leave       <-chan struct{}
	CannotLeave func(why error) // called when the job has nobody else to go on with
	OnStart     func(job, dir string)
	OnJoin      func(rank int, client string)
	OnReport    func(rank int, metrics map[string]float64)
	OnEvent     func(e agent.Event) // a change of the membership
	Fleet       *Fleet              // other hosts; nil = this one alone
	Record      *RecordConfig       // where the record of the job is kept; nil = nowhere

	nodes []numa.Node // memory nodes that a test makes up
}

// Fleet is what a job on several hosts needs of who starts it.
type Fleet struct {
	Link func(h fabric.Handler) (fabric.Network, error) // opens the network to the other hosts
	// workers that this host takes; the others are placed elsewhere
	Slots int
	// by which the other hosts reach this one, for torch's own rendezvous
	Addr  string
	Ready func() // called when the network is open; may be nil
	// HOST:PORT where other hosts join; may be nil
	Join  func() string
	Token func(life time.Duration) string // a token with which they do; may be nil
	// called when the hosts' room changes, with the workers that have no place; 0 once the job has
	// begun or is over; may be nil
	Need func(missing int)
}

// Result says how a run went. It is what result.json holds.
type Result struct {
	Job   string `json:"job"`
	Dir   string `json:"dir"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
	// nobody joined: each process was a job of its own
	Alone     bool   `json:"alone"`
	StoppedBy string `json:"stopped_by,omitempty"` // who asked for its end
	// the host that leads the job, which goes on without this one
	GoesOn  string         `json:"goes_on,omitempty"`
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

// Run starts the agent and the workers, waits until the job is over, and leaves no process, socket
// or memory behind. It returns nil when all workers have ended well, or the job goes on on other
// hosts without this one; a *Stopped when they have not because somebody stopped the job, a
// *Failure when one has not, an error that wraps context.Cause(ctx) when ctx ended, and a
// *job.Error or *proc.CommandError when there was nothing to start. The Result is nil when no
// worker was started.
func Run(ctx context.Context, cfg RunConfig) (*Result, error) {
	if err := proc.Supported(); err != nil {
		return nil, err
	}
	spec := cfg.Spec.WithDefaults()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	program, err := find(spec) // before anything is made
	if err != nil {
		return nil, err
	}
	l, err := newLauncher(cfg, spec.Workers)
	if err != nil {
		return nil, err
	}
	if err := l.claim(ctx, spec.Name); err != nil {
		return nil, errors.Join(err, l.place.Close())
	}
	addr := "127.0.0.1"
	if cfg.Fleet != nil {
		addr = cfg.Fleet.Addr
	}
	if err := l.learn(
		jobMessage{Spec: spec, Addr: addr, Port: freePort(), After: l.record.had(),
			Record: l.record.shared()}, program, ""); err != nil {
		l.recorded()
		return nil, errors.Join(err, l.place.Close())
	}
	err = l.run(ctx, cfg.Leave)
	l.recorded()
	dir := l.reporter.files()
	if !l.registry.anyEnded() && l.registry.stoppedBy() == "" && l.registry.leads() {
		return nil, errors.Join(err, dir.close())
	}
	result := l.result(err)
	// a full disk makes no good job a bad one
	if wrote := errors.Join(dir.writeResult(result), dir.close()); wrote != nil {
		l.console.Note("the files of this run are incomplete: " + wrote.Error())
	}
	return result, err
}

// ServeConfig says how this host takes part in a job that was begun on another.
type ServeConfig struct {
	Link func(h fabric.Handler) (fabric.Network, error) // joins the network
	// HOST:PORT where other hosts join; may be nil
	Join func() string
	// a token with which they do; may be nil
	Token func(life time.Duration) string
	Slots int // workers that this host can run
	// where the directory of the run is made; "" = RunsDir()
	Dir            string
	Stdout, Stderr io.Writer
	Color          bool
	// the store of the job's record, if this host must go on with it; nil = it does not
	Store func(url string) store.Store
	// when closed, this host asks to be relieved of its workers, and leaves when they are gone
	Leave <-chan struct{}
	OnJob func(job, dir string) // may be nil
}

// Serve runs the workers that a job wants on this host, until the job is over, this host has left
// it, or ctx ends. When the host that leads the job is lost, this one may go on in its place: then
// Serve sees the job through as Run does, and returns the same errors. It leaves no process, socket
// or memory behind.
func Serve(ctx context.Context, cfg ServeConfig) error {
	if err := proc.Supported(); err != nil {
		return err
	}
	l, err := newLauncher(
		RunConfig{Dir: cfg.Dir, Stdout: cfg.Stdout, Stderr: cfg.Stderr, Color: cfg.Color,
			Kill: ctx.Done(), OnStart: cfg.OnJob,
			Fleet: &Fleet{Link: cfg.Link, Join: cfg.Join, Token: cfg.Token, Slots: cfg.Slots}}, 0)
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
	l.recorded()
	dir := l.reporter.files()
	if dir == nil {
		return err
	}
	// a full disk makes no good job a bad one
	var wrote error
	if l.registry.leads() {
		wrote = dir.writeResult(l.result(err))
	}
	if wrote = errors.Join(wrote, dir.close()); wrote != nil {
		l.console.Note("the files of this run are incomplete: " + wrote.Error())
	}
	return err
}
