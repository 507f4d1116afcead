// Package ranks implements shoal's own format of checkpoints: for each rank of a layout a
// safetensors file with what lies in its memory, under the same names, joined and padded as there,
// and a file that describes the layout. State that several ranks hold alike is written once: by the
// lowest of them, or in a spread checkpoint by the one that has the least to write. So a rank loads
// its part as it is, and the layout says how the parts make up the whole. docs/formats/ranks.md
// describes the files.
package ranks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

const (
	// LayoutName is the file that makes a folder a checkpoint of this format.
	LayoutName = "shoal-layout.json"
	// MaxLayout bounds that file, in bytes.
	MaxLayout = 256 << 20

	version    = "ranks/1"
	valuesName = "values.pt"
)

// A layoutJSON is the content of LayoutName.
type layoutJSON struct {
	Shoal   string       `json:"shoal"`
	Spec    *layout.Spec `json:"spec"`
	Tensors []tensorJSON `json:"tensors"`          // catalogue
	Values  bool         `json:"values"`           // whether there is a file with values
	Spread  bool         `json:"spread,omitempty"` // whether the checkpoint is spread
}

// A tensorJSON is an entry of the catalogue: a whole tensor.
type tensorJSON struct {
	Name  string       `json:"name"`
	DType string       `json:"dtype"`
	Shape tensor.Shape `json:"shape"`
}

// A local is one tensor of a file: the index of its slot in the layout, and of its name in the
// slot.
type local struct{ slot, member int }

// writerRanks returns the rank whose file holds each member of each slot: the lowest rank that has
// it, unless spread. The ranks are indexed by slot and member.
func writerRanks(l *layout.Layout, spread bool) [][]int {
	ranks := make([][]int, len(l.Slots))
	for i := range l.Slots {
		ranks[i] = slices.Repeat([]int{int(l.Sets[l.Slots[i].Set][0])}, len(l.Slots[i].Names))
	}
	if spread {
		balanceFiles(l, ranks)
	}
	return ranks
}

// fileOwners returns the ranks that have a file, ascending, and the content of each file. spread
// is whether the checkpoint is.
func fileOwners(l *layout.Layout, spread bool) (ranks []int, locals map[int][]local) {
	locals = map[int][]local{}
	for i, members := range writerRanks(l, spread) {
		for m, rank := range members {
			if locals[rank] == nil {
				ranks = append(ranks, rank)
			}
			locals[rank] = append(locals[rank], local{i, m})
		}
	}
	slices.Sort(ranks)
	return ranks, locals
}

// fileName returns the name of a rank's file.
func fileName(rank int) string { return fmt.Sprintf("rank-%05d.safetensors", rank) }

// A location is where a local tensor lies.
type location struct {
	file string
	at   int64 // offset of its first byte in the file
}

// Layout lays out state as a spec says. The names, element types and shapes of the tensors are the
// catalogue. It does no I/O.
func Layout(spec *layout.Spec, tensors []format.Tensor, values []format.Value) (*format.Output,
	error) {
	l, err := spec.Resolve(catalogue(tensors))
	if err != nil {
		return nil, err
	}
	o := &format.Output{Checkpoint: format.Checkpoint{Format: "shoal ranks"}}
	spots := map[local]location{}
	ranks, locals := fileOwners(l, false)
	for _, rank := range ranks {
		if err := addFile(o, l, rank, locals[rank], spots); err != nil {
			return nil, err
		}
	}
	text, err := describeLayout(layoutJSON{Shoal: version, Spec: spec, Values: len(values) > 0}, l)
	if err != nil {
		return nil, err
	}
	if len(values) > 0 {
		v, err := torchzip.Layout(valuesName, nil, values)
		if err != nil {
			return nil, err
		}
		o.Files, o.Frames, o.Sums = append(o.Files, v.Files...), append(o.Frames, v.Frames...),
			append(o.Sums, v.Sums...)
		o.Values, o.Altered = v.Values, v.Altered
	}
	o.Files = append(o.Files, format.OutputFile{Name: LayoutName, Size: int64(len(text))})
	o.Frames = append(o.Frames, format.Frame{File: LayoutName, Bytes: text})
	o.Tensors = assemble(l, spots)
	return o, o.Finish()
}

// describeLayout returns the content of LayoutName.
func describeLayout(j layoutJSON, l *layout.Layout) ([]byte, error) {
	for _, t := range l.Tensors {
		j.Tensors = append(j.Tensors,
			tensorJSON{t.Name, t.DType.String(), append(tensor.Shape{}, t.Shape...)})
	}
	return json.MarshalIndent(j, "", " ")
}

// catalogue returns the tensors as a layout has them.
func catalogue(tensors []format.Tensor) (list []layout.Tensor) {
	for _, t := range tensors {
		list = append(list, layout.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	return list
}

// addFile lays out the file of a rank in an output, and records in spots where its tensors lie.
// locals are these tensors.
func addFile(o *format.Output, l *layout.Layout, rank int, locals []local,
	spots map[local]location) error {
	name := fileName(rank)
	var entries []safetensors.Tensor
	index := map[string]local{}
	for _, x := range locals {
		s := &l.Slots[x.slot]
		entries = append(entries,
			safetensors.Tensor{Name: s.Names[x.member], DType: s.DType, Shape: s.Shape})
		index[s.Names[x.member]] = x
	}
	own, err := fileMetadata(l, rank)
	if err != nil {
		return err
	}
	h, err := safetensors.Layout(entries, own)
	if err != nil {
		return err
	}
	start, err := h.AppendBinary(nil)
	if err != nil {
		return err
	}
	for _, t := range h.Tensors {
		spots[index[t.Name]] = location{name, h.Data + t.Begin}
	}
	o.Files = append(o.Files, format.OutputFile{Name: name, Size: h.Size()})
	o.Frames = append(o.Frames, format.Frame{File: name, Bytes: start})
	return nil
}

// fileMetadata returns the metadata of a rank's file, which identifies the rank, because files of
// several ranks can have tensors of the same names and shapes.
func fileMetadata(l *layout.Layout, rank int) (map[string]string, error) {
	text, err := format.Origin{Rank: rank, Ranks: l.Ranks}.Text()
	return map[string]string{format.OriginKey: text}, err
}

// assemble returns the logical tensors, made from the locals: a piece for each box, and a replica
// where another local has it too. spots says where each local lies.
func assemble(l *layout.Layout, spots map[local]location) []format.Tensor {
	tensors := make([]format.Tensor, len(l.Tensors))
	for i, t := range l.Tensors {
		tensors[i] = format.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape}
	}
	for i := range l.Families {
		f := &l.Families[i]
		for _, c := range f.Grid.Cells {
			for m, index := range f.Tensors {
				t := &tensors[index]
				for k, h := range c.Held {
					s := spots[local{f.Slots[h.Slot], m}]
					p := format.Piece{Box: c.Box, File: s.file,
						Offset:  s.at + int64(h.View.At(c.Box)*t.DType.Size()),
						Strides: h.View.Strides}
					if k == 0 {
						t.Pieces = append(t.Pieces, p)
					} else {
						t.Replicas = append(t.Replicas, p)
					}
				}
			}
		}
	}
	return tensors
}

// Read reads a folder, but for the elements of tensors. It is for the goroutine of files, which
// the caller closes.
func Read(files *format.Files) (*format.Checkpoint, error) {
	c, err := readFolder(files)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", LayoutName, err)
	}
	return c, c.Finish()
}

// readFolder is Read, without the name of the file in errors and before the checkpoint is in
// order. It reads the headers of all files.
func readFolder(files *format.Files) (*format.Checkpoint, error) {
	text, err := files.ReadAll(LayoutName, MaxLayout)
	if err != nil {
		return nil, err
	}
	d, err := Parse(text)
	if err != nil {
		return nil, err
	}
	l, spots := d.Layout, map[local]location{}
	ranks, locals := fileOwners(l, d.Spread)
	for _, rank := range ranks {
		if err := locateTensors(files, l, rank, locals[rank], spots); err != nil {
			return nil, err
		}
	}
	c := &format.Checkpoint{Format: "shoal ranks", Tensors: assemble(l, spots), Job: d.Spread}
	if d.Values {
		v, err := torchzip.Read(files, valuesName)
		if err != nil {
			return nil, err
		}
		if len(v.Tensors) > 0 {
			return nil, fmt.Errorf("%s has tensors", valuesName)
		}
		c.Values = v.Values
	}
	return c, nil
}

// A Description is the parsed content of LayoutName. Nobody changes it, so any goroutine may call
// its methods, which do no I/O.
type Description struct {
	Layout *layout.Layout
	Values bool // whether there is a file with values
	Spread bool // whether ranks that hold the same state share the writing
}

// Parse reads the content of LayoutName, and resolves the layout over its catalogue. It does no
// I/O.
func Parse(text []byte) (*Description, error) {
	var j layoutJSON
	if err := strict.JSON(text, &j); err != nil {
		return nil, err
	}
	if j.Shoal != version {
		return nil, fmt.Errorf("the field shoal is %q, not %q", j.Shoal, version)
	}
	if j.Spec == nil {
		return nil, errors.New("the field spec, which is the layout, is missing")
	}
	var tensors []layout.Tensor
	for _, t := range j.Tensors {
		d, err := tensor.ParseDType(t.DType)
		if err != nil {
			return nil, err
		}
		tensors = append(tensors, layout.Tensor{Name: t.Name, DType: d, Shape: t.Shape})
	}
	l, err := j.Spec.Resolve(tensors)
	return &Description{l, j.Values, j.Spread}, err
}

// A Part is a local tensor of a rank, with the name of the file that has it.
type Part struct {
	layout.Local
	File string
}

// Parts returns what lies in the memory of one rank, and the file of each local tensor. They are
// in the order of the layout's locals, and the caller's.
func (d *Description) Parts(rank int) []Part {
	var parts []Part
	for i, members := range writerRanks(d.Layout, d.Spread) {
		if d.Layout.Sets[d.Layout.Slots[i].Set].Contains(rank) {
			for _, writer := range members {
				parts = append(parts, Part{File: fileName(writer)})
			}
		}
	}
	for i, local := range d.Layout.RankLocals(rank) { // in the same order
		parts[i].Local = local
	}
	return parts
}

// locateTensors records in spots where the tensors of a rank lie in its file, by its header. It
// fails unless the file has these tensors, locals, and no others. It opens the file.
func locateTensors(files *format.Files, l *layout.Layout, rank int, locals []local,
	spots map[local]location) error {
	name := fileName(rank)
	f, err := files.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the layout has a rank with the file %s: %w", name, err)
	}
	if err != nil {
		return err
	}
	h, err := safetensors.ReadHeader(name, f, f.Size)
	if err != nil {
		return err
	}
	if o, err := format.ParseOrigin(h.Metadata); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	} else if o != nil && (o.Rank != rank || o.Ranks != l.Ranks) {
		return fmt.Errorf("%s is the file of rank %d of %d, by its metadata, and not of rank %d "+
			"of %d: files have got each other's names, or are of another checkpoint; call it %s "+
			"again, or write them anew",
			name, o.Rank, o.Ranks, rank, l.Ranks, fileName(o.Rank))
	}
	there := map[string]safetensors.Tensor{}
	for _, t := range h.Tensors {
		there[t.Name] = t
	}
	for _, x := range locals {
		s := &l.Slots[x.slot]
		t, ok := there[s.Names[x.member]]
		if !ok || t.DType != s.DType || !t.Shape.Equal(s.Shape) {
			return fmt.Errorf("%s: by the layout tensor %q is %v %v, which is not in the file",
				name, s.Names[x.member], s.DType, s.Shape)
		}
		spots[x] = location{name, h.Data + t.Begin}
		delete(there, s.Names[x.member])
	}
	for other := range there {
		return fmt.Errorf("%s: tensor %q is not of the layout", name, other)
	}
	return nil
}
