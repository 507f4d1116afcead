// Package hf reads and lays out checkpoints of safetensors files: a single file, a folder with an
// index as Hugging Face's libraries write it, and a folder of shards with offsets as torch's
// distributed checkpoint writes it. It reads such folders with files of torch.save too, as these
// libraries wrote them before: what a file is, is decided by its bytes.
package hf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/tensor"
)

const (
	maxIndex = 256 << 20 // bytes of an index

	// shardingInfo is the key of the metadata for the offsets of shards in torch's distributed
	// checkpoint.
	shardingInfo = "DCP_SHARDING_INFO"
	// metadata is the first part of the paths of values that come from the metadata of files.
	metadata = "__metadata__"
)

// A reader is a checkpoint whose files are being read. It is for one goroutine. readFile and
// readHeader read files; the other methods do no I/O. What finish returns is the caller's.
type reader struct {
	format.Checkpoint
	files     *format.Files
	index     map[string]int    // by name, the index in Tensors of what addTensor added
	values    map[string]string // by key, the metadata of the last file that has the key
	differing map[string]bool   // keys of the metadata that do not become values

	origins map[string]*format.Origin // by file, the origin of each file that has one
	read    map[string]bool           // names of the files that were read
	torch   bool                      // whether a file is one of torch.save
}

// newReader returns a reader for a checkpoint of a kind, with nothing read yet. kind is the name of
// the format.
func newReader(files *format.Files, kind string) *reader {
	return &reader{
		Checkpoint: format.Checkpoint{Format: kind}, files: files,
		index: map[string]int{}, values: map[string]string{},
		// These describe one file, and would describe another one wrongly.
		differing: map[string]bool{shardingInfo: true, format.OriginKey: true},
		origins:   map[string]*format.Origin{}, read: map[string]bool{},
	}
}

// finish adds the metadata that the files have in common to the checkpoint, puts it in order, and
// returns it.
func (s *reader) finish() (*format.Checkpoint, error) {
	for key, value := range s.values {
		if !s.differing[key] {
			s.Values = append(s.Values, format.Value{Path: metadata + "." + key, Data: value})
		}
	}
	return &s.Checkpoint, s.Finish()
}

// readFile reads a file, and adds its tensors as whole ones. The header of a file of torch.save is
// empty. The tensors are those at the end of the checkpoint's own list, not a copy.
func (s *reader) readFile(name string) (*safetensors.Header, []format.Tensor, error) {
	f, err := s.files.Open(name)
	if err != nil {
		return nil, nil, err
	}
	s.read[name] = true
	is, err := IsTorch(f)
	if err != nil {
		return nil, nil, err
	}
	if !is {
		return s.readHeader(name, f)
	}
	c, err := torchzip.Read(s.files, name)
	if err != nil {
		return nil, nil, err
	}
	if !s.torch {
		s.Format = strings.Replace(s.Format, "safetensors", "torch", 1)
	}
	s.torch, s.Nested = true, s.Nested || c.Nested
	s.Tensors, s.Values = append(s.Tensors, c.Tensors...), append(s.Values, c.Values...)
	return &safetensors.Header{}, s.Tensors[len(s.Tensors)-len(c.Tensors):], nil
}

// IsTorch reports whether torch.save has written a file, by its first bytes. It blocks on the
// file.
func IsTorch(f *format.File) (bool, error) {
	head := make([]byte, min(f.Size, 64))
	if err := f.ReadFull(head, 0); err != nil {
		return false, err
	}
	if len(head) > 8 && head[8] == '{' {
		return false, nil // a file of safetensors; the first bytes are any number
	}
	return bytes.HasPrefix(head, []byte("PK\x03\x04")) || torchzip.IsLegacy(head), nil
}

// readHeader reads the header of a file of safetensors, and adds its tensors as whole ones. It
// returns what readFile returns.
func (s *reader) readHeader(file string, f *format.File) (*safetensors.Header, []format.Tensor,
	error) {
	first := len(s.Tensors)
	var pieces []format.Piece
	var spans []tensor.Span
	// One list for all tensors: a header can have so many that separate lists would cost time.
	h, err := safetensors.ScanHeader(file, f, f.Size, func(tensors, dims int) {
		s.Tensors = slices.Grow(s.Tensors, tensors)
		pieces, spans = make([]format.Piece, 0, tensors), make([]tensor.Span, 0, dims)
	}, func(t safetensors.Tensor) {
		from, n := len(spans), len(pieces)
		for _, x := range t.Shape {
			spans = append(spans, tensor.Span{To: x})
		}
		pieces = append(pieces,
			format.Piece{Box: spans[from:len(spans):len(spans)], File: file, Offset: t.Begin})
		s.Tensors = append(s.Tensors,
			format.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape,
				Pieces: pieces[n : n+1 : n+1]})
	})
	if err != nil {
		return nil, nil, err
	}
	for i := range pieces {
		pieces[i].Offset += h.Data
	}
	origin, err := format.ParseOrigin(h.Metadata)
	if err != nil {
		return nil, nil, fmt.Errorf("safetensors: %s: %w", file, err)
	}
	s.Job = s.Job || format.IsOfJob(h.Metadata)
	if origin != nil {
		s.origins[file] = origin
	}
	for key, value := range h.Metadata {
		if before, ok := s.values[key]; ok && before != value {
			s.differing[key] = true
		}
		s.values[key] = value
	}
	return h, s.Tensors[first:], nil
}

// ReadFile reads a single file, but for the elements of its tensors. It is for the goroutine of
// files, which the caller closes.
func ReadFile(files *format.Files, name string) (*format.Checkpoint, error) {
	s := newReader(files, "safetensors")
	h, _, err := s.readFile(name)
	if err != nil {
		return nil, err
	}
	_, shards := h.Metadata[shardingInfo]
	if o := s.origins[name]; o != nil && (o.Ranks > 1 || o.Files > 1) || o == nil && shards ||
		fileCount(name) > 1 {
		s.Doubt = "it is one of several files: give their folder"
	}
	return s.finish()
}

// Read reads a folder: by its index when there is one, else all its safetensors files; where there
// are none, the files of torch.save with a model. It is for the goroutine of files, which the
// caller closes.
func Read(files *format.Files) (*format.Checkpoint, error) {
	w, err := find(files.FS())
	if err != nil {
		return nil, err
	}
	if w.index != "" {
		return ReadIndexed(files, w.index)
	}
	if len(w.files) == 0 {
		return nil, errors.New("the folder has no safetensors file")
	}
	c, read, err := readFolder(files, w.files)
	return addExtras(files, c, read, err)
}

// anew is what to do where an index and the files that it names disagree.
const anew = "; copy or download the index and the files again, all from one place"

// ReadIndexed reads the files that an index in their folder names. It is for the goroutine of
// files, which the caller closes.
func ReadIndexed(files *format.Files, name string) (*format.Checkpoint, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	if f.Size > maxIndex {
		return nil, fmt.Errorf("%s has %d bytes, the limit for a file of its kind is %d",
			name, f.Size, maxIndex)
	}
	index, err := safetensors.ReadIndex(name, f, f.Size)
	if err != nil {
		return nil, err
	}
	s := newReader(files, "safetensors with index")
	shards := map[string]bool{}
	for _, file := range index.Files {
		shards[file] = true
	}
	names := slices.Sorted(maps.Keys(shards))
	for _, file := range names {
		_, tensors, err := s.readFile(file)
		if errors.Is(err, fs.ErrNotExist) && !files.IsLink(file) {
			return nil, missingFilesError(files, name, names)
		}
		if err != nil {
			return nil, err
		}
		for i := range tensors {
			tensor := tensors[i].Name
			in, listed := index.Files[tensor]
			if !listed {
				return nil, fmt.Errorf("%s: tensor %q stands in %s, and the index does not list "+
					"it: the files are not all of one checkpoint%s", name, tensor, file, anew)
			}
			if in != file {
				return nil, fmt.Errorf("%s: tensor %q stands in %s, but in the index under %q%s",
					name, tensor, file, in, anew)
			}
		}
	}
	// Every tensor stands where the index says, so some tensors of the index are missing.
	if len(s.Tensors) < len(index.Files) {
		for i := range s.Tensors {
			delete(index.Files, s.Tensors[i].Name)
		}
		tensor := slices.Min(slices.Collect(maps.Keys(index.Files)))
		return nil, fmt.Errorf("%s: tensor %q is not in %s%s", name, tensor, index.Files[tensor],
			anew)
	}
	c, err := s.finish()
	return addExtras(files, c, s.read, err)
}

// addExtras lists the files in the folder that do not belong to the checkpoint, such as an
// optimizer that a trainer saved there, and files that the index does not name. read are the names
// of the files that belong to it. An err that is not nil is returned as it is. It reads the list
// of the folder.
func addExtras(files *format.Files, c *format.Checkpoint, read map[string]bool,
	err error) (*format.Checkpoint, error) {
	if err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(files.FS(), ".")
	for _, e := range entries {
		switch path.Ext(e.Name()) {
		case ".safetensors", ".pt", ".pth", ".bin", ".ckpt":
			if !e.IsDir() && !read[e.Name()] {
				c.Extras = append(c.Extras, e.Name())
			}
		}
	}
	return c, err
}

// missingFilesError returns the error that says which of the files that the index names, names,
// are missing. It looks for each in the folder.
func missingFilesError(files *format.Files, index string, names []string) error {
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, err := fs.Stat(files.FS(), name)
		return !errors.Is(err, fs.ErrNotExist)
	})
	some, more, stale := missing, "", ""
	if len(missing) == len(names) {
		stale = ", or remove the index if it is left of an older model"
	}
	if n := len(missing) - 3; n > 0 {
		some, more = missing[:3], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%s names %s, of which %d %s missing: %s%s; copy what is missing here "+
		"too, or download the model again%s",
		index, plural.Of(len(names), "file"), len(missing),
		plural.Verb(len(missing), "is", "are"), strings.Join(some, ", "), more, stale)
}

// readFolder reads files of a folder, which hold different tensors or shards of the same. It
// returns the names of the files that it has read too.
func readFolder(files *format.Files, names []string) (c *format.Checkpoint, read map[string]bool,
	err error) {
	if err := checkNumbered(names); err != nil {
		return nil, nil, err
	}
	s := newReader(files, "safetensors")
	for _, name := range names {
		h, tensors, err := s.readFile(name)
		if err != nil {
			return nil, nil, err
		}
		if o := s.origins[name]; o != nil && o.File == 0 {
			return nil, nil, fmt.Errorf("safetensors: %s is what rank %d of %d has in memory, and "+
				"shoal-layout.json, which says how these make up the whole, is missing; copy it "+
				"here too", name, o.Rank, o.Ranks)
		}
		offsets, err := savedOffsets(name, h, tensors)
		if err != nil {
			return nil, nil, err
		}
		if offsets != nil && s.origins[name] == nil && fileCount(name) == 0 {
			s.Doubt = "its shards do not say how large the tensors are, so it is not known " +
				"whether the last ones are missing"
		} else if offsets == nil && len(names) > 1 && fileCount(name) == 0 && s.Doubt == "" {
			s.Doubt = "there is no index, and " + name + " does not say of how many files it " +
				"is, so it is not known whether some are missing"
		}
		if offsets == nil && len(names) == 1 { // no other file can repeat its names
			continue
		}
		// The tensors are added again, joined with the shards of other files.
		s.Tensors = s.Tensors[:len(s.Tensors)-len(tensors)]
		for _, t := range tensors {
			if err := s.addTensor(t, name, offsets); err != nil {
				return nil, nil, fmt.Errorf("safetensors: %s: tensor %q: %w", name, t.Name, err)
			}
		}
	}
	if err := s.checkOrigins(names); err != nil {
		return nil, nil, err
	}
	c, err = s.finish()
	return c, s.read, err
}

// savedOffsets returns the offsets of the shards of a file in their tensors, as its metadata says;
// nil when the file holds whole tensors.
func savedOffsets(file string, h *safetensors.Header, tensors []format.Tensor) (map[string][]int,
	error) {
	text, ok := h.Metadata[shardingInfo]
	if !ok {
		return nil, nil
	}
	offsets := make(map[string][]int, len(tensors))
	for i := range tensors {
		offsets[tensors[i].Name] = nil
	}
	if err := readOffsets(strings.NewReader(text), offsets); err != nil {
		return nil, fmt.Errorf("safetensors: %s: metadata %s: %w", file, shardingInfo, err)
	}
	return offsets, nil
}

// readOffsets fills in the offsets of the names in the map, one name after the other, because the
// JSON can name far more tensors than the file has.
func readOffsets(text io.Reader, offsets map[string][]int) error {
	d := json.NewDecoder(text)
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return cmp.Or(err, fmt.Errorf("%v where { is due", open))
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var shard struct {
			Offsets offsetList `json:"saved_offsets"`
		}
		if err := d.Decode(&shard); err != nil {
			return err
		}
		if _, is := offsets[key.(string)]; is { // a JSON key is a string
			offsets[key.(string)] = shard.Offsets
		}
	}
	if _, err := d.Token(); err != nil {
		return err
	}
	if rest, err := d.Token(); err != io.EOF {
		return cmp.Or(err, fmt.Errorf("%v after the JSON", rest))
	}
	return nil
}

// An offsetList has at most as many numbers as a tensor can have dimensions.
type offsetList []int

// UnmarshalJSON implements json.Unmarshaler. It fails for more numbers than a tensor has
// dimensions.
func (f *offsetList) UnmarshalJSON(text []byte) error {
	if n := bytes.Count(text, []byte(",")) + 1; n > tensor.MaxDims {
		return fmt.Errorf("%d offsets of a tensor", n)
	}
	return json.Unmarshal(text, (*[]int)(f))
}

// addTensor adds to the checkpoint a tensor of a file, or a shard of a tensor that has shards in
// other files; offsets are those of the file's shards, nil for whole tensors.
func (s *reader) addTensor(t format.Tensor, file string, offsets map[string][]int) error {
	i, known := s.index[t.Name]
	if offsets == nil {
		if known {
			return fmt.Errorf(
				"it is also in %s; the two files are no shards, or of different checkpoints: give "+
					"the path of the one that is meant", s.Tensors[i].Pieces[0].File)
		}
		s.index[t.Name] = len(s.Tensors)
		s.Tensors = append(s.Tensors, t)
		return nil
	}
	at := offsets[t.Name]
	if len(at) != len(t.Shape) {
		return fmt.Errorf("%s has %d offsets for a shard of shape %v", shardingInfo, len(at),
			t.Shape)
	}
	p := t.Pieces[0]
	end := make(tensor.Shape, len(at))
	for d := range at {
		if end[d] = at[d] + t.Shape[d]; at[d] < 0 || end[d] < 0 {
			return fmt.Errorf("%s has offset %d in dimension %d", shardingInfo, at[d], d)
		}
		p.Box[d] = tensor.Span{From: at[d], To: end[d]}
	}
	if !known {
		i = len(s.Tensors)
		s.index[t.Name] = i
		s.Tensors = append(s.Tensors,
			format.Tensor{Name: t.Name, DType: t.DType, Shape: make(tensor.Shape, len(at))})
	}
	whole := &s.Tensors[i]
	if o := s.origins[file]; o != nil {
		shape, ok := o.Shapes[t.Name]
		if !ok || len(shape) != len(at) {
			return fmt.Errorf("metadata %s has shape %v for the tensor of this shard of shape %v",
				format.OriginKey, shape, t.Shape)
		}
		if !known {
			copy(whole.Shape, shape)
		} else if !whole.Shape.Equal(shape) {
			return fmt.Errorf("the whole tensor has shape %v by this file, and %v by %s; they "+
				"are of different checkpoints", shape, whole.Shape, whole.Pieces[0].File)
		}
	}
	if whole.DType != t.DType || len(whole.Shape) != len(at) {
		return fmt.Errorf("this shard is %v of %d dimensions, another one %v of %d", t.DType,
			len(at), whole.DType, len(whole.Shape))
	}
	for d := range at {
		if s.origins[file] != nil && end[d] > whole.Shape[d] {
			return fmt.Errorf("this shard ends at %v, the whole tensor by metadata %s at %v", end,
				format.OriginKey, whole.Shape)
		}
		whole.Shape[d] = max(whole.Shape[d], end[d])
	}
	whole.Pieces = append(whole.Pieces, p)
	return nil
}
