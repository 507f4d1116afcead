package megatron

// This file lays out mp_rank folders: a writer, with methods in other files; no I/O but read's.
import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/megatron/order"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/state/layout"
)

// A writer lays a checkpoint out for Megatron, on one goroutine. It does no I/O, except by read.
type writer struct {
	*format.Output
	layout *layout.Layout // set by placeTensors
	values []format.Value // the given values
	size   degrees        // sizes of the axes
	ranks  []*rankFiles   // ranks of the mesh, each of which has a file
	tied   bool           // whether the output layer shares the weights of the embedding
	stages []stage        // stages of the pipeline
	chunks int            // chunks of each stage
	layers int            // layers of the model

	optimizers plans
	// order of parameters, as far as the optimizer's groups tell it.
	order map[string]int
	// what an optimizer keeps for a parameter that is no tensor, with the kind as path
	steps map[string][]format.Value
	// steps, where one number is for all; -1 where nobody says how many
	made int64
	flat bool // whether state goes to the distributed optimizer's files

	spots map[[2]int][]location // where each local tensor lies, by slot and member of the layout
}

// A location is where a local tensor lies.
type location struct {
	file string
	at   int64 // offset in the file, in bytes
}

// Layout lays out a checkpoint of Megatron's format "torch": a file for each rank on the axes tp,
// pp and ep of a spec, with what lies in its memory. The spec joins and cuts as Megatron Core does,
// as the preset megatron-core; the stages of its pipeline have their layers in a row, or in chunks,
// round and round. Layers and experts are numbered from 0 in each model of a file; tied embeddings
// stand on the last stage too; rows of the vocabulary are filled up with zeros to a multiple that
// Megatron computes with. Arguments are those of values, with the new degrees; without any, what
// the tensors tell.
func Layout(spec *layout.Spec, tensors []format.Tensor, values []format.Value) (*format.Output,
	error) {
	return newWriter(values).layFolders(spec, tensors, nil)
}

// newWriter returns a writer without files for a checkpoint with these values, which it keeps.
func newWriter(values []format.Value) *writer {
	return &writer{Output: &format.Output{Checkpoint: format.Checkpoint{Format: "Megatron"}},
		values: values, spots: map[[2]int][]location{}, made: -1}
}

// layFolders lays out the folders of all ranks, and returns the output. read reads numbers of
// steps; it is nil where those stay with the parameters.
func (w *writer) layFolders(spec *layout.Spec, tensors []format.Tensor,
	read func(*format.Tensor, []byte) error) (*format.Output, error) {
	err := w.placeOnMesh(spec, tensors)
	if err == nil {
		err = w.numberLayers()
	}
	if err == nil {
		err = w.planOptimizers()
	}
	if err == nil && w.flat {
		err = w.planFlat(tensors, read)
	}
	if err == nil {
		w.Values = slices.DeleteFunc(slices.Clone(w.values), w.isDropped)
		err = w.layFiles(spec)
	}
	if err == nil {
		w.assemble()
		// groups have them
		w.Tensors = slices.DeleteFunc(w.Tensors, func(t format.Tensor) bool {
			return w.flat && strings.HasPrefix(t.Name, stepPrefix)
		})
		err = w.checkCovered()
	}
	if err != nil {
		return nil, fmt.Errorf("Megatron: %w", err)
	}
	return w.Output, w.Finish()
}

// placeOnMesh finds out what lies on every rank of a spec's mesh, and sets the sizes of its axes.
func (w *writer) placeOnMesh(spec *layout.Spec, tensors []format.Tensor) error {
	mesh, err := layout.ParseMesh(spec.Mesh)
	if err != nil {
		return err
	}
	w.size = degrees{1, 1, 1}
	for _, a := range mesh {
		to := map[string]*int{"tp": &w.size.tp, "pp": &w.size.pp, "ep": &w.size.ep}[a.Name]
		if to == nil && a.Size > 1 {
			return fmt.Errorf("the mesh %v has the axis %s, and there are folders for tp, pp "+
				"and ep only; leave it out: all its ranks load the same files", mesh, a.Name)
		}
		if to != nil {
			*to = a.Size
		}
	}
	return w.placeTensors(w.withPadding(spec, tensors), mesh, tensors)
}

// placeTensors resolves a spec, and fills the writer's ranks with the tensors that lie on them.
func (w *writer) placeTensors(spec *layout.Spec, mesh layout.Mesh, tensors []format.Tensor) error {
	var catalogue []layout.Tensor
	for _, t := range tensors {
		catalogue = append(catalogue, layout.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	var err error
	if w.layout, err = spec.Resolve(catalogue); err != nil {
		return err
	}
	for rank := range w.layout.Ranks {
		w.ranks = append(w.ranks, newRankFiles(mesh, rank))
	}
	return w.assignTensors()
}

// intValue returns the number at a path of the given values, or other when there is none.
func (w *writer) intValue(path string, other int64) int64 {
	for _, v := range w.values {
		if n, ok := v.Data.(int64); ok && v.Path == path {
			return n
		}
	}
	return other
}

// withPadding returns a spec that also says that the vocabulary has rows in multiples of what the
// arguments say, for each tensor parallel rank.
func (w *writer) withPadding(spec *layout.Spec, tensors []format.Tensor) *layout.Spec {
	multiple := w.intValue("args.make_vocab_size_divisible_by", 1)
	more := *spec
	more.Store = slices.Clone(spec.Store)
	for _, t := range tensors {
		if vocabulary := strings.HasSuffix("."+t.Name, "."+wordEmbeddings) ||
			strings.HasSuffix("."+t.Name, "."+outputLayer); vocabulary && len(t.Shape) > 0 {
			more.Store = append(more.Store,
				layout.Store{Name: t.Name, Parts: []string{t.Name},
					Pad: &layout.Pad{Multiple: int(multiple) * w.size.tp}})
		}
	}
	return &more
}

// layFiles lays out the files of all ranks, and the file that names the iteration.
func (w *writer) layFiles(spec *layout.Spec) error {
	args, err := w.arguments(spec)
	if err != nil {
		return err
	}
	dir, text := "release", "release" // what Megatron calls a model that begins a training
	if n := w.intValue("iteration", -1); n >= 0 {
		dir, text = fmt.Sprintf("iter_%07d", n), strconv.FormatInt(n, 10)
	}
	for _, s := range w.ranks {
		if err := w.layFile(s, path.Join(dir, s.folderName(w.size), fileName), args); err != nil {
			return err
		}
	}
	w.Files = append(w.Files, format.OutputFile{Name: LatestName, Size: int64(len(text))})
	w.Frames = append(w.Frames, format.Frame{File: LatestName, Bytes: []byte(text)})
	return nil
}

// isDropped reports whether a value is not written: of an old rank, or of an optimizer without
// state.
func (w *writer) isDropped(v format.Value) bool {
	switch key, _, _ := strings.Cut(v.Path, "."); key {
	case "rng_state", "rerun_state_machine":
		return true
	case optimizerKey:
		return len(w.optimizers) == 0
	}
	return false
}

// layFile lays out the file of a rank, and with a distributed optimizer the one beside it.
func (w *writer) layFile(s *rankFiles, name string, args any) error {
	root := &pickle.Dict{}
	root.Add("args", args)
	root.Add("checkpoint_version", 3.0) // since when q, k and v are interleaved by groups of heads
	root.Add("iteration", max(w.intValue("iteration", 0), 0))
	if err := w.addModels(s, root); err != nil {
		return err
	}
	optimizer, err := w.optimizersOf(s)
	if err != nil {
		return err
	}
	if optimizer != nil {
		root.Add(optimizerKey, optimizer)
	}
	var rest []format.Value
	for _, v := range w.Values {
		switch key, _, _ := strings.Cut(v.Path, "."); key {
		case "args", "checkpoint_version", "iteration", "model", optimizerKey:
		default:
			rest = append(rest, v)
		}
	}
	if err := torchzip.NestValues(root, rest, torchzip.ToPickle); err != nil {
		return err
	}
	var tensors []format.Tensor
	for _, l := range s.stored {
		tensors = append(tensors, l.Tensor)
	}
	at, err := torchzip.LayoutRoot(w.Output, name, root, tensors)
	if err != nil {
		return err
	}
	for i, l := range s.stored {
		key := [2]int{l.slot, l.member}
		w.spots[key] = append(w.spots[key], location{name, at[i]})
	}
	if w.flat {
		return w.layFlatFile(s, path.Dir(name))
	}
	return nil
}

// addModels adds to root the dicts of the models of a rank, one for each chunk: in the order of the
// layers, and within a layer in the order of the optimizer's groups.
func (w *writer) addModels(s *rankFiles, root *pickle.Dict) error {
	all := s.model
	slices.SortFunc(all, func(a, b *local) int {
		if w.flat { // the order is that of the buffers
			return cmp.Or(a.chunk-b.chunk,
				slices.Compare(order.SortKey(a.name), order.SortKey(b.name)),
				strings.Compare(a.name, b.name))
		}
		return cmp.Or(a.chunk-b.chunk, cmp.Compare(order.Depth(a.name), order.Depth(b.name)),
			cmp.Compare(w.order[a.param], w.order[b.param]), strings.Compare(a.name, b.name))
	})
	chunks := []*pickle.Dict{}
	for i := range w.chunks {
		chunks = append(chunks, &pickle.Dict{})
		key := "model"
		if w.chunks > 1 {
			key += strconv.Itoa(i)
		}
		root.Add(key, chunks[i])
	}
	for _, l := range all {
		p, err := s.addStored(l)
		if err != nil {
			return err
		}
		chunks[l.chunk].Add(l.name, p)
	}
	for _, v := range w.values { // such as the state of modules that is no parameter
		m := knownTensor.FindStringSubmatch(v.Path)
		if m == nil || m[1] != "" || v.Data == nil {
			continue
		}
		chunk, name := w.nameOnRank(s, m[2])
		if name == "" {
			continue
		}
		p, err := torchzip.ToPickle(v.Data)
		if err != nil {
			return err
		}
		chunks[chunk].Add(name, p)
	}
	return nil
}

// assemble sets the output's tensors, with the pieces that the files have of them.
func (w *writer) assemble() {
	for _, t := range w.layout.Tensors {
		w.Tensors = append(w.Tensors, format.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	for i := range w.layout.Families {
		f := &w.layout.Families[i]
		for _, c := range f.Grid.Cells {
			for m, index := range f.Tensors {
				t, first := &w.Tensors[index], true
				for _, h := range c.Held {
					for _, s := range w.spots[[2]int{f.Slots[h.Slot], m}] {
						p := format.Piece{Box: c.Box, File: s.file,
							Offset:  s.at + int64(h.View.At(c.Box)*t.DType.Size()),
							Strides: h.View.Strides}
						if first {
							t.Pieces = append(t.Pieces, p)
						} else {
							t.Replicas = append(t.Replicas, p)
						}
						first = false
					}
				}
			}
		}
	}
}

// checkCovered fails when an element of one of the output's tensors is in no file.
func (w *writer) checkCovered() error {
	for i := range w.Tensors {
		t, n := &w.Tensors[i], 0
		for _, p := range t.Pieces {
			n += p.Box.Elements()
		}
		switch all := t.Shape.Box().Elements(); {
		case n == all:
		case strings.HasPrefix(t.Name, optimizerKey+"."):
			return fmt.Errorf("tensor %q is of a parameter that no group of the optimizer names "+
				"(values optimizer.….param_groups.0.%s): Megatron knows the parameters of an "+
				"optimizer by their order, which only a checkpoint of Megatron tells; leave the "+
				"optimizer out with --only 'model.**', or choose a format with names, such as dcp",
				t.Name, namesKey)
		default:
			return fmt.Errorf("of tensor %q, the ranks on which Megatron looks for it have %d "+
				"of %d elements: the layout puts it elsewhere", t.Name, n, all)
		}
	}
	return nil
}
