package reshape_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/layout/layouttest"
	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/state/reshape"
)

// key is the key of the fingerprints in these tests.
var key = digest.NewKey(11)

// expectMemories returns the memory of each rank as an oracle says what it has, and a Layout where
// it lies: another value for each element, and zeros for padding.
func expectMemories(l *reshape.Layout, spec *layout.Spec, tensors []layout.Tensor) [][]byte {
	out := make([][]byte, l.Ranks)
	for rank, arrays := range layouttest.ExpectedArrays(spec, tensors) {
		mem := make([]byte, l.Bytes(rank))
		for name, a := range arrays {
			at := l.Offset(rank, name)
			for j, e := range a.Data {
				if e == layouttest.Padding {
					continue
				}
				size := tensors[e.Tensor].DType.Size()
				for x := range size {
					mem[at+j*size+x] = byte(1 + (e.Tensor*31+e.Index*7+x*13)%251)
				}
			}
		}
		out[rank] = mem
	}
	return out
}

// newState states a model whose layout is a spec, and returns the state, and the state on the mesh
// of the spec. If it cannot the test fails.
func newState(t *rapid.T, m layouttest.Model, spec *layout.Spec) (*reshape.State, *reshape.Layout) {
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	s := &reshape.Statement{Layout: string(text), Mesh: spec.Mesh}
	for _, x := range m.Tensors {
		s.Tensors = append(s.Tensors,
			reshape.Tensor{Name: x.Name, DType: x.DType.String(), Shape: x.Shape})
	}
	st, err := reshape.NewState(s)
	if err != nil {
		t.Fatal(err)
	}
	l, err := st.OnMesh(spec.Mesh)
	if err != nil {
		t.Fatal(err)
	}
	return st, l
}

// TestChange changes between random layouts on random hosts, some of whose workers are lost, and
// compares with an oracle. Then it damages the new memory: the proof must fail.
func TestChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := layouttest.DrawModel(t)
		from, to := layouttest.DrawSpec(t, model), layouttest.DrawSpec(t, model)
		_, old := newState(t, model, from)
		_, new := newState(t, model, to)
		at := drawPlacement(t, old.Ranks, max(old.Ranks, new.Ranks))
		c, err := reshape.PlanChange(old, new, at)
		var lost *plan.LostError
		if errors.As(err, &lost) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int]bool{}
		for _, w := range c.Workers {
			if seen[w] {
				t.Fatalf("the order %v of the new ranks names a worker twice", c.Workers)
			}
			seen[w] = true
			if slices.Contains(at.Leaving, at.Hosts[w]) {
				t.Fatalf(
					"the order %v of the new ranks has worker %d, on a host of %v that is left",
					c.Workers, w, at.Leaving)
			}
		}
		was, want := expectMemories(old, from, model.Tensors),
			expectMemories(new, to, model.Tensors)
		is := make([][]byte, new.Ranks)
		for r := range is {
			is[r] = make([]byte, new.Bytes(r))
		}
		for r, w := range at.Ranks {
			if w == reshape.Lost {
				was[r] = nil
			}
		}
		written := map[reshape.Location]bool{}
		for _, m := range c.Moves() {
			for _, to := range m.To {
				copy(is[to.Rank][to.At:][:m.N], was[m.From.Rank][m.From.At:])
				if written[to] {
					t.Fatalf("%v is written twice", to)
				}
				written[to] = true
			}
		}
		for r := range is {
			if !bytes.Equal(is[r], want[r]) {
				t.Fatalf("from %+v\nto %+v\nrank %d has\n%x, want\n%x", *from, *to, r, is[r],
					want[r])
			}
		}
		prove := func() digest.Proof {
			return proveAll(c, func(r int) []byte {
				return was[r]
			}, func(r int) []byte { return is[r] })
		}
		if p := prove(); p.Old != p.New {
			t.Fatalf("the fingerprints are %v and %v", p.Old, p.New)
		}
		checkDamage(t, c, is, prove)
	})
}

// proveAll returns the proof of all tensors together; old and new return the memory of a rank as
// ProveTensor takes them.
func proveAll(c *reshape.Change, old, new func(int) []byte) (p digest.Proof) {
	for t := range c.New.Tensors {
		p = p.Plus(c.ProveTensor(key, t, old, new))
	}
	return p
}

// drawPlacement draws which of so many workers have the old ranks, and the hosts of these; a worker
// may be lost, and a host may leave, for which there are more workers then.
func drawPlacement(t *rapid.T, ranks, workers int) reshape.Placement {
	var at reshape.Placement
	hosts := rapid.IntRange(1, 3).Draw(t, "hosts")
	for range workers {
		at.Hosts = append(at.Hosts, rapid.IntRange(0, hosts-1).Draw(t, "host"))
	}
	order := rapid.Permutation(upTo(workers)).Draw(t, "workers")
	at.Ranks = order[:ranks]
	if lost := rapid.IntRange(-3, ranks-1).Draw(t, "lost"); lost >= 0 {
		at.Ranks[lost] = reshape.Lost
	}
	if rapid.Bool().Draw(t, "leaving") {
		at.Leaving = []int{rapid.IntRange(0, hosts-1).Draw(t, "left")}
		for range workers { // on other hosts there are enough
			at.Hosts = append(at.Hosts, (at.Leaving[0]+rapid.IntRange(1, 2).Draw(t, "other"))%3)
		}
	}
	return at
}

// upTo returns the numbers from 0 to n-1.
func upTo(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// checkDamage flips a bit of an element of the new state, in the memories is of its ranks, and
// fails the test unless prove, which reads them, finds that. Without moves it does nothing.
func checkDamage(t *rapid.T, c *reshape.Change, is [][]byte, prove func() digest.Proof) {
	moves := c.Moves()
	if len(moves) == 0 {
		return
	}
	m := moves[rapid.IntRange(0, len(moves)-1).Draw(t, "move")]
	to := m.To[rapid.IntRange(0, len(m.To)-1).Draw(t, "to")]
	n := min(m.N, 16)
	i := to.At + rapid.IntRange(0, n-1).Draw(t, "byte")
	if padding := is[to.Rank][i] == 0; padding {
		return // of a tensor that was kept whole
	}
	is[to.Rank][i] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
	if p := prove(); p.Old == p.New {
		t.Fatalf("byte %d of rank %d is damaged, and the fingerprints are equal", i, to.Rank)
	}
}

// TestHostsAddUp: the proofs of hosts that each see their own ranks add up to the same.
func TestHostsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := layouttest.DrawModel(t)
		from, to := layouttest.DrawSpec(t, model), layouttest.DrawSpec(t, model)
		_, old := newState(t, model, from)
		_, new := newState(t, model, to)
		c, err := reshape.PlanChange(old, new,
			reshape.Placement{Hosts: make([]int, max(old.Ranks, new.Ranks)),
				Ranks: upTo(old.Ranks)})
		if err != nil {
			t.Fatal(err)
		}
		was, is := expectMemories(old, from, model.Tensors), expectMemories(new, to, model.Tensors)
		var sum digest.Proof
		for host := range 2 {
			mine := func(list [][]byte) func(int) []byte {
				return func(r int) []byte {
					if r%2 == host {
						return list[r]
					}
					return nil
				}
			}
			sum = sum.Plus(proveAll(c, mine(was), mine(is)))
		}
		if sum.Old != sum.New {
			t.Fatalf("the hosts' fingerprints add up to %v and %v", sum.Old, sum.New)
		}
	})
}

// twoByTwo is a layout that cuts the columns of tensor w over tp, and nothing else.
const twoByTwo = `
shoal: layout/1
mesh: dp=2,tp=2
rules:
- {match: "w", place: "tp=shard(1)"}
- {match: "**"}
`

// sampleStatement returns a statement of two tensors over dp and tp.
func sampleStatement() *reshape.Statement {
	return &reshape.Statement{Layout: twoByTwo, Mesh: "dp=2,tp=2",
		Tensors: []reshape.Tensor{{Name: "b", DType: "f32", Shape: []int{3}},
			{Name: "w", DType: "f32", Shape: []int{2, 8}}}}
}

// TestCheck compares what ranks say that they hold with the layout.
func TestCheck(t *testing.T) {
	s, err := reshape.NewState(sampleStatement())
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.OnMesh("dp=2,tp=2")
	if err != nil {
		t.Fatal(err)
	}
	good := []reshape.Tensor{{Name: "w", DType: "f32", Shape: []int{2, 4}},
		{Name: "b", DType: "f32", Shape: []int{3}}}
	if err := l.CheckHeld(1, good); err != nil {
		t.Fatal(err)
	}
	for want, have := range map[string][]reshape.Tensor{
		`no tensor "w"`:        good[1:],
		`the layout says f32`:  {{Name: "w", DType: "f32", Shape: []int{2, 8}}, good[1]},
		`has "w" as f64`:       {{Name: "w", DType: "f64", Shape: []int{2, 4}}, good[1]},
		`a tensor "extra"`:     {good[0], good[1], {Name: "extra", DType: "f32", Shape: []int{1}}},
		`two tensors called "`: {good[0], good[1], good[1]},
	} {
		if err := l.CheckHeld(1, have); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v gives the error %v, want one with %q", have, err, want)
		}
	}
}

// TestAxes refuses a mesh whose ranks differ on an axis that the layout does not name, also one
// that the job would begin with: the loss would be a multiple.
func TestAxes(t *testing.T) {
	for _, x := range []struct{ axes, mesh, want string }{
		{"dp=2,tp=2", "qq=3", "mesh qq=3: the layout has no axis qq, only dp, tp; all 3 places " +
			"on it would have the same, and do the same work"},
		{"dp=2,tp=2", "pd=3", "no axis pd (did you mean dp?)"},
		{"tp=2", "tp=2,dpp=2", "no axis dpp (did you mean dp?), only dp, tp;"},
		{"dp=2,tp=2", "dp=2,dq=3", "no axis dq, only dp, tp;"}, // dp is there already
		{"dp=2,tp=2", "qq=1,dp=3", ""},                         // one place differs from no other
		{"tp=2", "dp=3", ""},                                   // every layout has dp
		{"tp=2,cp=1,ep=1", "ep=3,cp=2", ""},
	} {
		said := sampleStatement()
		said.Layout = strings.Replace(twoByTwo, "dp=2,tp=2", x.axes, 1)
		said.Mesh = "tp=2"
		s, err := reshape.NewState(said)
		if err != nil {
			t.Fatal(err)
		}
		_, on := s.OnMesh(x.mesh)
		said.Mesh = x.mesh
		_, begun := reshape.NewState(said)
		for what, err := range map[string]error{"goes to": on, "begins with": begun} {
			if (err == nil) != (x.want == "") ||
				err != nil && !strings.Contains(err.Error(), x.want) {
				t.Errorf("a job of axes %s %s %s: error %v, want %q", x.axes, what, x.mesh, err,
					x.want)
			}
		}
	}
}

// TestShrinkAxis finds the largest degree of an axis that fits.
func TestShrinkAxis(t *testing.T) {
	for _, x := range []struct {
		mesh    string
		workers int
		want    string
		ok      bool
	}{
		{"dp=2,tp=2", 3, "dp=1,tp=2", true}, {"dp=4", 3, "dp=3", true}, {"tp=4", 3, "tp=4", false},
		{"tp=2", 3, "tp=2", true},
		{"pp=2,dp=3,tp=2", 9, "pp=2,dp=2,tp=2", true},
		{"dp=2,tp=2", 1, "dp=0,tp=2", false}, {"dp=2", 5, "dp=2", true},
		{"dp=3(2/1/1),pp=2(4/1;micro=2)", 4, "dp=2,pp=2(4/1;micro=2)", true},
	} {
		if got, ok := reshape.ShrinkAxis(x.mesh, "dp", x.workers); got != x.want || ok != x.ok {
			t.Errorf("%s on %d workers: %s, %v; want %s, %v", x.mesh, x.workers, got, ok, x.want,
				x.ok)
		}
	}
}

// FuzzParse has any statement of a worker: it is refused, or makes layouts.
func FuzzParse(f *testing.F) {
	good, err := json.Marshal(sampleStatement())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(
		`{"layout":"shoal: layout/1\nrules: [{match: '**'}]","mesh":"","tensors":[{"name":"x","dtype":"f32","shape":[-1]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := reshape.ParseStatement(text)
		if err != nil {
			return
		}
		st, err := reshape.NewState(s)
		if err != nil {
			return
		}
		l, err := st.OnMesh(s.Mesh)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.CheckHeld(0, s.Local)
	})
}

// TestUnreplicated counts what lies in one domain only.
func TestUnreplicated(t *testing.T) {
	s, err := reshape.NewState(sampleStatement())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		mesh           string
		domain         []int
		bytes, tensors int
		first          string
	}{
		{"dp=2,tp=2", []int{0, 1, 2, 3}, 0, 0, ""},             // each box is on two workers
		{"dp=2,tp=2", []int{0, 0, 1, 1}, 0, 0, ""},             // and hosts
		{"dp=2,tp=2", []int{0, 1, 0, 1}, 64, 1, "w"},           // a half of w is on one host
		{"dp=2,tp=2", []int{0, 0, 0, 0}, 64 + 12, 2, "b"},      // everything
		{"tp=2", []int{0, 1}, 64, 1, "w"},                      // b is on both
		{"tp=4,dp=2", []int{0, 1, 2, 3, 4, 0, 6, 7}, 0, 0, ""}, // ranks 2k and 2k+1 have the same
		{"tp=4,dp=2", []int{0, 0, 2, 3, 4, 5, 6, 7}, 16, 1, "w"},
	} {
		l, err := s.OnMesh(x.mesh)
		if err != nil {
			t.Fatal(err)
		}
		if bytes, tensors, first := l.Unreplicated(x.domain); bytes != x.bytes ||
			tensors != x.tensors ||
			first != x.first {
			t.Errorf("%s on %v: %d bytes of %d tensors, %q; want %d, %d, %q", x.mesh, x.domain,
				bytes, tensors, first, x.bytes, x.tensors, x.first)
		}
	}
}

// TestLargestMesh finds the largest mesh that fits and can hold the state.
func TestLargestMesh(t *testing.T) {
	for _, x := range []struct {
		mesh    string
		workers int
		refuses string // a mesh on which the state cannot lie
		want    string
	}{
		{"dp=2,tp=2", 3, "", "dp=1,tp=2"}, {"tp=4", 3, "", "tp=3"}, {"tp=4", 3, "tp=3", "tp=2"},
		{"dp=2,tp=4", 3, "", "dp=1,tp=3"},
		{"dp=2,tp=4", 3, "dp=1,tp=3", "dp=1,tp=2"}, {"pp=2,tp=3", 5, "", "pp=2,tp=2"},
		{"pp=2,tp=2", 1, "", "pp=1,tp=1"}, {"tp=2", 1, "tp=1", ""},
		{"pp=2(4/1),tp=2", 3, "", "pp=2(4/1),tp=1"}, {"pp=3(3/1/1;micro=2)", 2, "", "pp=2"},
	} {
		got, ok := reshape.LargestMesh(x.mesh, "dp", x.workers, func(mesh string) bool {
			return mesh != x.refuses
		})
		if got != x.want || ok != (x.want != "") {
			t.Errorf("%s on %d workers: %s, %v; want %s", x.mesh, x.workers, got, ok, x.want)
		}
	}
}
