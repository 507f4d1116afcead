package simtest

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/state/reshape"
	"github.com/shoal-ml/shoal/topo"
)

// A redundant job has its ranks placed by the planner of the agents: the boxes are a tensor that is
// cut over tp. Nothing here changes the Cluster.

// rules is the layout that says so.
const rules = `{"shoal": "layout/1", "mesh": "dp=1,tp=1",
	"rules": [{"match": "**", "place": "tp=shard(0,balanced)"}]}`

// placeRedundantly lists the workers, of the members, that take the ranks of the mesh of text when
// they come from the shape s.
func (c *Cluster) placeRedundantly(s *head.Shape, text string,
	members topo.View) (order []topo.WorkerID,
	err error) {
	state, err := reshape.NewState(
		&reshape.Statement{Layout: rules, Mesh: c.undealtMesh(text),
			Tensors: []reshape.Tensor{{Name: "boxes", DType: "i64", Shape: []int{boxes}}}})
	if err != nil {
		return nil, err
	}
	old, err := state.OnMesh(c.undealtMesh(s.Mesh))
	if err != nil {
		return nil, err
	}
	new, err := state.OnMesh(c.undealtMesh(text))
	if err != nil {
		return nil, err
	}
	at := reshape.Placement{Redundant: true}
	names := hostsOf(members)
	for _, m := range members.Members {
		at.Hosts = append(at.Hosts, slices.Index(names, m.Host))
	}
	for _, name := range names {
		at.Kinds = append(at.Kinds, kindOf(s, name))
	}
	for _, name := range s.Leaving {
		if i := slices.Index(names, name); i >= 0 {
			at.Leaving = append(at.Leaving, i)
		}
	}
	for _, w := range s.Workers {
		at.Ranks = append(at.Ranks, slices.IndexFunc(members.Members, func(m topo.Member) bool {
			return m.Worker == w
		}))
	}
	change, err := reshape.PlanChange(old, new, at)
	if err != nil {
		return nil, err
	}
	for _, i := range change.Workers {
		order = append(order, members.Members[i].Worker)
	}
	return order, nil
}

// undealtMesh is the text of a mesh without shares and chunks: the boxes are not dealt by them.
func (c *Cluster) undealtMesh(text string) string {
	m, _ := c.parseMesh(text)
	for i := range m.Mesh {
		m.Mesh[i].Shares, m.Mesh[i].Chunks = nil, 0
	}
	return m.String()
}

// hostsOf lists the hosts of members, each once, in order.
func hostsOf(v topo.View) (names []string) {
	for _, m := range v.Members {
		names = append(names, m.Host)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// loneReplicaText says which part of the state is on one host alone, though the ranks of a mesh
// could be placed so that none is; "" = none. A host takes at most all ranks but one of each part.
// Where the mesh names kinds of hosts nothing is said: the ranks may have to be where they are.
func loneReplicaText(m mesh, order []topo.WorkerID, members topo.View) string {
	room := 0
	for _, name := range hostsOf(members) {
		here := 0
		for _, x := range members.Members {
			if x.Host == name {
				here++
			}
		}
		room += min(here, m.rankCount()-m.tp)
	}
	if m.unreplicated || room < m.rankCount() || m.Kinds() != nil {
		return ""
	}
	for part := range m.tp {
		of := map[string]bool{}
		for r, w := range order {
			if i, member := members.Rank(w); member && m.partOf(r) == part {
				of[members.Members[i].Host] = true
			}
		}
		if len(of) < 2 {
			return fmt.Sprintf("part %d of mesh %s is on %v alone: %v of %v", part, m, of, order,
				members)
		}
	}
	return ""
}
