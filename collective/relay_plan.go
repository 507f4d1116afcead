package collective

import (
	"slices"
	"sync/atomic"

	"github.com/shoal-ml/shoal/kernel"
)

// The methods of Relay in this file are Prepare and its parts: they run on the goroutine that calls
// Prepare, while no other method runs.

// plan is the memory in which a schedule is turned into segments. Only Prepare uses it.
type plan struct {
	roles []role // by host: its role in the move at hand; findHosts clears those of the last move

	// hosts are those with a part in the move at hand: in ascending order, from the first one of
	// the route on, unless it is a Chain. An index in it is what a Strategy calls a position.
	hosts  []int
	self   int    // position of this host; -1 = it has no part in the move
	root   int    // position of the root; -1 = there is none
	parent []int  // by position: the position that partial sums go to
	source []int  // by position: the position that the result comes from
	flows  []role // by position: the role of the host and of all below it, in either tree

	bufferSize int // bytes of buffer that are reserved so far
	states     int // entries of states so far
	missing    int // entries of missing so far
	pieces     int // pieces to be summed or received so far
	longest    int // bytes of the longest segment that Deliver copies
}

// role says whether a host, or a part of a tree, has sources and destinations of a move.
type role struct{ gives, takes bool }

// cutAlign is the number of elements at multiples of which segments begin, so that no two share a
// cache line.
const cutAlign = 64

// Prepare binds a schedule to the memory of the calls that are on this host, and keeps calls until
// the next use. All hosts must give the same schedule, sites and route, and calls that differ only
// in Far. Outputs that share one memory are listed once on the host where they are. No other method
// may be running.
func (r *Relay) Prepare(s *Schedule, calls []*Call, sites Sites, route Route) {
	r.reset(calls, sites)
	r.fresh = s.Fresh
	r.pieceLen = route.Piece / max(1, r.sumType.Size()) // a barrier has no type
	strategy := route.Strategy
	parts := uint32(0)
	for i := range s.Moves {
		m := &s.Moves[i]
		r.findHosts(m, sites, route)
		trees := 0
		if len(r.plan.hosts) > 1 {
			trees = strategy.Trees(len(r.plan.hosts), r.plan.root)
		}
		if r.plan.self >= 0 {
			r.addMove(m, sites, trees == 0)
			for t := range trees {
				if from, n := treeShare(m.N, t, trees); n > 0 {
					r.buildTree(strategy, t)
					r.addSegment(segment{part: parts + uint32(t), move: len(r.moves) - 1,
						from: from, n: n})
				}
			}
		}
		parts += uint32(trees)
	}
	r.run.Prepare(&r.local, calls)
	r.allocate()
	r.orderByTurn(s.Turns)
}

// reset empties the Relay for another schedule, and sets what its calls alone decide.
func (r *Relay) reset(calls []*Call, sites Sites) {
	r.local.Moves, r.moves, r.spans, r.segments = r.local.Moves[:0], r.moves[:0], r.spans[:0],
		r.segments[:0]
	r.childSums, r.resultHosts, r.initial, r.copied = r.childSums[:0], r.resultHosts[:0],
		r.initial[:0],
		r.copied[:0]
	p := &r.plan
	p.bufferSize, p.states, p.missing, p.pieces, p.longest = 0, 0, 0, 0, 0
	if len(p.roles) < sites.N {
		p.roles = make([]role, sites.N)
	}
	r.self, r.results, r.first, r.bytes = sites.Self, 0, -1, byteCounts{}
	r.run.Prepare(&r.local, calls) // for the scales; moves follow
	r.sumType = r.run.dtype
	if r.run.reduces && !calls[0].Narrow {
		r.sumType = kernel.AccType(r.run.dtype)
	}
}

// isSummed reports whether a source is summed at all: one with the weight 0 is not. It needs the
// scales of r.run.
func (r *Relay) isSummed(src Span) bool {
	return len(r.run.scale) == 0 || r.run.scale[src.Member] != 0
}

// findHosts sets in r.plan which hosts have a part in a move, in the order of a route, their roles,
// and the root.
func (r *Relay) findHosts(m *Move, sites Sites, route Route) {
	p := &r.plan
	for _, h := range p.hosts {
		p.roles[h] = role{}
	}
	p.hosts = p.hosts[:0]
	takers, taker := 0, 0
	for _, src := range m.Src {
		h := sites.Of[src.Member]
		if !r.isSummed(src) || p.roles[h].gives {
			continue
		}
		p.roles[h].gives = true
		p.hosts = append(p.hosts, h)
	}
	for _, dst := range m.Dst {
		h := sites.Of[dst.Member]
		if p.roles[h].takes {
			continue
		}
		if !p.roles[h].gives {
			p.hosts = append(p.hosts, h)
		}
		p.roles[h].takes = true
		takers, taker = takers+1, h
	}
	if !m.Chain {
		slices.Sort(p.hosts)
	}
	p.root = -1
	switch {
	case !r.run.reduces:
		p.root = slices.Index(p.hosts, sites.Of[m.Src[0].Member])
	case takers == 1:
		p.root = slices.Index(p.hosts, taker)
	case len(p.hosts) > 0 && !m.Chain:
		p.rotateHosts(route.First % len(p.hosts))
	}
	p.self = slices.Index(p.hosts, sites.Self)
}

// rotateHosts moves so many hosts from the begin of the list to its end.
func (p *plan) rotateHosts(n int) {
	slices.Reverse(p.hosts[:n])
	slices.Reverse(p.hosts[n:])
	slices.Reverse(p.hosts)
}

// addMove adds the sources and destinations of a move that are on this host to r.moves. A move that
// needs no other host, alone, is left to run, and so is the local part of a copy whose source is
// here.
func (r *Relay) addMove(m *Move, sites Sites, alone bool) {
	own := Move{N: m.N, Runs: m.Runs}
	at := len(r.spans)
	for _, src := range m.Src {
		if sites.Of[src.Member] == sites.Self && r.isSummed(src) {
			r.spans = append(r.spans, src)
		}
	}
	own.Src = r.spans[at:len(r.spans):len(r.spans)]
	at = len(r.spans)
	for _, dst := range m.Dst {
		if sites.Of[dst.Member] == sites.Self {
			r.spans = append(r.spans, dst)
		}
	}
	own.Dst = r.spans[at:len(r.spans):len(r.spans)]
	r.moves = append(r.moves, own)
	if alone || !r.run.reduces && len(own.Src) > 0 {
		r.local.appendMove(own)
		r.bytes.written += own.N * r.run.dtype.Size() * len(own.Dst)
	}
}

// treeShare returns the part of n elements that tree t of several gets, cut between cache lines.
func treeShare(n, t, trees int) (from, length int) {
	lines := (n + cutAlign - 1) / cutAlign
	from = min(n, lines*t/trees*cutAlign)
	return from, min(n, lines*(t+1)/trees*cutAlign) - from
}

// buildTree sets in r.plan who is whose parent and source in tree t of the move at hand, and what
// flows along it.
func (r *Relay) buildTree(strategy Strategy, t int) {
	p := &r.plan
	k := len(p.hosts)
	p.parent, p.source, p.flows = p.parent[:0], p.source[:0], p.flows[:0]
	for i := range k {
		p.parent = append(p.parent, strategy.Parent(t, k, p.root, i))
		p.source = append(p.source, Source(strategy, t, k, p.root, i))
		p.flows = append(p.flows, role{})
	}
	for i, h := range p.hosts {
		for at := i; p.roles[h].gives && at >= 0 && !p.flows[at].gives; at = p.parent[at] {
			p.flows[at].gives = true
		}
		for at := i; p.roles[h].takes && at >= 0 && !p.flows[at].takes; at = p.source[at] {
			p.flows[at].takes = true
		}
	}
}

// addSegment completes g, this host's part of the tree at hand, and adds it to r.segments.
func (r *Relay) addSegment(g segment) {
	p := &r.plan
	m := &r.moves[g.move]
	mine := p.flows[p.self]
	g.parent, g.source = -1, -1
	if at := p.parent[p.self]; at >= 0 {
		g.parent, g.source, g.up, g.down = p.hosts[at], p.hosts[p.source[p.self]], mine.gives,
			mine.takes
	}
	ins, outs := len(r.childSums), len(r.resultHosts)
	for i := range p.hosts {
		if p.parent[i] == p.self && p.flows[i].gives {
			r.childSums = append(r.childSums, childSum{host: p.hosts[i]})
		}
		if p.source[i] == p.self && p.flows[i].takes {
			r.resultHosts = append(r.resultHosts, p.hosts[i])
		}
	}
	g.in, g.out = r.childSums[ins:len(r.childSums):len(r.childSums)],
		r.resultHosts[outs:len(r.resultHosts):len(r.resultHosts)]
	g.direct = !r.run.reduces && g.parent < 0 && m.Runs == nil ||
		g.up && len(g.in) == 0 && len(m.Src) == 1 && r.sendsInputs()
	r.reserveSegment(&g, mine)
	pieces := r.pieceCount(g.n)
	g.states, g.missing = p.states, p.missing
	p.states += pieces * (len(g.in) + 1)
	p.missing += pieces
	if mine.gives && len(g.in) == 0 {
		r.addInitial(len(r.segments), &g, pieces)
		if !g.direct {
			r.bytes.summed += g.n * r.run.dtype.Size() * len(m.Src)
		}
	}
	if mine.gives {
		p.pieces += pieces
	}
	if g.down {
		p.pieces += pieces
	}
	bytes := g.n * r.run.dtype.Size()
	last := 0 // outputs that Deliver writes
	if len(m.Dst) > 0 && !r.fresh && (r.run.reduces || g.parent >= 0) {
		last = len(m.Dst)
		if g.inOutput = m.Runs == nil; g.inOutput {
			r.bytes.placed += bytes
			last--
		}
	}
	if last > 0 {
		g.first = r.results
		r.results += (bytes + chunkBytes - 1) / chunkBytes
		p.longest = max(p.longest, bytes)
		r.copied = append(r.copied, len(r.segments))
		r.bytes.written += bytes * last
	}
	r.segments = append(r.segments, g)
}

// reserveSegment sets where in buffer a segment has its memory. A partial sum has reached the
// parent before the result comes down, so that the two share memory where their types are the same.
// The partial sum is made where that of the first child comes in.
func (r *Relay) reserveSegment(g *segment, mine role) {
	size, wide := r.run.dtype.Size(), r.sumType.Size()
	sums := r.run.reduces && mine.gives && !g.direct
	results := mine.takes && (g.down || !g.direct)
	switch {
	case r.sumType != r.run.dtype && sums:
		g.sum = r.reserve(g.n * wide)
		fallthrough
	case r.sumType != r.run.dtype:
		if results {
			g.result = r.reserve(g.n * size)
		}
	case sums || results:
		g.result = r.reserve(g.n * size)
		g.sum = g.result
	}
	for i := range g.in {
		g.in[i].at = g.sum
		if i > 0 {
			g.in[i].at = r.reserve(g.n * wide)
		}
	}
}

// reserve sets n bytes of buffer aside, from a cache line on, and returns where they begin.
// The method allocate gets the memory.
func (r *Relay) reserve(n int) (at int) {
	const line = 64
	at = r.plan.bufferSize
	r.plan.bufferSize += (n + line - 1) / line * line
	return at
}

// addInitial adds the pieces of a segment that need nothing from other hosts to r.initial. Chunk
// begins with those for the next host: else all hosts would begin by sending to the same one.
func (r *Relay) addInitial(index int, g *segment, pieces int) {
	if r.first < 0 && g.firstReceiver() > r.self {
		r.first = len(r.initial)
	}
	for i := range pieces {
		r.initial = append(r.initial, initialPiece{segment: index, piece: i})
	}
}

// allocate gets the memory that the segments need, unless the last use left enough, and sets the
// state of every piece to that of the begin.
func (r *Relay) allocate() {
	p := &r.plan
	if len(r.buffer) < p.bufferSize {
		r.buffer = make([]byte, p.bufferSize)
	}
	if len(r.states) < p.states {
		r.states = make([]atomic.Uint32, p.states)
	}
	if len(r.missing) < p.missing {
		r.missing = make([]atomic.Int32, p.missing)
	}
	for i := range r.segments {
		g := &r.segments[i]
		width := len(g.in) + 1
		for piece := range r.pieceCount(g.n) {
			r.missing[g.missing+piece].Store(int32(len(g.in)))
			for from := range width {
				state := due
				if from == len(g.in) && (g.up || !g.down) {
					state = notDue
				}
				r.states[g.states+piece*width+from].Store(state)
			}
		}
	}
	r.first, r.pieces = max(r.first, 0), p.missing
	r.stream = p.longest >= streamBytes
	r.remaining.Store(int64(p.pieces))
}
