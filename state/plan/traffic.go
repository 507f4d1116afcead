package plan

import (
	"fmt"
	"slices"
)

// traffic is the plan as the network sees it: which hosts hold and which groups need how many
// bytes.
type traffic struct {
	hosts, groups int
	holders       [][]int32 // sets of hosts, each once
	needers       [][]int32 // sets of groups, each once
	holder        []int     // of each old set of the plan: index in holders
	needer        []int     // of each new set: index in needers
	flows         []flow
	flow          []int // of each pair: index in flows
}

// A flow is bytes that the same hosts hold and the same groups need.
type flow struct {
	holders, needers int
	bytes            int
}

// traffic forgets which ranks of a host hold, and which ranks of a group need something; group is
// that of each new rank.
func (p *Plan) traffic(group []int, groups int) *traffic {
	t := &traffic{hosts: len(p.Cluster.Devices), groups: groups}
	holders, needers := map[string]int{}, map[string]int{}
	for _, set := range p.oldSets {
		t.holder = append(t.holder, intern(&t.holders, holders, project(set, p.Cluster.Old)))
	}
	for _, set := range p.newSets {
		t.needer = append(t.needer, intern(&t.needers, needers, project(set, group)))
	}
	index := map[[2]int]int{}
	for _, pair := range p.pairs {
		key := [2]int{t.holder[pair.old], t.needer[pair.new]}
		f, ok := index[key]
		if !ok {
			f = len(t.flows)
			index[key] = f
			t.flows = append(t.flows, flow{holders: key[0], needers: key[1]})
		}
		t.flows[f].bytes += pair.bytes
		t.flow = append(t.flow, f)
	}
	return t
}

// project returns where the ranks of a set are, ascending and each place once, without those that
// are lost.
func project[S ~[]int32](set S, where []int) []int32 {
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

// A LostError says which tensors cannot be brought over, because parts of them were on lost ranks
// only. They are in the last checkpoint.
type LostError struct {
	Tensors []string // in the order of the catalogue
	Ranks   []int    // of which any one would have been enough for the first of them
	Bytes   int      // of state, over all tensors
}

func (e *LostError) Error() string {
	return fmt.Sprintf("plan: %d bytes of %d tensors, %s the first, were on lost ranks only "+
		"(%v); restore them from a checkpoint", e.Bytes, len(e.Tensors), e.Tensors[0], e.Ranks)
}

// lost reports what nobody holds any more.
func (t *traffic) lost(p *Plan) error {
	var e LostError
	gone := map[int]bool{}
	for i := range p.classes {
		c := &p.classes[i]
		for k, a := range c.atoms {
			pair := &p.pairs[c.pair[k]]
			if len(t.holders[t.holder[pair.old]]) > 0 {
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
