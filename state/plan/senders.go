package plan

// A demand is bytes that some hosts must send between them, each as much of them as it likes.
type demand struct {
	senders []int32
	bytes   int
}

// balance shares out the demands so that the busiest host sends as little as possible. It returns
// what each sender of each demand sends, and that least possible maximum, in whole bytes.
//
// Whether a maximum is possible is a question of maximum flow; if not, the minimum cut names
// demands whose senders can, all together, not meet them under it, and so a larger maximum that is
// necessary. From below, a few rounds reach the least one (the discrete Newton method).
func balance(demands []demand, hosts int) (sent [][]int, limit int) {
	sent = make([][]int, len(demands))
	fixed := make([]int, hosts) // what hosts send that are the only sender
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
		n.connect(source, k, demands[i].bytes)
		for _, h := range demands[i].senders {
			arcs[k] = append(arcs[k], n.connect(k, len(open)+int(h), demands[i].bytes))
		}
	}
	caps := make([]int, hosts)
	for h := range hosts {
		caps[h] = n.connect(len(open)+h, sink, limit-fixed[h])
	}
	flowing := n.push(source, sink)
	for flowing < total {
		higher := n.necessary(len(open), fixed, func(k int) int { return demands[open[k]].bytes })
		for h := range hosts {
			n.arcs[caps[h]].room += higher - limit
		}
		limit = higher
		flowing += n.push(source, sink)
	}
	for k, i := range open {
		for j, a := range arcs[k] {
			sent[i][j] = n.flowOn(a)
		}
	}
	return sent, limit
}

// necessary returns the maximum that the minimum cut of a flow that falls short asks for: its
// demands, with what its hosts send anyway, spread evenly over its hosts.
func (n *network) necessary(demands int, fixed []int, bytes func(k int) int) int {
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
