package dcp

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
)

// This file lays checkpoints out for package dcp: it says what the files are to hold; no I/O.

// version is the version of the metadata.
const version = "1.0.0"

// A layout collects the content of .metadata. It does no I/O, and is for one goroutine and one call
// of Content.Layout.
type layout struct {
	*format.Output
	aliases map[string][]string     // as Content.Aliases
	tensors map[string]int          // by name, the index of the tensor in Output.Tensors
	chunks  map[string]*pickle.List // by name, the chunks of the tensor in state
	state   *pickle.Dict            // state_dict_metadata
	plan    *pickle.Dict            // planner_data: the path of each item, which is its name
	items   *pickle.Dict            // storage_data
	sizes   map[string]int64        // by file, the bytes that are laid out in it so far
	seen    map[string]bool         // keys of the chunks that are laid out
}

// A Content is what a checkpoint is laid out from.
type Content struct {
	// Ranks has the shards that each rank writes. No two ranks write the same shard.
	Ranks   [][]format.Shard
	Values  []format.Value // values, which the first rank writes
	Objects []Object       // objects, which the first rank writes
	// Aliases are further names of tensors, under which .metadata lists the same chunks.
	Aliases map[string][]string
}

// An Object is an item that is not a tensor, as torch.save writes it. torchzip.Placeholder(i,
// Tensors[i]) in Root stands for a tensor. Tensors belong to the output too.
type Object struct {
	Name    string
	Root    any
	Tensors []format.Tensor
}

// Layout lays out a checkpoint as torch's distributed checkpoint does: one file for each rank with
// its shards, the values in the file of the first, and .metadata. No two ranks may have the same
// shard: replicas are written once.
func Layout(ranks [][]format.Shard, values []format.Value) (*format.Output, error) {
	return Content{Ranks: ranks, Values: values}.Layout()
}

// Layout lays the content out, as the function Layout does.
func (c Content) Layout() (*format.Output, error) {
	l := &layout{
		Output: &format.Output{
			Checkpoint: format.Checkpoint{Format: "torch DCP", Values: slices.Clone(c.Values)}},
		aliases: c.Aliases,
		tensors: map[string]int{}, chunks: map[string]*pickle.List{}, sizes: map[string]int64{},
		seen:  map[string]bool{},
		state: &pickle.Dict{}, plan: &pickle.Dict{}, items: &pickle.Dict{},
	}
	for i, shards := range c.Ranks {
		file := fmt.Sprintf("__%d_0.distcp", i)
		for _, s := range shards {
			if err := l.addShard(file, s); err != nil {
				return nil, fmt.Errorf("DCP: tensor %q: %w", s.Name, err)
			}
		}
		if i == 0 {
			if err := l.addObjects(file, c); err != nil {
				return nil, err
			}
		}
		if l.sizes[file] > 0 {
			l.Files = append(l.Files, format.OutputFile{Name: file, Size: l.sizes[file]})
		}
	}
	text, err := l.metadataBytes()
	if err != nil {
		return nil, err
	}
	l.Files = append(l.Files, format.OutputFile{Name: MetadataName, Size: int64(len(text))})
	l.Frames = append(l.Frames, format.Frame{File: MetadataName, Bytes: text})
	return l.Output, l.Finish()
}

// addShard lays out a shard at the end of the file of a name.
func (l *layout) addShard(file string, s format.Shard) error {
	if len(s.Box) != len(s.Shape) || !s.Shape.Box().Contains(s.Box) {
		return fmt.Errorf("box %v lies outside shape %v", s.Box, s.Shape)
	}
	offsets := make([]int, len(s.Box))
	for d, x := range s.Box {
		offsets[d] = x.From
	}
	names := append([]string{s.Name}, l.aliases[s.Name]...)
	i, known := l.tensors[s.Name]
	if !known {
		i = len(l.Tensors)
		l.tensors[s.Name] = i
		l.Tensors = append(l.Tensors, format.Tensor{Name: s.Name, DType: s.DType, Shape: s.Shape})
		for _, name := range names {
			if l.chunks[name] != nil {
				return fmt.Errorf("two tensors are to be called %q", name)
			}
			l.addTensorMetadata(name, s)
		}
	}
	if t := &l.Tensors[i]; t.DType != s.DType || !t.Shape.Equal(s.Shape) {
		return fmt.Errorf("a shard of %v %v, and another of %v %v", s.DType, s.Shape, t.DType,
			t.Shape)
	}
	start := itemKey(s.Name, fmt.Sprint(offsets))
	if l.seen[start] {
		return errors.New("two shards start at the same place")
	}
	l.seen[start] = true
	base := l.sizes[file]
	at, size, err := torchzip.LayoutTensor(l.Output, file, base,
		format.Tensor{Name: s.Name, DType: s.DType, Shape: s.Box.Shape()})
	if err != nil {
		return err
	}
	l.Tensors[i].Pieces = append(l.Tensors[i].Pieces,
		format.Piece{Box: s.Box, File: file, Offset: at})
	for _, name := range names {
		chunks := l.chunks[name]
		chunks.Items = append(chunks.Items,
			dataObject("metadata.ChunkStorageMetadata", "offsets", torchSize(offsets), "sizes",
				torchSize(s.Box.Shape())))
		l.recordLocation(file, base, size, name, torchSize(offsets), int64(len(chunks.Items)-1))
	}
	return nil
}

// addTensorMetadata adds a tensor to state_dict_metadata; its chunks follow.
func (l *layout) addTensorMetadata(name string, s format.Shard) {
	strided := &pickle.Object{
		Class: pickle.Global{Module: "torch.serialization", Name: "_get_layout"},
		Args:  []any{"torch.strided"}}
	contiguous := &pickle.Object{Class: torchClass("metadata._MEM_FORMAT_ENCODING"),
		Args: []any{int64(0)}}
	properties := pickle.New{
		Class: torchClass("metadata.TensorProperties"),
		State: pickle.Tuple{torchzip.DTypeGlobal(s.DType), strided, false, contiguous, false},
	}
	l.chunks[name] = &pickle.List{}
	l.addItem(name, dataObject("metadata.TensorStorageMetadata", "properties", properties, "size",
		torchSize(s.Shape), "chunks", l.chunks[name]))
}

// addItem adds what describes an item to state_dict_metadata, and the item to planner_data.
func (l *layout) addItem(name string, what any) {
	l.state.Items = append(l.state.Items, pickle.Item{Key: name, Value: what})
	l.plan.Items = append(l.plan.Items, pickle.Item{Key: name, Value: pickle.Tuple{name}})
}

// addObjects lays out the values and the objects of the content at the end of a file.
func (l *layout) addObjects(file string, c Content) error {
	for _, v := range c.Values {
		root, err := torchzip.PickledValue(l.Output, v)
		if err == nil {
			err = l.addObject(file, Object{Name: v.Path, Root: root})
		}
		if err != nil {
			return fmt.Errorf("DCP: value %q: %w", v.Path, err)
		}
	}
	for _, o := range c.Objects {
		if err := l.addObject(file, o); err != nil {
			return fmt.Errorf("DCP: object %q: %w", o.Name, err)
		}
	}
	return nil
}

// addObject lays out an item that is not a tensor at the end of a file. Tensors in it belong to the
// output.
func (l *layout) addObject(file string, o Object) error {
	base := l.sizes[file]
	size, at, err := torchzip.LayoutAt(l.Output, file, base, o.Root, o.Tensors)
	if err != nil {
		return err
	}
	if l.chunks[o.Name] != nil {
		return errors.New("a tensor has this name")
	}
	for i, t := range o.Tensors {
		l.Tensors = append(l.Tensors, format.PackedIn(file, at[i], t.Name, t.DType, t.Shape))
	}
	l.addItem(o.Name, dataObject("metadata.BytesStorageMetadata"))
	l.recordLocation(file, base, size, o.Name, nil, nil)
	return nil
}

// recordLocation adds to storage_data where an item lies. The hint is the index of a chunk among
// those of its tensor. at and size are in bytes; the file ends after the item then. offset is that
// of a chunk; hint and offset are nil for what is no tensor.
func (l *layout) recordLocation(file string, at, size int64, name string, offset, hint any) {
	l.sizes[file] = at + size
	l.items.Items = append(l.items.Items, pickle.Item{
		Key: dataObject("metadata.MetadataIndex", "fqn", name, "index", hint, "offset", offset),
		Value: dataObject("filesystem._StorageInfo", "relative_path", file, "offset", at, "length",
			size),
	})
}

// metadataBytes returns the content of .metadata.
func (l *layout) metadataBytes() ([]byte, error) {
	meta := dataObject("metadata.StorageMeta", "checkpoint_id", nil, "save_id", nil, "load_id", nil,
		"modules", &pickle.List{})
	return pickle.Append(nil,
		dataObject("metadata.Metadata", "state_dict_metadata", l.state, "planner_data", l.plan,
			"storage_data", l.items, "storage_meta", meta, "version", version))
}

// torchClass returns a class of package torch.distributed.checkpoint.
func torchClass(name string) pickle.Global {
	name = module + name
	i := strings.LastIndexByte(name, '.')
	return pickle.Global{Module: name[:i], Name: name[i+1:]}
}

// dataObject returns an object of a data class of torch, with names and values of its fields in
// turn.
func dataObject(of string, fields ...any) pickle.New {
	d := &pickle.Dict{}
	for i := 0; i < len(fields); i += 2 {
		d.Items = append(d.Items, pickle.Item{Key: fields[i], Value: fields[i+1]})
	}
	return pickle.New{Class: torchClass(of), State: d}
}

// torchSize returns a list of sizes as a pickle has a torch.Size.
func torchSize(list []int) *pickle.Object {
	return &pickle.Object{Class: pickle.Global{Module: "torch", Name: "Size"},
		Args: []any{torchzip.IntTuple(list)}}
}
