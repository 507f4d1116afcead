package megatron

// This file lays out torch_dist, with package dcp: the writer's goroutine, no I/O but read's.
import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/format/megatron/order"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

const (
	// shardingKey is under which an optimizer says how its state is cut.
	shardingKey = "param_state_sharding_type"
	sharding    = "fully_reshardable"
)

// distConfig is the content of ConfigName. Newer versions read only these fields.
const distConfig = `{"sharded_backend": "torch_dist", "sharded_backend_version": 1}`

// A distWriter lays out a checkpoint of torch_dist: the whole model, as one rank would have it. It
// is for one goroutine, and does no I/O, except by the functions read of its methods.
type distWriter struct {
	*writer
	keys *keys  // set once the layers are numbered
	dir  string // folder of the iteration
}

// LayoutDist lays out a checkpoint of Megatron-Core's format torch_dist, which loads over any
// tensor, pipeline, expert and data parallel ranks. The spec is of one rank, and joins as Megatron
// Core does, as the preset megatron-core does. Optimizer state is in the format fully_reshardable.
// read fills memory with the elements of one of the tensors; it is asked for numbers of steps,
// which must be the same for all parameters.
func LayoutDist(spec *layout.Spec, tensors []format.Tensor, values []format.Value,
	read func(*format.Tensor, []byte) error) (*format.Output, error) {
	w := &distWriter{writer: newWriter(values)}
	w.size = degrees{1, 1, 1}
	out, err := w.layCheckpoint(spec, tensors, read)
	if err != nil {
		return nil, fmt.Errorf("Megatron: %w", err)
	}
	return out, out.Finish()
}

// layCheckpoint lays out all files of the checkpoint, and returns the output.
func (w *distWriter) layCheckpoint(spec *layout.Spec, tensors []format.Tensor,
	read func(*format.Tensor, []byte) error) (*format.Output, error) {
	given := w.values
	mesh, err := layout.ParseMesh(spec.Mesh)
	if err != nil {
		return nil, err
	}
	for _, a := range mesh {
		if a.Size > 1 {
			return nil, fmt.Errorf("the mesh %v has several ranks, and a checkpoint of "+
				"torch_dist is the same for any: leave it out", mesh)
		}
	}
	whole := *spec
	whole.Store = slices.Clone(spec.Store)
	for i := range whole.Store {
		whole.Store[i].Pad = nil // Megatron fills up the vocabulary itself
	}
	if err := w.placeTensors(&whole, mesh, tensors); err != nil {
		return nil, err
	}
	if err := w.numberLayers(); err != nil {
		return nil, err
	}
	if err := w.planState(tensors, read); err != nil {
		return nil, err
	}
	w.keys = newKeys(w.ranks[0], w.values)
	if err := w.layShards(); err != nil {
		return nil, err
	}
	if err := w.layCommonFile(&whole); err != nil {
		return nil, err
	}
	w.Values = slices.DeleteFunc(slices.Clone(given), w.isDropped)
	w.assemble()
	return w.Output, w.checkCovered()
}

// layShards lays out the tensors, layer by layer, in a new output of the writer.
func (w *distWriter) layShards() error {
	s := w.ranks[0]
	var all, extra []*local
	for _, l := range s.model {
		if strings.HasSuffix(l.param, extraState) {
			extra = append(extra, l)
		} else {
			all = append(all, l)
		}
	}
	for _, list := range s.states {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b *local) int {
		return cmp.Or(cmp.Compare(order.Depth(a.param), order.Depth(b.param)),
			strings.Compare(a.kind, b.kind), strings.Compare(a.param, b.param))
	})
	content := dcp.Content{Ranks: [][]format.Shard{nil}, Aliases: w.aliases(all)}
	for _, l := range all {
		content.Ranks[0] = append(content.Ranks[0], w.keys.keyOf(l.param).shardOf(l))
	}
	content.Objects = w.keys.extraObjects(extra, all)
	out, err := content.Layout()
	if err != nil {
		return err
	}
	w.Output = out
	at := map[string]format.Piece{}
	for _, t := range out.Tensors {
		for _, p := range t.Pieces {
			at[t.Name+"\x00"+beginText(p.Box)] = p
		}
	}
	w.moveToFolder()
	lies := func(l *local, name string, box tensor.Box) {
		p, x := at[name+"\x00"+beginText(box)], [2]int{l.slot, l.member}
		w.spots[x] = append(w.spots[x], location{path.Join(w.dir, p.File), p.Offset})
	}
	for i, shard := range content.Ranks[0] {
		lies(all[i], shard.Name, shard.Box)
	}
	for _, l := range extra {
		lies(l, l.Name, l.Shape.Box())
	}
	out.Tensors, out.Format = nil, distFormat
	return nil
}

// beginText formats where a box begins.
func beginText(box tensor.Box) string {
	var at []int
	for _, x := range box {
		at = append(at, x.From)
	}
	return fmt.Sprint(at)
}

// aliases returns second names of tensors: copies in f32, which distributed optimizers call
// differently; these have one for f32 parameters too.
func (w *distWriter) aliases(all []*local) map[string][]string {
	trained, copied := map[string]bool{}, map[string]bool{}
	for _, l := range all {
		trained[l.param] = trained[l.param] || l.kind != "" && l.kind != "step"
		copied[l.param] = copied[l.param] || l.kind == "fp32"
	}
	names := map[string][]string{}
	for _, l := range all {
		if k := w.keys.keyOf(l.param); l.kind == "fp32" ||
			l.kind == "" && l.DType == tensor.F32 && trained[l.param] && !copied[l.param] {
			names[k.stateName(l.kind)] = []string{key{name: k.name}.stateName(aloneKind)}
		}
	}
	return names
}

// moveToFolder moves all files into the folder of the iteration, and lays out those that name it.
func (w *distWriter) moveToFolder() {
	w.dir = "release" // what Megatron calls a model that begins a training
	text := w.dir
	if n := w.intValue("iteration", -1); n >= 0 {
		w.dir, text = fmt.Sprintf("iter_%07d", n), strconv.FormatInt(n, 10)
	}
	for i := range w.Files {
		w.Files[i].Name = path.Join(w.dir, w.Files[i].Name)
	}
	for i := range w.Frames {
		w.Frames[i].File = path.Join(w.dir, w.Frames[i].File)
	}
	for i := range w.Sums {
		w.Sums[i].File = path.Join(w.dir, w.Sums[i].File)
	}
	for _, f := range [][2]string{{path.Join(w.dir, ConfigName), distConfig}, {LatestName, text}} {
		w.Files = append(w.Files, format.OutputFile{Name: f[0], Size: int64(len(f[1]))})
		w.Frames = append(w.Frames, format.Frame{File: f[0], Bytes: []byte(f[1])})
	}
}

// isDropped reports whether a value is not written.
func (w *distWriter) isDropped(v format.Value) bool {
	if strings.HasPrefix(v.Path, "model.") {
		return v.Data != nil || !strings.HasSuffix(v.Path, extraState)
	}
	return strings.HasPrefix(v.Path, "rng_state/") ||
		strings.HasPrefix(v.Path, "rerun_state_machine/") || w.writer.isDropped(v)
}
