// Package agent serves the workers of one host: it owns their memory, executes their collectives,
// and drives the protocol by which the agents of a job act as one. A launcher starts it, tells it
// of processes and carries out its Orders; package agent starts no process and knows no terminal.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/agent/checkpoints"
	"github.com/shoal-ml/shoal/agent/lanes"
	"github.com/shoal-ml/shoal/agent/loop"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/numa"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/sense/stall"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// Config says what an agent serves.
type Config struct {
	// Job is the name of the job, also in messages.
	Job string
	// Socket is the path of the Unix socket that workers connect to.
	Socket string
	// Size is how many workers the job begins with; 0 = this agent joins a job that another leads.
	Size int
	// Min and Max bound the size of the job; 0 = 1, no limit.
	Min, Max int
	// Spares counts the workers beyond the size that wait to be let in.
	Spares int
	// Growth says whether the job takes every slot of its hosts.
	Growth member.Growth
	// Slots is how many workers this host has room for; 0 = any number, member.NoSlots = none.
	Slots int
	// Kind is the kind of this host, as topo.CheckKind says; "" = not known.
	Kind string
	// Tokens are the secrets of the first workers, where the launcher starts them unasked; one a
	// worker.
	Tokens []string
	// Link opens the network to other hosts; nil = this host is alone.
	Link func(h fabric.Handler) (fabric.Network, error)
	// Fixed has collectives go between hosts by their lengths alone, whatever is measured.
	Fixed bool
	// Redundant asks for what several ranks of a mesh have to be on two hosts.
	Redundant bool
	// Meshes are the meshes that the job is to begin with, by its number of workers; for others its
	// program says one.
	Meshes map[int]string
	// After is how many generations the job had before this start: workers and people are told of
	// those that are numbered on from it.
	After topo.Generation
	// Nodes are the memory nodes of this host; nil = there is no choice of them.
	Nodes []numa.Node
	// Linger is how long calls wait for a worker that has left, for its exit to say why; 0 = not.
	Linger time.Duration
	// Log takes what only the operator of the host can mend; nil = slog.Default().
	Log *slog.Logger

	// Orders are what the job wants of the launcher.
	Orders Orders
	// OnJoin is called when a worker of this host has joined; nil = nobody is told. OnJoin,
	// OnReport, OnPark and OnSave are called on goroutines of sessions and checkpoints, several at
	// once.
	OnJoin func(worker int, client string)
	// OnReport is called with what a worker of this host reports; nil = nobody is told.
	OnReport func(worker int, metrics map[string]float64)
	// OnPark is called with what a worker of this host tells when the job is to be parked: with no
	// problem, the checkpoint of the step is sealed and the worker waits for its end; nil = nobody
	// is told.
	OnPark func(worker int, step uint64, problem string)
	// OnSave is called with what people should know of a checkpoint that a worker of this host
	// takes part in; nil = the log has it.
	OnSave func(worker int, line string)
	// OnLostPeer is called on the engine's thread when a call of a worker of this host has failed,
	// because another worker is gone; nil = nobody is told.
	OnLostPeer func(worker int, why string)
}

// Agent owns the arenas of a host's workers and executes their collectives. It knows a worker by
// the number that the job gave it, which the worker keeps for life. The first numbers are the ranks
// that the job begins with. Its methods may be called from any goroutine, but most wait for the
// engine's thread: functions that run there, such as Orders, may call only those that say that they
// do not wait, such as Status and TurnAway.
type Agent struct {
	// New sets the fields down to stores, and they stay as they are.
	cfg      Config
	listener *arena.Listener
	engine   *engine
	driver   *driver
	network  fabric.Network // nil where this host is alone
	group    *group.Group
	saves    checkpoints.Saves
	loop     *loop.Loop
	stores   *checkpoints.Stores

	mu       sync.Mutex               // guards what follows
	sessions map[int]*workerSession   // by the number of the worker
	closed   bool                     // no more conversations begin
	conns    map[*arena.Conn]struct{} // open conversations, which shutDown ends
}

// New opens the socket, and the links to other hosts if there are to be any; Run serves and closes
// them. After an error nothing is open.
func New(cfg Config) (*Agent, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.OnSave == nil {
		cfg.OnSave = func(_ int, line string) { cfg.Log.Info(line) }
	}
	l, err := arena.Listen(cfg.Socket)
	if err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg, listener: l, conns: map[*arena.Conn]struct{}{},
		sessions: map[int]*workerSession{}, stores: checkpoints.NewStores(),
		group: group.New(context.Background())}
	threads, err := lanes.New(a.group)
	if err == nil {
		a.engine, err = newEngine(threads, a.cutOff)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close(), a.stopGoroutines(), threads.Close())
	}
	a.engine.signals.NewestSave = a.saves.Newest
	a.engine.results.nodes = allNodes(cfg.Nodes)
	a.engine.background = func(name string, f func()) {
		a.group.Go(name, func(context.Context) error { f(); return nil })
	}
	if cfg.OnLostPeer != nil {
		a.engine.lostPeer = func(w topo.WorkerID, why string) { cfg.OnLostPeer(int(w), why) }
	}
	a.loop = loop.New(loopJob{a}, a.group)
	a.engine.stayed = a.loop.WorkersStayed
	if err := a.makeDriver(); err != nil {
		l.Close()
		return nil, errors.Join(err, a.stopGoroutines(), a.engine.close())
	}
	return a, nil
}

// makeDriver opens the network to other hosts, if there are to be any, and makes the driver with
// its head.Agent. New calls it, before any other goroutine knows the agent.
func (a *Agent) makeDriver() error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	if a.cfg.Link != nil {
		if a.network, err = a.cfg.Link(
			&links{Set: a.engine.transfers, engine: a.engine}); err != nil {
			return err
		}
		name = string(a.network.Self())
	}
	a.driver = &driver{engine: a.engine, network: a.network, orders: a.cfg.Orders.withDefaults(a),
		generations: generations{after: a.cfg.After}, began: time.Now(),
		rejected: map[topo.WorkerID]bool{},
		asking:   map[topo.WorkerID][]chan<- head.Grouped{},
		batches:  batches{running: map[head.BatchID]*batch{}},
		initial:  len(a.cfg.Tokens),
		routes:   routes{fixed: a.cfg.Fixed, chosen: map[cost.Class]collective.Route{}},
		planner:  meshes.Planner{Redundant: a.cfg.Redundant, Meshes: a.cfg.Meshes}}
	cfg := head.Config{Self: name, Slots: a.cfg.Slots, Kind: a.cfg.Kind,
		Route: a.driver.routes.chooseRoute, Arrange: a.driver.planner.Arrange,
		Learn: a.driver.learnLayout}
	if a.cfg.Size > 0 {
		cfg.Job = &member.Config{Want: a.cfg.Size, Min: a.cfg.Min, Max: a.cfg.Max,
			Spares: a.cfg.Spares, Growth: a.cfg.Growth}
	}
	a.engine.name = fabric.Host(name)
	a.driver.head, a.engine.driver = head.New(cfg), a.driver
	a.driver.stalls = stall.New(a.driver.head.IsGone)
	for id, token := range a.cfg.Tokens {
		a.sessions[id] = &workerSession{token: token}
		a.driver.head.WorkerStarted(topo.WorkerID(id))
	}
	a.driver.published.changed = true
	a.driver.publishStatus()
	return nil
}

// stopGoroutines ends all goroutines of the group, the lanes among them, and blocks until they have
// ended.
func (a *Agent) stopGoroutines() error {
	a.group.Stop(nil)
	return a.group.Wait()
}

// Run serves workers and blocks until ctx ends; then it closes every conversation, waits for all
// that it started, and removes the socket. It is called once.
func (a *Agent) Run(ctx context.Context) error {
	engine := group.New(context.Background())
	engine.Go("engine", func(context.Context) error { a.engine.serve(); return nil })
	stop := context.AfterFunc(ctx, a.shutDown)
	defer stop()
	_ = a.engine.runLater(a.driver.carryOutActions) // a job that begins wants workers
	a.group.Go("watch", a.watchWaits)
	a.group.Go("loop", a.loop.Run)
	a.group.Go("rows", a.keepRows)
	a.group.Go("gauge", a.newGauge().Run)
	if a.network != nil || a.cfg.Spares > 0 {
		a.group.Go("ticks", a.runTicks)
	}
	if a.network != nil {
		a.group.Go("seek", a.seekOthers)
		a.group.Go("routes", a.tuneRoutes)
	}
	err := a.accept()
	a.shutDown()
	_ = a.engine.runAndWait(a.driver.endWaits)
	if a.network != nil {
		_ = a.engine.runAndWait(func() { a.driver.left = true })
		a.engine.transfers.Close()
		err = errors.Join(err, a.network.Close())
	}
	a.engine.stop()
	err = errors.Join(err, engine.Wait())
	a.engine.signals.EndRows(string(a.engine.name))
	a.driver.published.publish(Status{Ended: true})
	err = errors.Join(err, a.stopGoroutines())
	if a.network == nil { // else another host may still write a part
		a.saves.AbandonUnsealed()
	}
	return errors.Join(err, a.engine.close())
}

// runTicks has the engine's thread, at every tick until ctx ends, let the head's agent repeat what
// was not answered and start spares again. It is a goroutine of Run.
func (a *Agent) runTicks(ctx context.Context) error {
	ticker := time.NewTicker(ticks)
	defer ticker.Stop()
	next := a.driver.head.Tick
	tick := func() { a.driver.runStepInput(next) }
	for {
		select {
		case <-ticker.C:
			_ = a.engine.runLater(tick)
		case <-ctx.Done():
			return nil
		}
	}
}

// seekOthers asks the other hosts once a second, while this host is stuck, with whom they are
// linked, and tells the head: it so learns whether they go on without it. It is a goroutine of Run,
// and blocks until ctx ends.
func (a *Agent) seekOthers(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if !a.Status().Stuck {
			continue
		}
		for host, linked := range a.network.Seek(ctx) {
			names := make([]string, len(linked))
			for i, l := range linked {
				names[i] = string(l)
			}
			_ = a.engine.runLater(func() {
				a.driver.runInput(func() { a.driver.head.HostSeen(string(host), names) })
			})
		}
	}
}

// ticks is the time between two ticks of runTicks. It says nothing about when a host counts
// as lost: the network decides that.
const ticks = 50 * time.Millisecond

// accept serves each worker that connects on a goroutine of its own, until the socket is closed.
// Run calls it.
func (a *Agent) accept() error {
	for {
		conn, err := a.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("agent: accepting workers: %w", err)
		}
		if !a.trackConn(conn) {
			conn.Close()
			return nil
		}
		a.group.Go("session", func(context.Context) error {
			s := &session{agent: a, conn: conn}
			s.serve()
			a.endSession(s)
			_ = s.releaseCheckpoint() // the next agent removes a folder that stays
			return nil
		})
	}
}

// trackConn adds a conversation to those that shutDown ends; false = the agent is closed already,
// and the caller closes c.
func (a *Agent) trackConn(c *arena.Conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.conns[c] = struct{}{}
	}
	return !a.closed
}

// shutDown closes the socket, ends fetches of checkpoints, and hangs up on every worker, which
// takes that as the end of the agent. It waits for nobody: requests that a worker had sent before
// are still served, since its session reads on until the end. A second call changes nothing. Any
// goroutine may call it.
func (a *Agent) shutDown() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.stores.Stop()
	a.listener.Close()
	for c := range a.conns {
		_ = c.Shutdown() // fails where the worker was faster
		delete(a.conns, c)
	}
}

// The methods below run on goroutines of sessions, unless they say otherwise. Those that wait for
// the engine's thread must not be called there.

// requestGroup asks the head for a group of the ranks that a worker lists, in the view that it
// knows by a number, and blocks until the head has answered or the agent stops.
func (a *Agent) requestGroup(w topo.WorkerID, ranks []int, known uint64) (head.Grouped, error) {
	answer := make(chan head.Grouped, 1)
	var err error
	if stopped := a.engine.runAndWait(func() {
		err = a.driver.requestGroup(w, ranks, known, answer)
	}); stopped != nil || err != nil {
		return head.Grouped{}, cmp.Or(stopped, err)
	}
	select {
	case g := <-answer:
		return g, g.Err
	case <-a.group.Context().Done():
		return head.Grouped{}, errStopped
	}
}

// ungroup tells the head and the engine, without waiting, that a worker needs a group no more. A
// stopped engine has forgotten all groups.
func (a *Agent) ungroup(w topo.WorkerID, id topo.GroupID) {
	_ = a.engine.runLater(func() {
		a.driver.runInput(func() { a.driver.head.Ungroup(w, id) })
		if m := a.engine.byID[w]; m != nil {
			m.forgetResults(id)
		}
	})
}

// setData states for a worker what data the job trains on, how it trained at that place (at, of
// which Rate, Save, Sync and People count) and what may change, and waits for the engine's thread.
func (a *Agent) setData(w topo.WorkerID, d cursor.Cursor, at setting.Setting,
	levers setting.Levers) (err error) {
	if stopped := a.engine.runAndWait(func() {
		err = a.driver.setData(w, d, at, levers)
	}); stopped != nil {
		return stopped
	}
	return err
}

// endSession closes the socket of a conversation that is over, and has the engine free its worker.
// The calls that the worker has posted stay until they end.
func (a *Agent) endSession(s *session) {
	a.mu.Lock()
	delete(a.conns, s.conn)
	if p := a.sessions[int(s.worker)]; p != nil && p.conn == s.conn {
		p.conn = nil
		a.forgetIfOver(int(s.worker))
	}
	a.mu.Unlock()
	s.conn.Close()
	if s.joined {
		// When the engine has stopped, its own end frees the member.
		_ = a.engine.runAndWait(func() {
			if m := a.engine.byID[s.worker]; m != nil {
				m.left = true
			}
		})
	}
}

// loseAfterLinger tells the head, Config.Linger after a worker has said goodbye and on a goroutine
// of its own, that the worker has done its work, so that calls which wait for it go on without it.
// If its process ends before, the launcher says how. Without a Linger this tells at once, and waits
// for the engine's thread. A worker that has not joined is none: nothing is told.
func (a *Agent) loseAfterLinger(w topo.WorkerID, joined bool) {
	if !joined {
		return
	}
	lose := func() {
		_ = a.engine.runAndWait(func() { a.driver.loseWorker(w, "has left the job", true) })
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

// reportMetrics hands the metrics of a worker to the launcher, on the goroutine of the session.
func (a *Agent) reportMetrics(w topo.WorkerID, metrics map[string]float64) {
	if a.cfg.OnReport != nil {
		a.cfg.OnReport(int(w), metrics)
	}
}
