// Package simtest runs a job on many simulated hosts: the agents, the membership, the matching of
// calls and what is recorded of them are the real ones (head, member, collective, store/record);
// workers, their memory, the network, the store and the faults are models. Everything happens one
// event after another, each of them a line of text, so that a schedule can be written, printed,
// replayed and made smaller.
//
// After every event the invariants of docs/design/quorum.md, reshape.md and store.md are checked;
// invariants.go, invariants_mesh.go and record.go have them. What is broken first is kept, and Do
// and CheckFinally return it.
package simtest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/store/record"
	"github.com/shoal-ml/shoal/topo"
)

// Cluster is a simulated job. Create it with New; drive it with Do. One goroutine uses it, with all
// that is in it; nothing does I/O, and no method waits.
type Cluster struct {
	Trace func(host string, a head.Action)  // is told of every action of an agent, when not nil
	Carry func(m wire.Message) wire.Message // what arrives of a message, when not nil

	hosts        []*host // in the order in which they came
	net          network // the links between hosts
	invariants   invariants
	data         cursor.Cursor   // that workers state; zero = the job has none
	levers       setting.Levers  // that their program has opened
	groups       bool            // workers use groups
	mesh         string          // with which the job begins; "" = it has none
	unreplicated bool            // no part of its state is on two workers
	redundant    bool            // parts that are on two workers are to be on two hosts
	disk         disk            // the checkpoints of a job with a mesh
	last         uint64          // the step after which a job with a mesh ends; 0 = it does not
	early        int             // bytes of a step that hosts begin with before its end
	store        store           // where the job is recorded
	job          member.Config   // with which the first host begins
	slots        int             // of the first host
	allotted     map[string]int  // by host, the most slots that it was ever allotted
	kind         string          // of the first host; "" = not known
	out          strings.Builder // what was printed since the last Output
	quiet        bool            // nothing is printed
}

// host is a machine with an agent and workers. It is the shell of the agent.
type host struct {
	cluster *Cluster
	name    string
	kind    string // "" = not known
	slots   int    // of its own; 0 = any number
	agent   *head.Agent
	reader  wire.Reader // reads messages that arrive as bytes
	alive   bool        // it runs, and its agent takes part
	ended   bool        // its agent was told that the job is over
	refuses bool        // it cannot take its part in the reshape that comes next

	writer   *record.Writer    // nil = it cannot reach the store
	told     []topo.Generation // that the writer was told of
	diverged []topo.Generation // that it has told to be recorded otherwise

	running bool                        // runActions is under way
	orders  []topo.WorkerID             // workers that it has still to start
	workers map[topo.WorkerID]*worker   // those that run here
	runs    map[head.BatchID]*execution // batches that it executes or has executed
}

// New returns a cluster without hosts.
func New() *Cluster {
	c := &Cluster{allotted: map[string]int{}}
	c.net.links = map[pair]*link{}
	c.invariants.reset()
	c.disk.reset()
	c.store.held, c.store.away = map[string]held{}, map[string]bool{}
	return c
}

// Output returns what has been printed since the last call.
func (c *Cluster) Output() string {
	s := c.out.String()
	c.out.Reset()
	return s
}

// print prints a line for Output, unless the cluster is quiet.
func (c *Cluster) print(format string, args ...any) {
	if !c.quiet {
		fmt.Fprintf(&c.out, "  "+format+"\n", args...)
	}
}

// addFirstHost makes the first host, which leads.
func (c *Cluster) addFirstHost(name string) {
	job := c.job
	h := c.newHost(name, head.Config{Self: name, Slots: c.slots, Kind: c.kind, Job: &job})
	h.addWriter(&c.store, true)
	h.runActions()
}

// addHost makes another host, with links to all that are there; where the name is taken it does
// nothing.
func (c *Cluster) addHost(name string, slots int, kind string) {
	if c.findHost(name) != nil {
		return
	}
	h := c.newHost(name, head.Config{Self: name, Slots: slots, Kind: kind})
	h.addWriter(&c.store, false)
	for _, other := range c.hosts {
		if other == h || !other.alive {
			continue
		}
		c.net.connect(h.name, other.name)
		h.agent.LinkUp(other.name)
		other.agent.LinkUp(h.name)
		other.runActions()
	}
	h.runActions()
}

// newHost adds a host without links. While it leads it chooses another route for every collective,
// and another one than other hosts would: only what comes with a batch can make them all the same.
func (c *Cluster) newHost(name string, cfg head.Config) *host {
	cfg.Arrange = c.arrange
	routes, asked := collective.Candidates(2, collective.MaxPiece), len(c.hosts)
	cfg.EarlyBytes = c.early
	cfg.Route = func(collective.Kind, int, int) collective.Route {
		asked++
		return routes[asked%len(routes)]
	}
	h := &host{cluster: c, name: name, kind: cfg.Kind, slots: cfg.Slots,
		agent: head.New(cfg), alive: true,
		workers: map[topo.WorkerID]*worker{}, runs: map[head.BatchID]*execution{}}
	c.hosts = append(c.hosts, h)
	return h
}

// findHost finds a host by name; nil if there is none.
func (c *Cluster) findHost(name string) *host {
	i := slices.IndexFunc(c.hosts, func(h *host) bool { return h.name == name })
	if i < 0 {
		return nil
	}
	return c.hosts[i]
}

// findWorker finds a living worker; nil if there is none.
func (c *Cluster) findWorker(w topo.WorkerID) *worker {
	for _, h := range c.hosts {
		if x := h.workers[w]; x != nil && h.alive {
			return x
		}
	}
	return nil
}

// memberOnHost finds a living member on its host: a head that was cut off can have ordered another
// worker of its number elsewhere.
func (c *Cluster) memberOnHost(m topo.Member) *worker {
	if h := c.findHost(m.Host); h != nil && h.alive {
		return h.workers[m.Worker]
	}
	return nil
}

// livingHosts lists the hosts that take part.
func (c *Cluster) livingHosts() []*host {
	return slices.DeleteFunc(slices.Clone(c.hosts), func(h *host) bool { return !h.alive })
}

// leadingHost returns the host that leads, by the newest generation that anybody who leads knows;
// nil if nobody does.
func (c *Cluster) leadingHost() (best *host) {
	for _, h := range c.livingHosts() {
		if h.agent.Leads() &&
			(best == nil ||
				h.agent.Record().View.Generation > best.agent.Record().View.Generation) {
			best = h
		}
	}
	return best
}

// crash ends a host with all that runs on it. What it has sent may still arrive; the others notice
// with later events.
func (h *host) crash() {
	h.alive = false
	h.cluster.net.closeAll(h.name)
}
