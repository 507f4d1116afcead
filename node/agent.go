// Package node is the composition root: the agent that serves the workers of one host, and the launcher that runs a job.
// It is the only place that starts long-lived goroutines.
package node

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/api"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// AgentConfig says what an agent serves.
type AgentConfig struct {
	Job      string                                     // name of the job, also in messages
	Socket   string                                     // path of the Unix socket
	Tokens   []string                                   // a secret a worker that the job begins with
	Min, Max int                                        // bounds of the job's size; 0 = 1, no limit
	Orders   Orders                                     // what the membership wants of the launcher
	OnJoin   func(seat int, client string)              // may be nil
	OnReport func(seat int, metrics map[string]float64) // may be nil
	Linger   time.Duration                              // how long calls wait for a rank that has left, for Exited to say why; 0 = not
	Log      *slog.Logger                               // nil = slog.Default()
}

// Agent owns the arenas of a host's workers and executes their collectives. It knows a worker by its seat: the number that the
// launcher gave it, which it keeps for life. The first seats are the ranks that the job begins with.
type Agent struct {
	cfg      AgentConfig
	host     string
	listener *arena.Listener
	engine   *engine
	group    *group.Group

	mu     sync.Mutex
	seats  []presence
	closed bool
	conns  map[*arena.Conn]struct{}
}

// presence is what the agent knows of a worker's life.
type presence struct {
	token  string
	joined bool // has ever joined
	left   bool // said leave
	conn   *arena.Conn
}

// NewAgent opens the socket; Run serves it.
func NewAgent(cfg AgentConfig) (*Agent, error) {
	if len(cfg.Tokens) == 0 {
		return nil, errors.New("node: a job needs at least one worker")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	l, err := arena.Listen(cfg.Socket)
	if err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg, host: host, listener: l, conns: map[*arena.Conn]struct{}{},
		group: group.New(context.Background())}
	for _, token := range cfg.Tokens {
		a.seats = append(a.seats, presence{token: token})
	}
	c := newCrew(len(cfg.Tokens), member.Config{Want: len(cfg.Tokens), Min: cfg.Min, Max: cfg.Max}, host, cfg.Orders.withDefaults())
	if a.engine, err = newEngine(c, newLanes(a.group), a.expelled); err != nil {
		l.Close()
		return nil, errors.Join(err, a.stopLanes())
	}
	return a, nil
}

func (a *Agent) stopLanes() error {
	a.group.Stop(nil)
	return a.group.Wait()
}

// Run serves workers until ctx ends; then it closes every conversation, waits for all that it started, and removes the socket.
func (a *Agent) Run(ctx context.Context) error {
	engine := group.New(context.Background())
	engine.Go("engine", func(context.Context) error { a.engine.serve(); return nil })
	stop := context.AfterFunc(ctx, a.shut)
	defer stop()
	err := a.accept()
	a.shut()
	a.engine.stop()
	return errors.Join(err, engine.Wait(), a.stopLanes(), a.engine.close())
}

func (a *Agent) accept() error {
	for {
		conn, err := a.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("node: accepting workers: %w", err)
		}
		if !a.track(conn) {
			conn.Close()
			return nil
		}
		a.group.Go("session", func(context.Context) error {
			s := &session{agent: a, conn: conn}
			s.serve()
			a.finish(s)
			return nil
		})
	}
}

func (a *Agent) track(c *arena.Conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.conns[c] = struct{}{}
	}
	return !a.closed
}

// shut closes the socket and hangs up on every worker, which takes that as the end of the agent. What a worker had said
// before is still heard: its session reads on until the end.
func (a *Agent) shut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.listener.Close()
	for c := range a.conns {
		_ = c.Shutdown() // fails where the worker was faster
		delete(a.conns, c)
	}
}

// seat finds the seat that a token belongs to.
func (a *Agent) seat(n int, token string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n < 0 || n >= len(a.seats) {
		return &collective.FieldError{Field: "rank", Problem: fmt.Sprintf("%d is outside 0..%d", n, len(a.seats)-1)}
	}
	if subtle.ConstantTimeCompare([]byte(token), []byte(a.seats[n].token)) != 1 {
		return &collective.FieldError{Field: "token", Problem: fmt.Sprintf("not the one of rank %d: a worker gets it in %s from its launcher", n, api.EnvToken)}
	}
	return nil
}

// admit makes a worker known, once a seat.
func (a *Agent) admit(m *worker, c *arena.Conn) error {
	a.mu.Lock()
	p := &a.seats[m.id]
	twice := p.joined
	if !twice {
		p.joined, p.conn = true, c
	}
	a.mu.Unlock()
	if twice {
		return fmt.Errorf("rank %d of job %s has joined already: a rank joins once; start another worker with another rank", m.id, a.cfg.Job)
	}
	return a.engine.do(func() { a.engine.admit(m) })
}

// finish cleans up after a conversation. What the worker posted stays until it is used.
func (a *Agent) finish(s *session) {
	a.mu.Lock()
	delete(a.conns, s.conn)
	a.mu.Unlock()
	s.conn.Close()
	if s.joined {
		// When the engine has stopped, its own end frees the member.
		_ = a.engine.do(func() {
			if m := a.engine.worker(s.worker); m != nil {
				m.left = true
			}
		})
	}
}

func (a *Agent) leave(w topo.Worker, joined bool) {
	if !joined {
		return
	}
	a.mu.Lock()
	a.seats[w].left = true
	a.mu.Unlock()
	lose := func() { _ = a.engine.do(func() { a.engine.lose(w, "has left the job") }) }
	if a.cfg.Linger == 0 {
		lose()
		return
	}
	a.group.Go("linger", func(ctx context.Context) error {
		select {
		case <-time.After(a.cfg.Linger):
			lose()
		case <-ctx.Done():
		}
		return nil
	})
}

func (a *Agent) report(w topo.Worker, metrics map[string]float64) {
	if a.cfg.OnReport != nil {
		a.cfg.OnReport(int(w), metrics)
	}
}

// expelled hangs up on a worker that broke the protocol.
func (a *Agent) expelled(w topo.Worker, err error) {
	a.cfg.Log.Error("a worker broke the protocol and is cut off", "job", a.cfg.Job, "worker", w, "error", err)
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.seats[w].conn; c != nil {
		c.Shutdown()
	}
}

// Socket is the path that workers connect to.
func (a *Agent) Socket() string { return a.cfg.Socket }

// Joined reports whether a worker has ever joined.
func (a *Agent) Joined(seat int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seats[seat].joined
}

// Left reports whether a worker has said that it leaves.
func (a *Agent) Left(seat int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seats[seat].left
}

// Seat makes room for one more worker, which the launcher is about to start, and returns its number and secret.
func (a *Agent) Seat() (seat int, token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	token = newToken()
	a.seats = append(a.seats, presence{token: token})
	return len(a.seats) - 1, token
}

// Started tells that the process of a further worker runs.
func (a *Agent) Started(seat int) {
	_ = a.engine.do(func() { a.engine.crew.started(topo.Worker(seat)) })
}

// Finished tells that the process of a worker has ended well, and how ("exited with code 0"). An elastic job goes on
// without it; in another, what waits for it fails.
func (a *Agent) Finished(seat int, how string) {
	_ = a.engine.do(func() { a.engine.crew.finished(topo.Worker(seat), how) })
}

// Lost tells that the process of a worker is gone otherwise ("was killed by SIGKILL").
func (a *Agent) Lost(seat int, how string) {
	_ = a.engine.do(func() { a.engine.crew.lost(topo.Worker(seat), how) })
}

// Resize asks for another number of workers. who asks is part of the reason that people read.
func (a *Agent) Resize(n int, who string) (err error) {
	if e := a.engine.do(func() { err = a.engine.crew.resize(n, who) }); e != nil {
		return e
	}
	return err
}

// Release lets every worker go when the step ends that is under way: its training loop ends as at the end of the data. It returns
// false in a job that does not train in steps, whose workers have no such moment. why is what people read.
func (a *Agent) Release(why string) (ok bool) {
	_ = a.engine.do(func() { ok = a.engine.crew.release(why) })
	return ok
}

// Status is the state of a job.
type Status struct {
	Generation uint64
	Size, Want int
	Steps      uint64
	Seats      []int // by rank
	Entering   int   // workers that wait for the end of a step to become members
	Elastic    bool  // losses do not end the job
	Paused     bool
}

// Status returns the state of the job.
func (a *Agent) Status() (s Status) {
	_ = a.engine.do(func() { s = a.engine.crew.status() })
	return s
}
