package plan

import (
	"cmp"
	"fmt"
	"slices"
)

// How a plan decides which host and which device takes each new rank. Only Build calls the methods
// of Plan here that set something, before others have the plan; nothing here does I/O.

// checkGroups fails when a group, of which size has the numbers of ranks, finds no host with enough
// devices.
func (c *Cluster) checkGroups(size []int) error {
	devices := slices.SortedFunc(slices.Values(c.Devices), func(a, b int) int { return b - a })
	for i, n := range slices.SortedFunc(slices.Values(size), func(a, b int) int { return b - a }) {
		if n > devices[i] {
			return fmt.Errorf("plan: a group of %d ranks finds no host: the %d largest groups "+
				"need as many hosts with %d devices or more", n, i+1, n)
		}
	}
	return nil
}

// mayTake reports whether a host may take a group of so many ranks.
func (c *Cluster) mayTake(host, group, ranks int) bool {
	return ranks <= c.Devices[host] && (c.Allowed == nil || c.Allowed[group][host])
}

// checkMatching fails when groups, of which size has the numbers of ranks, find no hosts that may
// take them, each one of its own. It names a group that is too many.
func (c *Cluster) checkMatching(size []int) error {
	hosts := len(c.Devices)
	m := matching{allowed: func(g, h int) bool { return c.mayTake(h, g, size[g]) },
		column: repeatInt(len(size), -1), row: repeatInt(hosts, -1), seen: make([]bool, hosts)}
	for g, n := range size {
		clear(m.seen)
		if !m.augment(g) {
			return fmt.Errorf("plan: group %d of %d ranks finds no host that may take it beside "+
				"the groups before it", g, n)
		}
	}
	return nil
}

// placeGroups returns the host of each group: as few bytes as possible over the network in all, and
// among such placements one in which the busiest receiver receives least. It sets Bytes and Bound
// of the stats.
func (t *traffic) placeGroups(c Cluster, s *Stats) []int {
	need, has := t.groupNeeds()
	total := 0
	for _, n := range need {
		total += n
	}
	home := make([]int, t.groups)
	for g := range home {
		home[g] = g
	}
	host := home
	if !c.Fixed {
		cost := make([]int, len(has))
		for i, n := range has {
			cost[i] = -n
		}
		size := c.groupSizes()
		for g := range t.groups {
			for h := range c.Devices {
				if !c.mayTake(h, g, size[g]) {
					cost[g*t.hosts+h] = forbidden
				}
			}
		}
		column, u, v := assignColumns(cost, t.groups, t.hosts, home)
		a := assignment{cost: cost, cols: t.hosts, column: column, u: u, v: v}
		host = a.minBottleneck(func(g, h int) int { return need[g] - has[g*t.hosts+h] })
		s.Bound = total + sum(u) + sum(v)
	}
	s.Bytes = total
	for g, h := range host {
		s.Bytes -= has[g*t.hosts+h]
	}
	if c.Fixed {
		s.Bound = s.Bytes
	}
	if s.Bytes != s.Bound {
		panic(fmt.Sprintf("plan: %d bytes are moved, the dual says that %d are enough", s.Bytes,
			s.Bound))
	}
	return host
}

// groupNeeds returns the bytes that each group needs, and has[group*hosts+host], the bytes of them
// that each host holds.
func (t *traffic) groupNeeds() (need, has []int) {
	need, has = make([]int, t.groups), make([]int, t.groups*t.hosts)
	for _, f := range t.flows {
		for _, g := range t.needers[f.needers] {
			need[g] += f.bytes
			row := has[int(g)*t.hosts:][:t.hosts]
			for _, h := range t.holders[f.holders] {
				row[h] += f.bytes
			}
		}
	}
	return need, has
}

// sum adds numbers up.
func sum(list []int) (n int) {
	for _, x := range list {
		n += x
	}
	return n
}

// assignDevices sets the devices of the plan, so that as few bytes as possible change the device on
// a host, and counts the bytes that do in the stats.
func (p *Plan) assignDevices() {
	p.Device = make([]int, p.Dst.Ranks)
	ranks := make([][]int, len(p.byHost))
	for r, h := range p.Host {
		p.Device[r] = len(ranks[h])
		ranks[h] = append(ranks[h], r)
	}
	if !p.Cluster.Fresh {
		p.reuseMemory(ranks)
	}
	for i := range p.pairs {
		p.Stats.Device += p.pairs[i].bytes * len(p.newSets[p.pairs[i].new])
	}
}

// reuseMemory sets the devices of the new ranks of each host, given by ranks, to those that hold
// most of what they need, and takes these bytes from the stats.
func (p *Plan) reuseMemory(ranks [][]int) {
	stay := p.bytesOnDevices(ranks)
	for h, new := range ranks {
		if len(new) == 0 {
			continue
		}
		devices := len(stay[h]) / len(new)
		column := make([]int, len(new))
		for i := range column {
			column[i] = i
		}
		if !p.Cluster.Fixed {
			cost := make([]int, len(stay[h]))
			for i, n := range stay[h] {
				cost[i] = -n
			}
			column, _, _ = assignColumns(cost, len(new), devices, slices.Clone(column))
		}
		for i, r := range new {
			p.Device[r] = column[i]
			p.Stats.Device -= stay[h][i*devices+column[i]]
		}
	}
}

// bytesOnDevices returns for each host the bytes that each of its new ranks, given by ranks, finds
// on each of its devices: row by row, a row for each new rank.
func (p *Plan) bytesOnDevices(ranks [][]int) [][]int {
	stay := make([][]int, len(ranks))
	device := make([]int, p.Src.Ranks)
	for h, old := range p.byHost {
		stay[h] = make([]int, len(ranks[h])*max(p.Cluster.Devices[h], len(old)))
		for d, r := range old {
			device[r] = d
		}
	}
	for i := range p.pairs {
		pair := &p.pairs[i]
		for _, r := range p.newSets[pair.new] {
			h := p.Host[r]
			width := max(p.Cluster.Devices[h], len(p.byHost[h]))
			for _, old := range p.oldRanksOnHost(pair.old, h) {
				stay[h][p.Device[r]*width+device[old]] += pair.bytes
			}
		}
	}
	return stay
}

// oldRanksOnHost returns the old ranks of a set, given by its number, that are on a host, in
// ascending order. Any goroutine may call it.
func (p *Plan) oldRanksOnHost(set, host int) []int {
	var found []int
	s := p.oldSets[set]
	for _, r := range p.byHost[host] {
		if _, ok := slices.BinarySearchFunc(s, int32(r), cmp.Compare[int32]); ok {
			found = append(found, r)
		}
	}
	return found
}
