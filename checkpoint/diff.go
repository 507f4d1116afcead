package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/state/move"
	"github.com/shoal-ml/shoal/tensor"
)

// How two checkpoints are compared. One goroutine uses the two; workers is the number of goroutines
// among which the functions share the reading, and for which they wait.

// A Difference describes a tensor in which two checkpoints differ.
type Difference struct {
	Tensor string `json:"tensor"`
	// What is "only in A", "only in B", "type or shape" or "content".
	What string `json:"what"`
	A    string `json:"a,omitempty"` // type and shape in A
	B    string `json:"b,omitempty"` // type and shape in B
	// Elements is the number of elements that differ, bit by bit.
	Elements int   `json:"elements,omitempty"`
	First    []int `json:"first,omitempty"` // index of the first element that differs
}

// String says in a line in what the tensor differs.
func (d Difference) String() string {
	switch d.What {
	case "content":
		return fmt.Sprintf("%q: %s %s, the first at %v", d.Tensor,
			plural.Of(d.Elements, "element"), plural.Verb(d.Elements, "differs", "differ"),
			tensor.Shape(d.First))
	case "type or shape":
		return fmt.Sprintf("%q: %s against %s", d.Tensor, d.A, d.B)
	}
	return fmt.Sprintf("%q: %s", d.Tensor, d.What)
}

// Compare compares the tensors of two checkpoints bit by bit, whatever their formats and layouts,
// and returns the differences in the order of names. What one of them has twice, under names that
// are tied, and the other once, is no difference. Damage that the files themselves reveal is an
// error, not a difference; so is a file that has changed since its checkpoint was opened. Damage
// that only a seal reveals is both: the error, which has a SealError then, comes with the
// differences.
func Compare(ctx context.Context, a, b *Checkpoint, workers int) (found []Difference, tied []Tie,
	err error) {
	if err := errors.Join(a.checkStructure(), b.checkStructure()); err != nil {
		return nil, nil, err
	}
	found, damage := compareTensors(ctx, a, b, workers)
	if sealed := (*SealError)(nil); damage != nil && !errors.As(damage, &sealed) {
		return nil, nil, damage
	}
	rest, tied, err := removeTied(ctx, a, b, found, workers)
	if err == nil {
		found, err = rest, errors.Join(a.checkUnchanged(), b.checkUnchanged())
	}
	return found, tied, cmp.Or(err, damage)
}

// compareTensors is Compare without ties.
func compareTensors(ctx context.Context, a, b *Checkpoint, workers int) ([]Difference, error) {
	for _, c := range []*Checkpoint{a, b} {
		if _, err := c.checkContent(ctx, workers); err != nil {
			return nil, err
		}
	}
	index := map[string]*format.Tensor{}
	for i := range b.Tensors {
		index[b.Tensors[i].Name] = &b.Tensors[i]
	}
	var found []Difference
	var pairs []pair
	for i := range a.Tensors {
		t := &a.Tensors[i]
		u := index[t.Name]
		delete(index, t.Name)
		switch {
		case u == nil:
			found = append(found, Difference{Tensor: t.Name, What: "only in A"})
		case t.DType != u.DType || !t.Shape.Equal(u.Shape):
			found = append(found,
				Difference{Tensor: t.Name, What: "type or shape",
					A: fmt.Sprint(t.DType, " ", t.Shape), B: fmt.Sprint(u.DType, " ", u.Shape)})
		case t.DType.Size() == 0:
			return nil, fmt.Errorf(
				"tensor %q: elements of %v share bytes, which shoal does not compare", t.Name,
				t.DType)
		default:
			pairs = append(pairs, pair{t, u})
		}
	}
	for name := range index {
		found = append(found, Difference{Tensor: name, What: "only in B"})
	}
	content, err := compareElements(ctx, a, b, pairs, workers)
	found = append(found, content...)
	slices.SortFunc(found, func(x, y Difference) int { return strings.Compare(x.Tensor, y.Tensor) })
	return found, err
}

// A pair is a tensor that both checkpoints have.
type pair struct{ a, b *format.Tensor }

// compareElements reads and compares the elements of pairs of tensors of a and b, which have the
// same type and shape, and returns a Difference for each pair that differs. It cuts each pair into
// ranges of elements, and these into boxes, which both sides read packed. It fails where a
// checkpoint has changed since it was opened. Where a tensor is not what was sealed, it returns a
// SealError with the differences.
func compareElements(ctx context.Context, a, b *Checkpoint, pairs []pair,
	workers int) ([]Difference,
	error) {
	type item struct{ pair, from, to int }
	var items []item
	for i, p := range pairs {
		n, most := p.a.Shape.Box().Elements(), move.BlockBytes/p.a.DType.Size()
		for from := 0; from < n; from += most {
			items = append(items, item{i, from, min(from+most, n)})
		}
	}
	left, right := a.newReader(), b.newReader()
	sealA, sealB := a.newSealCheck(len(pairs)), b.newSealCheck(len(pairs))
	counts, firsts := make([]int, len(items)), make([]int, len(items))
	bytes := func(i int) int64 {
		x := &items[i]
		return 2 * int64(x.to-x.from) * int64(pairs[x.pair].a.DType.Size())
	}
	err := shareItems(ctx, "comparing", workers, len(items), bytes, func() func(int) error {
		var x, y []byte
		return func(i int) error {
			p, size := pairs[items[i].pair], pairs[items[i].pair].a.DType.Size()
			at := items[i].from
			for _, box := range p.a.Shape.Box().Range(items[i].from, items[i].to) {
				n := box.Elements() * size
				x, y = slices.Grow(x[:0], n)[:n], slices.Grow(y[:0], n)[:n]
				if err := errors.Join(left.readBox(p.a, box, x),
					right.readBox(p.b, box, y)); err != nil {
					return err
				}
				sealA.add(items[i].pair, p.a, box, x)
				sealB.add(items[i].pair, p.b, box, y)
				count, first := countUnequal(x, y, size)
				if counts[i] == 0 && count > 0 {
					firsts[i] = at + first
				}
				counts[i] += count
				at += n / size
			}
			return nil
		}
	})
	var found []Difference
	for i, n := range counts {
		if n == 0 {
			continue
		}
		t := pairs[items[i].pair].a
		if k := len(found) - 1; k >= 0 && found[k].Tensor == t.Name {
			found[k].Elements += n
			continue
		}
		found = append(found,
			Difference{Tensor: t.Name, What: "content", Elements: n,
				First: elementIndex(t.Shape, firsts[i])})
	}
	if err = errors.Join(err, left.Close(), right.Close()); err == nil {
		err = errors.Join(a.checkUnchanged(), b.checkUnchanged())
	}
	if err == nil {
		err = errors.Join(a.checkSealed(sealA.tensors), b.checkSealed(sealB.tensors))
	}
	return found, err
}

// A sealCheck sums up the tensors of a sealed checkpoint while they are compared with others, for
// checkSealed. Several goroutines may use it.
type sealCheck struct {
	key *digest.Key // key of the seal; nil = the checkpoint is not sealed

	mu      sync.Mutex        // guards tensors
	tensors []manifest.Tensor // names and fingerprints, as far as they have been read, by pair
}

// newSealCheck returns a sealCheck for n tensors, of which nothing is read yet.
func (c *Checkpoint) newSealCheck(n int) *sealCheck {
	if c.sealed == nil {
		return &sealCheck{}
	}
	return &sealCheck{key: digest.NewKey(c.sealed.Seed), tensors: make([]manifest.Tensor, n)}
}

// add adds the elements of a box of tensor t, which is the i-th, packed in memory.
func (s *sealCheck) add(i int, t *format.Tensor, box tensor.Box, memory []byte) {
	if s.key == nil {
		return
	}
	sum := s.key.BoxSum(box, t.Shape, t.DType.Size(), memory, box.Packed(0))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tensors[i].Name, s.tensors[i].Sum = t.Name, s.tensors[i].Sum.Plus(sum)
}

// countUnequal returns the number of elements of size bytes that differ between x and y, and the
// index of the first; 0 if none does.
func countUnequal(x, y []byte, size int) (count, first int) {
	if bytes.Equal(x, y) {
		return 0, 0
	}
	for i := 0; i < len(x); i += size {
		if !bytes.Equal(x[i:i+size], y[i:i+size]) {
			if count == 0 {
				first = i / size
			}
			count++
		}
	}
	return count, first
}

// elementIndex returns the index of the n-th element of a shape in row-major order.
func elementIndex(s tensor.Shape, n int) []int {
	index := make([]int, len(s))
	for d := len(s) - 1; d >= 0; d-- {
		index[d] = n % s[d]
		n /= s[d]
	}
	return index
}

// A reader reads boxes of a checkpoint from any of its pieces. Several goroutines may use it, and
// wait for the files; nothing changes index.
type reader struct {
	fileSet
	index map[string]int // position of each file in names
}

// newReader returns a reader of the files that hold tensors. The caller closes it.
func (c *Checkpoint) newReader() *reader { return c.newReaderOf(c.tensorFiles()) }

// newReaderOf returns a reader of the named files of a checkpoint. The caller closes it.
func (c *Checkpoint) newReaderOf(names []string) *reader {
	r := &reader{fileSet: fileSet{names: names, open: func(name string) (handle, error) {
		return openFrom(c.Files.FS(), name)
	}}, index: map[string]int{}}
	for i, name := range r.names {
		r.index[name] = i
	}
	return r
}

// readBytes fills b with the bytes of one of the reader's files, from an offset on.
func (r *reader) readBytes(name string, b []byte, at int64) error {
	return r.Read(r.index[name], b, at)
}

// readBox reads a box of a tensor into dst, packed in row-major order.
func (r *reader) readBox(t *format.Tensor, box tensor.Box, dst []byte) error {
	return t.ReadBox(r.readBytes, box, dst)
}
