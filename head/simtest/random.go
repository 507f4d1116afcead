package simtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/state/layout"
)

// Everything here runs on the goroutine of the caller. The generator only reads the cluster; Random
// performs the events.

// Random runs a schedule of so many events that a seed chooses, and then stabilizes: time in which
// the job must go on. It returns the schedule and the first invariant that it broke.
func Random(seed uint64, events int) (lines []string, broken error) {
	c := New()
	c.quiet = true
	g := &generator{c: c, rand: rand.New(rand.NewPCG(seed, 7)), mesh: seed/2%2 == 1,
		kinds:     seed/2%2 == 1 && seed%5 < 2,
		redundant: seed/4%2 == 1, spares: max(int(seed/8%4)-1, 0),
		open: seed/2%2 == 0 && seed%3 > 0, apart: seed%7 == 0, allots: seed%5 < 3,
		grows: seed%5 > 1 && seed/8%4 < 2}
	if g.open && seed/16%2 == 1 {
		g.round = 1 + g.rand.IntN(5)
	}
	k := newStoreGenerator(c, seed)
	do := func(line string) {
		if broken == nil && line != "" {
			lines = append(lines, line)
			broken = c.Do(line)
		}
	}
	for i, line := range g.firstEvents() {
		if i == 0 && k.kind != "" {
			line += " store=" + k.kind
		}
		do(line)
		if i == 0 {
			do(k.firstEvent())
		}
	}
	live := func(events int) {
		for i := 0; i < events && !g.isOver(); i++ {
			do(g.nextEvent())
			do(k.nextEvent())
		}
	}
	live(events)
	if list := k.lastEvents(); list != nil {
		for _, line := range list {
			do(line)
		}
		live(events / 4)
	}
	if broken == nil {
		broken = c.CheckFinally()
	}
	return lines, broken
}

// Replay runs a schedule and then stabilizes, as Random does. It returns the first invariant that
// is broken, or why a line is no event.
func Replay(lines []string) error {
	c := New()
	c.quiet = true
	for _, line := range lines {
		if err := c.Do(line); err != nil {
			return err
		}
	}
	return c.CheckFinally()
}

// Shrink leaves events out of a schedule as long as it stays broken.
func Shrink(lines []string) []string {
	for size := len(lines) / 2; size > 0; {
		before := len(lines)
		for at := 1; at+size <= len(lines); {
			without := slices.Delete(slices.Clone(lines), at, at+size)
			if Replay(without) != nil {
				lines = without
			} else {
				at += size
			}
		}
		if len(lines) == before {
			size /= 2
		}
	}
	return lines
}

// generator chooses events that make sense where they stand.
type generator struct {
	c         *Cluster   // which it only reads
	rand      *rand.Rand // the only source of chance
	faults    int        // how many events of a thousand are faults
	lossy     int        // how many of a hundred messages are lost, and repeated
	mixed     int        // how many of a hundred are taken out of order
	more      int        // hosts that may still come
	plan      []string   // the events that come next, whatever is drawn
	mesh      bool       // workers have parts of the state
	kinds     bool       // hosts are of several kinds, which meshes name
	redundant bool       // those that are on two are to be on two hosts
	open      bool       // the program has opened the batch
	round     int        // and how workers synchronise, first after so many steps; 0 = it has not
	apart     bool       // what a lost worker has left is a batch of its own
	spares    int        // of the job
	allots    bool       // a pool allots its slots
	grows     bool       // it takes every slot
}

// firstEvents chooses the events with which a schedule begins: the job and its first hosts. It sets
// how often faults come.
func (g *generator) firstEvents() (lines []string) {
	hosts, slots := 1+g.rand.IntN(5), 1+g.rand.IntN(3)
	g.faults, g.more = 3+g.rand.IntN(30), g.rand.IntN(4)
	g.lossy, g.mixed = []int{0, 0, 3, 15}[g.rand.IntN(4)], []int{0, 10, 50}[g.rand.IntN(3)]
	want := 1 + g.rand.IntN(hosts*slots)
	kinds := make([]string, hosts)
	for i := range kinds {
		kinds[i] = g.kindText()
	}
	if g.mesh {
		lines = append(lines, g.meshJobEvent(kinds, slots))
	} else {
		samples := []int{0, 1, 23, 50}[g.rand.IntN(4)]
		if g.open {
			samples = max(samples, 20)
		}
		lines = append(lines,
			fmt.Sprintf("job A want=%d min=%d slots=%d samples=%d batch=%d groups=%d",
				want, g.rand.IntN(want+1), slots, samples, 1+g.rand.IntN(9), g.rand.IntN(2)))
		if g.open {
			lines[0] += " batches=1-12" + g.maxText(want)
		}
		if g.round > 0 {
			lines[0] += fmt.Sprintf(" round=%d", g.round)
		}
		if g.apart {
			lines[0] += " apart=1"
		}
	}
	lines[0] += fmt.Sprintf(" early=%d spares=%d", []int{0, 8, 8, 16}[g.rand.IntN(4)], g.spares)
	if g.grows {
		lines[0] += " growth=on"
	}
	for i := 1; i < hosts; i++ {
		lines = append(lines, fmt.Sprintf("host %c slots=%d%s", 'A'+i, slots, kinds[i]))
	}
	if g.rand.IntN(3) > 0 {
		lines = append(lines, fmt.Sprintf("stabilize %d", 1+g.rand.IntN(3)))
	}
	return lines
}

// nextEvent chooses the next event, as a line; "" = none.
func (g *generator) nextEvent() string {
	if len(g.plan) > 0 {
		line := g.plan[0]
		g.plan = g.plan[1:]
		return line
	}
	if g.mesh && g.rand.IntN(150) == 0 {
		return g.reshapeEvent()
	}
	if g.allots && g.rand.IntN(60) == 0 && (!g.mesh || g.rand.IntN(10) == 0) {
		return g.allotEvent()
	}
	if g.open && g.rand.IntN(20) == 0 {
		return g.changeEvent()
	}
	if g.open && g.isAhead() && g.rand.IntN(5) == 0 {
		return g.loseHeadEvent()
	}
	if g.open && g.isResizing() && g.rand.IntN(20) == 0 {
		return g.resizingEvent()
	}
	if (g.isGoingBack() || g.open && g.isChanging()) && g.rand.IntN(20) == 0 {
		if g.rand.IntN(2) == 0 {
			return g.workerEvent("kill")
		}
		return g.loseHeadEvent()
	}
	switch n := g.rand.IntN(1000); {
	case n < g.faults:
		return g.faultEvent()
	case n < g.faults+15:
		return g.linkDownEvent(0)
	case n < g.faults+50:
		return "tick " + g.livingHost().name
	}
	if busy := g.c.net.busyLinks(); len(busy) > 0 && g.rand.IntN(100) < 60 {
		return g.messageEvent(busy[g.rand.IntN(len(busy))])
	}
	for _, h := range g.c.livingHosts() {
		if len(h.orders) > 0 && g.rand.IntN(4) == 0 {
			return "start " + h.name
		}
	}
	return g.workEvent()
}

// workEvent returns an event in which a worker that has something to do does it, or a tick if none
// has.
func (g *generator) workEvent() string {
	var able []*worker
	for _, w := range g.c.allWorkers() {
		if !w.asked || w.canWork() {
			able = append(able, w)
		}
	}
	if len(able) == 0 {
		return "tick " + g.livingHost().name
	}
	w := able[g.rand.IntN(len(able))]
	if !w.asked {
		return fmt.Sprintf("ask w%d", w.id)
	}
	return fmt.Sprintf("work w%d", w.id)
}

// messageEvent returns an event about a message that waits between two hosts: mostly it arrives.
func (g *generator) messageEvent(p pair) string {
	what, which := "deliver", 0
	switch n := g.rand.IntN(100); {
	case n < g.lossy:
		what = "lose"
	case n < 2*g.lossy:
		what = "repeat"
	}
	if g.rand.IntN(100) < g.mixed {
		which = g.rand.IntN(len(g.c.net.links[p].waiting))
	}
	return fmt.Sprintf("%s %s>%s %d", what, p.from, p.to, which)
}

// livingHost picks any living host, or the first if none lives.
func (g *generator) livingHost() *host {
	if list := g.c.livingHosts(); len(list) > 0 {
		return list[g.rand.IntN(len(list))]
	}
	return g.c.hosts[0]
}

// faultEvent chooses a fault, or a request of a person, as an event; "" = none.
func (g *generator) faultEvent() string {
	a, b := g.livingHost().name, g.c.hosts[g.rand.IntN(len(g.c.hosts))].name
	if h := g.c.leadingHost(); h != nil && g.rand.IntN(3) == 0 {
		a = h.name
	}
	switch n := g.rand.IntN(100); {
	case n < 25:
		return g.workerEvent("kill")
	case n < 30:
		return "crash " + a
	case n < 38:
		return g.loseHeadEvent()
	case n < 42:
		return g.planPartition()
	case n < 50:
		return fmt.Sprintf("cut %s %s", a, b)
	case n < 60:
		return fmt.Sprintf("heal %s %s", a, b)
	case n < 62:
		return g.linkDownEvent(30)
	case n < 72 && g.mesh:
		return g.reshapeEvent()
	case n < 74 && !g.mesh:
		return fmt.Sprintf("resize %d", 1+g.rand.IntN(8))
	case n < 82:
		return "drain " + a
	case n < 86:
		return g.workerEvent("retry")
	case n < 87:
		return g.workerEvent("finish")
	case n < 88:
		return "release"
	case g.more > 0:
		return g.joinEvent()
	}
	return ""
}

// joinEvent returns an event in which a host comes while the job runs; it stays without workers
// when nobody waits for room, and some have none.
func (g *generator) joinEvent() string {
	g.more--
	return fmt.Sprintf("host %c slots=%d%s", 'A'+len(g.c.hosts),
		[]int{member.NoSlots, 1, 2, 3}[g.rand.IntN(4)], g.kindText())
}

// kindText is the option of an event that says of which kind a host is, if hosts have kinds.
func (g *generator) kindText() string {
	if !g.kinds {
		return ""
	}
	return []string{" kind=a", " kind=b", ""}[g.rand.IntN(8)%3]
}

// isGoingBack reports whether the job is on its way back to a checkpoint, which is short: few
// faults would hit it.
func (g *generator) isGoingBack() bool {
	return slices.ContainsFunc(g.c.livingHosts(), func(h *host) bool {
		s := h.agent.State().Shape
		return s != nil && s.Lost != ""
	})
}

// loseHeadEvent returns an event in which the head ends, or is cut off, and plans events in which
// the others notice; "" = nobody leads.
func (g *generator) loseHeadEvent() string {
	h := g.c.leadingHost()
	if h == nil {
		return ""
	}
	end := "crash " + h.name
	if g.more > 0 && g.rand.IntN(3) == 0 {
		g.plan = append(g.plan, g.joinEvent())
	}
	for _, i := range g.rand.Perm(len(g.c.hosts)) {
		other := g.c.hosts[i].name
		g.plan = append(g.plan, fmt.Sprintf("down %s %s", other, h.name))
		if g.rand.IntN(4) == 0 {
			end = fmt.Sprintf("cut %s %s", other, h.name)
		}
	}
	return end
}

// isOver reports whether nothing can happen any more.
func (g *generator) isOver() bool {
	living := g.c.livingHosts()
	return len(living) == 0 || len(g.c.allWorkers()) == 0 && len(g.c.net.busyLinks()) == 0 ||
		living[0].ended
}

// planPartition plans events that cut the hosts into two sides. It returns "": no event for now.
func (g *generator) planPartition() string {
	side := g.rand.Uint64()
	for i, a := range g.c.hosts {
		for j, b := range g.c.hosts[:i] {
			if side>>i&1 != side>>j&1 {
				g.plan = append(g.plan, fmt.Sprintf("cut %s %s", a.name, b.name))
			}
		}
	}
	return ""
}

// linkDownEvent returns an event in which a host notices a link that is down, or with some chance
// in a hundred gives up one that is only slow; "" = no such link is found.
func (g *generator) linkDownEvent(chance int) string {
	a := g.livingHost().name
	for _, i := range g.rand.Perm(len(g.c.hosts)) {
		h := g.c.hosts[i]
		l := g.c.net.links[pair{h.name, a}]
		if l != nil && !l.closed &&
			(l.cut || !h.alive || g.c.net.isClosed(h.name, a) || g.rand.IntN(100) < chance) {
			return fmt.Sprintf("down %s %s", a, h.name)
		}
	}
	return ""
}

// workerEvent returns the event `what` about any worker; "" = there is no worker.
func (g *generator) workerEvent(what string) string {
	all := g.c.allWorkers()
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprintf("%s w%d", what, all[g.rand.IntN(len(all))].id)
}

// meshJobEvent returns the event that begins a job with a mesh that hosts of these kinds, which are
// options of events, have room for; few name kinds that the hosts are not of.
func (g *generator) meshJobEvent(kinds []string, slots int) string {
	m := g.randomMesh(len(kinds) * slots)
	for try := 0; g.kinds && try < 20; try++ {
		have := map[string]int{}
		for i := range m.rankCount() { // each host takes as many as it can
			have[strings.TrimPrefix(kinds[i/slots], " kind=")]++
		}
		if m.CheckKinds(have) == nil {
			break
		}
		m = g.randomMesh(len(kinds) * slots)
	}
	unreplicated := 0
	if g.rand.IntN(6) == 0 {
		unreplicated = 1
	}
	job := fmt.Sprintf(
		"job A want=%d min=%d slots=%d samples=%d batch=%d groups=%d mesh=%s unreplicated=%d "+
			"saves=%d",
		m.rankCount(), g.rand.IntN(m.rankCount()+1), slots, []int{1, 23, 50}[g.rand.IntN(3)],
		1+g.rand.IntN(9), g.rand.IntN(2), m, unreplicated, []int{0, 1, 1, 3}[g.rand.IntN(4)])
	if g.redundant {
		job += " redundant=1"
	}
	return job + kinds[0]
}

// randomMesh chooses a mesh of at most so many ranks. Most have several replicas, so that most
// losses cost no state. Where hosts have kinds it can have attributes, most often these kinds.
func (g *generator) randomMesh(most int) mesh {
	m := mesh{tp: 1 + g.rand.IntN(max(1, min(3, most/2)))}
	m.dp = 1 + g.rand.IntN(max(1, min(4, most/m.tp)))
	m.beside = g.redundant && g.rand.IntN(2) == 0
	dp, tp := layout.Axis{Name: "dp", Size: m.dp}, layout.Axis{Name: "tp", Size: m.tp}
	if g.kinds {
		on := []*layout.Axis{&dp, &tp}[g.rand.IntN(2)]
		g.addAttributes(&dp, on == &dp)
		g.addAttributes(&tp, on == &tp)
	}
	m.Mesh = layout.Mesh{dp, tp}
	if m.beside {
		m.Mesh = layout.Mesh{tp, dp}
	}
	return m
}

// addAttributes gives an axis attributes by chance; on says that it may name kinds of hosts, of
// which a mesh has micro-batches too.
func (g *generator) addAttributes(a *layout.Axis, on bool) {
	switch g.rand.IntN(6) {
	case 0:
		a.Chunks = 1 + g.rand.IntN(3)
	case 1:
		for range a.Size {
			a.Shares = append(a.Shares, 1+g.rand.IntN(3))
		}
	case 2:
		for i := range a.Size {
			a.Ahead = append(a.Ahead, a.Size-i)
		}
	}
	if on && g.rand.IntN(4) == 0 {
		a.Micro = 1 << g.rand.IntN(3)
	}
	if on && g.rand.IntN(4) > 0 {
		for range a.Size {
			a.On = append(a.On, []string{"a", "b"}[g.rand.IntN(2)])
		}
	}
}

// reshapeEvent returns an event in which a person asks for another mesh. In some cases a host
// cannot take its part in the reshape that comes, and the event in which the person asks is
// planned.
func (g *generator) reshapeEvent() string {
	event := fmt.Sprintf("reshape %s", g.randomMesh(8))
	if g.rand.IntN(6) > 0 {
		return event
	}
	g.plan = append(g.plan, event)
	return "refuse " + g.livingHost().name
}
