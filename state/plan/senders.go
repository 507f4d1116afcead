package plan

// A demand is a number of bytes that some hosts must send between them, in any shares.
type demand struct {
	senders []int32 // hosts that have the bytes
	bytes   int
}

// balanceSenders shares out the demands so that the busiest of so many hosts sends as little as
// possible. It returns what each sender of each demand sends, and that least maximum, in bytes. It
// does no I/O, and changes nothing of demands.
//
// Maximum flow decides whether a maximum is possible. If it is not, the minimum cut names demands
// that their senders cannot meet together, and thereby a larger maximum that is necessary. From
// below, a few rounds reach the least one (the discrete Newton method).
func balanceSenders(demands []demand, hosts int) (sent [][]int, limit int) {
	sent = make([][]int, len(demands))
	fixed := make([]int, hosts) // bytes of demands with one sender
	total := 0
	var open []int
	for i, d := range demands {
		sent[i] = make([]int, len(d.senders))
		if len(d.senders) == 1 {
			sent[i][0] = d.bytes
			fixed[d.senders[0]] += d.bytes
			limit = max(limit, fixed[d.senders[0]])
		} else if d.bytes > 0 {
			open = append(open, i)
			total += d.bytes
		}
	}
	if len(open) == 0 {
		return sent, limit
	}
	source, sink := len(open)+hosts, len(open)+hosts+1
	n := newNetwork(sink + 1)
	arcs := make([][]int, len(open))
	for k, i := range open {
		n.addArc(source, k, demands[i].bytes)
		for _, h := range demands[i].senders {
			arcs[k] = append(arcs[k], n.addArc(k, len(open)+int(h), demands[i].bytes))
		}
	}
	caps := make([]int, hosts)
	for h := range hosts {
		caps[h] = n.addArc(len(open)+h, sink, limit-fixed[h])
	}
	flowing := n.maxFlow(source, sink)
	for flowing < total {
		higher := n.cutBound(len(open), fixed, func(k int) int { return demands[open[k]].bytes })
		for h := range hosts {
			n.arcs[caps[h]].residual += higher - limit
		}
		limit = higher
		flowing += n.maxFlow(source, sink)
	}
	for k, i := range open {
		for j, a := range arcs[k] {
			sent[i][j] = n.flowOn(a)
		}
	}
	return sent, limit
}

// cutBound returns the maximum, in bytes, that the minimum cut of an insufficient flow requires:
// its demands, with what its hosts send anyway (fixed), spread evenly over its hosts. demands is
// the number of demands, and bytes(k) what demand k asks for. maxFlow has set the levels.
func (n *network) cutBound(demands int, fixed []int, bytes func(k int) int) int {
	load, hosts := 0, 0
	for k := range demands {
		if n.level[k] >= 0 {
			load += bytes(k)
		}
	}
	for h := range fixed {
		if n.level[demands+h] >= 0 {
			load += fixed[h]
			hosts++
		}
	}
	return (load + hosts - 1) / hosts
}
