package collective

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// Posted is a call that waits for the others. The shell that posts it finds it again by Rank and Ticket.
type Posted struct {
	Rank   topo.Rank
	Ticket uint64
	Call   Call
}

// Ready is a set of calls that belong together, one a member in group order, or the reason why they cannot be.
// For a transfer it is the send, then the receive. A failed set may be incomplete.
type Ready struct {
	Calls []*Posted
	Err   error
}

// Matcher brings together the calls of a group by position: the k-th collective of every member is one collective.
// Sends and receives meet by (group, from, to, tag) in the order in which they were posted; a receive may leave `from` open.
type Matcher struct {
	groups map[topo.GroupID]*ranks
	ids    map[string]topo.GroupID // by list of ranks and instance
	gone   map[topo.Rank]string    // ranks that will post no more, and why
	next   topo.GroupID
}

// ranks is a group and what its members have posted.
type ranks struct {
	id      topo.GroupID
	members []topo.Rank
	posted  []int // by member: the position of its next collective
	asked   []int // by member: how often it has asked for this list of ranks
	base    int   // the position of open[0]
	open    []*position
	spare   []*position
	boxes   map[address]*mailbox
}

// position is one collective that is not complete.
type position struct {
	calls []*Posted // by member, nil = not yet
	count int
	err   error // the ranks disagree: later calls at this position get the same answer
}

// NewMatcher returns a Matcher for a world of the given size.
func NewMatcher(size int) *Matcher {
	world := make([]topo.Rank, size)
	for i := range world {
		world[i] = topo.Rank(i)
	}
	m := &Matcher{groups: map[topo.GroupID]*ranks{}, ids: map[string]topo.GroupID{}, gone: map[topo.Rank]string{}}
	m.add(world)
	return m
}

func (m *Matcher) add(members []topo.Rank) *ranks {
	g := &ranks{id: m.next, members: slices.Clone(members), posted: make([]int, len(members)), asked: make([]int, len(members)), boxes: map[address]*mailbox{}}
	m.groups[g.id] = g
	m.next++
	return g
}

// MaxGroups bounds the groups of a job, so that a worker that asks without end cannot fill the agent's memory.
const MaxGroups = 4096

// Group gives rank a group of the listed ranks, and its own index in it. The k-th time that each member asks for the same list
// they get the same group.
func (m *Matcher) Group(rank topo.Rank, list []topo.Rank) (id topo.GroupID, self int, err error) {
	self = slices.Index(list, rank)
	if self < 0 {
		return 0, 0, fieldError("ranks", "rank %d asks for a group of %v in which it is not", rank, list)
	}
	size := len(m.groups[topo.World].members)
	seen := make([]bool, size)
	for _, r := range list {
		if r < 0 || int(r) >= size || seen[r] {
			return 0, 0, fieldError("ranks", "%v: every rank must be inside 0..%d and listed once", list, size-1)
		}
		seen[r] = true
	}
	for instance := 0; ; instance++ {
		key := fmt.Sprint(list, instance)
		id, ok := m.ids[key]
		if !ok {
			if len(m.groups) >= MaxGroups {
				return 0, 0, fieldError("ranks", "the job has %d groups already: make groups once and keep them", MaxGroups)
			}
			id = m.add(list).id
			m.ids[key] = id
		}
		if g := m.groups[id]; g.asked[self] == 0 {
			g.asked[self] = 1
			return id, self, nil
		}
	}
}

// Members returns the ranks of a group in order; nil if there is no such group.
func (m *Matcher) Members(id topo.GroupID) []topo.Rank {
	if g := m.groups[id]; g != nil {
		return g.members
	}
	return nil
}

// Post adds a call that Check found sound, and appends to out whatever it made ready.
func (m *Matcher) Post(p *Posted, out []Ready) []Ready {
	g := m.groups[p.Call.Group]
	self := slices.Index(g.members, p.Rank)
	if p.Call.Kind.Pairwise() {
		return m.pairUp(g, self, p, out)
	}
	pos := g.at(g.posted[self])
	g.posted[self]++
	pos.count++
	if pos.err == nil {
		pos.err = m.settle(g, pos, self, p)
	}
	switch {
	case pos.err != nil:
		out = append(out, Ready{append(pos.waiting(), p), pos.err})
	case pos.count == len(g.members):
		pos.calls[self] = p
		out = append(out, Ready{pos.calls, nil})
	default:
		pos.calls[self] = p
	}
	g.retire()
	return out
}

// settle compares a call with the first one at its position, and with the ranks that are gone.
func (m *Matcher) settle(g *ranks, pos *position, self int, p *Posted) error {
	for _, other := range pos.calls {
		if other == nil {
			continue
		}
		if err := disagree(g, self, p, other); err != nil {
			return err
		}
		break
	}
	for i, r := range g.members {
		if why, gone := m.gone[r]; gone && i != self && pos.calls[i] == nil {
			return &LostError{r, why, p.Rank, p.Call.String()}
		}
	}
	return nil
}

// waiting takes the calls that wait at a position.
func (pos *position) waiting() (calls []*Posted) {
	for i, c := range pos.calls {
		if c != nil {
			calls = append(calls, c)
			pos.calls[i] = nil
		}
	}
	return calls
}

// at returns the position number k, opening it if need be.
func (g *ranks) at(k int) *position {
	for k-g.base >= len(g.open) {
		g.open = append(g.open, g.fresh())
	}
	return g.open[k-g.base]
}

func (g *ranks) fresh() *position {
	if n := len(g.spare); n > 0 {
		pos := g.spare[n-1]
		g.spare = g.spare[:n-1]
		clear(pos.calls)
		pos.count, pos.err = 0, nil
		return pos
	}
	return &position{calls: make([]*Posted, len(g.members))}
}

// retire drops positions that every member has passed. Their memory is used again by the next call of fresh, so a Ready must
// be dealt with before the next Post.
func (g *ranks) retire() {
	for len(g.open) > 0 && g.open[0].count == len(g.members) {
		g.spare = append(g.spare, g.open[0])
		g.open = append(g.open[:0], g.open[1:]...)
		g.base++
	}
}

// Lost tells that a rank will post no more. What waits for it fails, now and later.
func (m *Matcher) Lost(rank topo.Rank, why string, out []Ready) []Ready {
	m.gone[rank] = why
	for _, g := range m.groups {
		self := slices.Index(g.members, rank)
		if self < 0 {
			continue
		}
		for _, pos := range g.open {
			if pos.err != nil || pos.calls[self] != nil {
				continue
			}
			if waiting := pos.waiting(); len(waiting) > 0 {
				pos.err = &LostError{rank, why, waiting[0].Rank, waiting[0].Call.String()}
				out = append(out, Ready{waiting, pos.err})
			}
		}
		out = m.losePairs(g, out)
	}
	return out
}

// Gone reports whether a rank was declared lost.
func (m *Matcher) Gone(rank topo.Rank) bool {
	_, gone := m.gone[rank]
	return gone
}
