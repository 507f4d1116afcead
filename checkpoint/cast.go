package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/tensor"
)

// Tensors of another element type are read through files that do not exist: each is a tensor as it
// is rounded, and its bytes are made of the stored ones when they are read. So whatever moves
// tensors moves these, and nothing of the size of a tensor is in memory. The methods of Checkpoint
// in this file are for one goroutine at a time.

// A Cast says that tensors are to have another element type.
type Cast struct {
	To    tensor.DType           // one of CastDTypes
	Match func(name string) bool // tells the tensors by their names; nil = all
	Text  string                 // the rule as somebody has written it, for errors
}

// CastDTypes are the element types to which a Cast can round.
func CastDTypes() []tensor.DType { return []tensor.DType{tensor.BF16, tensor.F16, tensor.F32} }

// A CastReport says what Cast has done.
type CastReport struct {
	Rounded   int // number of tensors with another type, which has not all numbers of the old one
	Widened   int // number of tensors with another type, in which every number is as it was
	Optimizer int // number of tensors of floats that are an optimizer's, and stay as they are
}

// Changed reports whether any tensor has another type than before. It is pure.
func (r CastReport) Changed() bool { return r.Rounded+r.Widened > 0 }

// optimizerState matches the names of what an optimizer keeps for a parameter, wherever it stands.
var optimizerState = pattern.New(`(?:^|\.)(?:exp_avg|exp_avg_sq|max_exp_avg_sq|` +
	`momentum_buffer|square_avg|grad_avg|fp32)(?:\.|$)`)

// isOptimizer reports whether a tensor is of an optimizer, by its name and, where the name begins
// with "state", by the values of the checkpoint.
func (c *Checkpoint) isOptimizer(name string) bool {
	name = dotted(name)
	first, _, _ := strings.Cut(name, ".")
	if strings.HasPrefix(first, "optim") || first == "opt" || first == "opt_state" ||
		optimizerState.MatchString(name) {
		return true
	}
	if first != "state" {
		return false
	}
	for _, v := range c.Values { // the state_dict of an optimizer alone
		if strings.HasPrefix(v.Path, "param_groups") {
			return true
		}
	}
	return false
}

// Cast gives tensors of floats another element type: that of the last rule that matches, rounded to
// nearest with ties to even, as torch does it. What an optimizer keeps stays as it is. It fails for
// a rule that matches no tensor of floats of a model, and later, when elements are read, for
// numbers for which the type has no place. The checkpoint is another state after it. It reads no
// elements, but asks the file system for times, and closes the files that are open.
func (c *Checkpoint) Cast(rules []Cast) (r CastReport, err error) {
	folder := &castFolder{FS: c.Files.FS(), files: map[string]*castFile{},
		unread: map[string]bool{}}
	used := make([]bool, len(rules))
	tensors := make([]format.Tensor, len(c.Tensors))
	for i, t := range c.Tensors {
		tensors[i] = t
		switch {
		case !t.DType.Float() || t.Coords != nil:
			continue
		case c.isOptimizer(t.Name):
			r.Optimizer++
			continue
		}
		to := t.DType
		for k, rule := range rules {
			if rule.Match == nil || rule.Match(t.Name) || rule.Match(dotted(t.Name)) {
				to, used[k] = rule.To, true
			}
		}
		if to == t.DType {
			continue
		}
		f, err := folder.addFile(i, t, to)
		if err != nil {
			return r, fmt.Errorf("%s: %w", c.path, err)
		}
		tensors[i] = f.tensor()
		if to.Size() > t.DType.Size() {
			r.Widened++ // f16 and bf16 to f32
		} else {
			r.Rounded++
		}
	}
	for k := range rules {
		if !used[k] {
			return r, fmt.Errorf("%s: --dtype %s matches no tensor of floats of a model; %s",
				c.path,
				rules[k].Text, describeNames(c.Tensors))
		}
	}
	if !r.Changed() {
		return r, nil
	}
	folder.source = c.newReader()
	files := format.NewFiles(folder)
	files.Dir = c.Files.Dir
	for _, a := range c.Files.Archives() {
		files.AddArchive(a)
	}
	err = c.Files.Close()
	c.Files, c.Tensors, c.cast, c.derived = files, tensors, folder, true
	return r, err
}

// asStored returns the tensor that lies in the files, where t is one that is rounded when it is
// read; else t.
func (c *Checkpoint) asStored(t *format.Tensor) *format.Tensor {
	if c.cast != nil && len(t.Pieces) == 1 {
		if f := c.cast.files[t.Pieces[0].File]; f != nil {
			return &f.from
		}
	}
	return t
}

// roundedNames returns the set of names of the tensors that Cast has rounded.
func (c *Checkpoint) roundedNames() map[string]bool {
	names := map[string]bool{}
	if c.cast != nil {
		for _, f := range c.cast.files {
			names[f.from.Name] = true
		}
	}
	return names
}

// sourceFiles returns the names of the files that a move reads, in ascending order; those of
// castFolder are among them.
func (c *Checkpoint) sourceFiles() (names []string) {
	if c.cast == nil {
		return c.tensorFiles()
	}
	found := map[string]bool{}
	for i := range c.Tensors {
		for _, list := range [2][]format.Piece{c.Tensors[i].Pieces, c.Tensors[i].Replicas} {
			for k := range list {
				found[list[k].File] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// A castFolder is a folder with further files, which are made when they are read.
// Cast adds the files; after that reading alone changes unread, and any goroutine may use the
// folder. Its exported methods read the file system, except for the further files.
type castFolder struct {
	fs.FS                       // folder of the checkpoint
	files  map[string]*castFile // the further files, by name
	source *reader              // reads the stored elements; Checkpoint.Close closes it

	mu     sync.Mutex      // guards what follows
	unread map[string]bool // the files of the checkpoint that could not be read
}

// read reads stored elements, as reader.readBytes does, and notes which files cannot be read.
func (f *castFolder) read(name string, b []byte, at int64) error {
	err := f.source.readBytes(name, b, at)
	if err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.unread[name] = true
	}
	return err
}

// unreadable returns the files that could not be read, in ascending order.
func (f *castFolder) unreadable() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.unread))
}

// addFile adds the file of the i-th tensor of the checkpoint, which is rounded to another type.
// Cast alone calls it.
func (f *castFolder) addFile(i int, t format.Tensor, to tensor.DType) (*castFile, error) {
	n, err := t.Shape.Elements()
	if err != nil {
		return nil, err
	}
	x := &castFile{folder: f, name: fmt.Sprintf("tensor-%d-as-%v", i, to), from: t, spare: t,
		to: to, size: format.BytesOf(to, n)}
	x.spare.Pieces = slices.Clone(t.Pieces)
	for k, p := range t.Pieces {
		for _, replica := range t.Replicas {
			if slices.Equal(replica.Box, p.Box) {
				x.spare.Pieces[k] = replica
			}
		}
		if info, err := fs.Stat(f.FS, p.File); err == nil && info.ModTime().After(x.mtime) {
			x.mtime = info.ModTime()
		}
	}
	f.files[x.name] = x
	return x, nil
}

// Open implements fs.FS: a file that is made for a cast, or else one of the checkpoint. The caller
// closes it.
func (f *castFolder) Open(name string) (fs.File, error) {
	if x := f.files[name]; x != nil {
		return openCast{x}, nil
	}
	return f.FS.Open(name)
}

// Stat implements fs.StatFS: what is known of a file, without opening it.
func (f *castFolder) Stat(name string) (fs.FileInfo, error) {
	if x := f.files[name]; x != nil {
		return x, nil
	}
	return fs.Stat(f.FS, name)
}

// ReadDir implements fs.ReadDirFS: it lists the files of the checkpoint, without those of casts.
func (f *castFolder) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(f.FS, name) }

// A castFile is a tensor, packed and rounded, and a fs.FileInfo of the file that it seems to be.
// Nothing changes it after addFile, so any goroutine may use it; its methods do no I/O.
type castFile struct {
	folder *castFolder
	name   string        // name in the folder, which no other file has
	from   format.Tensor // the tensor as it is stored
	spare  format.Tensor // the same, of replicas as far as there are some of whole pieces
	to     tensor.DType  // element type to which it is rounded
	size   int64         // bytes of the rounded tensor
	mtime  time.Time     // when the newest of the files was changed that have the tensor
}

// tensor returns the tensor as it lies in the file.
func (x *castFile) tensor() format.Tensor {
	t := x.from
	t.DType, t.Replicas = x.to, nil
	t.Pieces = []format.Piece{{Box: t.Shape.Box(), File: x.name}}
	return t
}

// Name implements fs.FileInfo: the name in the folder.
func (x *castFile) Name() string { return x.name }

// Size implements fs.FileInfo: the bytes of the rounded tensor.
func (x *castFile) Size() int64 { return x.size }

// Mode implements fs.FileInfo: a file that can be read.
func (x *castFile) Mode() fs.FileMode { return 0o444 }

// ModTime implements fs.FileInfo: when the newest file was changed that has the tensor.
func (x *castFile) ModTime() time.Time { return x.mtime }

// IsDir implements fs.FileInfo: it is none.
func (x *castFile) IsDir() bool { return false }

// Sys implements fs.FileInfo: there is nothing more to know.
func (x *castFile) Sys() any { return nil }

// An openCast is a castFile as an fs.File. Several goroutines may read it. ReadAt and round read
// the files of the checkpoint and wait for them; the other methods do no I/O.
type openCast struct{ *castFile }

// Stat implements fs.File: what is known of the file.
func (x openCast) Stat() (fs.FileInfo, error) { return x.castFile, nil }

// Read implements fs.File; it always fails, since such files are read by ReadAt.
func (x openCast) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Close implements fs.File: there is nothing to close.
func (x openCast) Close() error { return nil }

// castBuffers are buffers for stored elements, which any goroutine may take.
var castBuffers = sync.Pool{New: func() any { return new([]byte) }}

// castElements is the number of elements that are rounded at a time.
const castElements = 1 << 15

// ReadAt implements io.ReaderAt: it reads stored elements, and rounds them.
func (x openCast) ReadAt(b []byte, at int64) (n int, err error) {
	if at < 0 || at > x.size {
		return 0, io.EOF
	}
	short := int64(len(b)) > x.size-at
	if short {
		b = b[:x.size-at]
	}
	size := int64(x.to.Size())
	buffer := castBuffers.Get().(*[]byte)
	defer castBuffers.Put(buffer)
	whole := make([]byte, 0, size) // an element of which only some bytes are asked for
	for n < len(b) {
		from, skip := (at+int64(n))/size, (at+int64(n))%size
		count := min(int64(len(b)-n)/size, castElements)
		if skip > 0 || count == 0 {
			if err := x.round(whole[:size], int(from), 1, buffer); err != nil {
				return n, err
			}
			n += copy(b[n:], whole[skip:size])
			continue
		}
		if err := x.round(b[n:n+int(count*size)], int(from), int(count), buffer); err != nil {
			return n, err
		}
		n += int(count * size)
	}
	if short {
		err = io.EOF
	}
	return n, err
}

// round fills dst with count rounded elements, from the one with the number from on, by means of a
// buffer that it makes larger if need be.
func (x openCast) round(dst []byte, from, count int, buffer *[]byte) error {
	n := count * x.from.DType.Size()
	if cap(*buffer) < n {
		*buffer = make([]byte, n)
	}
	src := (*buffer)[:n]
	err := x.from.ReadRange(x.folder.read, from, from+count, src)
	if err != nil && len(x.from.Replicas) > 0 &&
		x.spare.ReadRange(x.folder.read, from, from+count, src) == nil {
		err = nil
	}
	if err != nil {
		return err
	}
	if i := roundTo(x.to, dst, x.from.DType, src); i >= 0 {
		return &beyondError{x.from.Name, elementIndex(x.from.Shape, from+i), x.to}
	}
	return nil
}

// A beyondError says that an element of a tensor would be infinite in another type. Nothing changes
// it.
type beyondError struct {
	tensor  string
	element []int
	to      tensor.DType
}

// Error says which element that is, and what to do.
func (e *beyondError) Error() string {
	return fmt.Sprintf("tensor %q: element %v is beyond what %v can say; choose another type for "+
		"it, such as --dtype '%s=f32'", e.tensor, tensor.Shape(e.element), e.to, e.tensor)
}

// roundTo rounds all elements in src, of one type of floats, to another in dst, to nearest with
// ties to even. It returns the index of the first number that is finite, and would be infinite; -1
// if there is none.
func roundTo(to tensor.DType, dst []byte, from tensor.DType, src []byte) (beyond int) {
	le := binary.LittleEndian
	size, each := from.Size(), to.Size()
	beyond = -1
	for i := range len(src) / size {
		b, o := src[i*size:], dst[i*each:]
		var f float32
		infinite := false
		switch from {
		case tensor.F64:
			wide := math.Float64frombits(le.Uint64(b))
			f, infinite = float32(wide), math.IsInf(wide, 0)
		case tensor.F32:
			f = math.Float32frombits(le.Uint32(b))
			infinite = math.IsInf(float64(f), 0)
		case tensor.F16:
			f = tensor.Float16(le.Uint16(b)).Float32()
			infinite = math.IsInf(float64(f), 0)
		default:
			f = tensor.BFloat16(le.Uint16(b)).Float32()
			infinite = math.IsInf(float64(f), 0)
		}
		is := float32(0)
		switch to {
		case tensor.F32:
			le.PutUint32(o, math.Float32bits(f))
			is = f
		case tensor.F16:
			h := tensor.Float16From(f)
			le.PutUint16(o, uint16(h))
			is = h.Float32()
		default:
			h := tensor.BFloat16From(f)
			le.PutUint16(o, uint16(h))
			is = h.Float32()
		}
		if !infinite && beyond < 0 && math.IsInf(float64(is), 0) {
			beyond = i
		}
	}
	return beyond
}
