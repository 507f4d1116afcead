package plan_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/tensor"
)

// adamState returns one tensor of parameters and one six times as large of the optimizer, in the
// proportion of mixed precision training with Adam: 2 bytes and 12. Its rows are the layers, its
// columns what tensor parallelism cuts.
func adamState() []layout.Tensor {
	return []layout.Tensor{
		{Name: "parameters", DType: tensor.U8, Shape: tensor.Shape{16, 16, 6 * 7 * 8}},
		{Name: "optimizer", DType: tensor.U8, Shape: tensor.Shape{16, 16, 6 * 6 * 7 * 8}},
	}
}

// gridSpec returns the layout of adamState on a mesh; zero is a further placement of its optimizer,
// after a comma, or "".
func gridSpec(pp, dp, tp int, zero string) *layout.Spec {
	return &layout.Spec{Shoal: layout.Version, Mesh: fmt.Sprintf("pp=%d,dp=%d,tp=%d", pp, dp, tp),
		Rules: []layout.Rule{
			{Match: "optimizer", Place: "pp=shard(0), tp=shard(1)" + zero},
			{Match: "**", Place: "pp=shard(0), tp=shard(1)"}}}
}

// TestKnownChanges pins what changes of parallelism cost, in copies of the state, with and without
// relabelling: over all devices, and into the busiest host. (T, P, D) are tensor, pipeline and data
// parallel degrees.
func TestKnownChanges(t *testing.T) {
	const zero = ", dp=shard(2)"
	for _, c := range []struct {
		t, p, d, t2, p2, d2, devices   int
		zero                           string
		keep, relabel, in, inRelabeled float64
	}{
		{4, 2, 1, 4, 2, 2, 4, "", 1.50, 1.00, 0.50, 0.50},
		{4, 2, 1, 4, 2, 2, 4, zero, 0.86, 0.57, 0.29, 0.29},
		{4, 2, 1, 4, 4, 1, 4, "", 0.75, 0.50, 0.25, 0.25},
		{4, 2, 1, 8, 2, 1, 4, "", 0.94, 0.50, 0.25, 0.25},
		{2, 4, 2, 2, 4, 1, 4, "", 0.75, 0, 0.50, 0.25},
		{4, 2, 4, 4, 4, 2, 4, zero, 0.64, 0.43, 0.107, 0.054},
		{4, 2, 4, 2, 2, 8, 4, "", 6.0, 4.0, 0, 0},
		{8, 2, 8, 8, 2, 7, 8, "", 0.50, 0, 0.50, 0},
		{8, 2, 8, 8, 2, 7, 8, zero, 0.71, 0.245, 0.133, 0.031},
		{8, 2, 8, 8, 4, 4, 8, zero, 0.75, 0.43, 0.054, 0.027},
	} {
		name := fmt.Sprintf("(%d,%d,%d)-(%d,%d,%d)%s", c.t, c.p, c.d, c.t2, c.p2, c.d2, c.zero)
		resolve := func(s *layout.Spec) *layout.Layout {
			l, err := s.Resolve(adamState())
			if err != nil {
				t.Fatal(name, err)
			}
			return l
		}
		src, dst := resolve(gridSpec(c.p, c.d, c.t, c.zero)),
			resolve(gridSpec(c.p2, c.d2, c.t2, c.zero))
		build := func(devices int, fixed bool) plan.Stats {
			cluster := plan.UniformCluster(src.Ranks, dst.Ranks, devices)
			cluster.Fixed = fixed
			p, err := plan.Build(src, dst, cluster)
			if err != nil {
				t.Fatal(name, err)
			}
			return p.Stats
		}
		near := func(what string, s plan.Stats, got int, want float64) {
			if x := float64(got) / float64(s.State); math.Abs(x-want) > 0.006 {
				t.Errorf("%s: %s %.4f copies of the state, want %.3f", name, what, x, want)
			}
		}
		s := build(1, true)
		near("between devices, ranks kept:", s, s.Bytes, c.keep)
		s = build(1, false)
		near("between devices, ranks relabelled:", s, s.Bytes, c.relabel)
		busiest := func(s plan.Stats) (n int) {
			for _, x := range s.Ingress {
				n = max(n, x)
			}
			return n
		}
		s = build(c.devices, true)
		near("into the busiest host, ranks kept:", s, busiest(s), c.in)
		s = build(c.devices, false)
		near("into the busiest host, ranks relabelled:", s, busiest(s), c.inRelabeled)
	}
}

// TestHash pins that a plan depends on nothing but its inputs, and that the hash sees every
// decision.
func TestHash(t *testing.T) {
	hash := func(dp int, fixed bool) string {
		src, err := gridSpec(2, 8, 4, ", dp=flat").Resolve(adamState())
		if err != nil {
			t.Fatal(err)
		}
		dst, err := gridSpec(2, dp, 4, ", dp=flat").Resolve(adamState())
		if err != nil {
			t.Fatal(err)
		}
		c := plan.UniformCluster(src.Ranks, dst.Ranks, 8)
		c.Fixed = fixed
		p, err := plan.Build(src, dst, c)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%x", p.Hash())[:16]
	}
	const want = "8bf0309b9c2d17ef"
	for range 5 {
		if got := hash(7, false); got != want {
			t.Fatalf("hash %s, want %s: the same plan must have the same hash everywhere and "+
				"for all time", got, want)
		}
	}
	if hash(7, true) == want || hash(6, false) == want {
		t.Error("another plan has the same hash")
	}
}

// TestNothingToDo pins that what can stay stays: a data parallel replica less, and the same layout
// again, need no op.
func TestNothingToDo(t *testing.T) {
	for _, zero := range []string{"", ", dp=flat", ", dp=flat(buffer)"} {
		for _, dp := range []int{8, 7} {
			if dp == 7 && zero != "" {
				continue
			}
			src, err := gridSpec(2, 8, 4, zero).Resolve(adamState())
			if err != nil {
				t.Fatal(err)
			}
			dst, err := gridSpec(2, dp, 4, zero).Resolve(adamState())
			if err != nil {
				t.Fatal(err)
			}
			p, err := plan.Build(src, dst, plan.UniformCluster(src.Ranks, dst.Ranks, 4))
			if err != nil {
				t.Fatal(err)
			}
			for op := range p.Ops() {
				t.Fatalf("dp 8 to %d%s: %+v", dp, zero, op)
			}
			n := 0
			for h := range p.Cluster.Devices {
				n += len(p.InPlace(h))
			}
			if n != 2*dst.Ranks || p.Stats.Bytes != 0 || p.Stats.Device != 0 {
				t.Errorf("dp 8 to %d%s: %d tensors are kept, %d bytes moved", dp, zero, n,
					p.Stats.Device)
			}
		}
	}
}

// TestAlmostKept pins that memory is not taken over when something in it lies elsewhere: parts in
// another order, more padding, a tensor more.
func TestAlmostKept(t *testing.T) {
	tensors := []layout.Tensor{
		{Name: "a", DType: tensor.F32, Shape: tensor.Shape{2, 3}},
		{Name: "b", DType: tensor.F32, Shape: tensor.Shape{2, 3}},
	}
	spec := func(place string, pad int, parts ...string) *layout.Spec {
		s := &layout.Spec{Shoal: layout.Version, Mesh: "dp=1",
			Rules: []layout.Rule{{Match: "**", Place: place}}}
		if len(parts) > 0 {
			s.Store = []layout.Store{{Name: "ab", Parts: parts, Pad: &layout.Pad{Multiple: pad}}}
		}
		return s
	}
	for _, c := range []struct {
		name     string
		from, to *layout.Spec
		dst      []layout.Tensor
		kept     int
	}{
		{"the same", spec("", 4, "a", "b"), spec("", 4, "a", "b"), tensors, 1},
		{"another order", spec("", 4, "a", "b"), spec("", 4, "b", "a"), tensors, 0},
		{"more padding", spec("", 4, "a", "b"), spec("", 8, "a", "b"), tensors, 0},
		{"apart", spec("", 4, "a", "b"), spec("", 4), tensors, 0},
		{"a part of a buffer", spec("dp=flat(ab,align=12)", 1), spec("dp=flat(ab,align=12)", 1),
			tensors[:1], 0},
	} {
		src, err := c.from.Resolve(tensors)
		if err != nil {
			t.Fatal(err)
		}
		dst, err := c.to.Resolve(c.dst)
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Build(src, dst, plan.UniformCluster(1, 1, 1))
		if err != nil {
			t.Fatal(err)
		}
		if got := len(p.InPlace(0)); got != c.kept {
			t.Errorf("%s: %d tensors are kept, want %d", c.name, got, c.kept)
		}
	}
}
