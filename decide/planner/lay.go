package planner

import (
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
)

// Which hosts and links the workers of a grid are on, before layers are cut into stages: transfers
// and averaging take time by that. A grid is the degrees of plans and the kinds of devices that
// they are on. lay sets grid.laid; the others only read the grid. All runs on the goroutine of the
// problem, which belongs to one call of Solve or Judge.

// laid is where the workers of a grid are, as far as that makes a difference.
type laid struct {
	classes []class
	classOf []int   // by replica: number of its class
	rings   [][]way // by stage: over what its replicas average
}

// A class is replicas that are on devices of the same kinds.
type class struct {
	costs []*costs // by stage
	ways  [][]way  // by stage: over what it sends to the next
}

// A way is a link, over which workers of one host send so many messages at the same time.
type way struct {
	link     *cluster.Link
	messages int
}

// kindOf returns the kind of the devices of a stage of a replica, as its number in problem.kinds.
func (g *grid) kindOf(replica, stage int) int {
	if g.byReplica {
		return g.on[replica]
	}
	return g.on[stage]
}

// groups lists, for so many ranks, tp, that share layers and must be on one host, where such a
// group can be on devices of a kind: the first place of each, in the order of hosts of a number.
// Nobody changes the list, which the problem keeps.
func (p *problem) groups(order, kind, tp int) (list []cluster.Place) {
	key := [3]int{order, kind, tp}
	if known, is := p.grouped[key]; is {
		return known
	}
	places := p.orders[order]
	for i := 0; i+tp <= len(places); {
		first, last := places[i], places[i+tp-1]
		switch {
		case first.Host != last.Host:
			i++
		case first.Kind != p.kinds[kind].Name:
			i++
		default:
			list = append(list, first)
			i += tp
		}
	}
	p.grouped[key] = list
	return list
}

// mostMicro bounds the micro-batches of all stages of a replica, so that a step can be played.
const mostMicro = 1 << 21

// isPlayable reports whether a grid has no more micro-batches than can be played.
func (g *grid) isPlayable() bool { return max(g.micro, g.total)*g.stages <= mostMicro }

// lay finds where the workers of a grid are. It reports whether there are places for them, the
// layers were measured on their devices, and a step can be played.
func (p *problem) lay(g *grid) bool {
	if !g.isPlayable() {
		return false
	}
	place, is := p.fill(g)
	if !is {
		return false
	}
	l := &laid{rings: make([][]way, g.stages)}
	var seen []int // by class: the kind of its devices, where replicas have one
	for r := range g.replicas {
		kind := 0
		if g.byReplica {
			kind = g.on[r]
		}
		number := slices.Index(seen, kind)
		if number < 0 {
			number, seen = len(seen), append(seen, kind)
			k := class{costs: make([]*costs, g.stages), ways: make([][]way, g.stages)}
			for s := range g.stages {
				if k.costs[s] = p.costs(g.kindOf(r, s), g.tp, g.sample); k.costs[s] == nil {
					return false
				}
			}
			l.classes = append(l.classes, k)
		}
		l.classOf = append(l.classOf, number)
	}
	for s := range g.stages {
		from := func(r int) cluster.Place { return place(r, s) }
		if s+1 < g.stages {
			p.eachWay(g, 1, from, func(r int) cluster.Place { return place(r, s+1) },
				func(r int, w way) {
					ways := &l.classes[l.classOf[r]].ways[s]
					if !slices.Contains(*ways, w) {
						*ways = append(*ways, w)
					}
				})
		}
		if g.replicas > 1 {
			p.eachWay(g, g.tp, from,
				func(r int) cluster.Place { return place((r+1)%g.replicas, s) },
				func(_ int, w way) {
					if !slices.Contains(l.rings[s], w) {
						l.rings[s] = append(l.rings[s], w)
					}
				})
		}
	}
	g.laid = l
	return true
}

// eachWay calls yield, for each replica r, with the way from the place from(r) to the place to(r),
// where each sends so many messages at the same time.
func (p *problem) eachWay(g *grid, messages int, from, to func(r int) cluster.Place,
	yield func(r int, w way)) {
	leave, come := map[string]int{}, map[string]int{} // messages by host, between hosts
	for r := range g.replicas {
		if a, b := from(r), to(r); a.Host != b.Host {
			leave[a.Host] += messages
			come[b.Host] += messages
		}
	}
	for r := range g.replicas {
		a, b := from(r), to(r)
		w := way{link: p.all.Link(a, b), messages: messages}
		if a.Host != b.Host {
			w.messages = max(leave[a.Host], come[b.Host])
		}
		yield(r, w)
	}
}

// hostsOf lists the hosts of a grid in the order in which its ranks fill them.
func (p *problem) hostsOf(g *grid) []string {
	other := g.replicas // how many groups a stage, or a replica, has
	if g.byReplica {
		other = g.stages
	}
	var all []cluster.Place
	for k := range p.kinds {
		count := 0 // stages, or replicas, of the kind
		for _, on := range g.on {
			if on == k {
				count++
			}
		}
		if count > 0 {
			all = append(all, p.groups(g.order, k, g.tp)[:count*other]...)
		}
	}
	return hostsOf(all)
}

// fill returns where each worker of a grid is: for a replica and a stage, the first place of the
// ranks that share its layers. It reports whether there are places for all.
func (p *problem) fill(g *grid) (place func(replica, stage int) cluster.Place,
	enough bool) {
	count := make([]int, len(p.kinds)) // stages, or replicas, of a kind
	number := make([]int, len(g.on))   // of each of them among those of its kind
	for i, k := range g.on {
		number[i] = count[k]
		count[k]++
	}
	groups := make([][]cluster.Place, len(p.kinds))
	other := g.replicas // how many groups a stage, or a replica, has
	if g.byReplica {
		other = g.stages
	}
	for k := range p.kinds {
		if count[k] == 0 {
			continue
		}
		if groups[k] = p.groups(g.order, k, g.tp); len(groups[k]) < count[k]*other {
			return nil, false
		}
	}
	return func(replica, stage int) cluster.Place {
		replicas, stages, r, s := g.replicas, 0, replica, 0
		k := g.kindOf(replica, stage)
		if g.byReplica {
			replicas, stages, r, s = count[k], g.stages, number[replica], stage
		} else {
			stages, s = count[k], number[stage]
		}
		if g.dpFast {
			return groups[k][s*replicas+r]
		}
		return groups[k][r*stages+s]
	}, true
}
