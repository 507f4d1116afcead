package collective_test

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// TestWithdraw: a call that is taken back has not been made, so the next one of its rank meets
// those of the others; what cannot be taken back stays.
func TestWithdraw(t *testing.T) {
	barrier := collective.Call{Kind: collective.Barrier, DType: tensor.U8}
	part, end := barrier, barrier
	part.More, end.Step = true, true
	x := make([]byte, 4)
	recv := collective.Call{Kind: collective.Recv, DType: tensor.F32, Peer: 1, Out: x}
	send := collective.Call{Kind: collective.Send, DType: tensor.F32, Peer: 0, In: x}
	for _, c := range []struct {
		name       string
		calls      []collective.Call // of rank 0, the first of which is taken back
		others     collective.Call   // that rank 1 makes then
		back       bool              // whether it is taken back
		mine, sets int               // ticket of rank 0 in the first set, and the number of sets
	}{
		{"a collective", []collective.Call{barrier}, barrier, true, 2, 1},
		{"a receive", []collective.Call{recv}, send, true, 2, 1},
		{"a part of a step", []collective.Call{part}, part, false, 1, 0},
		{"the end of a step", []collective.Call{end}, end, false, 1, 1},
		{"one before another", []collective.Call{barrier, barrier}, barrier, false, 1, 1},
	} {
		m := newMatcher(2)
		for i, call := range c.calls {
			p := &collective.Posted{Worker: workerOfRank(0), Ticket: uint64(i + 1), Call: call}
			if sets := m.Post(p, nil); len(sets) > 0 {
				t.Fatalf("%s: ready are %v", c.name, sets)
			}
		}
		sets := m.Withdraw(workerOfRank(0), 9, nil) // which it has not made
		sets = m.Withdraw(workerOfRank(1), 1, sets)
		if len(sets) > 0 {
			t.Errorf("%s: calls that nobody has made are taken back: %v", c.name, sets)
		}
		sets = m.Withdraw(workerOfRank(0), 1, nil)
		if back := len(sets) == 1 && sets[0].Err != nil && sets[0].Calls[0].Ticket == 1; back !=
			c.back || len(sets) > 1 {
			t.Errorf("%s: taken back are %v", c.name, sets)
		}
		if c.back {
			if !m.IsQuiet() {
				t.Errorf("%s: something is under way", c.name)
			}
			m.Post(&collective.Posted{Worker: workerOfRank(0), Ticket: 2, Call: c.calls[0]}, nil)
		}
		sets = m.Post(&collective.Posted{Worker: workerOfRank(1), Ticket: 1, Call: c.others}, nil)
		if len(sets) != c.sets {
			t.Fatalf("%s: ready are %v", c.name, sets)
		}
		for _, s := range sets {
			for _, p := range s.Calls {
				if s.Err != nil || p.Worker == workerOfRank(0) && p.Ticket != uint64(c.mine) {
					t.Errorf("%s: call %d of w%d, %v", c.name, p.Ticket, p.Worker, s.Err)
				}
			}
		}
		if sets := m.Withdraw(workerOfRank(0), uint64(c.mine), nil); len(sets) > 0 {
			t.Errorf("%s: what was ready is taken back: %v", c.name, sets)
		}
	}
}

// TestWithdrawAfterPartsOfAStep: a call that ends a step by being no part of it stays, or what the
// step has would no longer be known for one step if the worker is lost.
func TestWithdrawAfterPartsOfAStep(t *testing.T) {
	m := newMatcher(2)
	for ticket, more := range []bool{true, false} {
		c := collective.Call{Kind: collective.Barrier, DType: tensor.U8, Group: topo.World}
		c.More = more
		m.Post(&collective.Posted{Worker: workerOfRank(0), Ticket: uint64(ticket), Call: c}, nil)
	}
	if sets := m.Withdraw(workerOfRank(0), 1, nil); len(sets) > 0 {
		t.Errorf("taken back are %v", sets)
	}
}
