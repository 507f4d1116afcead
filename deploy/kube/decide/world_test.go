package decide

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/envtest"
)

// cluster is what the operator acts on, in a test: the newest state and pods, what it saw of them
// some time ago, and the training that the pods carry.
type cluster struct {
	rand     *rand.Rand
	state    State
	version  int   // of state
	pods     []Pod // in the order of their creation
	replicas int
	suspend  bool
	frozen   bool
	deleted  bool
	parked   bool // the job has asked its pods to end
	steps    int64
	trains   string          // pod that has begun the training that lives, "" = none does
	joined   map[string]bool // pods that are part of it
	most     int             // live pods that may be since the last change
	now      int64           // in seconds
	sidecars bool            // pods have another container, which never ends by itself
	limited  bool            // others than people say how many pods it may have
	mesh     bool            // paused, it cannot be parked
	least    int             // pods that it needs to make steps
	broken   string

	seen        []Pod // what the operator sees, as it was some time ago
	seenState   State
	seenVersion int
	log         []string
}

// fail records that a rule is broken; the first time counts.
func (c *cluster) fail(text string, args ...any) {
	if c.broken == "" {
		c.broken = fmt.Sprintf(text, args...)
	}
}

// alive returns the pods whose processes have not ended.
func (c *cluster) alive() (list []*Pod) {
	for i := range c.pods {
		if !c.pods[i].Ended {
			list = append(list, &c.pods[i])
		}
	}
	return list
}

// paused reports whether the job has too few pods to make steps.
func (c *cluster) paused() bool {
	n := 0
	for _, p := range c.alive() {
		if c.joined[p.Name] {
			n++
		}
	}
	return c.trains != "" && n < c.least
}

// look has the operator see how things are now, or some of it only.
func (c *cluster) look() {
	if c.rand.IntN(3) > 0 {
		c.seen = slices.Clone(c.pods)
	}
	if c.rand.IntN(3) > 0 {
		c.seenState, c.seenVersion = c.state, c.version
		c.seenState.Members = slices.Clone(c.state.Members)
	}
}

// reconcile is one round of the operator, which may be killed after any of its writes.
func (c *cluster) reconcile(kill bool) {
	running := slices.ContainsFunc(c.pods, func(p Pod) bool { return p.Running && !p.Ended })
	live := Live{Answers: c.trains != "" && running, Waiting: c.trains == "" && running,
		Steps: c.steps, Paused: c.paused(), Mesh: c.mesh}
	if c.parked {
		live.ParkedBy = "the operator"
	}
	v := View{Deleted: c.deleted, Frozen: c.frozen, Suspend: c.suspend, Replicas: c.replicas,
		State: c.seenState, Pods: slices.Clone(c.seen), Live: live, Now: c.now, Grace: 120,
		Limited: c.limited}
	if c.frozen {
		v.Replicas = max(1, len(v.State.Members))
	}
	d := Next(v)
	if d.Acts(v.State) {
		c.seen = slices.Clone(c.pods)
		v.Pods = slices.Clone(c.pods)
		d = Next(v)
	}
	dead := func() bool { return kill && c.rand.IntN(3) == 0 }
	if c.seenVersion != c.version {
		return // the write of the state is refused: another one was later
	}
	c.version++
	c.state, c.seenState, c.seenVersion = d.State, d.State, c.version
	c.seenState.Members = slices.Clone(d.State.Members)
	if dead() {
		return
	}
	c.most = max(c.most, c.replicas)
	since := v.State.PausedSince
	if v.Suspend && !v.Deleted && c.trains != "" && slices.ContainsFunc(d.Delete,
		func(name string) bool { return c.joined[name] }) &&
		(!c.paused() || since == 0 || c.now < since+v.Grace) && !c.unfitToStay(d.Delete) {
		c.fail("%q are deleted of a job that could be parked", d.Delete)
	}
	if c.frozen && len(d.Create) > 0 {
		c.fail("a pod is made of a job whose spec is wrong")
	}
	for _, m := range d.Create {
		c.create(m)
		if dead() {
			return
		}
	}
	for _, name := range d.Delete {
		c.remove(name)
		if dead() {
			return
		}
	}
	if d.Park && c.trains != "" {
		c.parked = true
	}
}

// unfitToStay reports whether pods are no members, by what was decided.
func (c *cluster) unfitToStay(names []string) bool {
	for _, name := range names {
		i := slices.IndexFunc(c.pods, func(p Pod) bool { return p.Name == name })
		if i >= 0 && c.pods[i].Run == c.state.Run && slices.ContainsFunc(c.state.Members,
			func(m Member) bool { return m.Number == c.pods[i].Number }) {
			return false
		}
	}
	return true
}

// create makes a pod, unless one of that name is there.
func (c *cluster) create(m Member) {
	name := fmt.Sprintf("j-%d-%d", c.state.Run, m.Number)
	if slices.ContainsFunc(c.pods, func(p Pod) bool { return p.Name == name }) {
		return
	}
	c.pods = append(c.pods, Pod{Name: name, Run: c.state.Run, Number: m.Number})
	if n := countLive(c.pods); n > c.most {
		c.fail("%d pods are there, and %d were asked for", n, c.most)
	}
	if m.Number == 0 && !c.state.Begun && c.trains != "" && len(c.alive()) > 1 {
		c.fail("pod %s begins the job while that of %s trains", name, c.trains)
	}
}

// remove asks for the end of a pod.
func (c *cluster) remove(name string) {
	for i := range c.pods {
		if p := &c.pods[i]; p.Name == name {
			p.Deleting = true
		}
	}
	c.sweep()
}

// sweep takes away the pods that are to be deleted and have ended or never run.
func (c *cluster) sweep() {
	c.pods = slices.DeleteFunc(c.pods, func(p Pod) bool {
		return p.Deleting && (p.Ended || !p.Running)
	})
	if !slices.ContainsFunc(c.alive(), func(p *Pod) bool { return c.joined[p.Name] }) {
		c.trains = ""
	}
}

// end ends the process of a pod.
func (c *cluster) end(p *Pod, how End) {
	p.Ended, p.Lingers, p.End, p.Why = true, c.sidecars, how, "its process has ended"
	c.sweep()
}

// disturb is one event of the world.
func (c *cluster) disturb() string {
	alive := c.alive()
	c.now += c.rand.Int64N(30)
	event := c.rand.IntN(9)
	switch {
	case event == 0:
		c.replicas = 1 + c.rand.IntN(4)
		c.least = 1 + c.rand.IntN(c.replicas)
		c.most = max(c.replicas, countLive(c.pods))
		return fmt.Sprintf("replicas %d", c.replicas)
	case event == 1:
		c.suspend = !c.suspend
		return fmt.Sprintf("suspend %v", c.suspend)
	case event == 8:
		c.frozen = !c.frozen
		return fmt.Sprintf("frozen %v", c.frozen)
	case len(alive) == 0:
		return "nothing"
	}
	p := alive[c.rand.IntN(len(alive))]
	name := p.Name
	switch event {
	case 2: // its node is gone
		c.pods = slices.DeleteFunc(c.pods, func(q Pod) bool { return q.Name == name })
		c.sweep()
		return "gone " + name
	case 3:
		c.remove(name)
		return "evicted " + name
	case 4:
		c.end(p, NoEnd)
		return "crashed " + name
	default:
		c.work(p)
		return "works " + name
	}
}

// work lets a pod go on: it starts, leaves when it was asked to, and trains.
func (c *cluster) work(p *Pod) {
	switch {
	case !p.Running && !p.Deleting:
		p.Running = true
		if p.Number == 0 && c.trains == "" {
			c.trains, c.parked, c.joined = p.Name, false, map[string]bool{p.Name: true}
		}
	case c.parked && c.trains != "" && !(c.mesh && c.paused()):
		for _, q := range c.alive() {
			q.Ended, q.Lingers, q.End = true, c.sidecars, Shelved
		}
		c.sweep()
	case p.Deleting:
		c.end(p, Left)
	case c.trains != "":
		if c.joined[p.Name] = true; !c.paused() {
			c.steps++
		}
	}
}

// calm lets all pods work and the operator see all until nothing changes any more.
func (c *cluster) calm() {
	for range 60 {
		c.now += longestDelay
		for _, p := range c.alive() {
			c.work(p)
			if c.parked && c.trains != "" && !(c.mesh && c.paused()) {
				break
			}
		}
		c.seen, c.seenState, c.seenVersion = slices.Clone(c.pods), c.state, c.version
		c.seenState.Members = slices.Clone(c.state.Members)
		c.reconcile(false)
	}
}

// play plays a random schedule, and returns what was done and which rule is broken.
func play(seed uint64) (log []string, broken string) {
	c := &cluster{rand: rand.New(rand.NewPCG(seed, 1)), replicas: 2, most: 2,
		sidecars: seed%4 == 0, limited: seed%2 == 0, mesh: seed%3 == 0, least: 1, now: 1000}
	for range 80 {
		c.log = append(c.log, c.disturb())
		for range 1 + c.rand.IntN(3) {
			c.look()
			c.reconcile(true)
		}
	}
	c.suspend, c.frozen = false, false
	c.calm()
	switch n := len(c.alive()); {
	case c.state.Phase == Failed && c.steps == 0:
	case c.state.Phase == Failed && c.state.Fruitless >= Fruitless:
	case c.state.Phase != Running || n != c.replicas:
		c.fail("at the end the job is %s with %d pods, not Running with %d", c.state.Phase, n,
			c.replicas)
	case c.trains == "":
		c.fail("at the end nobody trains")
	}
	c.suspend = true
	if c.limited && c.rand.IntN(2) == 0 { // it has lost workers, and may have no others
		c.least = c.replicas + 1
	}
	c.calm()
	if n := countLive(c.pods); n > 0 || c.state.Phase != Parked && c.state.Phase != Failed {
		c.fail("suspended, the job is %s with %d pods", c.state.Phase, n)
	}
	c.deleted = true
	c.calm()
	if len(c.pods) > 0 {
		c.fail("deleted, the job has %d pods", len(c.pods))
	}
	return c.log, c.broken
}

// TestRandomSchedules plays random schedules in which pods vanish, end and are evicted, sizes
// change, and an operator that sees things late is killed between its writes. SCHEDULES and SEED
// say how many, and from where on.
func TestRandomSchedules(t *testing.T) {
	first, count := envtest.Number(t, "SEED", 1), envtest.Number(t, "SCHEDULES", 2000)
	for seed := first; seed < first+count; seed++ {
		if log, broken := play(seed); broken != "" {
			t.Fatalf("SEED=%d SCHEDULES=1: %s; the schedule:\n%s", seed, broken,
				strings.Join(log, "\n"))
		}
	}
}
