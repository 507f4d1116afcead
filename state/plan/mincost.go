package plan

import (
	"cmp"
	"container/heap"
)

// A cost compares its fields in order: no amount of a later field outweighs an earlier one.
type cost struct{ unreplicated, bytes, order int }

// plus returns the sum of two costs, field by field.
func (p cost) plus(q cost) cost {
	return cost{p.unreplicated + q.unreplicated, p.bytes + q.bytes, p.order + q.order}
}

// minus returns the difference of two costs, field by field.
func (p cost) minus(q cost) cost {
	return cost{p.unreplicated - q.unreplicated, p.bytes - q.bytes, p.order - q.order}
}

// less reports whether p is lower than q.
func (p cost) less(q cost) bool {
	return cmp.Or(cmp.Compare(p.unreplicated, q.unreplicated), cmp.Compare(p.bytes, q.bytes),
		cmp.Compare(p.order, q.order)) < 0
}

// A minCostFlow is a network whose arcs have costs, none below zero. Sending one unit after the
// other along the cheapest path gives a flow of least cost (successive shortest paths with
// potentials: Tomizawa 1971, Edmonds and Karp 1972). It does no I/O and is for one goroutine at a
// time.
type minCostFlow struct {
	*network
	costs     []cost // cost of each arc
	potential []cost // potential of each node
	dist      []cost // distance of each node from the source
	arcTo     []int  // arc by which each node is reached, -1 = not reached
	seen      []bool // nodes whose distance is final
	queue     nodeQueue
}

// newMinCostFlow returns a network of so many nodes, without arcs.
func newMinCostFlow(nodes int) *minCostFlow {
	return &minCostFlow{network: newNetwork(nodes), potential: make([]cost, nodes),
		dist: make([]cost, nodes), arcTo: make([]int, nodes), seen: make([]bool, nodes)}
}

// addArc adds an arc of a capacity and a cost from one node to another, and its reverse, and
// returns its number.
func (m *minCostFlow) addArc(from, to, capacity int, p cost) int {
	m.costs = append(m.costs, p, cost{}.minus(p))
	return m.network.addArc(from, to, capacity)
}

// sendUnit sends one more unit from source to sink, on the cheapest path, and updates the
// potentials. A path must exist: without one it panics.
func (m *minCostFlow) sendUnit(source, sink int) {
	for i := range m.arcTo {
		m.arcTo[i], m.seen[i] = -1, false
	}
	m.dist[source], m.queue = cost{}, append(m.queue[:0], queuedNode{node: source})
	reached := []int{}
	for {
		next := heap.Pop(&m.queue).(queuedNode)
		if m.seen[next.node] {
			continue
		}
		if next.node == sink {
			break
		}
		m.seen[next.node] = true
		reached = append(reached, next.node)
		m.relax(next.node, source)
	}
	for _, node := range reached {
		m.potential[node] = m.potential[node].plus(m.dist[node]).minus(m.dist[sink])
	}
	for at := sink; at != source; {
		a := m.arcTo[at]
		m.arcs[a].residual--
		m.arcs[a^1].residual++
		at = m.arcs[a^1].to
	}
}

// relax updates the distances from source of the neighbours of a node, and queues those that have
// become nearer.
func (m *minCostFlow) relax(at, source int) {
	for a := m.head[at]; a >= 0; a = m.arcs[a].next {
		to := m.arcs[a].to
		if m.arcs[a].residual == 0 || m.seen[to] {
			continue
		}
		d := m.dist[at].plus(m.costs[a]).plus(m.potential[at]).minus(m.potential[to])
		if to != source && (m.arcTo[to] < 0 || d.less(m.dist[to])) {
			m.dist[to], m.arcTo[to] = d, a
			heap.Push(&m.queue, queuedNode{d, to})
		}
	}
}

// A queuedNode is a node that has been reached, with its distance then.
type queuedNode struct {
	dist cost
	node int
}

// A nodeQueue is a heap with the nearest node first.
type nodeQueue []queuedNode

// Len returns the number of nodes, for package heap.
func (q nodeQueue) Len() int { return len(q) }

// Less reports whether node i is nearer than node j, for package heap.
func (q nodeQueue) Less(i, j int) bool {
	return q[i].dist.less(q[j].dist) || q[i].dist == q[j].dist && q[i].node < q[j].node
}

// Swap exchanges nodes i and j, for package heap.
func (q nodeQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push appends a queuedNode, for package heap.
func (q *nodeQueue) Push(x any) { *q = append(*q, x.(queuedNode)) }

// Pop removes the last node and returns it, for package heap.
func (q *nodeQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
