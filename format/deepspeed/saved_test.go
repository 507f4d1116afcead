package deepspeed_test

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

// numbered is an array of numbers of which none is another's, from one on.
func numbered(first int, shape ...int) array {
	a := array{shape: shape}
	n, _ := a.shape.Elements()
	for i := range n {
		a.data = append(a.data, float32(first+i))
	}
	return a
}

func (a array) String() string {
	var b []byte
	for _, x := range a.data {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return fmt.Sprint(tensor.F32, a.shape, append([]byte{}, b...))
}

// take returns the indices of a dimension that are listed.
func (a array) take(dim int, indices []int) array {
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

// times returns the array with each number changed, so that kinds of state differ.
func (a array) times(x float32) array {
	b := array{shape: a.shape}
	for _, y := range a.data {
		b.data = append(b.data, x*y)
	}
	return b
}

// saver writes files as torch.save does.
type saver struct {
	t    testing.TB
	out  *format.Output
	from *format.Checkpoint
	blob []byte
}

// A store is a file that a saver is writing, with the tensors in it so far.
type store struct {
	*saver
	list []format.Tensor
}

// add adds an array to a file, and returns what stands for it in the pickle.
func (s *store) add(a array) any {
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

func (s *saver) file(name string, root func(*store) any) {
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

// dict is a dict of keys and values in turn.
func dict(items ...any) *pickle.Dict {
	d := &pickle.Dict{}
	for i := 0; i < len(items); i += 2 {
		d.Items = append(d.Items, pickle.Item{Key: items[i], Value: items[i+1]})
	}
	return d
}

func list(items ...any) *pickle.List { return &pickle.List{Items: items} }

// shared is a parameter, or a buffer, that tensor parallel ranks share.
type shared struct {
	name   string
	parts  []array // of each rank
	buffer bool
	stage  int // of a pipeline, that has it
}

// saved is a checkpoint of several tensor parallel ranks, as DeepSpeed writes it.
type saved struct {
	stage, tp, dp int
	pp            int              // stages of a pipeline, with a file for each layer; 0 for none
	tied          map[string][]int // the layers with files that are tied, by key
	params        []shared
	info          any // universal_checkpoint_info; nil for none
	// keys and values that the model states have beside
	more    []any
	aliases *pickle.Dict                    // shared_params
	steps   []float32                       // of each rank
	numbers bool                            // whether these are no tensors
	count   any                             // mp_world_size; nil for none
	change  func(mp int, root *pickle.Dict) // of model states
	keeps   func(f *store, mp, dp int, k kept)
}

// kept is what an optimizer keeps: DeepSpeed's, torch's in it, and of this a group and its state.
type kept struct{ outer, inner, group, state *pickle.Dict }

// write writes it: flat buffers over the data parallel ranks, as the stages have them.
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
			s.file("tag/"+name, func(f *store) any { return c.model(f, mp) })
		}
		for dp := range c.dp {
			s.file(fmt.Sprintf("tag/bf16_zero_pp_rank_%d_mp_rank_%02d_optim_states.pt", dp, mp),
				func(f *store) any {
					return c.optimizer(f, mp, dp)
				})
		}
	}
	layers := map[int]map[string]shared{}
	for _, p := range c.params {
		numbers, rest := c.layersOf(p.name)
		for _, n := range numbers {
			if layers[n] == nil {
				layers[n] = map[string]shared{}
			}
			layers[n][rest] = p
		}
	}
	for _, n := range slices.Sorted(maps.Keys(layers)) {
		for tp := range c.tp {
			s.file(fmt.Sprintf("tag/layer_%02d-model_%02d-model_states.pt", n, tp),
				func(f *store) any {
					d := dict()
					for _, rest := range slices.Sorted(maps.Keys(layers[n])) {
						d.Add(rest, f.add(layers[n][rest].parts[tp]))
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

// layersOf are the layers of a pipeline whose files have a parameter, and what it is called there.
func (c *saved) layersOf(name string) (numbers []int, rest string) {
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

// of are the parameters of a model parallel rank, with what it has of each.
func (c *saved) of(mp int) (all []shared) {
	for _, p := range c.params {
		if p.stage == mp/c.tp {
			p.parts = p.parts[mp%c.tp : mp%c.tp+1]
			all = append(all, p)
		}
	}
	return all
}

// model is what model states hold.
func (c *saved) model(f *store, mp int) *pickle.Dict {
	module, shapes, buffers := dict(), dict(), list()
	for _, p := range c.of(mp) {
		a := p.parts[0]
		if p.buffer {
			buffers.Items = append(buffers.Items, p.name)
		} else {
			shapes.Add(p.name, torchzip.Ints(a.shape))
		}
		if c.stage == 3 && !p.buffer {
			a = array{shape: tensor.Shape{0}}
		}
		if c.pp == 0 {
			module.Add(p.name, f.add(a))
		}
	}
	root := dict("module", module, "param_shapes", list(shapes), "buffer_names", buffers,
		"global_steps", int64(7))
	if c.pp > 0 {
		root.Set("module", nil)
		root.Add("checkpoint_parallel_dimensions",
			dict("pp_degree", int64(c.pp), "tp_degree", int64(c.tp)))
	}
	if c.aliases != nil {
		root.Add("shared_params", c.aliases)
	}
	if c.info != nil {
		root.Add("universal_checkpoint_info", c.info)
	}
	root.Items = append(root.Items, dict(c.more...).Items...)
	if c.count != nil {
		root.Add("mp_world_size", c.count)
	}
	if c.change != nil {
		c.change(mp, root)
	}
	return root
}

// optimizer is what optimizer states hold.
func (c *saved) optimizer(f *store, mp, dp int) *pickle.Dict {
	kinds := map[string]array{}
	mapping := dict()
	for scale, kind := range map[float32]string{1: "fp32", -1: "exp_avg", 0.5: "exp_avg_sq"} {
		var flat []float32
		mapping = dict()
		size := c.share(mp)
		for _, p := range c.of(mp) {
			if p.buffer {
				continue
			}
			data := p.parts[0].times(scale).data
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
					State: dict("numel", int64(to-from), "start", int64(from-dp*size))}
				mapping.Add(p.name, address)
			}
		}
		if c.stage < 3 {
			flat = append(flat, make([]float32, c.dp*size-len(flat))...)[dp*size : (dp+1)*size]
		}
		kinds[kind] = array{tensor.Shape{len(flat)}, flat}
	}
	state := dict("exp_avg", f.add(kinds["exp_avg"]), "exp_avg_sq", f.add(kinds["exp_avg_sq"]))
	step := float32(5)
	if c.steps != nil {
		step = c.steps[mp]
	}
	if c.numbers {
		state.Add("step", int64(step))
	} else {
		state.Add("step", f.add(array{tensor.Shape{}, []float32{step}}))
	}
	group := dict("lr", 0.25, "params", list(int64(0)))
	inner := dict("state", dict(int64(0), state), "param_groups", list(group))
	weights := list(f.add(kinds["fp32"]))
	outer := dict("zero_stage", int64(3), "fp32_flat_groups", weights, "optimizer_state_dict",
		inner, "partition_count", int64(c.dp))
	if c.stage < 3 {
		outer = dict("zero_stage", int64(c.stage), "single_partition_of_fp32_groups", weights,
			"base_optimizer_state", inner,
			"partition_count", list(int64(c.dp)), "param_slice_mappings", list(mapping))
	}
	if c.keeps != nil {
		c.keeps(f, mp, dp, kept{outer, inner, group, state})
	}
	return dict("optimizer_state_dict", outer)
}

// share is how many elements each data parallel rank has in the stages 1 and 2.
func (c *saved) share(mp int) int {
	n := 0
	for _, p := range c.of(mp) {
		if !p.buffer {
			n += len(p.parts[0].data)
		}
	}
	return (n + c.dp - 1) / c.dp
}
