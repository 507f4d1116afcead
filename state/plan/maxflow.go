package plan

// A network is a directed graph with capacities. Dinic's method (1970) finds its maximum flow.
// It does no I/O and is for one goroutine at a time.
type network struct {
	head  []int // last arc of each node, -1 = none
	arcs  []arc // pairs of an arc and its reverse
	level []int // distance of each node from the source, -1 = out of reach
	next  []int // arc of each node to try next
}

// An arc is one direction of a connection. The reverse of arc i is arc i^1.
type arc struct {
	to       int // node at its end
	next     int // next arc of the node at its beginning, -1 = none
	residual int // capacity that is left
}

// newNetwork returns a network of so many nodes, without arcs.
func newNetwork(nodes int) *network {
	return &network{head: repeatInt(nodes, -1), level: make([]int, nodes), next: make([]int, nodes)}
}

// addArc adds an arc from one node to another, and its reverse, which has no capacity, and returns
// the number of the arc.
func (n *network) addArc(from, to, capacity int) int {
	n.arcs = append(n.arcs, arc{to, n.head[from], capacity}, arc{from, n.head[to], 0})
	n.head[from], n.head[to] = len(n.arcs)-2, len(n.arcs)-1
	return len(n.arcs) - 2
}

// flowOn returns the flow over an arc.
func (n *network) flowOn(arc int) int { return n.arcs[arc^1].residual }

// maxFlow sends the maximum flow from source to sink on top of the present one, and returns how
// much it adds.
func (n *network) maxFlow(source, sink int) (total int) {
	for n.setLevels(source, sink) {
		copy(n.next, n.head)
		for {
			f := n.augmentPath(source, sink, forbidden)
			if f == 0 {
				break
			}
			total += f
		}
	}
	return total
}

// setLevels sets the distance of each node from the source over arcs with residual capacity, and
// reports whether the sink is in reach.
func (n *network) setLevels(source, sink int) bool {
	for i := range n.level {
		n.level[i] = -1
	}
	n.level[source] = 0
	queue := []int{source}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for a := n.head[at]; a >= 0; a = n.arcs[a].next {
			if to := n.arcs[a].to; n.arcs[a].residual > 0 && n.level[to] < 0 {
				n.level[to] = n.level[at] + 1
				queue = append(queue, to)
			}
		}
	}
	return n.level[sink] >= 0
}

// augmentPath sends flow along one path of rising levels from a node to the sink, at most limit,
// and returns how much.
func (n *network) augmentPath(at, sink, limit int) int {
	if at == sink {
		return limit
	}
	for ; n.next[at] >= 0; n.next[at] = n.arcs[n.next[at]].next {
		a := n.next[at]
		to := n.arcs[a].to
		if n.arcs[a].residual == 0 || n.level[to] != n.level[at]+1 {
			continue
		}
		if f := n.augmentPath(to, sink, min(limit, n.arcs[a].residual)); f > 0 {
			n.arcs[a].residual -= f
			n.arcs[a^1].residual += f
			return f
		}
	}
	return 0
}
