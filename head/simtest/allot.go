package simtest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// How a job comes to the slots that somebody outside allots it on each host, and what must hold
// then:
//
//   - members that are there are let go for it only as far as the minimum of the job stays (A2);
//   - asked for without a fault, each host comes to as many members as it has slots, no worker is
//     beside them, and a host without slots is left; so it is when the slots change again, and
//     when the allotment ends the job goes on as it is, or grows if it takes every slot (A3);
//   - so it is on the hosts that are left if the head is lost as soon as another host knows of the
//     allotment (A4).
//
// One goroutine runs all of this, that of its Cluster. A check that fails is recorded in the
// invariants.

// parseSlots reads the slots of hosts, which are written A=2; other words are none.
func parseSlots(words []string) map[string]int {
	slots := map[string]int{}
	for _, w := range words {
		host, text, _ := strings.Cut(w, "=")
		if n, err := strconv.Atoi(text); err == nil {
			slots[host] = n
		}
	}
	return slots
}

// allot asks the head for slots by host; none = the allotment ends.
func (c *Cluster) allot(slots map[string]int) {
	c.recordSlots(slots)
	c.askHead(func(h *host) error { return h.agent.Allot(slots, "pool", "") })
}

// checkReleases checks that a generation lets members go, who are there and could stay, only as far
// as the minimum of the job stays (A2).
func (l *invariants) checkReleases(c *Cluster, r member.Record) {
	if r.Allotment == nil || r.View.Size() >= r.Min {
		return
	}
	stays := func(name string) bool {
		return slices.ContainsFunc(r.Hosts, func(h member.Host) bool {
			return h.Name == name && !h.Draining
		})
	}
	for _, m := range l.records[r.View.Generation-1].View.Members {
		w := c.memberOnHost(m)
		if _, is := r.View.Rank(m.Worker); !is && w != nil && w.in && stays(m.Host) {
			l.fail("w%d on %s is let go, and %d members are below the minimum: %+v", m.Worker,
				m.Host, r.View.Size(), r)
		}
	}
}

// drawSlots chooses slots for the living hosts that a head has not let go, by a number, in the
// range of the size of the job; nil = no such slots are found. The record can have a host longer.
func (c *Cluster) drawSlots(head *member.Machine, salt uint64) map[string]int {
	r := c.newestRecord()
	slots, total := map[string]int{}, 0
	var names []string
	for i, h := range head.Hosts() {
		if at := c.findHost(h.Name); at == nil || !at.alive || h.Slots == member.NoSlots {
			continue
		}
		n := int((salt + uint64(i)) % 3)
		names, slots[h.Name], total = append(names, h.Name), n, total+n
	}
	if len(names) == 0 {
		return nil
	}
	for ; total < max(r.Min, 1); total++ {
		slots[names[int(salt)%len(names)]]++
	}
	for i := 0; r.Max > 0 && total > r.Max; i++ {
		if name := names[i%len(names)]; slots[name] > 0 {
			slots[name]--
			total--
		}
	}
	return slots
}

// checkAllots checks that a job to which slots are allotted comes to others, and to others again,
// and that it goes on when the allotment ends (A3).
func (c *Cluster) checkAllots() {
	for i := range uint64(2) {
		h := c.leadingHost()
		if h == nil || c.invariants.broken != nil || !c.mustGoOn(1) || !c.allLinked() ||
			slices.ContainsFunc(h.agent.Machine().Hosts(), isDraining) {
			return
		}
		slots := c.drawSlots(h.agent.Machine(), c.invariants.newest/2+i)
		if slots == nil {
			return
		}
		c.recordSlots(slots)
		if err := h.agent.Allot(slots, "pool", ""); err != nil {
			c.invariants.fail("%s refuses slots %v: %v", h.name, slots, err)
		}
		h.runActions()
		c.awaitSlots(slots, "is")
	}
	h, before := c.leadingHost(), c.invariants.newest
	if h == nil || c.invariants.broken != nil || !c.mustGoOn(1) || !c.allLinked() {
		return
	}
	view := c.newestRecord().View
	c.allot(nil)
	c.Stabilize(2)
	for i := 0; i < 2 && c.newestRecord().Allotment != nil; i++ {
		c.Stabilize(1) // another generation was under way
	}
	now, stay := c.newestRecord(), slices.Equal[[]topo.Member]
	if now.Growth == member.GrowOn { // who takes every slot may have workers for others meanwhile
		stay = containsAll
	}
	if c.invariants.broken == nil && c.mustGoOn(1) && (now.Allotment != nil ||
		c.invariants.newest < before+2 || !stay(now.View.Members, view.Members)) {
		c.invariants.fail("nobody allots slots any more, and after step %d %v became %+v", before,
			view, now)
	}
	if c.isGrowing() {
		c.awaitGrown("after slots were allotted")
	}
}

// containsAll reports whether all of some are among others.
func containsAll(others, some []topo.Member) bool {
	return !slices.ContainsFunc(some, func(m topo.Member) bool {
		return !slices.Contains(others, m)
	})
}

// isDraining reports whether a host is being drained.
func isDraining(h member.Host) bool { return h.Draining }

// awaitSlots lets the job go on until each host that lives has as many members as slots, and no
// other worker, and those without slots are left; how says when the slots were allotted. That it
// does not come there is a fault, unless the job cannot go on any more, or a host with slots has
// left, as one does that was on its way out when it got them.
func (c *Cluster) awaitSlots(slots map[string]int, how string) {
	for range 4 * settling {
		c.Stabilize(1)
		if c.invariants.broken != nil || !c.mustGoOn(1) || !c.allLinked() || c.hasSlots(slots) {
			return
		}
	}
	for name, n := range slots {
		if at := c.findHost(name); how == "is" && n > 0 && (at == nil || !at.alive) {
			return
		}
	}
	var workers []topo.WorkerID
	for _, w := range c.allWorkers() {
		workers = append(workers, w.id)
	}
	c.invariants.fail("the job %s allotted %v, and does not come there: workers %v, %+v", how,
		slots, workers, c.newestRecord())
}

// hasSlots reports whether each host that lives has as many members as slots, and no other worker;
// a host without slots is left, unless it takes no workers anyway.
func (c *Cluster) hasSlots(slots map[string]int) bool {
	r, have := c.newestRecord(), map[string]int{}
	for _, m := range r.View.Members {
		if w := c.memberOnHost(m); w != nil && w.in {
			have[m.Host]++
		}
	}
	workers := map[string]int{}
	for _, w := range c.allWorkers() {
		workers[w.host.name]++
	}
	for _, h := range r.Hosts {
		at := c.findHost(h.Name)
		if n := slots[h.Name]; at != nil && at.alive && h.Slots != member.NoSlots &&
			(n == 0 || have[h.Name] != n || workers[h.Name] != n) {
			return false
		}
	}
	return r.Allotment != nil
}

// allotOfHead asks a host, which leads and is about to be lost, for other slots, and lets the job
// go on until another host knows of them; nil = none can be asked for.
func (c *Cluster) allotOfHead(h *host) map[string]int {
	m := h.agent.Machine()
	if m == nil || m.Allotment() == nil || slices.ContainsFunc(m.Hosts(), isDraining) {
		return nil
	}
	slots := c.drawSlots(m, c.invariants.newest)
	c.recordSlots(slots)
	if slots == nil || h.agent.Allot(slots, "pool of "+h.name, "") != nil {
		return nil
	}
	h.runActions()
	is := member.NewAllotment(slots, "pool of "+h.name)
	if !c.runUntil(func() bool {
		return slices.ContainsFunc(c.livingHosts(), func(other *host) bool {
			return other != h && is.Equal(other.agent.Record().Allotment)
		})
	}) {
		return nil
	}
	return slots
}

// checkSlotsOutlive checks that a job goes on to the slots that a head was asked for that is lost,
// on the hosts that are left (A4); nil = it was asked for none. Below the minimum of the job, who
// is beyond the slots of a host stays.
func (c *Cluster) checkSlotsOutlive(slots map[string]int, lost string) {
	h := c.leadingHost()
	if slots == nil || h == nil || c.invariants.broken != nil || !c.mustGoOn(1) || !c.allLinked() {
		return
	}
	if got := h.agent.Machine().Allotment(); !got.Equal(
		member.NewAllotment(slots, "pool of "+lost)) {
		c.invariants.fail("%s leads on from %s, to which %v were allotted, and has %v", h.name,
			lost, slots, got)
	}
	total := 0
	for name, n := range slots {
		if at := c.findHost(name); at != nil && at.alive {
			total += n
		}
	}
	if total >= max(c.newestRecord().Min, 1) {
		c.awaitSlots(slots, "was, before "+lost+" was lost,")
	}
}

// allotEvent returns an event in which slots are allotted: on hosts that are there, that are lost,
// and that may still come. In some cases the next events are such as meet it on its way: the head
// is lost, a worker, a host is drained, or all goes on without faults.
func (g *generator) allotEvent() string {
	if g.rand.IntN(8) == 0 {
		return "allot"
	}
	slots := map[string]int{}
	for _, h := range g.c.hosts {
		if n := g.rand.IntN(4); h.alive || g.rand.IntN(8) == 0 {
			slots[h.name] = n
		}
	}
	if next := string(rune('A' + len(g.c.hosts))); g.more > 0 && g.rand.IntN(3) == 0 {
		slots[next] = 1 + g.rand.IntN(2)
	}
	switch g.rand.IntN(8) {
	case 0:
		g.plan = append(g.plan, "stabilize 1")
	case 1:
		g.plan = append(g.plan, "stabilize 1", "drain "+g.livingHost().name)
	case 2:
		if end := g.loseHeadEvent(); end != "" {
			g.plan = append([]string{"tick " + g.livingHost().name, end}, g.plan...)
		}
	case 3:
		if kill := g.workerEvent("kill"); kill != "" {
			g.plan = append(g.plan, kill)
		}
	}
	line := "allot"
	for _, name := range slices.Sorted(maps.Keys(slots)) {
		line += fmt.Sprintf(" %s=%d", name, slots[name])
	}
	return line
}
