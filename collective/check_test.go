package collective_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// Check refuses a wrong call, and names the field that is wrong.
func TestCheckNamesTheField(t *testing.T) {
	buf := make([]byte, 64)
	base := collective.Call{Kind: collective.AllReduce, DType: tensor.F32,
		Reduction: collective.Sum, In: buf[:16], Out: buf[:16], Shape: []int{4}}
	for field, change := range map[string]func(c *collective.Call){
		"kind":       func(c *collective.Call) { c.Kind = 99 },
		"dtype":      func(c *collective.Call) { c.DType = 42 },
		"reduction":  func(c *collective.Call) { c.Reduction = collective.None },
		"weight":     func(c *collective.Call) { c.Reduction, c.Weight = collective.Mean, -1 },
		"flags":      func(c *collective.Call) { c.Kind, c.Window = collective.Barrier, buf },
		"peer":       func(c *collective.Call) { c.Kind, c.Peer = collective.Broadcast, 2 },
		"out.count":  func(c *collective.Call) { c.Out = buf[:20] },
		"out.offset": func(c *collective.Call) { c.Out = buf[8:24] },
		"in.count": func(c *collective.Call) {
			c.Kind, c.In, c.Out = collective.AllToAll, buf[:12], buf[32:44]
		},
		"splits": func(c *collective.Call) {
			c.Kind, c.Out, c.Splits = collective.AllToAll, buf[32:48], []int{5, -1}
		},
		"splits.count": func(c *collective.Call) {
			c.Kind, c.Out, c.Splits = collective.AllToAll, buf[32:48], []int{4}
		},
	} {
		c := base
		change(&c)
		err := c.Check(2, 0)
		var wrong *collective.FieldError
		if !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	if err := base.Check(2, 0); err != nil {
		t.Errorf("a sound call: %v", err)
	}
	if got, want := fmt.Sprint(&base), "all_reduce(f32[4], sum)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Check takes what is just right, and refuses what is just beyond it.
func TestCheckAtTheBounds(t *testing.T) {
	buf := make([]byte, 64)
	in, out := buf[:16], buf[32:48]
	for _, tc := range []struct {
		name  string
		field string // that is wrong; "" = the call is right
		self  int
		call  collective.Call
	}{
		{"the largest weight", "", 0, collective.Call{Kind: collective.AllReduce,
			Reduction: collective.Mean, Weight: 1e300, In: in, Out: out}},
		{"a weight beyond it", "weight", 0, collective.Call{Kind: collective.AllReduce,
			Reduction: collective.Mean, Weight: math.Inf(1), In: in, Out: out}},
		{"no weight", "weight", 0, collective.Call{Kind: collective.AllReduce,
			Reduction: collective.Mean, Weight: math.NaN(), In: in, Out: out}},
		{"the mean of integers", "reduction", 0, collective.Call{Kind: collective.ReduceScatter,
			DType: tensor.I32, Reduction: collective.Mean, In: in, Out: out[:8]}},
		{"a reduction beyond the last", "reduction", 0, collective.Call{Kind: collective.AllReduce,
			Reduction: collective.Prod + 1, In: in, Out: out}},
		{"the last root", "", 0, collective.Call{Kind: collective.Broadcast, Peer: 1, Out: out}},
		{"a root below the first", "peer", 0, collective.Call{Kind: collective.Gather, Peer: -1,
			In: in}},
		{"a send to any rank", "peer", 0, collective.Call{Kind: collective.Send,
			Peer: collective.AnyRank, In: in}},
		{"a receive from any rank", "", 0, collective.Call{Kind: collective.Recv,
			Peer: collective.AnyRank, Out: out}},
		{"a send to itself", "peer", 1, collective.Call{Kind: collective.Send, Peer: 1, In: in}},
		{"a reduction of the root to less", "out.count", 1, collective.Call{
			Kind: collective.Reduce, Reduction: collective.Sum, Peer: 1, In: in, Out: out[:8]}},
		{"a reduction of another", "", 0, collective.Call{Kind: collective.Reduce,
			Reduction: collective.Sum, Peer: 1, In: in}},
		{"a broadcast of the root to less", "out.count", 1, collective.Call{
			Kind: collective.Broadcast, Peer: 1, In: in, Out: out[:8]}},
		{"a broadcast of the root alone", "", 1, collective.Call{Kind: collective.Broadcast,
			Peer: 1, In: in}},
		{"splits of all elements", "", 0, collective.Call{Kind: collective.AllToAll, In: in,
			Out: out, Splits: []int{0, 4}}},
		{"splits of fewer", "splits", 0, collective.Call{Kind: collective.AllToAll, In: in,
			Out: out, Splits: []int{2, 1}}},
		{"splits of more", "splits", 0, collective.Call{Kind: collective.AllToAll, In: in,
			Out: out, Splits: []int{2, 3}}},
		{"memory side by side", "", 0, collective.Call{Kind: collective.AllToAll, In: buf[:16],
			Out: buf[16:32]}},
		{"memory side by side, the output first", "", 0, collective.Call{
			Kind: collective.AllToAll, In: buf[16:32], Out: buf[:16]}},
		{"an output that begins in the input", "out.offset", 0, collective.Call{
			Kind: collective.AllToAll, In: buf[:16], Out: buf[12:28]}},
		{"an output that ends in the input", "out.offset", 0, collective.Call{
			Kind: collective.AllToAll, In: buf[12:28], Out: buf[:16]}},
		{"an all-to-all in place", "out.offset", 0, collective.Call{Kind: collective.AllToAll,
			In: in, Out: in}},
	} {
		if tc.call.DType == 0 {
			tc.call.DType = tensor.F32
		}
		err := tc.call.Check(2, tc.self)
		var wrong *collective.FieldError
		if (err == nil) != (tc.field == "") ||
			err != nil && (!errors.As(err, &wrong) || wrong.Field != tc.field) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.field)
		}
	}
}

// A job has so many groups and no more, until some are freed.
func TestMostGroups(t *testing.T) {
	m := newMatcher(1)
	list := []topo.WorkerID{workerOfRank(0)}
	for range collective.MaxGroups - 1 { // the world is one too
		if _, _, err := m.JoinGroup(list[0], list); err != nil {
			t.Fatal(err)
		}
	}
	var wrong *collective.FieldError
	if _, _, err := m.JoinGroup(list[0], list); !errors.As(err, &wrong) || wrong.Field != "ranks" {
		t.Errorf("one group more: %v", err)
	}
	m.LeaveGroup(list[0], 1)
	if freed := m.RemoveUnusedGroups(); len(freed) != 1 || freed[0] != 1 {
		t.Errorf("freed are %v", freed)
	}
	if _, _, err := m.JoinGroup(list[0], list); err != nil {
		t.Errorf("after one is freed: %v", err)
	}
}

// Messages name a call with all that ranks must agree on.
func TestCallText(t *testing.T) {
	base := collective.Call{Kind: collective.AllReduce, DType: tensor.F16,
		Reduction: collective.Mean, Shape: []int{2, 3}}
	for want, change := range map[string]func(c *collective.Call){
		"all_reduce(f16[2,3], mean)":          func(c *collective.Call) {},
		"all_reduce(f16[2,3], mean, more)":    func(c *collective.Call) { c.More = true },
		"all_reduce(f16[2,3], mean, step)":    func(c *collective.Call) { c.Step = true },
		"all_reduce(f16[2,3], mean, aside)":   func(c *collective.Call) { c.Aside = true },
		"all_reduce(f16[2,3], mean, narrow)":  func(c *collective.Call) { c.Narrow = true },
		"all_reduce(f16[2,3], mean, sparing)": func(c *collective.Call) { c.Sparing = true },
		`all_reduce(f16[2,3], mean, into "g" of group 2 at byte 8)`: func(c *collective.Call) {
			c.Shared = collective.Shared{Group: 2, Name: "g", Off: 8}
		},
		"reduce(f16[2,3], mean, root 4)": func(c *collective.Call) {
			c.Kind, c.Peer = collective.Reduce, 4
		},
		"gather(f16[2,3], root 4)": func(c *collective.Call) {
			c.Kind, c.Peer = collective.Gather, 4
		},
		"send(f16[2,3], to 4, tag 5)": func(c *collective.Call) {
			c.Kind, c.Peer, c.Tag = collective.Send, 4, 5
		},
		"recv(f16[2,3], from 4, tag 5)": func(c *collective.Call) {
			c.Kind, c.Peer, c.Tag = collective.Recv, 4, 5
		},
		"recv(f16[2,3], from any, tag 0)": func(c *collective.Call) {
			c.Kind, c.Peer = collective.Recv, collective.AnyRank
		},
		"barrier()":          func(c *collective.Call) { c.Kind = collective.Barrier },
		"kind(12)(f16[2,3])": func(c *collective.Call) { c.Kind = 12 },
	} {
		c := base
		change(&c)
		if got := c.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
