// Package node is the composition root: the agent that serves the workers of one host, and the launcher that runs a job.
// It is the only place that starts long-lived goroutines.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/topo"
)

// AgentConfig says what an agent serves.
type AgentConfig struct {
	Job      string                                     // name of the job, also in messages
	Socket   string                                     // path of the Unix socket
	Tokens   []string                                   // a secret a rank; their number is the size of the job
	OnJoin   func(rank int, client string)              // may be nil
	OnReport func(rank int, metrics map[string]float64) // may be nil
	Linger   time.Duration                              // how long calls wait for a rank that has left, for Exited to say why; 0 = not
	Log      *slog.Logger                               // nil = slog.Default()
}

// Agent owns the arenas of a host's workers and executes their collectives.
type Agent struct {
	cfg      AgentConfig
	host     string
	listener *arena.Listener
	engine   *engine
	group    *group.Group

	mu     sync.Mutex
	ranks  []presence
	closed bool
	conns  map[*arena.Conn]struct{}
}

// presence is what the agent knows of a rank's life.
type presence struct {
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
	a := &Agent{cfg: cfg, host: host, listener: l, ranks: make([]presence, len(cfg.Tokens)), conns: map[*arena.Conn]struct{}{},
		group: group.New(context.Background())}
	if a.engine, err = newEngine(len(cfg.Tokens), newLanes(a.group), a.expelled); err != nil {
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

// admit makes a worker a member, once a rank.
func (a *Agent) admit(m *member, c *arena.Conn) error {
	a.mu.Lock()
	p := &a.ranks[m.rank]
	twice := p.joined
	if !twice {
		p.joined, p.conn = true, c
	}
	a.mu.Unlock()
	if twice {
		return fmt.Errorf("rank %d of job %s has joined already: a rank joins once; start another worker with another rank", m.rank, a.cfg.Job)
	}
	return a.engine.do(func() { a.engine.members[m.rank] = m })
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
			if m := a.engine.members[s.rank]; m != nil {
				m.left = true
			}
		})
	}
}

func (a *Agent) leave(rank topo.Rank, joined bool) {
	if !joined {
		return
	}
	a.mu.Lock()
	a.ranks[rank].left = true
	a.mu.Unlock()
	lose := func() { _ = a.engine.do(func() { a.engine.lose(rank, "has left the job") }) }
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

func (a *Agent) report(rank topo.Rank, metrics map[string]float64) {
	if a.cfg.OnReport != nil {
		a.cfg.OnReport(int(rank), metrics)
	}
}

// expelled hangs up on a worker that broke the protocol.
func (a *Agent) expelled(rank topo.Rank, err error) {
	a.cfg.Log.Error("a worker broke the protocol and is cut off", "job", a.cfg.Job, "rank", rank, "error", err)
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.ranks[rank].conn; c != nil {
		c.Shutdown()
	}
}

// Socket is the path that workers connect to.
func (a *Agent) Socket() string { return a.cfg.Socket }

// Joined reports whether a rank has ever joined.
func (a *Agent) Joined(rank int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ranks[rank].joined
}

// Left reports whether a rank has said that it leaves.
func (a *Agent) Left(rank int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ranks[rank].left
}

// Exited tells that the process of a rank has ended, and how ("exited with code 0"): what waits for the rank fails with it.
func (a *Agent) Exited(rank int, how string) {
	_ = a.engine.do(func() { a.engine.lose(topo.Rank(rank), how) })
}
