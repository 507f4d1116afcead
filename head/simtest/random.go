package simtest

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/shoal-ml/shoal/member"
)

// Random runs a schedule of so many events that a seed chooses, and then stabilizes: time in which
// the job must go on. It returns the schedule and the first invariant that it broke.
func Random(seed uint64, events int) (lines []string, broken error) {
	c := New()
	c.quiet = true
	g := &generator{c: c, rand: rand.New(rand.NewPCG(seed, 7)), mesh: seed/2%2 == 1,
		redundant: seed/4%2 == 1, spares: max(int(seed/8%4)-1, 0)}
	k := newClerk(c, seed)
	do := func(line string) {
		if broken == nil && line != "" {
			lines = append(lines, line)
			broken = c.Do(line)
		}
	}
	for i, line := range g.beginning() {
		if i == 0 && k.kind != "" {
			line += " store=" + k.kind
		}
		do(line)
		if i == 0 {
			do(k.begin())
		}
	}
	live := func(events int) {
		for i := 0; i < events && !g.over(); i++ {
			do(g.next())
			do(k.next())
		}
	}
	live(events)
	if list := k.end(); list != nil {
		for _, line := range list {
			do(line)
		}
		live(events / 4)
	}
	if broken == nil {
		broken = c.Finally()
	}
	return lines, broken
}

// Replay runs a schedule and then stabilizes, as Random does.
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

// generator chooses events that make sense where they stand.
type generator struct {
	c         *Cluster
	rand      *rand.Rand
	faults    int // how many events of a thousand are faults
	lossy     int // how many of a hundred messages are lost, and repeated
	mixed     int // how many of a hundred are taken out of order
	more      int // hosts that may still come
	plan      []string
	mesh      bool // workers have parts of the state
	redundant bool // those that are on two are to be on two hosts
	spares    int  // of the job
}

func (g *generator) beginning() (lines []string) {
	hosts, slots := 1+g.rand.IntN(5), 1+g.rand.IntN(3)
	g.faults, g.more = 3+g.rand.IntN(30), g.rand.IntN(4)
	g.lossy, g.mixed = []int{0, 0, 3, 15}[g.rand.IntN(4)], []int{0, 10, 50}[g.rand.IntN(3)]
	want := 1 + g.rand.IntN(hosts*slots)
	if g.mesh {
		lines = append(lines, g.meshed(hosts, slots))
	} else {
		lines = append(lines,
			fmt.Sprintf("job A want=%d min=%d slots=%d samples=%d batch=%d groups=%d",
				want, g.rand.IntN(want+1), slots, []int{0, 1, 23, 50}[g.rand.IntN(4)],
				1+g.rand.IntN(9),
				g.rand.IntN(2)))
	}
	lines[0] += fmt.Sprintf(" early=%d spares=%d", []int{0, 8, 8, 16}[g.rand.IntN(4)], g.spares)
	for i := 1; i < hosts; i++ {
		lines = append(lines, fmt.Sprintf("host %c slots=%d", 'A'+i, slots))
	}
	if g.rand.IntN(3) > 0 {
		lines = append(lines, fmt.Sprintf("stabilize %d", 1+g.rand.IntN(3)))
	}
	return lines
}

func (g *generator) next() string {
	if len(g.plan) > 0 {
		line := g.plan[0]
		g.plan = g.plan[1:]
		return line
	}
	if g.mesh && g.rand.IntN(150) == 0 {
		return g.reshape()
	}
	if g.adrift() && g.rand.IntN(20) == 0 {
		if g.rand.IntN(2) == 0 {
			return g.someone("kill")
		}
		return g.behead()
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
	case n < 72 && g.mesh:
		return g.reshape()
	case n < 74 && !g.mesh:
		return fmt.Sprintf("resize %d", 1+g.rand.IntN(8))
	case n < 82:
		return "drain " + a
	case n < 86:
		return g.someone("retry")
	case n < 87:
		return g.someone("finish")
	case n < 88:
		return "release"
	case g.more > 0:
		return g.another()
	}
	return ""
}

// another lets a host come while the job runs; it stays without workers when nobody waits for room,
// and some have none.
func (g *generator) another() string {
	g.more--
	return fmt.Sprintf("host %c slots=%d", 'A'+len(g.c.hosts),
		[]int{member.NoSlots, 1, 2, 3}[g.rand.IntN(4)])
}

// adrift reports whether the job is on its way back to a checkpoint, which is short: few faults
// would hit it.
func (g *generator) adrift() bool {
	return slices.ContainsFunc(g.c.living(), func(h *host) bool {
		s := h.agent.Known().Shape
		return s != nil && s.Lost != ""
	})
}

// behead ends the head, or cuts it off, and lets the others notice.
func (g *generator) behead() string {
	h := g.c.head()
	if h == nil {
		return ""
	}
	end := "crash " + h.name
	if g.more > 0 && g.rand.IntN(3) == 0 {
		g.plan = append(g.plan, g.another())
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

// silence lets a host notice a link that is down, or with some chance in a hundred give up one that
// is only slow.
func (g *generator) silence(chance int) string {
	a := g.host().name
	for _, i := range g.rand.Perm(len(g.c.hosts)) {
		h := g.c.hosts[i]
		l := g.c.net.links[pair{h.name, a}]
		if l != nil && !l.closed &&
			(l.cut || !h.alive || g.c.net.closed(h.name, a) || g.rand.IntN(100) < chance) {
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

// meshed begins a job with a mesh that the hosts have room for.
func (g *generator) meshed(hosts, slots int) string {
	m := g.degrees(hosts * slots)
	unreplicated := 0
	if g.rand.IntN(6) == 0 {
		unreplicated = 1
	}
	job := fmt.Sprintf(
		"job A want=%d min=%d slots=%d samples=%d batch=%d groups=%d mesh=%s unreplicated=%d "+
			"saves=%d",
		m.ranks(), g.rand.IntN(m.ranks()+1), slots, []int{1, 23, 50}[g.rand.IntN(3)],
		1+g.rand.IntN(9), g.rand.IntN(2), m, unreplicated, []int{0, 1, 1, 3}[g.rand.IntN(4)])
	if g.redundant {
		job += " redundant=1"
	}
	return job
}

// degrees chooses a mesh of at most so many ranks. Most have several replicas, so that most losses
// cost no state.
func (g *generator) degrees(most int) mesh {
	m := mesh{tp: 1 + g.rand.IntN(max(1, min(3, most/2)))}
	m.dp = 1 + g.rand.IntN(max(1, min(4, most/m.tp)))
	m.beside = g.redundant && g.rand.IntN(2) == 0
	return m
}

func (g *generator) reshape() string {
	return fmt.Sprintf("reshape %s", g.degrees(8))
}
