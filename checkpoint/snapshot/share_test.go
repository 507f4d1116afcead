package snapshot_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/internal/envtest"
	"github.com/shoal-ml/shoal/tensor"
)

// TestSharesAreWholeRowsAndAllOfThem checks that the shares of all ranks are all bytes of a state,
// each once, cut between rows.
func TestSharesAreWholeRowsAndAllOfThem(t *testing.T) {
	r := rand.New(rand.NewPCG(envtest.Seed(t), 2))
	for range 300 {
		s, memory := drawState(r, 1, 1+r.IntN(6))
		ends := make([]int, len(memory))
		seen := make([]bool, len(memory))
		for rank := range s.Workers {
			for _, run := range s.Share(rank) {
				x := s.Tensors[run.Tensor]
				if x.Cuts != nil && (run.From != x.Cuts[rank] || run.To != x.Cuts[rank+1]) {
					t.Fatalf("%+v: rank %d has %v", x, rank, run)
				}
				if row := rowBytes(x); run.From != ends[run.Tensor] ||
					row > 0 && run.From%row != 0 {
					t.Fatalf("%+v: rank %d has %v", s.Tensors, rank, run)
				}
				ends[run.Tensor], seen[run.Tensor] = run.To, true
			}
		}
		for i, b := range memory {
			if ends[i] != len(b) || !seen[i] {
				t.Fatalf("%+v: tensor %d is written up to %d", s.Tensors, i, ends[i])
			}
		}
	}
}

// TestWrongCuts checks that cuts that do not fit a tensor are refused.
func TestWrongCuts(t *testing.T) {
	for _, cuts := range [][]int{{0}, {0, 24}, {0, 12, 12, 24}, {0, 12, 23}, {1, 12, 24},
		{0, 36, 24}, {0, 6, 24}, {-12, 0, 24}} {
		s := &snapshot.State{Workers: 2, Notes: json.RawMessage("{}"),
			Tensors: []snapshot.Tensor{
				{Name: "w", DType: tensor.F32, Shape: tensor.Shape{2, 3}, Cuts: cuts}}}
		if text, err := s.AppendJSON(nil); err == nil {
			t.Errorf("%v is taken: %s", cuts, text)
		}
	}
}

// TestWrongShapes checks that a tensor whose elements cannot be counted is refused.
func TestWrongShapes(t *testing.T) {
	for _, shape := range []tensor.Shape{{-1}, {2, -3}, {math.MaxInt, 2}} {
		s := &snapshot.State{Workers: 1, Notes: json.RawMessage("{}"),
			Tensors: []snapshot.Tensor{{Name: "w", DType: tensor.F32, Shape: shape}}}
		if text, err := s.AppendJSON(nil); err == nil {
			t.Errorf("%v is taken: %s", shape, text)
		}
	}
}

// FuzzState has whatever passes for a state cut into shares, each of which a part can be made of.
func FuzzState(f *testing.F) {
	f.Add([]byte(
		`{"shoal":"job/1","step":120,"cursor":"00","workers":4,"notes":{},"tensors":[{"name":"w","dtype":"F32","shape":[2,3],"bytes":24}]}`))
	f.Add([]byte(
		`{"shoal":"job/1","step":1,"cursor":"","workers":2,"notes":{"a":[1]},"tensors":[{"name":"","dtype":"BOOL","shape":[],"bytes":1},{"name":"x","dtype":"U8","shape":[0],"bytes":0}]}`))
	f.Add([]byte(
		`{"shoal":"job/1","step":1,"cursor":"","workers":2,"notes":{},"tensors":[{"name":"w","dtype":"F32","shape":[2,3],"bytes":24,"cuts":[0,12,24]}]}`))
	f.Add([]byte(
		`{"shoal":"job/1","step":1,"cursor":"","workers":65536,"notes":{},"tensors":[{"name":"w","dtype":"F64","shape":[9223372036854775807],"bytes":24}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := snapshot.ParseState(text)
		if err != nil {
			return
		}
		total := 0
		for rank := range s.Workers {
			n := snapshot.Bytes(s.Share(rank))
			if rank < 3 && n < 1<<20 {
				p := &snapshot.Part{Folder: snapshot.Folder{Root: "/", Keep: 1}, Rank: rank,
					State: text, Own: json.RawMessage("{}"), Body: make([]byte, n)}
				if err := p.Check(); err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
			total += n
		}
		for _, x := range s.Tensors {
			total -= x.Bytes()
		}
		if total != 0 {
			t.Errorf("the shares have %d bytes more than the state", total)
		}
	})
}
