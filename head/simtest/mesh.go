package simtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/topo"
)

// The state of a job with a mesh is a model of one: boxes, each of which says its number and how
// many steps it has been through. The functions here only read the Cluster, on its one goroutine.

// boxes is the number of boxes of the state, which are numbered from 0.
const boxes = 12

// mesh is so many replicas (dp) of a state that is cut into parts (tp). The state of an
// unreplicated job is cut over both.
type mesh struct {
	layout.Mesh
	dp, tp       int
	unreplicated bool // no part is on two ranks
	beside       bool // replicas of a part have neighbouring ranks
}

// parseMesh reads a text like dp=2,tp=3, or tp=3,dp=2 for replicas beside each other, with
// attributes or without; ok is false where it says none that the boxes can be cut over.
func (c *Cluster) parseMesh(text string) (m mesh, ok bool) {
	all, err := layout.ParseMesh(text)
	if err != nil || len(all) != 2 {
		return m, false
	}
	m = mesh{Mesh: all, unreplicated: c.unreplicated, beside: all[0].Name == "tp"}
	m.dp, m.tp = all[0].Size, all[1].Size
	if m.beside {
		m.dp, m.tp = m.tp, m.dp
	}
	first, second := "dp", "tp"
	if m.beside {
		first, second = second, first
	}
	return m, all[0].Name == first && all[1].Name == second && m.rankCount() <= boxes
}

// withDegrees returns a mesh of other degrees. An axis that has another degree then has no
// attributes.
func (m mesh) withDegrees(dp, tp int) mesh {
	m.dp, m.tp, m.Mesh = dp, tp, slices.Clone(m.Mesh)
	for i, a := range m.Mesh {
		if a.Name == "dp" {
			m.Mesh[i] = a.WithSize(dp)
		} else {
			m.Mesh[i] = a.WithSize(tp)
		}
	}
	return m
}

// partOf returns the number of the part of the state that a rank has, where it is cut over tp.
func (m mesh) partOf(rank int) int {
	if m.beside {
		return rank / m.dp
	}
	return rank % m.tp
}

// rankCount returns the number of ranks.
func (m mesh) rankCount() int { return m.dp * m.tp }

// boxesOf lists the numbers of the boxes of a rank, in ascending order.
func (m mesh) boxesOf(rank int) (list []int) {
	parts, mine := m.tp, m.partOf(rank)
	if m.unreplicated {
		parts, mine = m.rankCount(), rank
	}
	for b := range boxes {
		if b*parts/boxes == mine {
			list = append(list, b)
		}
	}
	return list
}

// boxContent returns the content of a box after so many steps.
func boxContent(number int, steps uint64) uint64 { return uint64(number)<<48 | steps }

// reshapePlan is the way of the state from the mesh of a shape to another, over members.
type reshapePlan struct {
	lost     bool            // the members go without the state, which a checkpoint gives them
	old, new mesh            // the mesh of the shape, and the one to go to
	workers  []topo.WorkerID // of the old ranks
	order    []topo.WorkerID // of the new ones
	takers   topo.View       // the members that may have one
}

// planReshape plans as the planner of an agent does: the ranks go to the members that have most of
// what they need. When nobody has a box, it fails; a job that makes checkpoints then gets a
// *meshes.StateLost and the plan that is left.
func (c *Cluster) planReshape(s *head.Shape, text string, members topo.View) (p reshapePlan,
	err error) {
	old, ok1 := c.parseMesh(s.Mesh)
	new, ok2 := c.parseMesh(text)
	takers := rankCandidates(s, members)
	if !ok1 || !ok2 || new.rankCount() > takers.Size() || old.rankCount() != len(s.Workers) {
		return p, fmt.Errorf("no way from mesh %q of %v to mesh %q of %v", s.Mesh, s.Workers, text,
			takers)
	}
	if err := new.CheckKinds(countByKind(s, takers)); err != nil {
		return p, err
	}
	p = reshapePlan{old: old, new: new, workers: s.Workers, takers: takers}
	has := map[int]int{} // members that hold a box
	holds := map[topo.WorkerID][]int{}
	for r, w := range s.Workers {
		if _, left := members.Rank(w); left {
			holds[w] = old.boxesOf(r)
			for _, b := range holds[w] {
				has[b]++
			}
		}
	}
	why := s.Lost
	for b := boxes - 1; b >= 0 && s.Lost == ""; b-- {
		if has[b] == 0 {
			why = fmt.Sprintf("nobody that is left has box %d", b)
		}
	}
	switch {
	case why != "" && c.disk.every == 0:
		return p, errors.New(why)
	case why != "":
		p.lost = true
		p.order = p.assignRanks(s, nil)
		if s.Redundant && !c.unreplicated {
			if p.order, err = c.placeRedundantly(
				&head.Shape{Mesh: text, Workers: p.order, Leaving: s.Leaving, Kinds: s.Kinds}, text,
				members); err != nil {
				return p, err
			}
		}
		return p, &meshes.StateLost{Why: why}
	case s.Redundant && !c.unreplicated:
		p.order, err = c.placeRedundantly(s, text, members)
		return p, err
	}
	p.order = p.assignRanks(s, holds)
	return p, nil
}

// assignRanks lists the workers that take the new ranks, one after the other: those on hosts of the
// kind that a rank is to be on, and of these the one that holds most of what it needs.
func (p *reshapePlan) assignRanks(s *head.Shape, holds map[topo.WorkerID][]int) (
	order []topo.WorkerID) {
	for r := range p.new.rankCount() {
		needs, best, most := p.new.boxesOf(r), topo.WorkerID(0), -1
		for _, m := range p.takers.Members {
			kind, gain := p.new.KindOf(r), 0
			for _, b := range holds[m.Worker] {
				if slices.Contains(needs, b) {
					gain++
				}
			}
			if gain > most && !slices.Contains(order, m.Worker) &&
				(kind == "" || kind == kindOf(s, m.Host)) {
				best, most = m.Worker, gain
			}
		}
		order = append(order, best)
	}
	return order
}

// kindOf returns the kind of a host, as far as the head has told it with a shape.
func kindOf(s *head.Shape, host string) string {
	for _, h := range s.Kinds {
		if h.Host == host {
			return h.Kind
		}
	}
	return ""
}

// countByKind counts members by the kind of their host.
func countByKind(s *head.Shape, members topo.View) map[string]int {
	have := map[string]int{}
	for _, m := range members.Members {
		have[kindOf(s, m.Host)]++
	}
	return have
}

// rankCandidates returns the members that may have a rank of the mesh that comes: those that are on
// no host that is being left.
func rankCandidates(s *head.Shape, members topo.View) topo.View {
	members.Members = slices.DeleteFunc(slices.Clone(members.Members), func(m topo.Member) bool {
		return slices.Contains(s.Leaving, m.Host)
	})
	return members
}

// largestMesh returns the mesh that so many workers can hold, of a job with the mesh of text; false
// where there is none.
func (c *Cluster) largestMesh(text string, workers int) (m mesh, ok bool) {
	m, _ = c.parseMesh(text)
	dp, tp := m.dp, m.tp
	if c.disk.every > 0 {
		tp = min(tp, workers)
	}
	dp = min(dp, workers/max(tp, 1))
	return m.withDegrees(dp, tp), dp*tp > 0
}

// arrange is the head.Arrange of all hosts.
func (c *Cluster) arrange(s head.Shape, text string, members topo.View) (to meshes.Arranged,
	err error) {
	if text == "" {
		takers := rankCandidates(&s, members)
		m, ok := c.largestMesh(s.Mesh, takers.Size())
		if !ok {
			return to, fmt.Errorf("mesh %s cannot do with %s", s.Mesh,
				plural.Of(takers.Size(), "worker"))
		}
		if err := m.CheckKinds(countByKind(&s, takers)); err != nil {
			m.Mesh, to.Note = m.OnAnyHost(), err.Error()
		}
		text = m.String()
	}
	p, err := c.planReshape(&s, text, members)
	to.Mesh, to.Order = text, p.order
	return to, err
}

// moveBoxes returns the boxes of the workers of the new ranks, made from those of the old ones in
// memory: each takes what it has itself from there, and the rest from the first rank that has it.
// It fails when nobody has a box; nil = the members go without the state.
func (p *reshapePlan) moveBoxes(memory map[topo.WorkerID][]uint64) (
	moved map[topo.WorkerID][]uint64,
	err error) {
	if p.lost {
		return nil, nil
	}
	var all [boxes]uint64
	for r := len(p.workers) - 1; r >= 0; r-- {
		for i, b := range p.old.boxesOf(r) {
			if have := memory[p.workers[r]]; i < len(have) {
				all[b] = have[i] + 1
			}
		}
	}
	moved = map[topo.WorkerID][]uint64{}
	for r, w := range p.order {
		before := slices.Index(p.workers, w)
		for _, b := range p.new.boxesOf(r) {
			if all[b] == 0 {
				return nil, fmt.Errorf("nobody hands over box %d, which w%d needs", b, w)
			}
			value := all[b] - 1
			if before >= 0 {
				if i := slices.Index(p.old.boxesOf(before), b); i >= 0 && i < len(memory[w]) {
					value = memory[w][i]
				}
			}
			moved[w] = append(moved[w], value)
		}
	}
	return moved, nil
}

// prove returns the proof of what the workers of a host have, those that here reports: of the old
// state what its first holder has, as often as the new mesh has copies, and all of the new one.
func (p *reshapePlan) prove(memory, moved map[topo.WorkerID][]uint64,
	here func(topo.WorkerID) bool) (proof digest.Proof) {
	if p.lost {
		return proof
	}
	copies := map[int]int{}
	for r, w := range p.order {
		for i, b := range p.new.boxesOf(r) {
			copies[b]++
			if here(w) {
				proof.New = proof.New.Plus(fingerprint(moved[w][i]))
			}
		}
	}
	for r, w := range p.workers {
		if len(memory[w]) == 0 {
			continue
		}
		for i, b := range p.old.boxesOf(r) {
			for ; copies[b] > 0; copies[b]-- {
				if here(w) {
					proof.Old = proof.Old.Plus(fingerprint(memory[w][i]))
				}
			}
		}
	}
	return proof
}

// fingerprint returns the fingerprint of the content of a box.
func fingerprint(x uint64) digest.Sum {
	return digest.Sum{Value: (x + 1) * 0x9e3779b97f4a7c15 >> 4, Bytes: 8}
}

// packBoxes writes boxes into new memory.
func packBoxes(list []uint64) []byte {
	out := make([]byte, 0, 8*len(list))
	for _, x := range list {
		out = binary.LittleEndian.AppendUint64(out, x)
	}
	return out
}

// unpackBoxes reads boxes from memory.
func unpackBoxes(memory []byte) (list []uint64) {
	for ; len(memory) >= 8; memory = memory[8:] {
		list = append(list, binary.LittleEndian.Uint64(memory))
	}
	return list
}
