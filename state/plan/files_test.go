package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/tensor"
)

// placeRows returns the rows [from, to) of a tensor of two columns under a name on one rank.
func placeRows(rank int32, name string, from, to int) layout.Placed {
	b := tensor.Box{{From: from, To: to}, {From: 0, To: 2}}
	return layout.Placed{Ranks: layout.Set{rank},
		Local: layout.Local{Name: name, DType: tensor.F32, Shape: b.Shape(),
			Pieces: []layout.Piece{{Box: b, View: b.Packed(0)}}}}
}

// matrix is a catalogue of the tensor of which placeRows places rows.
var matrix = []layout.Tensor{{Name: "w", DType: tensor.F32, Shape: tensor.Shape{6, 2}}}

// newLayout returns the layout of matrix over so many ranks, with its rows placed. If there is none
// the test fails.
func newLayout(t *testing.T, ranks int, placed ...layout.Placed) *layout.Layout {
	l, err := layout.New(ranks, matrix, placed)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestFiles plans from files, which only give, to ranks that have never held anything: one of them
// needs the tensor twice.
func TestFiles(t *testing.T) {
	src := newLayout(t, 2, placeRows(0, "a", 0, 4), placeRows(1, "b", 3, 6))
	dst := newLayout(t, 2, placeRows(0, "first", 0, 6), placeRows(0, "again", 0, 6),
		placeRows(1, "part", 2, 5))
	c := plan.Cluster{Devices: []int{0, 0, 2}, Old: []int{0, 1}, New: []int{0, 0}}
	p, err := plan.Build(src, dst, c)
	if err != nil {
		t.Fatal(err)
	}
	written := map[string][]string{}
	for op := range p.Ops() {
		where := op.To.Name
		for r := op.Box[0].From; r < op.Box[0].To; r++ {
			written[where] = append(written[where],
				fmt.Sprintf("%d %s %d", r, op.From.Name, op.Depth))
		}
	}
	for _, list := range written {
		slices.Sort(list)
	}
	// Row 3 is in both files, which so send three rows each.
	want := map[string][]string{
		"first": {"0 a 1", "1 a 1", "2 a 1", "3 b 1", "4 b 1", "5 b 1"},
		"again": {"0 first 2", "1 first 2", "2 first 2", "3 first 2", "4 first 2", "5 first 2"},
		"part":  {"2 first 2", "3 first 2", "4 first 2"},
	}
	if diff := cmp.Diff(want, written); diff != "" {
		t.Errorf("rows of each new tensor, from where, depth (-want +got):\n%s", diff)
	}
	if p.Stats.Bytes != 48 || p.Stats.State != 48 ||
		!slices.Equal(p.Stats.Egress, []int{24, 24, 0}) {
		t.Errorf("figures %+v", p.Stats)
	}
}

// TestRefusedPlans says which clusters and states cannot be planned.
func TestRefusedPlans(t *testing.T) {
	src := newLayout(t, 2, placeRows(0, "a", 0, 4), placeRows(1, "b", 3, 6))
	other := func(x layout.Tensor) *layout.Layout {
		l, err := (&layout.Spec{Shoal: layout.Version,
			Rules: []layout.Rule{{Match: "**"}}}).Resolve([]layout.Tensor{x})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	same := other(matrix[0])
	good := plan.Cluster{Devices: []int{1, 1}, Old: []int{0, 1}, New: []int{0}}
	with := func(change func(c *plan.Cluster)) plan.Cluster {
		c := good
		change(&c)
		return c
	}
	for _, c := range []struct {
		dst     *layout.Layout
		cluster plan.Cluster
		err     string
	}{
		{same, good, ""},
		{other(layout.Tensor{Name: "x", DType: tensor.F32}), good, "no tensor x"},
		{other(layout.Tensor{Name: "w", DType: tensor.F16, Shape: tensor.Shape{6, 2}}), good,
			"would become f16 [6,2]"},
		{other(layout.Tensor{Name: "w", DType: tensor.F32, Shape: tensor.Shape{2, 6}}), good,
			"would become f32 [2,6]"},
		{same, with(func(c *plan.Cluster) {
			c.Old = []int{0}
		}), "1 old and 1 new ranks, the layouts 2 and 1"},
		{same, with(func(c *plan.Cluster) { c.Old = []int{0, 2} }), "old rank 1 is on host 2 of 2"},
		{same, with(func(c *plan.Cluster) { c.New = []int{2} }), "new rank 0 is in group 2"},
		{same, with(func(c *plan.Cluster) {
			c.Devices = []int{0, 0}
		}), "a group of 1 ranks finds no host"},
		{same, with(func(c *plan.Cluster) { c.Devices = []int{0, -1} }), "host 1 has -1 devices"},
		{same, with(func(c *plan.Cluster) {
			c.Devices, c.Fixed = []int{0, 1}, true
		}), "group 0 has 1 ranks, its host takes 0"},
		{same, with(func(c *plan.Cluster) {
			c.Devices, c.Old = nil, []int{plan.Lost, plan.Lost}
		}), "new rank 0 is in group 0; there are 0 hosts"},
		{same, with(func(c *plan.Cluster) {
			c.Allowed = [][]bool{{true, true}, {true, true}}
		}), "1 groups, and it is said of 2"},
		{same, with(func(c *plan.Cluster) {
			c.Allowed = [][]bool{{true}}
		}), "of 1 hosts it is said whether they may take group 0; there are 2"},
		{same, with(func(c *plan.Cluster) {
			c.Allowed, c.Fixed = [][]bool{{false, true}}, true
		}), "host 0 may not take group 0"},
		{same, with(func(c *plan.Cluster) {
			c.Allowed, c.Fixed = [][]bool{{true, false}}, true
		}), ""},
		{same, with(func(c *plan.Cluster) {
			c.Allowed = [][]bool{{false, false}}
		}), "group 0 of 1 ranks finds no host that may take it"},
		{same, with(func(c *plan.Cluster) {
			c.Old = []int{0, plan.Lost}
		}), "16 bytes of 1 tensors, w the first, were on lost ranks only ([1])"},
	} {
		_, err := plan.Build(src, c.dst, c.cluster)
		if (err == nil) != (c.err == "") ||
			err != nil && (!strings.Contains(err.Error(), c.err) ||
				!strings.HasPrefix(err.Error(), "plan: ")) {
			t.Errorf("error %v, want one with %q", err, c.err)
		}
		var lost *plan.LostError
		if errors.As(err, &lost) != strings.Contains(c.err, "lost") {
			t.Errorf("error %v", err)
		}
	}
}

// TestFresh plans to memory of its own on the host that has the old state: all of it is copied from
// there, also what could stay, and what is wanted twice.
func TestFresh(t *testing.T) {
	src := newLayout(t, 2, placeRows(0, "a", 0, 4), placeRows(1, "b", 3, 6))
	dst := newLayout(t, 2, placeRows(0, "a", 0, 4), placeRows(0, "again", 0, 6),
		placeRows(1, "b", 3, 6))
	p, err := plan.Build(src, dst,
		plan.Cluster{Devices: []int{2}, Old: []int{0, 0}, New: []int{0, 0}, Fresh: true})
	if err != nil {
		t.Fatal(err)
	}
	written, first := map[string]int{}, map[int]int{}
	for op := range p.Ops() {
		if op.Depth != 1 || op.From.New {
			t.Errorf("%+v", op)
		}
		for r := op.Box[0].From; r < op.Box[0].To; r++ {
			written[op.To.Name]++
			if !op.Duplicate {
				first[r]++
			}
		}
	}
	if diff := cmp.Diff(map[string]int{"a": 4, "again": 6, "b": 3}, written); diff != "" {
		t.Errorf("rows of each new tensor (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[int]int{0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1}, first); diff != "" {
		t.Errorf("how often each row is written for the first time (-want +got):\n%s", diff)
	}
	if kept := p.InPlace(0); len(kept) > 0 {
		t.Errorf("kept are %v", kept)
	}
}

// TestAntiAffinityOfAPlan spreads two pairs of ranks, which hold the same rows, over hosts: with
// the fewest bytes of other hosts, and only over those that may take them. Hosts that lack room for
// one block are refused.
func TestAntiAffinityOfAPlan(t *testing.T) {
	src := newLayout(t, 2, placeRows(0, "a", 0, 3), placeRows(1, "b", 3, 6))
	dst := newLayout(t, 4, placeRows(0, "a", 0, 3), placeRows(1, "a", 0, 3),
		placeRows(2, "b", 3, 6), placeRows(3, "b", 3, 6))
	for _, c := range []struct {
		name         string
		devices, old []int
		groups       []int
		allowed      [][]bool // by group
		together     int
		bytes        int // that cross the network; -1 = it is refused
	}{
		{"free", []int{2, 2, 2}, []int{0, 1}, []int{0, 0, 1, 1}, nil, 1, 48},
		{"not on the host that has them", []int{2, 2, 2}, []int{2, 1}, []int{0, 0, 1, 1},
			[][]bool{{true, true, false}, {true, true, true}}, 1, 72},
		{"in pairs", []int{2, 2, 1}, []int{0, 1}, []int{0, 0, 1, 1}, nil, 2, 0},
		{"no room for a pair", []int{3, 1}, []int{0, 1}, []int{0, 0, 0, 1}, nil, 2, -1},
	} {
		p, err := plan.Build(src, dst, plan.Cluster{Devices: c.devices, Old: c.old, New: c.groups,
			Allowed: c.allowed})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		next, ok := p.AntiAffinity(c.together)
		if ok != (c.bytes >= 0) {
			t.Errorf("%s: it is possible: %v", c.name, ok)
		}
		if !ok {
			continue
		}
		if p, err = plan.Build(src, dst, next); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		apart := p.Host[0] != p.Host[1] && p.Host[2] != p.Host[3]
		if apart != (c.together == 1) || p.Stats.Bytes != c.bytes ||
			c.allowed != nil && slices.Contains(p.Host[:2], 2) {
			t.Errorf("%s: ranks are on hosts %v, %d bytes are moved", c.name, p.Host,
				p.Stats.Bytes)
		}
	}
}
