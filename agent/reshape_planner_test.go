package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/state/reshape"
	"github.com/shoal-ml/shoal/topo"
)

// Where only a checkpoint has all of the state, a redundant job has its ranks on two hosts all the
// same: nothing is there that would have to move.
func TestArrangeForACheckpoint(t *testing.T) {
	said := reshape.Statement{
		Layout: `{"shoal": "layout/1", "mesh": "pp=1,dp=1", "rules": [{"match": "layers.#", "place": "pp=spread(1,2)"}]}`, Mesh: "pp=2,dp=4"}
	for l := range 2 {
		said.Tensors = append(said.Tensors,
			reshape.Tensor{Name: fmt.Sprint("layers.", l), DType: "f32", Shape: []int{4}})
	}
	state, err := reshape.New(&said)
	if err != nil {
		t.Fatal(err)
	}
	s := reshapePlanner{state: state, known: map[string]*reshape.Layout{}}
	left := topo.View{
		Members: []topo.Member{{Worker: 4, Host: "a"}, {Worker: 5, Host: "a"},
			{Worker: 6, Host: "b"}, {Worker: 7, Host: "b"}}}
	l, err := s.on("pp=2,dp=2")
	if err != nil {
		t.Fatal(err)
	}
	there := placement{layout: l, domain: []int{0, 0, 1, 1}, domains: "host"}
	if got, want := there.alone(), "32 bytes of 2 tensors, layers.0 the first, are on one host "+
		"only (32 of them on several workers there: shoal run --redundant can have those on two "+
		"hosts)"; got != want {
		t.Errorf("a job says %q, not %q", got, want)
	}
	for redundant, want := range map[bool][]topo.WorkerID{false: {4, 5, 6, 7}, true: {4, 6, 5, 7}} {
		shape := head.Shape{Mesh: said.Mesh, Workers: []topo.WorkerID{0, 1, 2, 3, 4, 5, 6, 7},
			Redundant: redundant}
		next, order, err := s.arrange(shape, "", left)
		if lost := new(head.StateLost); !errors.As(err, &lost) || next != "pp=2,dp=2" ||
			!slices.Equal(order, want) {
			t.Errorf("redundant %v: mesh %s on %v, not on %v; %v", redundant, next, order, want,
				err)
		}
	}
	// A host that is to be left has no rank, whether the state is there or not.
	for _, lost := range []string{"", "the state is lost"} {
		shape := head.Shape{Mesh: "pp=2,dp=2", Workers: []topo.WorkerID{4, 5, 6, 7},
			Leaving: []string{"a"}, Redundant: true, Lost: lost}
		next, order, err := s.arrange(shape, "", left)
		if gone := new(head.StateLost); errors.As(err, &gone) != (lost != "") ||
			next != "pp=2,dp=1" || !slices.Equal(order, []topo.WorkerID{6, 7}) {
			t.Errorf("host a is left, lost %q: mesh %s on %v; %v", lost, next, order, err)
		}
	}
	// What is placed anew stays on the hosts in the order of its ranks, whatever those are called.
	for i, host := range []string{"b", "b", "a", "a"} {
		left.Members[i].Host = host
	}
	begun := head.Shape{Mesh: "pp=2,dp=2", Workers: []topo.WorkerID{4, 5, 6, 7}, Redundant: true}
	if _, order, err := s.arrange(begun, begun.Mesh, left); err != nil ||
		!slices.Equal(order, []topo.WorkerID{4, 6, 5, 7}) {
		t.Errorf("on hosts whose names are in another order than their ranks: %v; %v", order, err)
	}
}
