package plan

import (
	"cmp"
	"slices"
)

// AntiAffinity returns the cluster with other groups of new ranks, so that replicas lie on two
// hosts as far as hosts have devices for that. together is the number of neighbouring ranks that
// stay on one host, such as a tensor parallel group. It reports false when the hosts cannot take
// the ranks so. The result shares Devices and Old with the cluster of the plan, which stays as it
// is: any goroutine may call it.
//
// The ranks that hold a box form a set. Among sets that do not overlap, a minimum-cost flow from
// ranks to hosts leaves as few bytes as possible on one host only: a host receives the last rank of
// a set at the cost of the set's bytes. Among such flows it takes one in which the ranks need the
// fewest bytes of other hosts, each rank counted alone. A set that contains others is on two hosts
// when they are. Of sets that overlap, those of most bytes go first; then two ranks are swapped as
// long as that leaves fewer bytes on one host only.
func (p *Plan) AntiAffinity(together int) (Cluster, bool) {
	s := antiAffinity{blockOf: make([]int, p.Dst.Ranks), hosts: len(p.Cluster.Devices)}
	for r := range s.blockOf {
		s.blockOf[r] = r / together
	}
	blocks, room := (p.Dst.Ranks+together-1)/together, 0
	for _, n := range p.Cluster.Devices {
		s.free = append(s.free, n/together)
		room += n / together
	}
	s.setAllowed(&p.Cluster, blocks)
	if room < blocks || !s.canPlaceAll(blocks) {
		return Cluster{}, false
	}
	need, has := p.reduceToHosts(s.blockOf, blocks).groupNeeds()
	for i := range has {
		has[i] = need[i/s.hosts] - has[i]
	}
	s.missing, s.order = has, p.hostOrder()
	s.findSets(p)
	s.assignHosts(blocks)
	s.swapBlocks()
	c := p.Cluster
	c.New, c.Fixed = nil, false
	for _, b := range s.blockOf {
		c.New = append(c.New, s.hostOf[b])
	}
	c.Allowed = s.allowedHosts()
	return c, true
}

// setAllowed sets which hosts may take each block: all of its ranks.
func (s *antiAffinity) setAllowed(c *Cluster, blocks int) {
	if c.Allowed == nil {
		return
	}
	for range blocks {
		s.allowed = append(s.allowed, slices.Repeat([]bool{true}, s.hosts))
	}
	for r, b := range s.blockOf {
		for h, may := range c.Allowed[c.New[r]] {
			s.allowed[b][h] = s.allowed[b][h] && may
		}
	}
}

// mayTake reports whether a host may take a block.
func (s *antiAffinity) mayTake(host, block int) bool {
	return s.allowed == nil || s.allowed[block][host]
}

// canPlaceAll reports whether each block finds a place on a host that may take it.
func (s *antiAffinity) canPlaceAll(blocks int) bool {
	if s.allowed == nil {
		return true
	}
	var hostOf []int // of each place
	for h, n := range s.free {
		hostOf = append(hostOf, slices.Repeat([]int{h}, min(n, blocks))...)
	}
	m := matching{allowed: func(b, place int) bool { return s.mayTake(hostOf[place], b) },
		column: repeatInt(blocks, -1), row: repeatInt(len(hostOf), -1),
		seen: make([]bool, len(hostOf))}
	for b := range blocks {
		clear(m.seen)
		if !m.augment(b) {
			return false
		}
	}
	return true
}

// allowedHosts says for each group of ranks, which are those of a host, which hosts may take them;
// nil = all of them.
func (s *antiAffinity) allowedHosts() [][]bool {
	if s.allowed == nil {
		return nil
	}
	allowed := make([][]bool, slices.Max(s.hostOf)+1)
	for g := range allowed {
		allowed[g] = make([]bool, s.hosts)
		for h := range s.hosts {
			allowed[g][h] = true
			for b, of := range s.hostOf {
				allowed[g][h] = allowed[g][h] && (of != g || s.mayTake(h, b))
			}
		}
	}
	return allowed
}

// hostOrder returns the position of each host in the order of their first old ranks. Hosts without
// old ranks come last. It changes nothing of the plan.
func (p *Plan) hostOrder() []int {
	first := func(h int) int {
		if len(p.byHost[h]) == 0 {
			return p.Src.Ranks
		}
		return p.byHost[h][0]
	}
	hosts := make([]int, len(p.byHost))
	for h := range hosts {
		hosts[h] = h
	}
	slices.SortStableFunc(hosts, func(a, b int) int { return first(a) - first(b) })
	place := make([]int, len(hosts))
	for i, h := range hosts {
		place[h] = i
	}
	return place
}

// An antiAffinity assigns blocks of neighbouring ranks to hosts. It does no I/O, and is for the
// goroutine of one call of AntiAffinity.
type antiAffinity struct {
	blockOf []int    // block of each rank
	hosts   int      // number of hosts
	allowed [][]bool // by block, whether each host may take it; nil = all may
	free    []int    // blocks that each host can still take
	// missing[block*hosts+host] is the number of bytes that the block needs and the host lacks.
	missing []int
	order   []int       // position of each host in the order of their old ranks
	sets    []sharedSet // sets of more than one block, those of most bytes first
	setsOf  [][]int     // sets of each block, as indices into sets
	hostOf  []int       // host of each block
}

// A sharedSet is bytes that each of several blocks holds.
type sharedSet struct {
	blocks []int32 // the blocks, ascending
	bytes  int     // how many bytes
}

// findSets sets sets to the sets of more than one block, those of most bytes first.
func (s *antiAffinity) findSets(p *Plan) {
	bytes := make([]int, len(p.newSets))
	for _, pair := range p.pairs {
		bytes[pair.new] += pair.bytes
	}
	var sets [][]int32
	index, total := map[string]int{}, []int{}
	for i, set := range p.newSets {
		blocks := hostsOf(set, s.blockOf)
		if len(blocks) < 2 || bytes[i] == 0 {
			continue
		}
		k := intern(&sets, index, blocks)
		if k == len(total) {
			total = append(total, 0)
		}
		total[k] += bytes[i]
	}
	for k, blocks := range sets {
		s.sets = append(s.sets, sharedSet{blocks, total[k]})
	}
	slices.SortStableFunc(s.sets, func(a, b sharedSet) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), slices.Compare(a.blocks, b.blocks))
	})
}

// assignHosts sets the host of each block, and takes it from the hosts' free room.
func (s *antiAffinity) assignHosts(blocks int) {
	chosen, of := s.chooseDisjoint(blocks)
	node := func(set, host int) int { return blocks + set*s.hosts + host }
	sink := node(len(chosen)+1, 0)
	m := newMinCostFlow(sink + 1)
	for h := range s.hosts {
		for i, set := range chosen {
			m.addArc(node(i, h), node(len(chosen), h), len(set.blocks)-1, cost{})
			m.addArc(node(i, h), node(len(chosen), h), 1, cost{unreplicated: set.bytes})
		}
		m.addArc(node(len(chosen), h), sink, s.free[h], cost{})
	}
	to := make([]int, blocks*s.hosts)
	for b := range blocks {
		// Among equal flows this prefers the order of ranks, which keeps neighbours together.
		for h := range s.hosts {
			room := 0
			if s.mayTake(h, b) {
				room = 1
			}
			to[b*s.hosts+h] = m.addArc(b, node(of[b], h), room,
				cost{bytes: s.missing[b*s.hosts+h], order: b * (s.hosts - 1 - s.order[h])})
		}
	}
	for b := range blocks {
		m.sendUnit(b, sink)
	}
	s.hostOf = make([]int, blocks)
	for i, a := range to {
		if m.flowOn(a) > 0 {
			s.hostOf[i/s.hosts] = i % s.hosts
			s.free[i%s.hosts]--
		}
	}
}

// chooseDisjoint returns sets that do not overlap, those of most bytes first, and none that
// contains another. of is the chosen set of each block; a block in no set has the number of chosen
// sets. It sets setsOf.
func (s *antiAffinity) chooseDisjoint(blocks int) (chosen []sharedSet, of []int) {
	of = repeatInt(blocks, -1)
	s.setsOf = make([][]int, blocks)
	for i, set := range s.sets {
		for _, b := range set.blocks {
			s.setsOf[b] = append(s.setsOf[b], i)
		}
	}
	for i, set := range s.sets {
		if slices.ContainsFunc(set.blocks, func(b int32) bool {
			return of[b] >= 0
		}) || s.containsAnother(i) {
			continue
		}
		for _, b := range set.blocks {
			of[b] = len(chosen)
		}
		chosen = append(chosen, set)
	}
	for b := range of {
		if of[b] < 0 {
			of[b] = len(chosen)
		}
	}
	return chosen, of
}

// containsAnother reports whether a set contains all blocks of another set.
func (s *antiAffinity) containsAnother(set int) bool {
	inside := map[int]int{}
	for _, b := range s.sets[set].blocks {
		for _, other := range s.setsOf[b] {
			if inside[other]++; other != set && inside[other] == len(s.sets[other].blocks) {
				return true
			}
		}
	}
	return false
}

// swapBlocks swaps the hosts of blocks, or moves a block to a host with room, as long as that
// leaves fewer bytes on one host only.
func (s *antiAffinity) swapBlocks() {
	for i := 0; i < len(s.sets); i++ {
		if s.isOnOneHost(i) && s.spreadSet(i) {
			i = -1
		}
	}
}

// spreadSet makes a swap or a move that spreads a set, which is on one host, over two hosts and
// leaves fewer bytes on one host only; false if there is none.
func (s *antiAffinity) spreadSet(set int) bool {
	for _, b := range s.sets[set].blocks {
		was := s.hostOf[b]
		for h, room := range s.free {
			if room > 0 && s.mayTake(h, int(b)) && s.tryChange(func() {
				s.hostOf[b] = h
			}, func() { s.hostOf[b] = was }, int(b)) {
				s.free[h]--
				s.free[was]++
				return true
			}
		}
		for other := range s.hostOf {
			exchange := func() { s.hostOf[b], s.hostOf[other] = s.hostOf[other], s.hostOf[b] }
			if s.hostOf[other] != was && s.mayTake(s.hostOf[other], int(b)) &&
				s.mayTake(was, other) && s.tryChange(exchange, exchange, int(b), other) {
				return true
			}
		}
	}
	return false
}

// tryChange makes a change to blocks by try, and reverts it with back unless it leaves fewer bytes
// on one host only. It reports whether the change stays.
func (s *antiAffinity) tryChange(try, back func(), blocks ...int) bool {
	before := s.bytesOnOneHost(blocks)
	try()
	if s.bytesOnOneHost(blocks) < before {
		return true
	}
	back()
	return false
}

// bytesOnOneHost returns how many bytes of the blocks are on one host only. Bytes that two of the
// blocks hold count twice.
func (s *antiAffinity) bytesOnOneHost(blocks []int) (bytes int) {
	for _, b := range blocks {
		for _, i := range s.setsOf[b] {
			if s.isOnOneHost(i) {
				bytes += s.sets[i].bytes
			}
		}
	}
	return bytes
}

// isOnOneHost reports whether all blocks of a set are on one host.
func (s *antiAffinity) isOnOneHost(set int) bool {
	blocks := s.sets[set].blocks
	return !slices.ContainsFunc(blocks, func(b int32) bool {
		return s.hostOf[b] != s.hostOf[blocks[0]]
	})
}
