// Package dcp reads and writes checkpoints of torch.distributed.checkpoint, on which
// Megatron-Core's torch_dist is built: a pickle .metadata that lists tensors and their chunks, and
// files in which each chunk is what torch.save writes for it.
package dcp

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/tensor"
)

// MetadataName is the file that makes a folder a checkpoint; torch writes it last.
const MetadataName = ".metadata"

const (
	maxMetadata       = 2 << 30 // bytes of .metadata
	maxMetadataMemory = 8 << 30 // bytes of memory that its values may take

	module   = "torch.distributed.checkpoint."
	megatron = "megatron.core.dist_checkpointing.strategies.torch."
)

// globals are what .metadata may mention.
var globals = torchzip.Globals.With(pickle.InertGlobals(
	module+"metadata.Metadata", module+"metadata.TensorStorageMetadata",
	module+"metadata.BytesStorageMetadata",
	module+"metadata.ChunkStorageMetadata", module+"metadata.TensorProperties",
	module+"metadata._MEM_FORMAT_ENCODING",
	module+"metadata.MetadataIndex", module+"metadata.StorageMeta",
	module+"filesystem._StorageInfo",
	// Megatron-Core keeps the plans of the ranks in .metadata too, which nothing here needs.
	module+"planner.SavePlan", module+"planner.WriteItem", module+"planner.WriteItemType",
	module+"planner.TensorWriteData",
	module+"planner.BytesIOWriteData", module+"filesystem._StoragePrefix", megatron+"MCoreMetadata",
	megatron+"MCoreSavePlan",
))

// A location is where an item lies in a file.
type location struct {
	file           string // path of the file below the checkpoint
	offset, length int64  // range of what torch.save wrote for the item, in bytes
}

// A reader is a checkpoint that is being read. It is for one goroutine and one call of Read. All of
// its methods but recordItem can read files, by openItem.
type reader struct {
	format.Checkpoint
	files *format.Files
	items map[string]location // where each item lies, by key
	first map[string]int      // by name, the lowest rank that has written a part of the item
	// extraGlobals are what the pickles of items that are not tensors may mention, besides torch's.
	extraGlobals pickle.Globals
}

// rankFile matches the files of a rank.
var rankFile = pattern.New(`^__(\d{1,9})_\d+\.distcp$`)

// itemKey returns the key of an item: its name, and the offset of a chunk as text, "" if the item
// is not a tensor.
func itemKey(name, offset string) string { return name + "\x00" + offset }

// Read reads a folder, but for the elements of tensors. The pickles of items that are not tensors
// may mention the globals in known, besides those of torch. It is for the goroutine of files,
// which the caller keeps open as long as the elements are to be read.
func Read(files *format.Files, known pickle.Globals) (*format.Checkpoint, error) {
	r := &reader{Checkpoint: format.Checkpoint{Format: "torch DCP"}, files: files,
		items: map[string]location{}, first: map[string]int{}, extraGlobals: known}
	text, err := files.ReadAll(MetadataName, maxMetadata)
	if err != nil {
		return nil, err
	}
	root, err := pickle.Load(text,
		pickle.Options{File: MetadataName, Globals: globals,
			Memory: pickle.MemoryBound(text, pickle.PerByte, maxMetadataMemory)})
	if err != nil {
		return nil, err
	}
	if err := r.addItems(root); err != nil {
		return nil, fmt.Errorf("DCP: %s: %w", MetadataName, err)
	}
	return &r.Checkpoint, r.Finish()
}

// addItems reads what .metadata says: where each item lies, and then the items, which it adds to
// the checkpoint.
func (r *reader) addItems(root any) error {
	tensors, err := pickle.Get[*pickle.Dict](root, "state_dict_metadata")
	if err != nil {
		return err
	}
	items, err := pickle.Get[*pickle.Dict](root, "storage_data")
	if err != nil {
		return err
	}
	for _, item := range items.Items {
		if err := r.recordItem(item); err != nil {
			return fmt.Errorf("storage_data: %w", err)
		}
	}
	for _, item := range tensors.Items {
		name, ok := item.Key.(string)
		if !ok {
			return fmt.Errorf("%s as the name of a tensor", pickle.KindWithArticle(item.Key))
		}
		switch o, _ := item.Value.(*pickle.Object); {
		case o != nil && o.Class.Name == "TensorStorageMetadata":
			err = r.addTensor(name, o)
		case o != nil && o.Class.Name == "BytesStorageMetadata":
			err = r.addValue(name)
		default:
			err = fmt.Errorf("%s is neither tensor nor bytes", pickle.KindWithArticle(item.Value))
		}
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		// Torch lists what each rank saves, in its order and one rank after the other.
		if rank, known := r.first[name]; known {
			r.SavedOrder = append(r.SavedOrder, format.SavedItem{Name: name, Rank: rank})
		}
	}
	return nil
}

// recordItem records an entry of storage_data: where the item lies, and which rank has written it.
// It does no I/O.
func (r *reader) recordItem(item pickle.Item) error {
	name, err := pickle.Get[string](item.Key, "fqn")
	if err != nil {
		return err
	}
	at := ""
	// An item that is not a tensor has the offset None.
	if offset, err := pickle.Get[any](item.Key, "offset"); err == nil {
		span, err := pickle.ParseSizes(offset)
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		at = fmt.Sprint(span)
	}
	s := location{}
	if s.file, err = pickle.Get[string](item.Value, "relative_path"); err != nil {
		return err
	}
	if s.offset, err = pickle.Get[int64](item.Value, "offset"); err != nil {
		return err
	}
	if s.length, err = pickle.Get[int64](item.Value, "length"); err != nil {
		return err
	}
	if how, err := pickle.Get[any](item.Value, "transform_descriptors"); err == nil && how != nil {
		return fmt.Errorf("%q is stored transformed (compressed or encrypted), which shoal does "+
			"not read; save it without extensions", name)
	}
	if !fs.ValidPath(s.file) || strings.ContainsAny(s.file, `\:`) || s.offset < 0 || s.length < 0 {
		return fmt.Errorf("%q lies in %q at %d with %d bytes, which is no place in the folder",
			name, s.file, s.offset, s.length)
	}
	r.items[itemKey(name, at)] = s
	if m := rankFile.FindStringSubmatch(s.file); m != nil {
		n, _ := strconv.Atoi(m[1])
		if lowest, seen := r.first[name]; !seen || n < lowest {
			r.first[name] = n
		}
	}
	return nil
}

// addTensor adds to the checkpoint an entry of state_dict_metadata that is a tensor. It reads the
// header of each chunk.
func (r *reader) addTensor(name string, o *pickle.Object) error {
	t := format.Tensor{Name: name}
	properties, err := pickle.Get[*pickle.Object](o, "properties")
	if err != nil {
		return err
	}
	state, ok := properties.State.(pickle.Tuple)
	if !ok || len(state) == 0 {
		return errors.New("its properties are of a version of torch that shoal does not know")
	}
	if t.DType, err = torchzip.ParseDType(state[0]); err != nil {
		return err
	}
	size, err := pickle.Get[any](o, "size")
	if err != nil {
		return err
	}
	if t.Shape, err = pickle.ParseSizes(size); err != nil {
		return err
	}
	chunks, err := pickle.Get[*pickle.List](o, "chunks")
	if err != nil {
		return err
	}
	for _, c := range chunks.Items {
		p, err := r.readChunk(&t, c)
		if err != nil {
			return err
		}
		t.Pieces = append(t.Pieces, p)
	}
	r.Tensors = append(r.Tensors, t)
	return nil
}

// readChunk returns one chunk of a tensor as a piece of it, and checks that the file has it.
func (r *reader) readChunk(t *format.Tensor, c any) (format.Piece, error) {
	var none format.Piece
	offset, err := pickle.Get[any](c, "offsets")
	if err != nil {
		return none, err
	}
	at, err := pickle.ParseSizes(offset)
	if err != nil {
		return none, err
	}
	size, err := pickle.Get[any](c, "sizes")
	if err != nil {
		return none, err
	}
	shape, err := pickle.ParseSizes(size)
	if err != nil {
		return none, err
	}
	if len(at) != len(t.Shape) || len(shape) != len(t.Shape) {
		return none, fmt.Errorf("a chunk of %d dimensions at %v in shape %v", len(shape), at,
			t.Shape)
	}
	box := make(tensor.Box, len(at))
	for d := range at {
		box[d] = tensor.Span{From: at[d], To: at[d] + shape[d]}
		if box[d].To > t.Shape[d] || box[d].To < 0 {
			return none, fmt.Errorf("the chunk %v lies outside shape %v", box, t.Shape)
		}
	}
	f, err := r.openItem(itemKey(t.Name, fmt.Sprint(at)))
	if err != nil {
		return none, fmt.Errorf("the chunk %v: %w", box, err)
	}
	held, ok := f.Root.(*torchzip.Tensor)
	if !ok || held.DType != t.DType || !slices.Equal(held.Shape, shape) {
		return none, fmt.Errorf("the chunk %v: %s holds something else there", box, f.Name)
	}
	p := held.AsTensor(t.Name).Pieces[0]
	p.Box = box
	return p, nil
}

// openItem opens what torch.save wrote for an item. It fails where the file ends before the item
// does.
func (r *reader) openItem(key string) (*torchzip.File, error) {
	s, ok := r.items[key]
	if !ok {
		return nil, fmt.Errorf("%s does not say where it lies", MetadataName)
	}
	file, err := r.files.Open(s.file)
	if errors.Is(err, fs.ErrNotExist) && !r.files.IsLink(s.file) {
		return nil, fmt.Errorf("%w; copy the file here too, or save the checkpoint anew", err)
	}
	if err != nil {
		return nil, err
	}
	if s.length > file.Size-s.offset {
		return nil, fmt.Errorf(
			"%s, byte %d: %d bytes are due, and the file ends at %d; it is cut off", s.file,
			s.offset, s.length, file.Size)
	}
	return torchzip.OpenAt(r.files, s.file, s.offset, s.length, r.extraGlobals)
}

// addValue adds to the checkpoint an item that is not a tensor. torch.save wrote it too.
func (r *reader) addValue(name string) error {
	f, err := r.openItem(itemKey(name, ""))
	var unknown *pickle.UnknownGlobal
	switch {
	case errors.As(err, &unknown):
		r.Values = append(r.Values, format.Value{Path: name, Data: format.Unread{Why: err}})
		return nil
	case err != nil:
		return err
	}
	return f.FlattenRoot(&r.Checkpoint, name)
}
