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
	"runtime"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/api"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/state/cursor"
	"github.com/shoal-ml/shoal/topo"
)

// AgentConfig says what an agent serves.
type AgentConfig struct {
	Job      string                                     // name of the job, also in messages
	Socket   string                                     // path of the Unix socket
	Tokens   []string                                   // a secret a worker that the job begins with; "" = it is on another host
	Min, Max int                                        // bounds of the job's size; 0 = 1, no limit
	Orders   Orders                                     // what the membership wants of the launcher
	OnJoin   func(seat int, client string)              // may be nil
	OnReport func(seat int, metrics map[string]float64) // may be nil
	Linger   time.Duration                              // how long calls wait for a rank that has left, for Exited to say why; 0 = not
	Log      *slog.Logger                               // nil = slog.Default()
	Hosts    Hosts                                      // other hosts; the zero value where there are none
	Follow   *Follow                                    // this agent is not the head: it serves one on another host
}

// Agent owns the arenas of a host's workers and executes their collectives. It knows a worker by its seat: the number that the
// head of the job gave it, which it keeps for life. The first seats are the ranks that the job begins with.
//
// One agent of a job is its head, where the calls of all hosts come together; on one host it is the only one.
type Agent struct {
	cfg      AgentConfig
	name     string
	listener *arena.Listener
	engine   *engine
	head     *head     // nil = it is on another host
	office   *office   // the head's, for other hosts
	follower *follower // nil = this is the head
	mesh     fabric.Mesh
	group    *group.Group

	mu     sync.Mutex
	seats  map[int]*presence
	next   int // number of the next seat
	closed bool
	conns  map[*arena.Conn]struct{}
}

// presence is what the agent knows of a worker's life.
type presence struct {
	token  string
	late   bool // the job ran already when it was started
	joined bool // has ever joined
	left   bool // said leave
	conn   *arena.Conn
}

// NewAgent opens the socket, and the links to other hosts if there are to be any; Run serves them.
func NewAgent(cfg AgentConfig) (*Agent, error) {
	if len(cfg.Tokens) == 0 && cfg.Follow == nil {
		return nil, errors.New("node: a job needs at least one worker")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	l, err := arena.Listen(cfg.Socket)
	if err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg, name: name, listener: l, conns: map[*arena.Conn]struct{}{}, seats: map[int]*presence{}, group: group.New(context.Background())}
	if a.engine, err = newEngine(fabric.Host(name), newLanes(a.group), a.expelled); err != nil {
		l.Close()
		return nil, errors.Join(err, a.stopLanes())
	}
	if err := a.link(); err != nil {
		l.Close()
		return nil, errors.Join(err, a.stopLanes(), a.engine.close())
	}
	return a, nil
}

// link gives the agent its part: head or follower.
func (a *Agent) link() (err error) {
	if f := a.cfg.Follow; f != nil {
		a.follower = &follower{transfers: a.engine.transfers, agent: a, offer: offer{f.Slots, runtime.NumCPU()}, orders: f.Errands,
			open: map[openCall]*collective.Posted{}, asks: map[uint64]chan *answerNote{}}
		a.engine.chief = a.follower
		a.mesh, err = f.Link(a.follower)
		a.follower.mesh = a.mesh
	} else {
		cfg := member.Config{Want: len(a.cfg.Tokens), Min: a.cfg.Min, Max: a.cfg.Max}
		if link := a.cfg.Hosts.Link; link != nil {
			a.office = &office{transfers: a.engine.transfers, agent: a}
			if a.mesh, err = link(a.office); err != nil {
				return err
			}
			a.office.mesh, cfg.Head = a.mesh, string(a.mesh.Self())
			if n := a.cfg.Hosts.Slots; n > 0 {
				cfg.Hosts = []member.Host{{Name: cfg.Head, Slots: n}}
			}
			a.engine.name = a.mesh.Self()
		}
		a.head = newHead(newCrew(len(a.cfg.Tokens), cfg, a.cfg.Orders.withDefaults()), a.engine)
		a.engine.chief = a.head
		for seat, token := range a.cfg.Tokens {
			a.seats[seat] = &presence{token: token}
			if token != "" {
				a.head.started(topo.Worker(seat), "")
			}
		}
		a.next = len(a.cfg.Tokens)
	}
	if err == nil && a.mesh != nil {
		a.engine.mesh, a.engine.name = a.mesh, a.mesh.Self()
	}
	return err
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
	if a.mesh != nil {
		a.engine.transfers.close()
		err = errors.Join(err, a.mesh.Close())
	}
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
func (a *Agent) seat(n int, token string) (late bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.seats[n]
	if p == nil {
		return false, &collective.FieldError{Field: "rank", Problem: fmt.Sprintf("%d is outside 0..%d", n, a.next-1)}
	}
	if p.token == "" || subtle.ConstantTimeCompare([]byte(token), []byte(p.token)) != 1 {
		return false, &collective.FieldError{Field: "token", Problem: fmt.Sprintf("not the one of rank %d: a worker gets it in %s from its launcher", n, api.EnvToken)}
	}
	return p.late, nil
}

// admit makes a worker known, once a seat.
func (a *Agent) admit(m *worker, c *arena.Conn, client string) error {
	a.mu.Lock()
	p := a.seats[int(m.id)]
	twice := p.joined
	if !twice {
		p.joined, p.conn = true, c
	}
	a.mu.Unlock()
	if twice {
		return fmt.Errorf("rank %d of job %s has joined already: a rank joins once; start another worker with another rank", m.id, a.cfg.Job)
	}
	return a.engine.do(func() {
		if a.follower != nil {
			a.follower.send(&letter{Joined: &joinedNote{m.id, client}})
		}
		a.engine.admit(m)
	})
}

// size is the number of workers that the job begins with.
func (a *Agent) size() int {
	if f := a.cfg.Follow; f != nil {
		return f.Size()
	}
	return len(a.cfg.Tokens)
}

// here is the number of workers on this host.
func (a *Agent) here() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, p := range a.seats {
		if p.token != "" {
			n++
		}
	}
	return n
}

// groupOf gives a worker a group of the ranks that it lists.
func (a *Agent) groupOf(w topo.Worker, ranks []int) (id topo.GroupID, self int, err error) {
	if a.follower != nil {
		return a.follower.group(w, ranks)
	}
	if stopped := a.engine.do(func() { id, self, err = a.head.group(w, ranks) }); stopped != nil {
		return 0, 0, stopped
	}
	return id, self, err
}

// state notes what the job trains on.
func (a *Agent) state(w topo.Worker, d cursor.Cursor) (err error) {
	if a.follower != nil {
		return a.follower.state(w, d)
	}
	if stopped := a.engine.do(func() { err = a.head.crew.state(d) }); stopped != nil {
		return stopped
	}
	return err
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
			if m := a.engine.byID[s.worker]; m != nil {
				m.left = true
			}
		})
	}
}

func (a *Agent) leave(w topo.Worker, joined bool) {
	if !joined {
		return
	}
	a.noteLeft(int(w))
	lose := func() {
		_ = a.engine.do(func() { a.engine.chief.lose(w, "has left the job") })
	}
	if a.follower != nil {
		_ = a.engine.later(func() { a.follower.send(&letter{Left: &workerNote{Worker: w}}) })
	}
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

func (a *Agent) noteJoined(seat int) { a.note(seat, func(p *presence) { p.joined = true }) }

func (a *Agent) noteLeft(seat int) { a.note(seat, func(p *presence) { p.left = true }) }

func (a *Agent) note(seat int, change func(p *presence)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.seats[seat]; p != nil {
		change(p)
	}
}

func (a *Agent) report(w topo.Worker, metrics map[string]float64) {
	switch {
	case a.follower != nil:
		_ = a.engine.later(func() { a.follower.send(&letter{Report: &reportNote{w, metrics}}) })
	case a.cfg.OnReport != nil:
		a.cfg.OnReport(int(w), metrics)
	}
}

// expelled hangs up on a worker that broke the protocol.
func (a *Agent) expelled(w topo.Worker, err error) {
	a.cfg.Log.Error("a worker broke the protocol and is cut off", "job", a.cfg.Job, "worker", w, "error", err)
	if a.follower != nil {
		a.follower.send(&letter{Expelled: &workerNote{w, err.Error()}})
	}
	a.note(int(w), func(p *presence) {
		if p.conn != nil {
			_ = p.conn.Shutdown()
		}
	})
}

// Host is the name of this host in the job.
func (a *Agent) Host() string { return string(a.engine.name) }

// Socket is the path that workers connect to.
func (a *Agent) Socket() string { return a.cfg.Socket }

// Joined reports whether a worker has ever joined.
func (a *Agent) Joined(seat int) (joined bool) {
	a.note(seat, func(p *presence) { joined = p.joined })
	return joined
}

// Left reports whether a worker has said that it leaves.
func (a *Agent) Left(seat int) (left bool) {
	a.note(seat, func(p *presence) { left = p.left })
	return left
}

// Expect makes room for a worker that the launcher is about to start, and returns its secret. late says that the job runs already.
func (a *Agent) Expect(seat int, late bool) (token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	token = newToken()
	a.seats[seat] = &presence{token: token, late: late}
	a.next = max(a.next, seat+1)
	return token
}

// Started tells that the process of a worker runs, or is about to; host is where, "" = here.
func (a *Agent) Started(seat int, host string) {
	_ = a.engine.do(func() { a.head.started(topo.Worker(seat), fabric.Host(host)) })
}

// Finished tells that the process of a worker has ended well, and how ("exited with code 0"). An elastic job goes on
// without it; in another, what waits for it fails.
func (a *Agent) Finished(seat int, how string) {
	_ = a.engine.do(func() { a.head.crew.finished(topo.Worker(seat), how) })
}

// Lost tells that the process of a worker is gone otherwise ("was killed by SIGKILL").
func (a *Agent) Lost(seat int, how string) {
	_ = a.engine.do(func() { a.head.crew.lost(topo.Worker(seat), how) })
}

// Resize asks for another number of workers. who asks is part of the reason that people read.
func (a *Agent) Resize(n int, who string) (err error) {
	if e := a.engine.do(func() { err = a.head.crew.resize(n, who) }); e != nil {
		return e
	}
	return err
}

// Release lets every worker go when the step ends that is under way: its training loop ends as at the end of the data. It returns
// false in a job that does not train in steps, whose workers have no such moment. why is what people read.
func (a *Agent) Release(why string) (ok bool) {
	_ = a.engine.do(func() { ok = a.head.crew.release(why) })
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
	_ = a.engine.do(func() { s = a.head.crew.status() })
	return s
}
