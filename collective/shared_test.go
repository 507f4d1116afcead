package collective_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// shareOutputs gives the calls of all members of a host the same output. Of has each member's host.
func shareOutputs(calls []*collective.Call, of []int) {
	outs := map[int][]byte{}
	for r, c := range calls {
		if outs[of[r]] == nil {
			outs[of[r]] = make([]byte, len(c.Out))
		}
		c.Out, c.Shared = outs[of[r]], collective.Shared{Name: "result"}
	}
}

// What comes out is the same as with an output for each rank, and the inputs stay.
func TestSharedResult(t *testing.T) {
	forEachWorld(t, func(t *testing.T, rng *rand.Rand, size int, d tensor.DType, n int) {
		for _, kind := range []collective.Kind{collective.AllReduce, collective.AllGather} {
			for i, op := range reductionsOf(d) {
				if i > 0 && !kind.Reduces() {
					break
				}
				seed := rng.Uint64()
				sampled := func() []*collective.Call {
					return sampleCalls(rand.New(rand.NewPCG(seed, 3)), kind, d, op, size, n)
				}
				apart, shared, inputs := sampled(), sampled(), sampled()
				shareOutputs(shared, make([]int, size))
				buildAndRun(t, rng, apart)
				buildAndRun(t, rng, shared)
				for r := range size {
					if !bytes.Equal(shared[r].Out, apart[r].Out) ||
						!bytes.Equal(shared[r].In, inputs[r].In) {
						t.Fatalf("%v, %v: rank %d of %d has another result than without "+
							"sharing, or its input was changed", kind, op, r, size)
					}
				}
			}
		}
	})
}

// All inputs are read, and one result is written, not one a rank. Nothing is allocated.
func TestSharedResultIsWrittenOnce(t *testing.T) {
	const ranks, n = 4, 1 << 20
	for kind, want := range map[collective.Kind]int{collective.AllReduce: ranks*n + n,
		collective.AllGather: ranks*n + ranks*n} {
		var calls []*collective.Call
		for range ranks {
			c := &collective.Call{Kind: kind, DType: tensor.F32, Reduction: collective.Sum,
				In: make([]byte, n), Out: make([]byte, n), Shape: []int{n / 4}}
			if kind == collective.AllGather {
				c.Out = make([]byte, ranks*n)
			}
			calls = append(calls, c)
		}
		shareOutputs(calls, make([]int, ranks))
		var s collective.Schedule
		var r collective.Executor
		scratch := collective.NewScratch()
		allocs := testing.AllocsPerRun(5, func() {
			if err := s.Build(calls); err != nil {
				t.Fatal(err)
			}
			r.Prepare(&s, calls)
			for i := range r.Chunks() {
				r.Chunk(i, scratch)
			}
		})
		if s.Bytes != want || allocs != 0 {
			t.Errorf("%v moves %d bytes with %v allocations; want %d and none", kind, s.Bytes,
				allocs, want)
		}
	}
}

// The ranks of a host name one place for all of them.
func TestSharedResultsDiffer(t *testing.T) {
	for name, other := range map[string]collective.Shared{
		`into "sum"`:             {Name: "sum"},
		`into "mean" at byte 8`:  {Name: "mean", Off: 8},
		`[1], sum)`:              {},
		`into "mean" of group 3`: {Group: 3, Name: "mean"},
	} {
		m := collective.NewMatcher([]topo.WorkerID{0, 1})
		var ready []collective.Ready
		for w, shared := range []collective.Shared{{Name: "mean"}, other} {
			c := collective.Call{Kind: collective.AllReduce, DType: tensor.I64,
				Reduction: collective.Sum, In: make([]byte, 8), Out: make([]byte, 8),
				Shape: []int{1}, Shared: shared}
			ready = m.Post(&collective.Posted{Worker: topo.WorkerID(w), Ticket: 1, Call: c}, ready)
		}
		var differ *collective.MismatchError
		if len(ready) != 1 || !errors.As(ready[0].Err, &differ) ||
			!strings.Contains(differ.CallB, name) ||
			!strings.Contains(differ.CallA, `into "mean"`) {
			t.Errorf("%s: %+v", name, ready)
		}
	}
}

// Only what comes out the same on all ranks can be shared.
func TestSharedResultOfOtherCollectives(t *testing.T) {
	for _, kind := range kinds {
		calls := sampleCalls(rand.New(rand.NewPCG(1, 1)), kind, tensor.F32, collective.Sum, 3, 30)
		for r, c := range calls {
			c.Shared.Name = "result"
			err := c.Check(len(calls), r)
			if may := kind == collective.AllReduce || kind == collective.AllGather ||
				kind == collective.Barrier; may != (err == nil) {
				t.Errorf("%v: %v", c, err)
			}
		}
	}
}
