package simtest

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// Do performs one event, written as a line. An event that makes no sense where it stands does
// nothing, so that any part of a schedule is a schedule. The events:
//
//	job A want=4 min=2 slots=2 samples=50 batch=7 groups=1   host A begins a job
//	job A ... batches=1-12       the program has opened the batch
//	job A ... round=4            and how workers synchronise, which is after four local steps
//	job A ... max=4              it has four members at most, so policies may change the size
//	job A ... apart=1            what a lost worker has left is a batch of its own
//	job A ... spares=1           one more worker waits to take the place of one that is lost
//	job A ... growth=on          it takes every slot of its hosts
//	job A ... mesh=dp=2,tp=1     the workers have parts of the state
//	  unreplicated=1             no part is on two workers
//	  saves=2                    they write a checkpoint every two steps
//	  redundant=1                parts that are on two workers are to be on two hosts
//	job A ... early=8            hosts begin with 8 bytes, a collective, before the step ends
//	job A ... store=servers      the job has a record that all hosts can reach; folder: that A can
//	host B slots=2               another host joins; slots=-1: one that takes no workers
//	host B slots=2 kind=a100     it is of a kind, as that of a job can be, which meshes name
//	deliver A>B 1                the second message that waits from A to B arrives
//	lose A>B 1 · repeat A>B 1    it is lost · it arrives, and waits still
//	tick A                       time passes on A
//	start A                      a worker that A was told to start runs
//	ask w1 · work w1             the worker asks to take part · does the next thing of its program
//	retry w1                     the worker did not get the state and asks again
//	kill w1 · finish w1          it is killed · its work is done; on a mesh, that of all is soon
//	refuse A                     A cannot take its part in the reshape that it is to execute next
//	crash A                      the host and all that is on it is gone
//	cut A B · heal A B           nothing passes between them · it does again, also what has waited
//	down A B                     A notices that its link to B is gone
//	allot A=2 B=1                a pool allots slots on hosts; without hosts it ends that
//	resize 4 · drain B · release · force B · reshape dp=4,tp=1
//	set batch=9,save=2           somebody asks for another setting; set batch=9 P: policy P does;
//	                             set shares=2:1:1: other shares of work; set size=3: another size;
//	                             set round=8: longer rounds
//	end kept                     the change that is under trial ends; reverted, void
//	restart A                    the job is run again on its first host, which was lost, with the
//	                             store in its folder
//	stabilize 3                  all waits end, in order, until three more steps are committed or
//	                             nothing happens any more
//
// What becomes of calls to the store are events too; see performStoreEvent. It returns why a line
// is no event, or the first invariant that is broken. One goroutine uses the Cluster.
func (c *Cluster) Do(line string) error {
	words := strings.Fields(line)
	if len(words) == 0 || strings.HasPrefix(line, "#") {
		return nil
	}
	if err := c.perform(words); err != nil {
		return fmt.Errorf("%q: %w", line, err)
	}
	return c.invariants.broken
}

// perform performs the event that these words are; an error says why they are none.
func (c *Cluster) perform(words []string) error {
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	n, _ := strconv.Atoi(arg(1))
	switch words[0] {
	case "job":
		return c.performJob(words)
	case "host":
		c.addHost(arg(1), optionNumber(words, "slots"), option(words, "kind"))
	case "deliver", "lose", "repeat":
		c.performMessage(words[0], arg(1), arg(2))
	case "ask", "work", "kill", "finish", "retry":
		if id, err := strconv.Atoi(strings.TrimPrefix(arg(1), "w")); err == nil {
			c.performWorker(words[0], topo.WorkerID(id))
		}
	case "resize":
		c.askHead(func(h *host) error { return h.agent.Resize(n, "you") })
	case "allot":
		c.allot(parseSlots(words[1:]))
	case "reshape":
		if m, ok := c.parseMesh(arg(1)); ok {
			c.askHead(func(h *host) error { return h.agent.Reshape(arg(1), m.rankCount(), "you") })
		}
	case "drain":
		c.askHead(func(h *host) error { return h.agent.Drain(arg(1), "you") })
	case "release":
		c.askHead(releaseWorkers)
	case "set":
		c.requestSetting(arg(1), arg(2))
	case "end":
		c.endTrial(setting.Phase(arg(1)))
	case "cut", "heal":
		c.net.setCut(arg(1), arg(2), words[0] == "cut")
	case "restart":
		c.restart(arg(1))
	case "stabilize":
		c.Stabilize(n)
	default:
		if IsStoreEvent(words[0]) {
			c.performStoreEvent(words[0], arg(1), arg(2))
			return nil
		}
		return c.performOnHost(words[0], arg(1), arg(2))
	}
	return nil
}

// performJob begins a job with the options of an event; an error says why the event is none.
func (c *Cluster) performJob(words []string) error {
	name := ""
	if len(words) > 1 {
		name = words[1]
	}
	number := func(name string) int { return optionNumber(words, name) }
	if samples := number("samples"); samples > 0 {
		data, err := cursor.New(uint64(samples), uint64(max(number("batch"), 1)), 1, true)
		if err != nil {
			return err
		}
		c.data = data
	}
	c.data.Apart = number("apart") > 0
	c.levers = parseLevers(option(words, "batches"), number("round"))
	c.disk.every = uint64(number("saves"))
	c.groups, c.early, c.mesh = number("groups") > 0, number("early"), option(words, "mesh")
	c.unreplicated, c.redundant = number("unreplicated") > 0, number("redundant") > 0
	c.slots, c.kind, c.job = number("slots"), option(words, "kind"),
		member.Config{Want: number("want"), Min: number("min"), Max: number("max"),
			Spares: number("spares"), Growth: member.Growth(option(words, "growth"))}
	if c.store.kind = option(words, "store"); c.store.kind == "" || c.claimJob(name) {
		c.addFirstHost(name)
	}
	return nil
}

// option returns the value of the option of an event that is written NAME=VALUE; "" = there is
// none.
func option(words []string, name string) (value string) {
	for _, w := range words {
		if rest, ok := strings.CutPrefix(w, name+"="); ok {
			value = rest
		}
	}
	return value
}

// optionNumber returns the value of an option that is a number; 0 = there is none.
func optionNumber(words []string, name string) int {
	n, _ := strconv.Atoi(option(words, name))
	return n
}

// releaseWorkers has the agent of a host that leads let all members go. It is for askHead, and
// never fails.
func releaseWorkers(h *host) error {
	h.agent.ReleaseWorkers("you asked for the end")
	return nil
}

// performOnHost performs an event of the host of a name, if that lives; other is a second host.
func (c *Cluster) performOnHost(what, name, other string) error {
	h := c.findHost(name)
	if h == nil || !h.alive {
		return nil
	}
	switch what {
	case "tick":
		h.tick()
	case "start":
		if len(h.orders) > 0 {
			id := h.orders[0]
			h.orders = h.orders[1:]
			h.startWorker(id)
		}
	case "crash":
		h.crash()
	case "refuse":
		h.refuses = true
	case "down":
		c.loseLink(h, other)
	case "force":
		h.agent.ForceHead()
		h.runActions()
	default:
		return fmt.Errorf("no event is called %q", what)
	}
	return nil
}

// performMessage delivers, repeats or loses a message; way is FROM>TO, which the number of the
// message.
func (c *Cluster) performMessage(what, way, which string) {
	from, to, _ := strings.Cut(way, ">")
	i, _ := strconv.Atoi(which)
	p := pair{from, to}
	if what == "lose" {
		c.net.dropMessage(p, i)
		return
	}
	h := c.findHost(to)
	if h == nil || !h.alive {
		return
	}
	if m := c.net.popMessage(p, i, what == "repeat"); m != nil {
		h.receive(from, m)
	}
}

// performWorker performs an event of one worker, if that lives.
func (c *Cluster) performWorker(what string, id topo.WorkerID) {
	w := c.findWorker(id)
	if w == nil {
		return
	}
	switch what {
	case "ask":
		w.askToJoin()
	case "work":
		w.doNext()
	case "retry":
		w.askAgain()
	case "kill":
		w.exit("was killed by SIGKILL")
	case "finish":
		if c.mesh != "" {
			c.last = cmp.Or(c.last, c.invariants.newest+2)
			return
		}
		if w.in && len(w.open) == 0 && len(w.plan) == 0 {
			w.exit("")
		}
	}
}

// loseLink lets a host notice that its link to another is gone. Whatever was on its way is lost.
func (c *Cluster) loseLink(h *host, peer string) {
	if !c.net.isClosed(h.name, peer) {
		c.net.closeAt(h.name, peer)
		h.agent.LinkDown(peer, "was silent for too long")
		h.runActions()
	}
}

// askHead runs do with the host that leads, then what its agent wants, and prints why do fails.
func (c *Cluster) askHead(do func(h *host) error) {
	h := c.leadingHost()
	if h == nil {
		c.print("error: nobody leads")
		return
	}
	if err := do(h); err != nil {
		c.print("error: %v", err)
	}
	h.runActions()
}
