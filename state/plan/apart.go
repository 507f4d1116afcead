package plan

import (
	"cmp"
	"slices"
)

// Apart returns the cluster with other groups of new ranks: what several ranks hold is on two
// hosts, as far as hosts have devices for that. So many neighbouring ranks stay together, which is
// a way to keep a tensor parallel group on one host; false where the hosts cannot take them so.
//
// The ranks that hold a box are a set. Of sets that do not overlap as little as possible is on one
// host, by a flow of least price from ranks to hosts: a host gets the last of a set at the price of
// its bytes. Among the ways to do that the flow takes one in which the ranks need the fewest bytes
// of other hosts, each for itself. A set that contains others is on two hosts when they are. Of
// sets that overlap those of most bytes go first, and as long as swapping two ranks brings less on
// one host, they are swapped.
func (p *Plan) Apart(neighbours int) (Cluster, bool) {
	s := spreading{block: make([]int, p.Dst.Ranks), hosts: len(p.Cluster.Devices)}
	for r := range s.block {
		s.block[r] = r / neighbours
	}
	blocks, room := (p.Dst.Ranks+neighbours-1)/neighbours, 0
	for _, n := range p.Cluster.Devices {
		s.room = append(s.room, n/neighbours)
		room += n / neighbours
	}
	if room < blocks {
		return Cluster{}, false
	}
	need, has := p.traffic(s.block, blocks).needs()
	for i := range has {
		has[i] = need[i/s.hosts] - has[i]
	}
	s.lacks, s.place = has, p.places()
	s.share(p)
	s.flow(blocks)
	s.swap()
	c := p.Cluster
	c.New, c.Fixed = nil, false
	for _, b := range s.block {
		c.New = append(c.New, s.host[b])
	}
	return c, true
}

// places numbers the hosts in the order of their old ranks; those that have none come last.
func (p *Plan) places() []int {
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

// spreading is blocks of ranks on their way to hosts.
type spreading struct {
	block []int // of each rank
	hosts int
	room  []int // how many blocks each host can take, and then how many more
	lacks []int // block*hosts + host: the bytes that the block needs and the host does not have
	place []int // of each host in the order of their old ranks
	sets  []shared
	in    [][]int // of each block: the sets that it is in
	host  []int   // of each block
}

// shared is bytes that each of several blocks has.
type shared struct {
	blocks []int32
	bytes  int
}

// share finds the sets of more than one block.
func (s *spreading) share(p *Plan) {
	bytes := make([]int, len(p.newSets))
	for _, pair := range p.pairs {
		bytes[pair.new] += pair.bytes
	}
	var sets [][]int32
	index, total := map[string]int{}, []int{}
	for i, set := range p.newSets {
		blocks := project(set, s.block)
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
		s.sets = append(s.sets, shared{blocks, total[k]})
	}
	slices.SortStableFunc(s.sets, func(a, b shared) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), slices.Compare(a.blocks, b.blocks))
	})
}

// flow gives the blocks their hosts.
func (s *spreading) flow(blocks int) {
	chosen, of := s.disjoint(blocks)
	node := func(set, host int) int { return blocks + set*s.hosts + host }
	sink := node(len(chosen)+1, 0)
	m := newMarket(sink + 1)
	for h := range s.hosts {
		for i, set := range chosen {
			m.offer(node(i, h), node(len(chosen), h), len(set.blocks)-1, price{})
			m.offer(node(i, h), node(len(chosen), h), 1, price{alone: set.bytes})
		}
		m.offer(node(len(chosen), h), sink, s.room[h], price{})
	}
	to := make([]int, blocks*s.hosts)
	for b := range blocks {
		// of equal ways one in the order of ranks, which has neighbours together
		for h := range s.hosts {
			to[b*s.hosts+h] = m.offer(b, node(of[b], h), 1,
				price{bytes: s.lacks[b*s.hosts+h], order: b * (s.hosts - 1 - s.place[h])})
		}
	}
	for b := range blocks {
		m.send(b, sink)
	}
	s.host = make([]int, blocks)
	for i, a := range to {
		if m.flowOn(a) > 0 {
			s.host[i/s.hosts] = i % s.hosts
			s.room[i%s.hosts]--
		}
	}
}

// disjoint chooses sets that do not overlap, those of most bytes first, and none that contains
// another. of is the one that each block is in; where it is in none, their number.
func (s *spreading) disjoint(blocks int) (chosen []shared, of []int) {
	of = fill(blocks, -1)
	s.in = make([][]int, blocks)
	for i, set := range s.sets {
		for _, b := range set.blocks {
			s.in[b] = append(s.in[b], i)
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

// containsAnother reports whether all of another set is in one.
func (s *spreading) containsAnother(set int) bool {
	inside := map[int]int{}
	for _, b := range s.sets[set].blocks {
		for _, other := range s.in[b] {
			if inside[other]++; other != set && inside[other] == len(s.sets[other].blocks) {
				return true
			}
		}
	}
	return false
}

// swap swaps blocks, or moves one to where there is room, as long as less is on one host then.
func (s *spreading) swap() {
	for i := 0; i < len(s.sets); i++ {
		if s.alone(i) && s.relieve(i) {
			i = -1
		}
	}
}

// relieve looks for a swap that brings a set to two hosts and does more good than harm.
func (s *spreading) relieve(set int) bool {
	for _, b := range s.sets[set].blocks {
		was := s.host[b]
		for h, room := range s.room {
			if room > 0 && s.better(func() { s.host[b] = h }, func() { s.host[b] = was }, int(b)) {
				s.room[h]--
				s.room[was]++
				return true
			}
		}
		for other := range s.host {
			exchange := func() { s.host[b], s.host[other] = s.host[other], s.host[b] }
			if s.host[other] != was && s.better(exchange, exchange, int(b), other) {
				return true
			}
		}
	}
	return false
}

// better tries something with blocks, and takes it back where no less is on one host then.
func (s *spreading) better(try, back func(), blocks ...int) bool {
	before := s.aloneIn(blocks)
	try()
	if s.aloneIn(blocks) < before {
		return true
	}
	back()
	return false
}

// aloneIn is what the blocks have that is on one host; what two of them have counts twice.
func (s *spreading) aloneIn(blocks []int) (bytes int) {
	for _, b := range blocks {
		for _, i := range s.in[b] {
			if s.alone(i) {
				bytes += s.sets[i].bytes
			}
		}
	}
	return bytes
}

// alone reports whether a set is on one host.
func (s *spreading) alone(set int) bool {
	blocks := s.sets[set].blocks
	return !slices.ContainsFunc(blocks, func(b int32) bool {
		return s.host[b] != s.host[blocks[0]]
	})
}
