package plan

import (
	"fmt"
	"slices"
)

// A traffic is the plan as the network sees it: which hosts hold and which groups need how many
// bytes. It is not changed once reduceToHosts has returned it; its methods compute, without I/O,
// and any goroutine may call them.
type traffic struct {
	hosts, groups int       // how many there are
	holders       [][]int32 // sets of hosts, each once
	needers       [][]int32 // sets of groups, each once
	holderOf      []int     // index in holders of each old set of the plan
	neederOf      []int     // index in needers of each new set of the plan
	flows         []flow
	flowOf        []int // index in flows of each pair
}

// A flow is bytes that the same hosts hold and the same groups need.
type flow struct {
	holders, needers int // indices in the lists of the traffic
	bytes            int
}

// reduceToHosts returns the traffic of the plan: ranks are reduced to hosts for what they hold, and
// to groups for what they need. group is the group of each new rank, and groups their number. It
// changes nothing of the plan.
func (p *Plan) reduceToHosts(group []int, groups int) *traffic {
	t := &traffic{hosts: len(p.Cluster.Devices), groups: groups}
	holders, needers := map[string]int{}, map[string]int{}
	for _, set := range p.oldSets {
		t.holderOf = append(t.holderOf, intern(&t.holders, holders, hostsOf(set, p.Cluster.Old)))
	}
	for _, set := range p.newSets {
		t.neederOf = append(t.neederOf, intern(&t.needers, needers, hostsOf(set, group)))
	}
	index := map[[2]int]int{}
	for _, pair := range p.pairs {
		key := [2]int{t.holderOf[pair.old], t.neederOf[pair.new]}
		f, ok := index[key]
		if !ok {
			f = len(t.flows)
			index[key] = f
			t.flows = append(t.flows, flow{holders: key[0], needers: key[1]})
		}
		t.flows[f].bytes += pair.bytes
		t.flowOf = append(t.flowOf, f)
	}
	return t
}

// hostsOf returns the hosts or groups of the ranks of a set, ascending and each once, without lost
// ones. where is the host or group of each rank.
func hostsOf[S ~[]int32](set S, where []int) []int32 {
	var places []int32
	for _, r := range set {
		if h := where[r]; h != Lost && (len(places) == 0 || places[len(places)-1] != int32(h)) {
			places = append(places, int32(h))
		}
	}
	if !slices.IsSorted(places) {
		slices.Sort(places)
	}
	return slices.Compact(places)
}

// A LostError names tensors that cannot be moved, because parts of them were on lost ranks only.
// The last checkpoint has them.
type LostError struct {
	Tensors []string // in the order of the catalogue
	Ranks   []int    // ranks any one of which would have been enough for the first tensor
	Bytes   int      // bytes of state, over all tensors
}

// Error says how much of which tensors is lost, and what to do.
func (e *LostError) Error() string {
	return fmt.Sprintf("plan: %d bytes of %d tensors, %s the first, were on lost ranks only "+
		"(%v); restore them from a checkpoint", e.Bytes, len(e.Tensors), e.Tensors[0], e.Ranks)
}

// checkLost fails with a *LostError when nobody holds a needed element of plan p any more.
func (t *traffic) checkLost(p *Plan) error {
	var e LostError
	gone := map[int]bool{}
	for i := range p.classes {
		c := &p.classes[i]
		for k, a := range c.overlaps {
			pair := &p.pairs[c.pair[k]]
			if len(t.holders[t.holderOf[pair.old]]) > 0 {
				continue
			}
			if e.Ranks == nil {
				for _, r := range p.oldSets[pair.old] {
					e.Ranks = append(e.Ranks, int(r))
				}
			}
			e.Bytes += a.elements * c.size * len(c.members)
			for _, m := range c.members {
				gone[m.tensor] = true
			}
		}
	}
	if len(gone) == 0 {
		return nil
	}
	for i, tensor := range p.Dst.Tensors {
		if gone[i] {
			e.Tensors = append(e.Tensors, tensor.Name)
		}
	}
	return &e
}
