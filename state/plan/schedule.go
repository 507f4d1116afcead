package plan

import (
	"cmp"
	"maps"
	"slices"
)

// A Transfer is a time in which one host sends to another. Start and Bytes are both counted in
// bytes at the rate of a port.
type Transfer struct {
	From, To     int // the two hosts
	Start, Bytes int // when it begins, from 0, and how long it takes
}

// Schedule orders the transfers of the plan, as ScheduleOnePort does. Any goroutine may call it.
//
// Bytes that a receiver passes on follow the ones that it receives. If a plan has a depth above 1,
// run the schedule over slices of the boxes and pass a slice on in the round after its arrival.
func (p *Plan) Schedule() []Transfer {
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
	return ScheduleOnePort(matrix)
}

// ScheduleOnePort orders transfers, given as bytes by sender and receiver, so that every host sends
// to one other at a time, and receives from one, and everything is done when the busiest host is:
// an open shop with preemption (Gonzalez and Sahni 1976), which takes as long as its largest row or
// column. The result is in the order of starts. Hosts that share no traffic are scheduled
// independently.
func ScheduleOnePort(bytes map[[2]int]int) []Transfer {
	var sends []Transfer
	for _, links := range components(bytes) {
		s := newOpenShop(links)
		for s.remaining > 0 {
			s.matchPorts()
			s.advance()
		}
		sends = append(sends, s.sends...)
	}
	slices.SortStableFunc(sends, func(a, b Transfer) int {
		return cmp.Or(a.Start-b.Start, a.From-b.From)
	})
	return sends
}

// components splits a traffic matrix into parts that share no host as sender or as receiver, in a
// fixed order.
func components(matrix map[[2]int]int) [][]Transfer {
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
	var parts [][]Transfer
	for _, l := range links {
		root := find([2]int{l[0], 0})
		if _, ok := index[root]; !ok {
			index[root] = len(parts)
			parts = append(parts, nil)
		}
		parts[index[root]] = append(parts[index[root]],
			Transfer{From: l[0], To: l[1], Bytes: matrix[l]})
	}
	return parts
}
