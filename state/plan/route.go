package plan

import "slices"

// A stream is bytes that the same hosts hold and the same hosts lack. Its bytes form a line: the
// boxes of its pairs in the order of the plan. The line is cut into segments, each with its own
// path from host to host. Only Build changes a stream; from then on any goroutine may read it.
type stream struct {
	from, to []int32 // hosts that hold the bytes, and hosts that lack them
	bytes    int     // length of the line
	segments []segment
}

// A segment ends at a byte of the line, and starts where the one before it ends.
type segment struct {
	end int // offset in the line of the byte after the last
	// Edges are in an order in which each sender has the bytes. The receivers are those of the
	// stream, each once.
	edges []edge
}

// An edge is one link of the path of a segment: one host sends it to another.
type edge struct {
	from, to int32
	// depth is 1 from a host of the old layout, and one more for each host that passed the bytes
	// on.
	depth int
}

// Only Build calls the methods below, before others have the plan; they do no I/O.

// routeStreams sets the streams of the plan with their segments, which say who sends what, and the
// stats of that. host is the host of each group.
func (p *Plan) routeStreams(t *traffic, host []int) {
	p.collectStreams(t, host)
	s := &p.Stats
	s.Ingress, s.Egress = make([]int, t.hosts), make([]int, t.hosts)
	for _, st := range p.streams {
		for _, h := range st.to {
			s.Ingress[h] += st.bytes
		}
	}
	in := slices.Max(append(s.Ingress, 0))
	demands := p.directDemands()
	sent, out := balanceSenders(demands, t.hosts)
	if out > in { // senders are the bottleneck: let receivers pass bytes on
		relayed := p.relayedDemands()
		if with, less := balanceSenders(relayed, t.hosts); less < out {
			demands, sent, out = relayed, with, less
		}
	}
	s.BusiestBound = max(in, out)
	each := len(demands) / max(len(p.streams), 1)
	for i := range p.streams {
		st := &p.streams[i]
		st.cutSegments(demands[i*each:][:each], sent[i*each:][:each])
		from := 0
		for _, seg := range st.segments {
			for _, e := range seg.edges {
				s.Egress[e.from] += seg.end - from
				s.Depth = max(s.Depth, e.depth)
			}
			from = seg.end
		}
	}
	s.Busiest = max(in, slices.Max(append(s.Egress, 0)))
}

// collectStreams sets the streams of the plan, and the stream of each pair; pairs that need no
// transfer have -1.
func (p *Plan) collectStreams(t *traffic, host []int) {
	var lacking [][]int32
	lack, index := map[string]int{}, map[[2]int]int{}
	streams := make([]int, len(t.flows))
	for i, f := range t.flows {
		streams[i] = -1
		if f.bytes == 0 {
			continue
		}
		var to []int32
		from := t.holders[f.holders]
		for _, g := range t.needers[f.needers] {
			h := int32(host[g])
			if _, has := slices.BinarySearch(from, h); !has {
				to = append(to, h)
			}
		}
		if len(to) == 0 {
			continue
		}
		slices.Sort(to)
		key := [2]int{f.holders, intern(&lacking, lack, to)}
		n, ok := index[key]
		if !ok {
			n = len(p.streams)
			index[key] = n
			p.streams = append(p.streams, stream{from: from, to: to})
		}
		p.streams[n].bytes += f.bytes
		streams[i] = n
	}
	for i := range p.pairs {
		p.pairs[i].stream = streams[t.flowOf[i]]
	}
}

// directDemands returns a demand for each stream: the holders send to every receiver.
func (p *Plan) directDemands() (demands []demand) {
	for _, st := range p.streams {
		demands = append(demands, demand{st.from, st.bytes * len(st.to)})
	}
	return demands
}

// relayedDemands returns two demands for each stream: holders send every byte once, and holders or
// receivers send it all other times.
func (p *Plan) relayedDemands() (demands []demand) {
	for _, st := range p.streams {
		all := slices.Concat(st.from, st.to)
		demands = append(demands, demand{st.from, st.bytes},
			demand{all, st.bytes * (len(st.to) - 1)})
	}
	return demands
}

// cutSegments sets the segments of the stream. It lays what the senders send along the line of the
// stream, repeated as often as it has receivers, and so finds the senders of each byte; where these
// change, a segment ends. sent is what each sender of each demand sends; the demands one after the
// other fill the line again and again.
func (s *stream) cutSegments(demands []demand, sent [][]int) {
	type span struct {
		host     int32
		from, to int // on the line repeated
	}
	var spans []span
	ends := []int{s.bytes}
	at := 0
	for d := range demands {
		for k, h := range demands[d].senders {
			if n := sent[d][k]; n > 0 {
				spans = append(spans, span{h, at, at + n})
				at += n
				ends = append(ends, at%s.bytes)
			}
		}
	}
	slices.Sort(ends)
	ends = slices.Compact(ends)[1:] // without 0, where the last span ends
	// next is, for each repetition of the line, the span that its current position is in.
	next := make([]int, len(s.to))
	for k, i := 0, 0; k < len(next); k++ {
		for spans[i].to <= k*s.bytes {
			i++
		}
		next[k] = i
	}
	from := 0
	for _, end := range ends {
		senders := make([]int32, len(s.to))
		for k := range next {
			for spans[next[k]].to <= k*s.bytes+from {
				next[k]++
			}
			senders[k] = spans[next[k]].host
		}
		s.segments = append(s.segments, segment{end, s.transmissionTree(senders)})
		from = end
	}
}

// transmissionTree returns transmissions by these senders, which it sorts, in an order in which
// each sender has the bytes when its turn comes. Senders that hold the bytes from the start come
// first; the first sender is one. Receivers that send are served before the others, in their order:
// when one of them sends, as many transmissions as there were senders before it have been made, so
// it has been served.
func (s *stream) transmissionTree(senders []int32) []edge {
	slices.SortStableFunc(senders, func(a, b int32) int {
		return s.receiverIndex(a) - s.receiverIndex(b)
	})
	var receivers []int32
	first := map[int32]bool{}
	for _, h := range senders {
		if s.receiverIndex(h) >= 0 && !first[h] {
			first[h] = true
			receivers = append(receivers, h)
		}
	}
	for _, h := range s.to {
		if !first[h] {
			receivers = append(receivers, h)
		}
	}
	depth := map[int32]int{}
	edges := make([]edge, len(senders))
	for k, h := range senders {
		depth[receivers[k]] = depth[h] + 1
		edges[k] = edge{h, receivers[k], depth[h] + 1}
	}
	return edges
}

// receiverIndex returns the index of a receiver in the stream, -1 for a holder.
func (s *stream) receiverIndex(host int32) int {
	i, found := slices.BinarySearch(s.to, host)
	if !found {
		return -1
	}
	return i
}
