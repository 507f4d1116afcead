package plan

import (
	"cmp"
	"maps"
	"slices"
)

// A Send is a time in which one host sends to another. Start and Bytes are both counted in bytes at
// the rate of a port.
type Send struct {
	From, To     int
	Start, Bytes int
}

// Schedule orders the transfers of the plan, as OnePort does.
//
// Bytes that a receiver passes on follow the ones that it receives; where a plan has a depth above
// 1, run the schedule over slices of the boxes and pass a slice on in the round after its arrival.
func (p *Plan) Schedule() []Send {
	matrix := map[[2]int]int{}
	for i := range p.streams {
		from := 0
		for _, seg := range p.streams[i].segments {
			for _, e := range seg.edges {
				matrix[[2]int{int(e.from), int(e.to)}] += seg.end - from
			}
			from = seg.end
		}
	}
	return OnePort(matrix)
}

// OnePort orders transfers, of which it is given the bytes by sender and receiver, so that every
// host sends to one other at a time, and receives from one, and all is done when the busiest host
// is: an open shop with preemption (Gonzalez and Sahni 1976), which takes as long as its largest
// row or column. The sends are in the order of their starts. Hosts that have nothing to do with
// each other are scheduled apart.
func OnePort(bytes map[[2]int]int) []Send {
	var sends []Send
	for _, links := range components(bytes) {
		s := newShop(links)
		for s.left > 0 {
			s.cover()
			s.advance()
		}
		sends = append(sends, s.sends...)
	}
	slices.SortStableFunc(sends, func(a, b Send) int {
		return cmp.Or(a.Start-b.Start, a.From-b.From)
	})
	return sends
}

// components cuts a traffic matrix into parts that share no host as sender or as receiver, in a
// fixed order.
func components(matrix map[[2]int]int) [][]Send {
	links := slices.SortedFunc(maps.Keys(matrix), func(a, b [2]int) int {
		return cmp.Or(a[0]-b[0], a[1]-b[1])
	})
	parent := map[[2]int][2]int{} // ports: (host, 0) sends, (host, 1) receives
	var find func(x [2]int) [2]int
	find = func(x [2]int) [2]int {
		if y, ok := parent[x]; ok && y != x {
			parent[x] = find(y)
			return parent[x]
		}
		return x
	}
	for _, l := range links {
		if a, b := find([2]int{l[0], 0}), find([2]int{l[1], 1}); a != b {
			parent[a] = b
		}
	}
	index := map[[2]int]int{}
	var parts [][]Send
	for _, l := range links {
		root := find([2]int{l[0], 0})
		if _, ok := index[root]; !ok {
			index[root] = len(parts)
			parts = append(parts, nil)
		}
		parts[index[root]] = append(parts[index[root]],
			Send{From: l[0], To: l[1], Bytes: matrix[l]})
	}
	return parts
}
