package plan

// A network is a directed graph with capacities. Dinic's method (1970) finds its maximum flow.
type network struct {
	head  []int // of each node: its last arc, -1 for none
	arcs  []arc // in twos: an arc and its reverse
	level []int
	next  []int // of each node: the arc to try next
}

type arc struct {
	to, next int
	room     int // what more can flow
}

func newNetwork(nodes int) *network {
	return &network{head: fill(nodes, -1), level: make([]int, nodes), next: make([]int, nodes)}
}

// connect adds an arc and returns its number.
func (n *network) connect(from, to, capacity int) int {
	n.arcs = append(n.arcs, arc{to, n.head[from], capacity}, arc{from, n.head[to], 0})
	n.head[from], n.head[to] = len(n.arcs)-2, len(n.arcs)-1
	return len(n.arcs) - 2
}

// flowOn returns what flows over an arc.
func (n *network) flowOn(arc int) int { return n.arcs[arc^1].room }

// push finds the maximum flow on top of what flows already, and returns how much it adds.
func (n *network) push(source, sink int) (total int) {
	for n.levels(source, sink) {
		copy(n.next, n.head)
		for {
			f := n.blocking(source, sink, forbidden)
			if f == 0 {
				break
			}
			total += f
		}
	}
	return total
}

// levels measures the distance of each node from the source over arcs with room; -1 for those out
// of reach.
func (n *network) levels(source, sink int) bool {
	for i := range n.level {
		n.level[i] = -1
	}
	n.level[source] = 0
	queue := []int{source}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for a := n.head[at]; a >= 0; a = n.arcs[a].next {
			if to := n.arcs[a].to; n.arcs[a].room > 0 && n.level[to] < 0 {
				n.level[to] = n.level[at] + 1
				queue = append(queue, to)
			}
		}
	}
	return n.level[sink] >= 0
}

// blocking pushes flow along one path of rising levels.
func (n *network) blocking(at, sink, limit int) int {
	if at == sink {
		return limit
	}
	for ; n.next[at] >= 0; n.next[at] = n.arcs[n.next[at]].next {
		a := n.next[at]
		to := n.arcs[a].to
		if n.arcs[a].room == 0 || n.level[to] != n.level[at]+1 {
			continue
		}
		if f := n.blocking(to, sink, min(limit, n.arcs[a].room)); f > 0 {
			n.arcs[a].room -= f
			n.arcs[a^1].room += f
			return f
		}
	}
	return 0
}
