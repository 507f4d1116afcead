package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Random runs a schedule of so many events that a seed chooses, and then a calm in which the job must go on. It returns the schedule and
// the first invariant that it broke.
func Random(seed uint64, events int) (lines []string, broken error) {
	c := New()
	c.quiet = true
	g := &generator{c: c, rand: rand.New(rand.NewPCG(seed, 7))}
	do := func(line string) {
		if broken == nil && line != "" {
			lines = append(lines, line)
			broken = c.Do(line)
		}
	}
	for _, line := range g.beginning() {
		do(line)
	}
	for i := 0; i < events && !g.over(); i++ {
		do(g.next())
	}
	if broken == nil {
		broken = c.Finally()
	}
	return lines, broken
}

// Replay runs a schedule and then a calm, as Random does.
func Replay(lines []string) error {
	c := New()
	c.quiet = true
	for _, line := range lines {
		if err := c.Do(line); err != nil {
			return err
		}
	}
	return c.Finally()
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

// Finally ends all cuts and lets the job go on. It reports what is broken: that it should have gone on and has not, above all.
func (c *Cluster) Finally() error {
	for _, l := range c.net.links {
		l.cut = false
	}
	if len(c.hosts) == 0 {
		return c.ledger.broken
	}
	before := c.ledger.newest
	c.Calm(3)
	c.ledger.settled(c)
	if c.ledger.broken == nil && c.ledger.newest < before+3 && c.mustGoOn() {
		c.ledger.fail("the job stands still after step %d: %v, led by %s", c.ledger.newest, c.newest().View, c.newest().Head)
	}
	return c.ledger.broken
}

// mustGoOn reports whether those that are left are enough: a quorum of the newest generation that know it, or can learn of it, and
// can all reach each other, with enough members.
func (c *Cluster) mustGoOn() bool {
	r := c.newest()
	var voters []string
	for _, name := range r.Voters() {
		if h := c.host(name); h != nil && h.alive {
			if !h.agent.Record().Equal(r) && !c.canLearn(h) {
				return false
			}
			voters = append(voters, name)
		}
	}
	for _, a := range voters {
		for _, b := range voters {
			if a != b && c.net.closed(a, b) {
				return false
			}
		}
	}
	members := 0
	for _, m := range r.View.Members {
		if w := c.member(m); w != nil && w.in {
			members++
		}
	}
	ended := false
	for _, h := range c.living() {
		ended = ended || h.ended
	}
	return r.Quorum(voters) && members >= max(r.Min, 1) && !ended && r.Done == 0 && !c.parted()
}

// canLearn reports whether a host can reach one that knows the newest generation.
func (c *Cluster) canLearn(h *host) bool {
	return slices.ContainsFunc(c.living(), func(k *host) bool {
		return k.agent.Record().Equal(c.newest()) && !c.net.closed(h.name, k.name) && !c.net.closed(k.name, h.name)
	})
}

// parted reports whether the members were let go.
func (c *Cluster) parted() bool {
	for _, h := range c.living() {
		if h.agent.Known().Parted != "" {
			return true
		}
	}
	return false
}

// generator chooses events that make sense where they stand.
type generator struct {
	c      *Cluster
	rand   *rand.Rand
	faults int // how many events of a thousand are faults
	lossy  int // how many of a hundred messages are lost, and repeated
	mixed  int // how many of a hundred are taken out of order
	spare  int // hosts that may still come
	plan   []string
}

func (g *generator) beginning() (lines []string) {
	hosts, slots := 1+g.rand.IntN(5), 1+g.rand.IntN(3)
	g.faults, g.spare = 3+g.rand.IntN(30), g.rand.IntN(4)
	g.lossy, g.mixed = []int{0, 0, 3, 15}[g.rand.IntN(4)], []int{0, 10, 50}[g.rand.IntN(3)]
	want := 1 + g.rand.IntN(hosts*slots)
	lines = append(lines, fmt.Sprintf("job A want=%d min=%d slots=%d samples=%d batch=%d groups=%d",
		want, g.rand.IntN(want+1), slots, []int{0, 1, 23, 50}[g.rand.IntN(4)], 1+g.rand.IntN(9), g.rand.IntN(2)))
	for i := 1; i < hosts; i++ {
		lines = append(lines, fmt.Sprintf("host %c slots=%d", 'A'+i, slots))
	}
	if g.rand.IntN(3) > 0 {
		lines = append(lines, fmt.Sprintf("calm %d", 1+g.rand.IntN(3)))
	}
	return lines
}

func (g *generator) next() string {
	if len(g.plan) > 0 {
		line := g.plan[0]
		g.plan = g.plan[1:]
		return line
	}
	switch n := g.rand.IntN(1000); {
	case n < g.faults:
		return g.fault()
	case n < g.faults+15:
		return g.silence(0)
	case n < g.faults+50:
		return "tick " + g.host().name
	}
	if busy := g.c.net.busy(); len(busy) > 0 && g.rand.IntN(100) < 60 {
		return g.message(busy[g.rand.IntN(len(busy))])
	}
	for _, h := range g.c.living() {
		if len(h.orders) > 0 && g.rand.IntN(4) == 0 {
			return "start " + h.name
		}
	}
	return g.work()
}

// work lets a worker do something that has something to do.
func (g *generator) work() string {
	var able []*worker
	for _, w := range g.c.all() {
		if !w.asked || w.able() {
			able = append(able, w)
		}
	}
	if len(able) == 0 {
		return "tick " + g.host().name
	}
	w := able[g.rand.IntN(len(able))]
	if !w.asked {
		return fmt.Sprintf("ask w%d", w.id)
	}
	return fmt.Sprintf("work w%d", w.id)
}

func (g *generator) message(p pair) string {
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

// host picks any living host, or the first if none lives.
func (g *generator) host() *host {
	if list := g.c.living(); len(list) > 0 {
		return list[g.rand.IntN(len(list))]
	}
	return g.c.hosts[0]
}

func (g *generator) fault() string {
	a, b := g.host().name, g.c.hosts[g.rand.IntN(len(g.c.hosts))].name
	if h := g.c.head(); h != nil && g.rand.IntN(3) == 0 {
		a = h.name
	}
	switch n := g.rand.IntN(100); {
	case n < 25:
		return g.someone("kill")
	case n < 30:
		return "crash " + a
	case n < 38:
		return g.behead()
	case n < 42:
		return g.partition()
	case n < 50:
		return fmt.Sprintf("cut %s %s", a, b)
	case n < 60:
		return fmt.Sprintf("heal %s %s", a, b)
	case n < 62:
		return g.silence(30)
	case n < 74:
		return fmt.Sprintf("resize %d", 1+g.rand.IntN(8))
	case n < 82:
		return "drain " + a
	case n < 86:
		return g.someone("again")
	case n < 87:
		return g.someone("finish")
	case n < 88:
		return "release"
	case g.spare > 0:
		g.spare--
		return fmt.Sprintf("host %c slots=%d", 'A'+len(g.c.hosts), 1+g.rand.IntN(3))
	}
	return ""
}

// behead ends the head, or cuts it off, and lets the others notice.
func (g *generator) behead() string {
	h := g.c.head()
	if h == nil {
		return ""
	}
	end := "crash " + h.name
	if g.spare > 0 && g.rand.IntN(3) == 0 {
		g.spare--
		g.plan = append(g.plan, fmt.Sprintf("host %c slots=%d", 'A'+len(g.c.hosts), 1+g.rand.IntN(3)))
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

// over reports whether nothing can happen any more.
func (g *generator) over() bool {
	living := g.c.living()
	return len(living) == 0 || len(g.c.all()) == 0 && len(g.c.net.busy()) == 0 || living[0].ended
}

// partition cuts the hosts into two sides.
func (g *generator) partition() string {
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

// silence lets a host notice a link that is down, or with some chance in a hundred give up one that is only slow.
func (g *generator) silence(chance int) string {
	a := g.host().name
	for _, i := range g.rand.Perm(len(g.c.hosts)) {
		h := g.c.hosts[i]
		l := g.c.net.links[pair{h.name, a}]
		if l != nil && !l.closed && (l.cut || !h.alive || g.c.net.closed(h.name, a) || g.rand.IntN(100) < chance) {
			return fmt.Sprintf("down %s %s", a, h.name)
		}
	}
	return ""
}

func (g *generator) someone(what string) string {
	all := g.c.all()
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprintf("%s w%d", what, all[g.rand.IntN(len(all))].id)
}
