package torchzip

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/tensor"
)

// This file makes tensors of the calls in a pickle that rebuild them. Constructors run on the
// goroutine that loads the pickle, and do no I/O but that of findStorage.

// A Tensor is a view of a storage. Once its file is open it is not changed, and its methods do no
// I/O, so that any goroutine may call them.
type Tensor struct {
	DType tensor.DType
	Shape tensor.Shape

	storage *storage // memory that has the elements
	offset  int64    // offset of the first element in the storage, in bytes
	strides []int    // distance between neighbours in each dimension, in elements
}

// A storage is memory that tensors are views of. Once its file is open it is not changed.
type storage struct {
	dtype tensor.DType // type of the elements; 0 = an untyped storage
	file  string       // name of the file that has the elements
	// at is the offset of the elements in the file, in bytes. In the form before torch 1.6 it is
	// known when the whole pickle has been read.
	at    int64
	bytes int64 // size of the elements, in bytes

	// root is the storage of which this one is a part, from byte within on; nil = a whole one. Only
	// the form before torch 1.6 has parts.
	root   *storage
	within int64
}

// start returns the offset of the elements in the file, in bytes.
func (s *storage) start() int64 {
	if s.root != nil {
		return s.root.at + s.within
	}
	return s.at
}

// Kind returns what Python calls the type of a tensor.
func (*Tensor) Kind() string { return "torch.Tensor" }

// Kind returns what Python calls the type of a storage.
func (*storage) Kind() string { return "torch.UntypedStorage" }

// storages maps the classes of storages to their element types.
var storages = map[string]tensor.DType{
	"torch.DoubleStorage": tensor.F64, "torch.FloatStorage": tensor.F32,
	"torch.HalfStorage": tensor.F16, "torch.BFloat16Storage": tensor.BF16,
	"torch.LongStorage": tensor.I64, "torch.IntStorage": tensor.I32,
	"torch.ShortStorage": tensor.I16, "torch.CharStorage": tensor.I8,
	"torch.ByteStorage": tensor.U8, "torch.BoolStorage": tensor.Bool,
	"torch.ComplexDoubleStorage": tensor.C128, "torch.ComplexFloatStorage": tensor.C64,
	"torch.UntypedStorage": 0, "torch.storage.UntypedStorage": 0,
}

// dtypes maps torch's names of element types, some of which have two.
var dtypes = map[string]tensor.DType{
	"torch.float64": tensor.F64, "torch.float32": tensor.F32, "torch.float16": tensor.F16,
	"torch.bfloat16": tensor.BF16,
	"torch.double":   tensor.F64, "torch.float": tensor.F32, "torch.half": tensor.F16,
	"torch.int64": tensor.I64, "torch.int32": tensor.I32, "torch.int16": tensor.I16,
	"torch.int8": tensor.I8,
	"torch.long": tensor.I64, "torch.int": tensor.I32, "torch.short": tensor.I16,
	"torch.uint64": tensor.U64, "torch.uint32": tensor.U32, "torch.uint16": tensor.U16,
	"torch.uint8": tensor.U8, "torch.bool": tensor.Bool,
	"torch.complex128": tensor.C128, "torch.complex64": tensor.C64, "torch.complex32": tensor.C32,
	"torch.float8_e5m2": tensor.F8E5M2, "torch.float8_e4m3fn": tensor.F8E4M3,
	"torch.float8_e8m0fnu":  tensor.F8E8M0,
	"torch.float8_e5m2fnuz": tensor.F8E5M2FNUZ, "torch.float8_e4m3fnuz": tensor.F8E4M3FNUZ,
}

// ParseDType returns the element type of a global such as torch.float32.
func ParseDType(v any) (tensor.DType, error) {
	g, ok := v.(pickle.Global)
	if !ok {
		return 0, fmt.Errorf("%s is no element type", pickle.KindWithArticle(v))
	}
	d, ok := dtypes[g.String()]
	if !ok {
		return 0, fmt.Errorf("%v is no element type that shoal knows", g)
	}
	return d, nil
}

// findStorage resolves the reference ("storage", class, key, device, elements) of the pickle to a
// *storage. It reads the header of its entry.
func (f *File) findStorage(id any) (any, error) {
	t, ok := id.(pickle.Tuple)
	if !ok || len(t) != 5 || t[0] != "storage" {
		return nil, fmt.Errorf("a reference to data that is no storage")
	}
	s, key, err := newStorage(f.Name, t)
	if err != nil {
		return nil, err
	}
	m := f.archive.find(f.archive.folder + "/data/" + key)
	switch {
	case m == nil:
		return nil, fmt.Errorf("storage %q is not in the archive", key)
	case m.size != s.bytes:
		return nil, fmt.Errorf("storage %q has %d bytes, its entry in the archive %d", key, s.bytes,
			m.size)
	}
	s.at, err = f.archive.dataOffset(m)
	return s, err
}

// newStorage reads ("storage", class, key, device, elements, …). Where the storage lies is left to
// the caller.
func newStorage(file string, t pickle.Tuple) (s *storage, key string, err error) {
	class, isClass := t[1].(pickle.Global)
	key, isKey := t[2].(string)
	n, isNumber := t[4].(int64)
	d, known := storages[class.String()]
	if !isClass || !isKey || !isNumber || !known || n < 0 || n > math.MaxInt64/16 {
		return nil, "", fmt.Errorf(
			"a storage of class %v, key %v and %v elements is none that shoal knows", t[1], t[2],
			t[4])
	}
	s = &storage{dtype: d, file: file, bytes: n}
	if d != 0 {
		s.bytes = format.BytesOf(d, int(n))
	}
	return s, key, nil
}

// rebuilders make tensors.
var rebuilders = pickle.Globals{
	{Module: "torch._utils", Name: "_rebuild_tensor"}: func(args []any) (any, error) {
		return rebuildTensor(args, 4)
	},
	{Module: "torch._utils", Name: "_rebuild_tensor_v2"}: func(args []any) (any, error) {
		return rebuildTensor(args, 6)
	},
	{Module: "torch._utils", Name: "_rebuild_tensor_v3"}:            rebuildTyped,
	{Module: "torch._utils", Name: "_rebuild_parameter"}:            firstArgument,
	{Module: "torch._utils", Name: "_rebuild_parameter_with_state"}: firstArgument,
}

// Globals are what pickles of tensors mention.
var Globals = rebuilders.With(
	pickle.Globals{
		{Module: "torch._tensor", Name: "_rebuild_from_type_v2"}: rebuildFromType,
		{Module: "torch", Name: "Size"}:                          newSize,
		{Module: "torch.serialization", Name: "_get_layout"}:     firstArgument,
	},
	pickle.InertGlobals("torch.device"),
	pickle.NameGlobals("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer",
		"torch.strided"),
	pickle.NameGlobals(slices.Collect(maps.Keys(storages))...),
	pickle.NameGlobals(slices.Collect(maps.Keys(dtypes))...),
)

// firstArgument implements a call that adds to its first argument nothing that is saved.
func firstArgument(args []any) (any, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("no arguments")
	}
	return args[0], nil
}

// newSize implements torch.Size, which is a tuple.
func newSize(args []any) (any, error) {
	if len(args) == 1 {
		if t, ok := args[0].(pickle.Tuple); ok {
			return t, nil
		}
	}
	return nil, fmt.Errorf("it takes a tuple")
}

// rebuildFromType makes a tensor of (function, class, arguments, state), as subclasses of tensors
// are saved, and those with attributes.
func rebuildFromType(args []any) (any, error) {
	if len(args) != 4 {
		return nil, fmt.Errorf("%d arguments instead of 4", len(args))
	}
	function, isGlobal := args[0].(pickle.Global)
	class, isClass := args[1].(pickle.Global)
	inner, isTuple := args[2].(pickle.Tuple)
	build := rebuilders[function]
	if !isGlobal || !isClass || !isTuple || build == nil {
		return nil, fmt.Errorf("a tensor of class %v, made by %v, is none that shoal knows",
			args[1], args[0])
	}
	if class.Module != "torch" && class.Module != "torch.nn.parameter" {
		return nil, fmt.Errorf("a tensor of class %v", class)
	}
	return build(inner)
}

// rebuildTensor makes a tensor of (storage, offset, shape, strides, …), of which there must be at
// least least.
func rebuildTensor(args []any, least int) (any, error) {
	if len(args) < least {
		return nil, fmt.Errorf("%d arguments, it takes %d", len(args), least)
	}
	s, ok := args[0].(*storage)
	if !ok || s.dtype == 0 {
		return nil, fmt.Errorf("a tensor of %s instead of a typed storage",
			pickle.KindWithArticle(args[0]))
	}
	if len(args) > 6 {
		if err := checkNotLazy(args[6]); err != nil {
			return nil, err
		}
	}
	return newView(s, s.dtype, args[1:4])
}

// rebuildTyped makes a tensor of (storage, offset, shape, strides, requires_grad, hooks, dtype,
// metadata).
func rebuildTyped(args []any) (any, error) {
	if len(args) < 7 {
		return nil, fmt.Errorf("%d arguments, it takes 7", len(args))
	}
	s, ok := args[0].(*storage)
	if !ok {
		return nil, fmt.Errorf("a tensor of %s instead of a storage",
			pickle.KindWithArticle(args[0]))
	}
	d, err := ParseDType(args[6])
	if err != nil {
		return nil, err
	}
	if len(args) > 7 {
		if err := checkNotLazy(args[7]); err != nil {
			return nil, err
		}
	}
	return newView(s, d, args[1:4])
}

// checkNotLazy fails for the metadata of tensors whose bytes are not yet their values: conjugated
// and negated views.
func checkNotLazy(metadata any) error {
	d, ok := metadata.(*pickle.Dict)
	if !ok {
		return nil
	}
	for _, item := range d.Items {
		if item.Value == true {
			return fmt.Errorf("a tensor with %v set, whose bytes are not its values; save it "+
				"after resolve_conj and resolve_neg", item.Key)
		}
	}
	return nil
}

// maxExpanded bounds tensors that have more elements than their storage, by strides of 0: a file of
// a few bytes must not stand for any amount of them.
const maxExpanded = 1 << 24

// newView makes a tensor of an offset, a shape and strides, which it checks against the storage.
// args are these three; strides are in elements.
func newView(s *storage, d tensor.DType, args []any) (*Tensor, error) {
	offset, isNumber := args[0].(int64)
	shape, err := pickle.ParseSizes(args[1])
	if err != nil {
		return nil, fmt.Errorf("shape: %w", err)
	}
	strides, err := pickle.ParseSizes(args[2])
	if err != nil {
		return nil, fmt.Errorf("strides: %w", err)
	}
	n, err := tensor.Shape(shape).Elements()
	if err != nil || !isNumber || len(shape) != len(strides) || n > math.MaxInt64/16 {
		return nil, fmt.Errorf("a tensor of shape %v, strides %v, offset %v is none", shape,
			strides, args[0])
	}
	held := s.bytes / int64(d.Size())
	if n == 0 && offset > held { // torch does not bound the offset of a view without elements
		offset = held
	}
	if offset < 0 || offset > held {
		return nil, fmt.Errorf("a tensor from element %d on of a storage of %d", offset, held)
	}
	last := offset
	for i, x := range shape {
		if n == 0 {
			break
		}
		if x > 1 && int64(strides[i]) > (held-last)/int64(x-1) {
			return nil, fmt.Errorf("a tensor of shape %v, strides %v, offset %d reaches beyond "+
				"its storage of %d elements", shape, strides, offset, held)
		}
		last += int64(x-1) * int64(strides[i])
	}
	if int64(n) > held && n > maxExpanded {
		return nil, fmt.Errorf(
			"a tensor of shape %v repeats a storage of %d elements; save it after contiguous()",
			shape, held)
	}
	if n > 0 && last >= held {
		return nil, fmt.Errorf("a tensor of shape %v, strides %v, offset %d reaches beyond its "+
			"storage of %d elements", shape, strides, offset, held)
	}
	return &Tensor{DType: d, Shape: shape, storage: s, offset: offset * int64(d.Size()),
		strides: strides}, nil
}

// AsTensor returns the tensor as one of a checkpoint under a name, made of one piece.
func (t *Tensor) AsTensor(name string) format.Tensor {
	p := format.Piece{Box: t.Shape.Box(), File: t.storage.file,
		Offset: t.storage.start() + t.offset, Strides: t.strides}
	if t.isPacked() {
		p.Strides = nil
	}
	return format.Tensor{Name: name, DType: t.DType, Shape: t.Shape, Pieces: []format.Piece{p}}
}

// isPacked reports whether the elements lie row-major without gaps. The strides of dimensions of
// one index do not count.
func (t *Tensor) isPacked() bool {
	packed := t.Shape.Strides()
	for d, n := range t.Shape {
		if n > 1 && t.strides[d] != packed[d] {
			return false
		}
	}
	return true
}

// LocateFlat returns the location in the file of the elements of a packed tensor from an index on.
// offset is in bytes.
func (t *Tensor) LocateFlat(from int) (file string, offset int64, err error) {
	if !t.isPacked() {
		return "", 0, fmt.Errorf("a tensor of shape %v with strides %v is not packed", t.Shape,
			t.strides)
	}
	return t.storage.file, t.storage.start() + t.offset + format.BytesOf(t.DType, from), nil
}
