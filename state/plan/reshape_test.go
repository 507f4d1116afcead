package plan_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/layout/layouttest"
	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/tensor"
	"pgregory.net/rapid"
)

// TestMain draws more than rapid does by itself: the space of layouts is large and a case takes
// milliseconds.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "2000"); err != nil {
		panic(err)
	}
	flag.Parse()
	os.Exit(m.Run())
}

// key is the key of the fingerprints in these tests.
var key = digest.NewKey(1)

// A reshape is a random change of layout and cluster. It is for the goroutine of the test, which
// its methods called checkX and executePlan fail.
type reshape struct {
	*rapid.T
	model    layouttest.Model
	from, to *layout.Spec   // the two layouts as rules
	src, dst *layout.Layout // the two layouts
	cluster  plan.Cluster   // hosts before and after
}

// drawReshape draws two layouts of a model, and a cluster for both.
func drawReshape(t *rapid.T) *reshape {
	r := &reshape{T: t, model: layouttest.DrawModel(t)}
	r.from, r.to = layouttest.DrawSpec(t, r.model), layouttest.DrawSpec(t, r.model)
	var err error
	if r.src, err = r.from.Resolve(r.model.Tensors); err != nil {
		t.Fatal(err)
	}
	if r.dst, err = r.to.Resolve(r.model.Tensors); err != nil {
		t.Fatal(err)
	}
	devices := rapid.IntRange(1, 4).Draw(t, "devices")
	r.cluster = plan.UniformCluster(r.src.Ranks, r.dst.Ranks, devices)
	c := &r.cluster
	if rapid.IntRange(0, 3).Draw(t, "hosts change") == 0 { // some only give, others come
		for h := range c.Devices {
			if rapid.IntRange(0, 3).Draw(t, "leaves") == 0 {
				c.Devices[h] = 0
				c.Devices = append(c.Devices, devices)
			}
		}
		for r := range c.Old {
			if rapid.IntRange(0, 9).Draw(t, "lost") == 0 {
				c.Old[r] = plan.Lost
			}
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "scattered") == 0 {
		c.Old = rapid.Permutation(c.Old).Draw(t, "old")
		c.New = rapid.Permutation(c.New).Draw(t, "new")
	}
	if len(c.Devices) <= 6 && rapid.IntRange(0, 2).Draw(t, "kinds") == 0 {
		for range slices.Max(c.New) + 1 {
			c.Allowed = append(c.Allowed, rapid.SliceOfN(rapid.SampledFrom([]bool{true, true, true,
				false}), len(c.Devices), len(c.Devices)).Draw(t, "allowed"))
		}
	}
	return r
}

// memory is the bytes of the tensors of each rank, by name.
type memory []map[string][]byte

// expectMemory returns what an oracle says that each rank has in a layout l that spec gives.
func (r *reshape) expectMemory(spec *layout.Spec, l *layout.Layout) memory {
	m := memory{}
	for rank, arrays := range layouttest.ExpectedArrays(spec, r.model.Tensors) {
		dtypes := map[string]tensor.DType{}
		for _, local := range l.RankLocals(rank) {
			dtypes[local.Name] = local.DType
		}
		m = append(m, map[string][]byte{})
		for name, a := range arrays {
			data := []byte{}
			for _, e := range a.Data {
				data = append(data, e.Bytes(dtypes[name].Size())...)
			}
			m[rank][name] = data
		}
	}
	return m
}

// zeroMemory returns zeroed memory for the tensors of each rank.
func zeroMemory(l *layout.Layout) memory {
	m := make(memory, l.Ranks)
	for rank := range m {
		m[rank] = map[string][]byte{}
		for _, local := range l.RankLocals(rank) {
			m[rank][local.Name] = make([]byte, local.Shape.Box().Elements()*local.DType.Size())
		}
	}
	return m
}

// TestReshape runs plans between random layouts in memory and compares with a gather and scatter of
// whole arrays, element by element. It checks the figures of the plan, the fingerprint, and that
// what the plan says to be minimal is.
func TestReshape(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawReshape(t)
		p, err := plan.Build(r.src, r.dst, r.cluster)
		var lost *plan.LostError
		if errors.As(err, &lost) {
			r.checkLost(lost)
			return
		}
		if err != nil {
			if r.cluster.Allowed == nil || r.canPlace(0, 0) {
				t.Fatal(err)
			}
			return
		}
		old, want, got := r.expectMemory(r.from, r.src), r.expectMemory(r.to, r.dst),
			zeroMemory(r.dst)
		r.executePlan(p, old, got)
		for rank := range want {
			for name, data := range want[rank] {
				if !bytes.Equal(got[rank][name], data) {
					t.Fatalf("from %+v\nto %+v\nrank %d has %s = %x, want %x", *r.from, *r.to, rank,
						name, got[rank][name], data)
				}
			}
			if len(got[rank]) != len(want[rank]) {
				t.Fatalf("rank %d has %d tensors, want %d", rank, len(got[rank]), len(want[rank]))
			}
		}
		r.checkFingerprint(got)
		r.checkMemory(p)
		r.checkBound(p)
		r.checkSchedule(p)
	})
}

// executePlan executes the ops of p one after the other, from old and new memory to new, and checks
// their order and the figures of the plan.
func (r *reshape) executePlan(p *plan.Plan, old, new memory) {
	hosts := len(r.cluster.Devices)
	in, out := make([]int, hosts), make([]int, hosts)
	written := map[string]int{} // new tensor -> elements
	cuts := 0
	for h := range hosts {
		for _, k := range p.InPlace(h) {
			if k.From.New || !k.To.New || p.Host[k.To.Rank] != h ||
				r.cluster.Old[k.From.Rank] != h || r.oldDevice(k.From.Rank) != p.Device[k.To.Rank] {
				r.Fatalf("host %d keeps %+v", h, k)
			}
			copy(new[k.To.Rank][k.To.Name], old[k.From.Rank][k.From.Name])
			written[fmt.Sprint(k.To.Rank, k.To.Name)] = -1
		}
	}
	for op := range p.Ops() {
		from, to, host := old, new, r.cluster.Old
		if op.From.New {
			from, host = new, p.Host
		}
		if !op.To.New || (op.Depth > 1) != op.From.New {
			r.Fatalf("op %+v", op)
		}
		if host[op.From.Rank] != op.From.Host || p.Host[op.To.Rank] != op.To.Host {
			r.Fatalf("op %+v names a wrong host", op)
		}
		size := r.model.Tensors[op.Tensor].DType.Size()
		for run := range tensor.Runs(op.Box, op.From.View, op.To.View) {
			copy(to[op.To.Rank][op.To.Name][run.B*size:][:run.N*size],
				from[op.From.Rank][op.From.Name][run.A*size:][:run.N*size])
		}
		if name := fmt.Sprint(op.To.Rank, op.To.Name); written[name] < 0 {
			r.Fatalf("op %+v writes what is kept", op)
		} else {
			written[name] += op.Box.Elements()
		}
		if op.From.Host != op.To.Host {
			in[op.To.Host] += p.OpBytes(&op)
			out[op.From.Host] += p.OpBytes(&op)
			cuts++
		}
	}
	for rank := range r.dst.Ranks {
		for _, local := range r.dst.RankLocals(rank) {
			n := 0
			for _, piece := range local.Pieces {
				n += piece.Box.Elements()
			}
			if got := written[fmt.Sprint(rank, local.Name)]; got != n && got >= 0 {
				r.Fatalf("rank %d, %s: %d elements are written, it has %d", rank, local.Name, got,
					n)
			}
		}
	}
	total := 0
	for h := range hosts {
		total += in[h]
		if slack := 16 * cuts; in[h] != p.Stats.Ingress[h] || out[h] > p.Stats.Egress[h]+slack ||
			out[h] < p.Stats.Egress[h]-slack {
			r.Fatalf("host %d receives %d and sends %d bytes, the plan says %d and %d", h, in[h],
				out[h], p.Stats.Ingress[h], p.Stats.Egress[h])
		}
	}
	if total != p.Stats.Bytes || p.Stats.Bytes != p.Stats.Bound {
		r.Fatalf("%d bytes cross the network, the plan says %d with a bound of %d", total,
			p.Stats.Bytes, p.Stats.Bound)
	}
	if p.Stats.Busiest != p.Stats.BusiestBound {
		r.Fatalf("busiest host %d, bound %d", p.Stats.Busiest, p.Stats.BusiestBound)
	}
}

// oldDevice returns the number of an old rank among those of its host.
func (r *reshape) oldDevice(rank int) (n int) {
	for _, h := range r.cluster.Old[:rank] {
		if h == r.cluster.Old[rank] {
			n++
		}
	}
	return n
}

// checkMemory compares what hosts hold, by the plan, with the tensors of their ranks.
func (r *reshape) checkMemory(p *plan.Plan) {
	memory, extra := make([]int, len(r.cluster.Devices)), make([]int, len(r.cluster.Devices))
	for rank, tensors := range zeroMemory(r.src) {
		if h := r.cluster.Old[rank]; h != plan.Lost {
			memory[h] += bytesOf(tensors)
		}
	}
	for rank, tensors := range zeroMemory(r.dst) {
		memory[p.Host[rank]] += bytesOf(tensors)
		extra[p.Host[rank]] += bytesOf(tensors)
	}
	if !slices.Equal(p.Stats.Memory, memory) || !slices.Equal(p.Stats.Extra, extra) {
		r.Fatalf("hosts hold %v bytes, %v of them new; the plan says %v and %v", memory, extra,
			p.Stats.Memory, p.Stats.Extra)
	}
}

// bytesOf returns the bytes of some tensors together.
func bytesOf(tensors map[string][]byte) (n int) {
	for _, data := range tensors {
		n += len(data)
	}
	return n
}

// checkFingerprint adds up the sums of the cells in new memory m, wherever they are, and compares
// them with those of whole tensors.
func (r *reshape) checkFingerprint(m memory) {
	for _, f := range r.dst.Families {
		for i, t := range f.Tensors {
			size := r.model.Tensors[t].DType.Size()
			var got digest.Sum
			for _, c := range f.Grid.Cells {
				slot := &r.dst.Slots[f.Slots[c.Held[0].Slot]]
				data := m[r.dst.Sets[slot.Set][0]][slot.Names[i]]
				got = got.Plus(key.BoxSum(c.Box, f.Grid.Shape, size, data, c.Held[0].View))
			}
			var whole []byte
			for e := range f.Grid.Shape.Box().Elements() {
				whole = append(whole, layouttest.Element{Tensor: t, Index: e}.Bytes(size)...)
			}
			if want := key.RunSum(0, whole); got != want {
				r.Fatalf("fingerprint of %s is %v, was %v", r.model.Tensors[t].Name, got, want)
			}
		}
	}
}

// holdersOf returns who holds each element of the state in a layout, by a bit for each host or
// group; where has that of each rank, or Lost.
func (r *reshape) holdersOf(l *layout.Layout, where []int) map[layouttest.Element]uint64 {
	marks := map[layouttest.Element]uint64{}
	for rank := range l.Ranks {
		for _, local := range l.RankLocals(rank) {
			for _, piece := range local.Pieces {
				for run := range tensor.Runs(piece.Box, r.model.Tensors[piece.Tensor].Shape.View(),
					piece.View) {
					for i := range run.N {
						e := layouttest.Element{Tensor: piece.Tensor, Index: run.A + i}
						marks[e] |= 0
						if where[rank] != plan.Lost {
							marks[e] |= 1 << where[rank]
						}
					}
				}
			}
		}
	}
	return marks
}

// elementSize returns the bytes of an element.
func (r *reshape) elementSize(e layouttest.Element) int {
	return r.model.Tensors[e.Tensor].DType.Size()
}

// checkLost demands that the error names all tensors with elements that only lost ranks had.
func (r *reshape) checkLost(lost *plan.LostError) {
	bytes := 0
	for e, hosts := range r.holdersOf(r.src, r.cluster.Old) {
		if hosts == 0 {
			bytes += r.elementSize(e)
			if !slices.Contains(lost.Tensors, r.model.Tensors[e.Tensor].Name) {
				r.Fatalf("%v is lost, the error says %v", e, lost)
			}
		}
	}
	if bytes != lost.Bytes || bytes == 0 {
		r.Fatalf("%d bytes are lost, the error says %v", bytes, lost)
	}
}

// checkBound looks for a better plan: every placing of the groups on the hosts, and for the one
// that was chosen, every set of hosts that together must send more than they can below the bound.
func (r *reshape) checkBound(p *plan.Plan) {
	hosts := len(r.cluster.Devices)
	groups := slices.Max(r.cluster.New) + 1
	if hosts > 6 {
		return
	}
	held, needed := r.holdersOf(r.src, r.cluster.Old), r.holdersOf(r.dst, r.cluster.New)
	type kind struct{ held, needed uint64 }
	bytes := map[kind]int{}
	for e, groups := range needed {
		bytes[kind{held[e], groups}] += r.elementSize(e)
	}
	size := make([]int, groups)
	for _, g := range r.cluster.New {
		size[g]++
	}
	missing := func(g, h int) (n int) {
		for k, b := range bytes {
			if k.needed>>g&1 == 1 && k.held>>h&1 == 0 {
				n += b
			}
		}
		return n
	}
	cost := make([][]int, groups)
	for g := range cost {
		for h := range hosts {
			cost[g] = append(cost[g], missing(g, h))
		}
	}
	total, busiest := math.MaxInt, math.MaxInt
	var walk func(g int, used uint64, sum, most int)
	walk = func(g int, used uint64, sum, most int) {
		if g == groups {
			if sum < total || sum == total && most < busiest {
				total, busiest = sum, most
			}
			return
		}
		for h := range hosts {
			if used>>h&1 == 0 && r.cluster.Devices[h] >= size[g] && r.mayTake(h, g) {
				walk(g+1, used|1<<h, sum+cost[g][h], max(most, cost[g][h]))
			}
		}
	}
	walk(0, 0, 0, 0)
	in := slices.Max(p.Stats.Ingress)
	if p.Stats.Bytes != total || in != busiest {
		r.Fatalf("the plan moves %d bytes, %d into one host; possible are %d and %d", p.Stats.Bytes,
			in, total, busiest)
	}
	host := make([]int, groups)
	for rank, g := range r.cluster.New {
		host[g] = p.Host[rank]
	}
	out := 0
	for set := uint64(1); set < 1<<hosts; set++ {
		load, n := 0, 0
		for k, b := range bytes {
			to := uint64(0)
			for g, h := range host {
				to |= k.needed >> g & 1 << h
			}
			if to &^= k.held; to == 0 {
				continue
			}
			if k.held&^set == 0 {
				load += b
				if to&^set == 0 {
					load += b * (countOnes(to) - 1)
				}
			}
		}
		n = countOnes(set)
		out = max(out, (load+n-1)/n)
	}
	if want := max(in, out); p.Stats.BusiestBound != want {
		r.Fatalf("the busiest host has %d, possible are %d", p.Stats.BusiestBound, want)
	}
}

// mayTake reports whether a host may take a group, whatever its room.
func (r *reshape) mayTake(h, g int) bool {
	return r.cluster.Allowed == nil || r.cluster.Allowed[g][h]
}

// canPlace reports whether groups from number g on find hosts that may take them, beside those that
// are used, which have a bit each.
func (r *reshape) canPlace(g int, used uint64) bool {
	size := 0
	for _, x := range r.cluster.New {
		if x == g {
			size++
		}
	}
	for h, n := range r.cluster.Devices {
		if size > 0 && used>>h&1 == 0 && size <= n && r.mayTake(h, g) &&
			r.canPlace(g+1, used|1<<h) {
			return true
		}
	}
	return size == 0
}

// countOnes returns the number of bits that are set.
func countOnes(x uint64) (n int) {
	for ; x != 0; x &= x - 1 {
		n++
	}
	return n
}

// checkSchedule checks that the schedule sends what the ops send, that no host sends or receives
// two things at once, and that it takes no longer than the busiest host needs.
func (r *reshape) checkSchedule(p *plan.Plan) {
	type link struct{ from, to int }
	want, got := map[link]int{}, map[link]int{}
	for op := range p.Ops() {
		if op.From.Host != op.To.Host {
			want[link{op.From.Host, op.To.Host}] += p.OpBytes(&op)
		}
	}
	end, free := 0, map[link]int{} // each port: (host, 0) sends, (host, 1) receives
	last := map[link]int{}         // by link: when what it sent last ends
	for _, s := range p.Schedule() {
		if s.From == s.To || s.Bytes <= 0 ||
			s.Start < max(free[link{s.From, 0}], free[link{s.To, 1}]) {
			r.Fatalf("%+v starts while its hosts are busy", s)
		}
		if at, sent := last[link{s.From, s.To}]; sent && at == s.Start {
			r.Fatalf("%+v goes on with what was sent before it", s)
		}
		last[link{s.From, s.To}] = s.Start + s.Bytes
		got[link{s.From, s.To}] += s.Bytes
		free[link{s.From, 0}], free[link{s.To, 1}] = s.Start+s.Bytes, s.Start+s.Bytes
		end = max(end, s.Start+s.Bytes)
	}
	for l, n := range want {
		if slack := 16 * 64; got[l] < n-slack || got[l] > n+slack {
			r.Fatalf("from host %d to host %d the schedule sends %d bytes, the plan %d", l.from,
				l.to, got[l], n)
		}
	}
	if end != p.Stats.Busiest {
		r.Fatalf("the schedule takes %d, the busiest host %d", end, p.Stats.Busiest)
	}
}
