// Package wiretest has messages between agents, for the tests of the packages that make and read
// them. It does no I/O.
package wiretest

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// SteadyFrames returns frames of the steady state: what a step of two hosts takes. They are new,
// and the caller may change them. It fails t only if their data cannot be.
func SteadyFrames(t testing.TB) []*wire.Frame {
	data, err := cursor.New(100, 10, 7, true)
	if err != nil {
		t.Fatal(err)
	}
	call := wire.Call{Worker: 3, Ticket: 300,
		Call: collective.Call{Kind: collective.AllReduce, DType: tensor.F32,
			Reduction: collective.Mean, Group: 2, Weight: 0.5,
			Shape: []int{2, 3}, Far: &collective.Far{In: 6, Out: 6},
			Flags: collective.Flags{Step: true}}}
	other := call
	other.Splits, other.Shape, other.Far, other.Weight = []int{}, nil, nil, 0
	other.Kind, other.Peer, other.Promoted, other.Shared = collective.Barrier, -1, true,
		collective.Shared{Group: 2, Name: "total", Off: 8}
	sets := []wire.Set{
		{Calls: []wire.Call{call, other}, Of: []int{0, 1}, Route: collective.DefaultRoute(1 << 20)},
		{Calls: []wire.Call{other}, Of: []int{-1}, Err: "why", Lost: true}}
	return []*wire.Frame{
		{Term: 1, Up: true, First: 2, Ack: 3,
			Payloads: []wire.Payload{&wire.Posted{Call: call}, &wire.Posted{Call: other},
				&wire.Executed{Batch: 1<<32 | 7}}},
		{Term: 1, First: 300, Ack: 2, Payloads: []wire.Payload{
			&wire.Exec{Batch: 1<<32 | 7, Replaces: 1<<32 | 6, Hosts: []string{"A", "B"},
				Without: []string{"C"}, Sets: sets, More: true},
			&wire.Commit{Index: 9, Batch: 1<<32 | 7, Steps: 4, Data: &data, Elastic: true,
				Stable: 8},
			&wire.Commit{Index: 10}}},
		{Term: 1, First: 1, Ack: 2},
	}
}

// SumCall returns an all-reduce of two f32 on a group, with memory.
func SumCall(group topo.GroupID) collective.Call {
	return collective.Call{Kind: collective.AllReduce, DType: tensor.F32, Reduction: collective.Sum,
		Group: group, In: make([]byte, 8), Out: make([]byte, 8), Shape: []int{2}}
}
