package node

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
)

// A call comes back as it was, but for its memory.
func TestCallNote(t *testing.T) {
	c := collective.Call{Kind: collective.AllToAll, DType: tensor.F64, Group: 3, Peer: -1, Tag: 7, Weight: 0.1, In: make([]byte, 24), Out: make([]byte, 8),
		Splits: []int{1, 2}, Shape: []int{3}, More: true}
	text, err := json.Marshal(note(&c))
	if err != nil {
		t.Fatal(err)
	}
	var n callNote
	if err := json.Unmarshal(text, &n); err != nil || n.check() != nil {
		t.Fatal(err, n.check())
	}
	want := c
	want.In, want.Out, want.Far = nil, nil, &collective.Far{In: 3, Out: 1}
	if d := cmp.Diff(want, n.call()); d != "" {
		t.Error(d)
	}
	c.Weight = math.NaN()
	if n := note(&c); n.Weight >= 0 {
		t.Errorf("a weight that is no number becomes %v", n.Weight)
	}
}

// No bytes from a link can make an agent panic, or build a call that indexes beyond reason.
func FuzzLetter(f *testing.F) {
	for _, l := range []letter{{Offer: &offer{Slots: 2}}, {Post: &postNote{Worker: 1, Ticket: 1, Call: callNote{Kind: collective.AllReduce, DType: tensor.F32, Reduction: collective.Sum, In: 4, Out: 4}}},
		{Fly: &flyNote{Flight: 1, Sites: nil}}, {Ended: &endedNote{Tail: []string{"x"}}}} {
		f.Add(l.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := decode(b)
		if err != nil || l.Post == nil || l.Post.Call.check() != nil {
			return
		}
		c := l.Post.Call.call()
		if c.InLen() < 0 || c.OutLen() < 0 || c.String() == "" {
			t.Errorf("%+v", c)
		}
		_ = c.Check(4, 0)
	})
}
