package megatron

// This file finds parameters in the flat buffers of a distributed optimizer; it blocks on files.
import (
	"bytes"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/tensor"
)

const (
	align = 64 // elements: alignment of parameters in a bucket
	// elements that are compared to see whether a parameter starts at a position.
	comparedElements = 256
	effort           = 1 << 20 // comparisons for a buffer
)

// A buffer is the distributed optimizer's state of some parameters of a chunk: one flat f32 tensor
// for each kind. Parameters stand in it in the reverse of the model's order, at multiples of 64
// elements; buckets, of any number of parameters, follow each other without padding. Nothing
// records where a bucket ends: the parameters themselves tell, because their copies, rounded, are
// the model's. (Before 2024 parameters were not padded, which is as if each were a bucket.)
type buffer struct {
	main  *torchzip.Tensor // copies of the parameters
	dtype tensor.DType     // element type of the parameters
	kinds []flatKind       // kinds besides the copies of the parameters
}

// A flatKind is a kind of state in a buffer: a flat tensor of the buffer's length.
type flatKind struct {
	name string
	flat *torchzip.Tensor
}

// unpackBuffers finds the parameters in the distributed optimizer's buffers of a rank, and returns
// a slot for each. It reads elements to compare them.
func unpackBuffers(files *format.Files, p *part) (slots []*slot, err error) {
	buffers, err := readBuffers(p.distributed.Root)
	if err != nil {
		return nil, err
	}
	used := map[*param]bool{}
	for i, b := range buffers {
		params, at, err := findParams(files, b, p, used)
		if err != nil {
			return nil, err
		}
		if params == nil {
			return nil, unnamedErrorf(
				"%s: in the distributed optimizer's buffer %d, of %d elements, "+
					"the model's parameters are not found", p.distributed.Name, i, b.main.Shape[0])
		}
		for k, q := range params {
			used[q] = true
			s := &slot{param: q}
			if s.main, err = sliceBuffer(b.main, q.Shape, at[k]); err != nil {
				return nil, err
			}
			for _, f := range b.kinds {
				t, err := sliceBuffer(f.flat, q.Shape, at[k])
				if err != nil {
					return nil, err
				}
				s.kinds = append(s.kinds, kind{f.name, t})
			}
			slots = append(slots, s)
		}
	}
	return slots, nil
}

// bufferKeys matches the names of the distributed optimizer's buffers in torch_dist.
var bufferKeys = pattern.New(`^(chained_\d+\.)?optimizer\.distributed\.`)

// flatBufferError says that a buffer of the distributed optimizer cannot be split, and what to do.
func flatBufferError(what string) error {
	return fmt.Errorf("%s is a flat buffer of Megatron's distributed optimizer, and shoal "+
		"cannot tell which parameters are in it (shoal state check says why): Megatron has that "+
		"from its model, over the same tensor, pipeline and expert parallel ranks. "+
		"Have it load the checkpoint over these and save it with --ckpt-format torch_dist "+
		"--dist-ckpt-optim-fully-reshardable; or leave the optimizer out with --only 'model.**'",
		what)
}

// sliceBuffer returns a parameter's part of a flat buffer, from an element on.
func sliceBuffer(flat *torchzip.Tensor, shape tensor.Shape, at int) (*format.Tensor, error) {
	file, offset, err := flat.LocateFlat(at)
	if err != nil {
		return nil, unnamedErrorf("%v", err)
	}
	t := format.PackedIn(file, offset, "", flat.DType, shape)
	return &t, nil
}

// readBuffers reads {number: {type: {"param": flat, "exp_avg": flat, …}}}, or a list of such dicts.
func readBuffers(root any) (list []*buffer, err error) {
	if chained, ok := root.(*pickle.List); ok {
		for _, x := range chained.Items {
			if x == nil {
				continue
			}
			buffers, err := readBuffers(x)
			if err != nil {
				return nil, err
			}
			list = append(list, buffers...)
		}
		return list, nil
	}
	d, ok := root.(*pickle.Dict)
	if !ok {
		return nil, unnamedErrorf("%s holds %s", distributedName, pickle.KindWithArticle(root))
	}
	for _, item := range d.Items {
		if _, ok := item.Key.(int64); !ok {
			continue
		}
		types, ok := item.Value.(*pickle.Dict)
		if !ok {
			return nil, unnamedErrorf("%s: buffer %v is %s", distributedName, item.Key,
				pickle.KindWithArticle(item.Value))
		}
		for _, t := range types.Items {
			b, err := readBuffer(t.Key, t.Value)
			if err != nil {
				return nil, err
			}
			list = append(list, b)
		}
	}
	return list, nil
}

// readBuffer checks one buffer, which is v under the key, the type of its parameters.
func readBuffer(key, v any) (*buffer, error) {
	if both, ok := key.(pickle.Tuple); ok && len(both) > 0 {
		key = both[0] // the type of the parameters, and that of the gradients
	}
	d, err := torchzip.ParseDType(key)
	fields, ok := v.(*pickle.Dict)
	if err != nil || !ok || !format.CanRound(d) {
		return nil, unnamedErrorf(
			"%s: a buffer under %s is %s; it is of a Megatron before February "+
				"2024, or not of its distributed optimizer", distributedName,
			pickle.KindWithArticle(key), pickle.KindWithArticle(v))
	}
	b := &buffer{dtype: d}
	for _, k := range fields.Items {
		name, _ := k.Key.(string)
		t, ok := k.Value.(*torchzip.Tensor)
		switch {
		case !ok:
			continue // numel_unpadded
		case len(t.Shape) != 1 || b.main != nil && t.Shape[0] != b.main.Shape[0]:
			return nil, unnamedErrorf(
				"%s: %.200q is of shape %v, and no flat buffer like the others",
				distributedName, name, t.Shape)
		case name == "param":
			b.main = t
		default:
			b.kinds = append(b.kinds, flatKind{name, t})
		}
	}
	if b.main == nil || b.main.DType != tensor.F32 ||
		slices.ContainsFunc(b.kinds, func(k flatKind) bool {
			return k.flat.Shape[0] != b.main.Shape[0]
		}) {
		return nil, unnamedErrorf(
			"%s: a buffer of %v has no copies of the parameters in f32, or state of another size",
			distributedName, d)
	}
	return b, nil
}

// findParams returns the parameters that are in a buffer, and at which element each begins; none if
// they are not those of a chunk: all, those of experts, or the others. used are those that other
// buffers have. If there is no other way, one of them may not fit: its proof will say where.
func findParams(files *format.Files, b *buffer, p *part, used map[*param]bool) ([]*param, []int,
	error) {
	w := bufferWalk{files: files, flat: b.main.AsTensor("optimizer"), left: effort}
	for wrong := range 2 {
		for chunk := range p.chunks {
			for _, in := range []func(*param) bool{
				func(*param) bool { return true },
				func(q *param) bool { return !q.expert },
				func(q *param) bool { return q.expert },
			} {
				w.params = nil
				for _, q := range slices.Backward(p.params) {
					if q.chunk == chunk && q.DType == b.dtype && in(q) && !used[q] &&
						!noParameter.MatchString(q.Name) {
						w.params = append(w.params, q)
					}
				}
				w.at = make([]int, len(w.params))
				if ok, err := w.placeFrom(0, 0, 0, wrong); err != nil || ok && len(w.params) > 0 {
					return w.params, w.at, err
				}
			}
		}
	}
	return nil, nil, nil
}

// A bufferWalk goes through a flat buffer, by parameters, on one goroutine. It reads elements.
type bufferWalk struct {
	files  *format.Files
	flat   format.Tensor
	params []*param // parameters to be placed, in order
	at     []int    // first element in flat of each
	left   int      // comparisons that are left
}

// placeFrom places the parameters from index i on after element end, in the bucket that starts at
// base or the next one, sets w.at, and reports whether they fit. At most wrong may not match.
func (w *bufferWalk) placeFrom(i, base, end, wrong int) (bool, error) {
	if i == len(w.params) {
		return end == w.flat.Shape[0], nil
	}
	n := w.params[i].Shape.Box().Elements()
	padded := base + (end-base+align-1)/align*align
	for _, place := range [2]struct{ at, base int }{{padded, base}, {end, end}} {
		if place.at > w.flat.Shape[0]-n || place.base != base && end == padded {
			continue
		}
		fits, err := w.matches(i, place.at, n)
		if err != nil {
			return false, err
		}
		left := wrong
		if !fits {
			left--
		}
		if left < 0 || w.left < 0 {
			continue
		}
		w.at[i] = place.at
		if ok, err := w.placeFrom(i+1, place.base, place.at+n, left); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// matches reads the first of the n elements of parameter i, and reports whether they equal,
// rounded, those of the buffer at a position; false too when no comparisons are left.
func (w *bufferWalk) matches(i, at, n int) (bool, error) {
	if w.left--; w.left < 0 {
		return false, nil
	}
	p := w.params[i]
	some := min(n, comparedElements)
	main, model := make([]byte, some*4), make([]byte, some*p.DType.Size())
	if err := w.files.ReadRange(&w.flat, at, at+some, main); err != nil {
		return false, err
	}
	if err := w.files.ReadRange(&p.Tensor, 0, some, model); err != nil {
		return false, err
	}
	rounded := make([]byte, len(model))
	format.Round(p.DType, rounded, main)
	return bytes.Equal(rounded, model), nil
}
