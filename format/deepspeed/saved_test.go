package deepspeed_test

// This file makes checkpoints as DeepSpeed would save them, in memory, for the tests of others.
import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// array is a tensor of f32 as a test has it.
type array struct {
	shape tensor.Shape
	data  []float32
}

// numberedArray returns an array of numbers that count up from first.
func numberedArray(first int, shape ...int) array {
	a := array{shape: shape}
	n, _ := a.shape.Elements()
	for i := range n {
		a.data = append(a.data, float32(first+i))
	}
	return a
}

// String writes the array with its shape and elements.
func (a array) String() string {
	var b []byte
	for _, x := range a.data {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return fmt.Sprint(tensor.F32, a.shape, append([]byte{}, b...))
}

// atIndices returns the part of the array at the indices of a dimension that are listed.
func (a array) atIndices(dim int, indices []int) array {
	part := array{shape: slices.Clone(a.shape)}
	part.shape[dim] = len(indices)
	inner, outer := a.shape[dim+1:].Box().Elements(), a.shape[:dim].Box().Elements()
	for o := range outer {
		for _, i := range indices {
			at := (o*a.shape[dim] + i) * inner
			part.data = append(part.data, a.data[at:at+inner]...)
		}
	}
	return part
}

// scaled returns the array with each number multiplied, so that kinds of state differ.
func (a array) scaled(x float32) array {
	b := array{shape: a.shape}
	for _, y := range a.data {
		b.data = append(b.data, x*y)
	}
	return b
}

// saver writes files as torch.save does, into an output, on the goroutine of the test t.
type saver struct {
	t    testing.TB
	out  *format.Output     // files so far
	from *format.Checkpoint // their tensors, in the file blob
	blob []byte             // elements of all tensors
}

// A store is a file that a saver is writing, with the tensors in it so far.
type store struct {
	*saver
	list []format.Tensor
}

// addArray adds an array to the file, and returns what stands for it in the pickle. It stops the
// test if torch has no such tensor.
func (s *store) addArray(a array) any {
	x := format.Tensor{Name: fmt.Sprint(len(s.from.Tensors) + len(s.list)), DType: tensor.F32,
		Shape: a.shape}
	x.Pieces = []format.Piece{{Box: a.shape.Box(), File: "blob", Offset: int64(len(s.blob))}}
	for _, y := range a.data {
		s.blob = binary.LittleEndian.AppendUint32(s.blob, math.Float32bits(y))
	}
	s.list = append(s.list, x)
	p, err := torchzip.Placeholder(len(s.list)-1, x)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// writeFile adds a file with the pickle that root returns for it to the folder. It stops the test
// if the pickle cannot be written.
func (s *saver) writeFile(name string, root func(*store) any) {
	f := &store{saver: s}
	at, err := torchzip.LayoutRoot(s.out, name, root(f), f.list)
	if err != nil {
		s.t.Fatal(err)
	}
	s.from.Tensors = append(s.from.Tensors, f.list...)
	for i, x := range f.list {
		x.Pieces = []format.Piece{{Box: x.Shape.Box(), File: name, Offset: at[i]}}
		s.out.Tensors = append(s.out.Tensors, x)
	}
}

// newDict returns a dict of keys and values in turn.
func newDict(items ...any) *pickle.Dict {
	d := &pickle.Dict{}
	for i := 0; i < len(items); i += 2 {
		d.Items = append(d.Items, pickle.Item{Key: items[i], Value: items[i+1]})
	}
	return d
}

// newList returns a list of items.
func newList(items ...any) *pickle.List { return &pickle.List{Items: items} }

// shared is a parameter, or a buffer, that tensor parallel ranks share.
type shared struct {
	name   string
	parts  []array // of each rank
	buffer bool    // whether it is a buffer, which has no state
	stage  int     // of a pipeline, that has it
}

// saved is a checkpoint of several tensor parallel ranks, as DeepSpeed writes it.
type saved struct {
	stage, tp, dp int              // stage of ZeRO, and numbers of ranks
	pp            int              // stages of a pipeline, with a file for each layer; 0 for none
	tied          map[string][]int // the layers with files that are tied, by key
	params        []shared
	info          any // universal_checkpoint_info; nil for none
	// keys and values that the model states have beside
	more    []any
	aliases *pickle.Dict                       // shared_params
	steps   []float32                          // of each rank
	numbers bool                               // whether these are no tensors
	count   any                                // mp_world_size; nil for none
	change  func(mp int, root *pickle.Dict)    // of model states
	keeps   func(f *store, mp, dp int, k kept) // changes what an optimizer keeps; nil for none
}

// kept is what an optimizer keeps: DeepSpeed's, torch's in it, and of this a group and its state.
type kept struct{ outer, inner, group, state *pickle.Dict }

// write returns a folder with the checkpoint: flat buffers over the data parallel ranks, as the
// stages have them. The folder is in memory; it stops the test t if that cannot be laid out.
func (c *saved) write(t testing.TB) fstest.MapFS {
	s := &saver{t: t, out: &format.Output{}, from: &format.Checkpoint{}}
	for mp := range c.tp * max(c.pp, 1) {
		files := 1
		if c.stage == 3 {
			files = c.dp
		}
		for dp := range files {
			name := fmt.Sprintf("mp_rank_%02d_model_states.pt", mp)
			if c.stage == 3 {
				name = fmt.Sprintf("zero_pp_rank_%d_%s", dp, name)
			}
			s.writeFile("tag/"+name, func(f *store) any { return c.modelStates(f, mp) })
		}
		for dp := range c.dp {
			s.writeFile(fmt.Sprintf("tag/bf16_zero_pp_rank_%d_mp_rank_%02d_optim_states.pt", dp,
				mp),
				func(f *store) any {
					return c.optimStates(f, mp, dp)
				})
		}
	}
	layers := map[int]map[string]shared{}
	for _, p := range c.params {
		numbers, rest := c.layersWith(p.name)
		for _, n := range numbers {
			if layers[n] == nil {
				layers[n] = map[string]shared{}
			}
			layers[n][rest] = p
		}
	}
	for _, n := range slices.Sorted(maps.Keys(layers)) {
		for tp := range c.tp {
			s.writeFile(fmt.Sprintf("tag/layer_%02d-model_%02d-model_states.pt", n, tp),
				func(f *store) any {
					d := newDict()
					for _, rest := range slices.Sorted(maps.Keys(layers[n])) {
						d.Add(rest, f.addArray(layers[n][rest].parts[tp]))
					}
					return d
				})
		}
	}
	dir := formattest.WriteOutput(t, s.out, s.from,
		format.NewFiles(fstest.MapFS{"blob": {Data: s.blob}}))
	dir[deepspeed.LatestName] = &fstest.MapFile{Data: []byte("tag")}
	return dir
}

// layersWith returns the layers of a pipeline whose files have a parameter, and what it is called
// there. Without a pipeline there are none.
func (c *saved) layersWith(name string) (numbers []int, rest string) {
	if c.pp == 0 {
		return nil, name
	}
	if tied, is := strings.CutPrefix(name, "tied_modules."); is {
		key, rest, _ := strings.Cut(tied, ".")
		return c.tied[key], rest
	}
	layer, rest, _ := strings.Cut(name, ".")
	n, _ := strconv.Atoi(layer)
	return []int{n}, rest
}

// paramsOf returns the parameters of a model parallel rank, with what it has of each.
func (c *saved) paramsOf(mp int) (all []shared) {
	for _, p := range c.params {
		if p.stage == mp/c.tp {
			p.parts = p.parts[mp%c.tp : mp%c.tp+1]
			all = append(all, p)
		}
	}
	return all
}

// modelStates returns what the model states of a model parallel rank hold.
func (c *saved) modelStates(f *store, mp int) *pickle.Dict {
	module, shapes, buffers := newDict(), newDict(), newList()
	for _, p := range c.paramsOf(mp) {
		a := p.parts[0]
		if p.buffer {
			buffers.Items = append(buffers.Items, p.name)
		} else {
			shapes.Add(p.name, torchzip.IntTuple(a.shape))
		}
		if c.stage == 3 && !p.buffer {
			a = array{shape: tensor.Shape{0}}
		}
		if c.pp == 0 {
			module.Add(p.name, f.addArray(a))
		}
	}
	root := newDict("module", module, "param_shapes", newList(shapes), "buffer_names", buffers,
		"global_steps", int64(7))
	if c.pp > 0 {
		root.Set("module", nil)
		root.Add("checkpoint_parallel_dimensions",
			newDict("pp_degree", int64(c.pp), "tp_degree", int64(c.tp)))
	}
	if c.aliases != nil {
		root.Add("shared_params", c.aliases)
	}
	if c.info != nil {
		root.Add("universal_checkpoint_info", c.info)
	}
	root.Items = append(root.Items, newDict(c.more...).Items...)
	if c.count != nil {
		root.Add("mp_world_size", c.count)
	}
	if c.change != nil {
		c.change(mp, root)
	}
	return root
}

// optimStates returns what the optimizer states of a rank hold.
func (c *saved) optimStates(f *store, mp, dp int) *pickle.Dict {
	kinds := map[string]array{}
	mapping := newDict()
	for scale, kind := range map[float32]string{1: "fp32", -1: "exp_avg", 0.5: "exp_avg_sq"} {
		var flat []float32
		mapping = newDict()
		size := c.shareSize(mp)
		for _, p := range c.paramsOf(mp) {
			if p.buffer {
				continue
			}
			data := p.parts[0].scaled(scale).data
			if c.stage == 3 {
				each := (len(data) + c.dp - 1) / c.dp
				own := data[min(dp*each, len(data)):min((dp+1)*each, len(data))]
				flat = append(append(flat, own...), make([]float32, each-len(own))...)
				continue
			}
			start := len(flat)
			flat = append(flat, data...)
			from, to := max(start, dp*size), min(len(flat), (dp+1)*size)
			if from < to {
				address := pickle.New{
					Class: pickle.Global{Module: "deepspeed.utils.tensor_fragment",
						Name: "fragment_address"},
					State: newDict("numel", int64(to-from), "start", int64(from-dp*size))}
				mapping.Add(p.name, address)
			}
		}
		if c.stage < 3 {
			flat = append(flat, make([]float32, c.dp*size-len(flat))...)[dp*size : (dp+1)*size]
		}
		kinds[kind] = array{tensor.Shape{len(flat)}, flat}
	}
	state := newDict("exp_avg", f.addArray(kinds["exp_avg"]), "exp_avg_sq",
		f.addArray(kinds["exp_avg_sq"]))
	step := float32(5)
	if c.steps != nil {
		step = c.steps[mp]
	}
	if c.numbers {
		state.Add("step", int64(step))
	} else {
		state.Add("step", f.addArray(array{tensor.Shape{}, []float32{step}}))
	}
	group := newDict("lr", 0.25, "params", newList(int64(0)))
	inner := newDict("state", newDict(int64(0), state), "param_groups", newList(group))
	weights := newList(f.addArray(kinds["fp32"]))
	outer := newDict("zero_stage", int64(3), "fp32_flat_groups", weights, "optimizer_state_dict",
		inner, "partition_count", int64(c.dp))
	if c.stage < 3 {
		outer = newDict("zero_stage", int64(c.stage), "single_partition_of_fp32_groups", weights,
			"base_optimizer_state", inner,
			"partition_count", newList(int64(c.dp)), "param_slice_mappings", newList(mapping))
	}
	if c.keeps != nil {
		c.keeps(f, mp, dp, kept{outer, inner, group, state})
	}
	return newDict("optimizer_state_dict", outer)
}

// shareSize returns how many elements each data parallel rank has in the stages 1 and 2. mp is
// their model parallel rank.
func (c *saved) shareSize(mp int) int {
	n := 0
	for _, p := range c.paramsOf(mp) {
		if !p.buffer {
			n += len(p.parts[0].data)
		}
	}
	return (n + c.dp - 1) / c.dp
}
