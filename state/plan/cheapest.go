package plan

import (
	"cmp"
	"container/heap"
)

// A price has parts of which nothing in one outweighs anything in the part before it.
type price struct{ alone, bytes, order int }

func (p price) plus(q price) price {
	return price{p.alone + q.alone, p.bytes + q.bytes, p.order + q.order}
}
func (p price) minus(q price) price {
	return price{p.alone - q.alone, p.bytes - q.bytes, p.order - q.order}
}

func (p price) below(q price) bool {
	return cmp.Or(cmp.Compare(p.alone, q.alone), cmp.Compare(p.bytes, q.bytes),
		cmp.Compare(p.order, q.order)) < 0
}

// A market is a network whose arcs have prices, none below zero. Sending one after the other the
// cheapest way gives a flow of least price (successive shortest paths with potentials: Tomizawa
// 1971, Edmonds and Karp 1972).
type market struct {
	*network
	prices    []price // of each arc
	potential []price // of each node
	dist      []price
	by        []int // of each node: the arc that it is reached by, -1 for none
	seen      []bool
	queue     queue
}

func newMarket(nodes int) *market {
	return &market{network: newNetwork(nodes), potential: make([]price, nodes),
		dist: make([]price, nodes), by: make([]int, nodes), seen: make([]bool, nodes)}
}

// offer adds an arc and returns its number.
func (m *market) offer(from, to, capacity int, p price) int {
	m.prices = append(m.prices, p, price{}.minus(p))
	return m.connect(from, to, capacity)
}

// send lets one more flow from a node to another. There must be a way.
func (m *market) send(source, sink int) {
	for i := range m.by {
		m.by[i], m.seen[i] = -1, false
	}
	m.dist[source], m.queue = price{}, append(m.queue[:0], waiting{node: source})
	reached := []int{}
	for {
		next := heap.Pop(&m.queue).(waiting)
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
		a := m.by[at]
		m.arcs[a].room--
		m.arcs[a^1].room++
		at = m.arcs[a^1].to
	}
}

// relax looks where one can get from a node.
func (m *market) relax(at, source int) {
	for a := m.head[at]; a >= 0; a = m.arcs[a].next {
		to := m.arcs[a].to
		if m.arcs[a].room == 0 || m.seen[to] {
			continue
		}
		d := m.dist[at].plus(m.prices[a]).plus(m.potential[at]).minus(m.potential[to])
		if to != source && (m.by[to] < 0 || d.below(m.dist[to])) {
			m.dist[to], m.by[to] = d, a
			heap.Push(&m.queue, waiting{d, to})
		}
	}
}

// waiting is a node that has been reached; a queue has the nearest first.
type waiting struct {
	dist price
	node int
}

type queue []waiting

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].dist.below(q[j].dist) || q[i].dist == q[j].dist && q[i].node < q[j].node
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(waiting)) }
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
