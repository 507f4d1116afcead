package megatron

// This file adds the distributed optimizer to a writer: its goroutine, no I/O but that of read.
import (
	"fmt"
	"path"
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/megatron/order"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// LayoutDistributed is Layout, with the optimizer's state in the files of Megatron's distributed
// optimizer: flat buffers beside each rank's model, which are the same for any number of data
// parallel ranks. read is asked for numbers of steps, which stand in the groups there.
func LayoutDistributed(spec *layout.Spec, tensors []format.Tensor, values []format.Value,
	read func(*format.Tensor, []byte) error) (*format.Output, error) {
	w := newWriter(values)
	w.flat = true
	return w.layFolders(spec, tensors, read)
}

// flatKinds lists the buffers: their names, and the kind of state in each.
var flatKinds = [][2]string{{"param", "fp32"}, {"exp_avg", "exp_avg"}, {"exp_avg_sq", "exp_avg_sq"}}

// planFlat finds out how many steps the optimizer has made and which parameters each optimizer has,
// and records it in the writer. It fails where the distributed optimizer has no such state.
func (w *writer) planFlat(tensors []format.Tensor, read func(*format.Tensor, []byte) error) error {
	switch {
	case len(w.optimizers) == 0:
		return fmt.Errorf("there is no optimizer with groups of parameters that its distributed " +
			"form could have; choose --format megatron")
	case w.size.ep > 1 && len(w.optimizers) == 1:
		return fmt.Errorf("over ep=%d Megatron has the state of experts in an optimizer of its "+
			"own, and there is none; choose --format megatron", w.size.ep)
	}
	if err := w.countSteps(tensors, read); err != nil {
		return err
	}
	for _, o := range w.optimizers {
		if o.inner == "" {
			return fmt.Errorf("the optimizer is that of f32, which keeps no copies of the " +
				"parameters; choose --format megatron")
		}
		o.params = map[string]bool{}
		for i := range len(o.groups) {
			for _, name := range o.groups[i].names {
				o.params[name] = true
			}
			if err := checkRegistered(o.groups[i].names); err != nil {
				return err
			}
			if _, said := o.groups[i].valuesByKey()["step"]; !said && w.made < 0 {
				return fmt.Errorf("nobody says how many steps the optimizer has made " +
					"(optimizer.step.NAME, or step in its groups), which stand in the groups of " +
					"Megatron's distributed optimizer; choose --format megatron")
			}
		}
	}
	return nil
}

// checkRegistered fails where an optimizer numbers parameters in another order than Megatron Core
// registers them, as far as shoal knows that order.
func checkRegistered(names []string) error {
	var last []int
	for i, name := range names {
		at, known := order.Position(name)
		if !known {
			return fmt.Errorf("of the parameter %q shoal does not know where among others "+
				"Megatron registers it, which is all that tells where it stands in the "+
				"distributed optimizer's buffers; choose --format megatron or torch_dist", name)
		}
		if slices.Compare(at, last) < 0 {
			return fmt.Errorf("the optimizer has %q before %q, and Megatron Core registers them "+
				"the other way, which is all that tells where they stand in the distributed "+
				"optimizer's buffers; choose --format megatron or torch_dist", names[i-1], name)
		}
		last = at
	}
	return nil
}

// distributedState returns what a rank's model file says of an optimizer with a file of its own.
func (w *writer) distributedState(s *rankFiles, o *optimizerPlan) (*pickle.Dict, error) {
	inner, groups, d := &pickle.Dict{}, &pickle.List{}, &pickle.Dict{}
	for i := range len(o.groups) {
		group := &pickle.Dict{}
		if err := torchzip.NestValues(group, o.groups[i].values, torchzip.ToPickle); err != nil {
			return nil, err
		}
		if _, said := group.Get("step"); !said {
			group.Add("step", w.made)
		}
		groups.Items = append(groups.Items, group)
	}
	inner.Add("param_groups", groups)
	d.Add(o.inner, inner)
	return d, w.addCommonState(s, o, d)
}

// layFlatFile adds the file with a rank's flat buffers to w.Output, and where its tensors lie to
// w.spots; planFlat must have run. Only the first expert parallel rank has the first optimizer.
func (w *writer) layFlatFile(s *rankFiles, folder string) error {
	f := flatFile{w: w, owner: s, name: path.Join(folder, distributedName)}
	var all []any
	for i, o := range w.optimizers {
		if i == 0 && s.ep > 0 {
			all = append(all, nil)
			continue
		}
		buffers, err := f.addBuffers(o)
		if err != nil {
			return err
		}
		all = append(all, buffers)
	}
	root := all[0]
	if len(all) > 1 {
		root = &pickle.List{Items: all}
	}
	at, err := torchzip.LayoutRoot(w.Output, f.name, root, f.tensors)
	if err != nil {
		return err
	}
	for _, x := range f.parts {
		key := [2]int{x.slot, x.member}
		w.spots[key] = append(w.spots[key], location{f.name, at[x.buffer] + 4*int64(x.offset)})
	}
	return nil
}

// A flatFile is the file of flat buffers of one rank, on its writer's goroutine.
type flatFile struct {
	w       *writer
	owner   *rankFiles      // the rank
	name    string          // path of the file
	tensors []format.Tensor // buffers
	parts   []flatPart      // what is in the buffers
}

// A flatPart is a local tensor in a buffer.
type flatPart struct {
	*local
	buffer, offset int // index of the buffer, and the first element in it
}

// addBuffers adds to the file the buffers of an optimizer, one for each chunk that has some of its
// parameters, in the reverse order of registration. It returns what stands for them in the pickle.
func (f *flatFile) addBuffers(o *optimizerPlan) (any, error) {
	d, n := &pickle.Dict{}, int64(0)
	d.Add("buckets_coalesced", true)
	chunks := make([][]*local, f.w.chunks)
	for _, l := range slices.Backward(f.owner.model) { // they are in that order
		if o.params[l.param] {
			chunks[l.chunk] = append(chunks[l.chunk], l)
		}
	}
	for _, params := range chunks {
		if len(params) == 0 {
			continue
		}
		key, err := f.w.bufferKey(params)
		if err != nil {
			return nil, err
		}
		flat, err := f.addBuffer(params)
		if err != nil {
			return nil, err
		}
		types := &pickle.Dict{Items: []pickle.Item{{Key: key, Value: flat}}}
		d.Items = append(d.Items, pickle.Item{Key: n, Value: types})
		n++
	}
	return d, nil
}

// bufferKey returns the key by which Megatron finds a buffer: types of parameters and of gradients.
func (w *writer) bufferKey(params []*local) (pickle.Tuple, error) {
	for _, l := range params {
		if l.DType != params[0].DType || !format.CanRound(l.DType) {
			return nil, fmt.Errorf("the model has parameters of %v (%q) and of %v (%q); shoal "+
				"writes buffers for those of one type, f16 or bf16: choose --format megatron",
				params[0].DType, params[0].param, l.DType, l.param)
		}
	}
	const said = "args.accumulate_allreduce_grads_in_fp32"
	for _, v := range w.values {
		if whole, ok := v.Data.(bool); ok && v.Path == said {
			gradients := params[0].DType
			if whole {
				gradients = tensor.F32
			}
			return pickle.Tuple{torchzip.DTypeGlobal(params[0].DType),
				torchzip.DTypeGlobal(gradients)}, nil
		}
	}
	return w.defaultBufferKey(params[0].DType), nil
}

// defaultBufferKey returns the key with the gradient type of Megatron-LM's defaults, and adds a
// note of it to the output: other frameworks do not state this type.
func (w *writer) defaultBufferKey(params tensor.DType) pickle.Tuple {
	gradients, flag, another := tensor.F32, "--bf16", "--grad-reduce-in-bf16"
	if params == tensor.F16 {
		gradients, flag, another = tensor.F16, "--fp16", "--accumulate-allreduce-grads-in-fp32"
	}
	note := fmt.Sprintf("nothing says of what type Megatron's gradients are, by which it looks "+
		"for the optimizer; %v is taken, as with %s: for a run with %s too, choose --format "+
		"torch_dist", gradients, flag, another)
	if !slices.Contains(w.Notes, note) {
		w.Notes = append(w.Notes, note)
	}
	return pickle.Tuple{torchzip.DTypeGlobal(params), torchzip.DTypeGlobal(gradients)}
}

// addBuffer lays parameters side by side in a buffer for each kind of state, and adds these to the
// file. Each parameter starts at a multiple of 64 elements of its bucket, and buckets follow each
// other without what fills them up. All is one bucket, but for an embedding that another stage has
// too: it is alone in one. A run with smaller buckets (--overlap-grad-reduce) has a shorter buffer,
// and Megatron compares lengths, or the same: a bucket that ends with a parameter that such a
// multiple follows changes nothing.
func (f *flatFile) addBuffer(params []*local) (*pickle.Dict, error) {
	bucket, size := 0, 0
	for _, l := range params {
		at := bucket + (size-bucket+align-1)/align*align
		alone := f.w.tied && f.w.size.pp > 1 && l.param == wordEmbeddings
		if alone {
			bucket = at
		}
		states := f.owner.states[l.param]
		for k, kind := range flatKinds {
			i := slices.IndexFunc(states, func(x *local) bool { return x.kind == kind[1] })
			if i < 0 || states[i].DType != tensor.F32 || !states[i].Shape.Equal(l.Shape) {
				return nil, fmt.Errorf("parameter %q has no %s of its shape, in f32; Megatron's "+
					"distributed optimizer keeps a copy of the parameter and the two moments of "+
					"Adam: choose --format megatron", l.param, stateName(kind[1], l.param))
			}
			f.parts = append(f.parts, flatPart{states[i], len(f.tensors) + k, at})
		}
		for _, x := range states {
			if x.kind != "step" && !slices.ContainsFunc(flatKinds, func(kind [2]string) bool {
				return kind[1] == x.kind
			}) {
				return nil, fmt.Errorf("tensor %q is none that Megatron's distributed optimizer "+
					"keeps: a copy of the parameter and the two moments of Adam; choose "+
					"--format megatron", x.Name)
			}
		}
		if size = at + l.Shape.Box().Elements(); alone {
			bucket = size
		}
	}
	d := &pickle.Dict{}
	for _, kind := range flatKinds {
		t := format.Tensor{Name: kind[0], DType: tensor.F32, Shape: tensor.Shape{size}}
		p, err := torchzip.Placeholder(len(f.tensors), t)
		if err != nil {
			return nil, err
		}
		d.Add(kind[0], p)
		f.tensors = append(f.tensors, t)
	}
	d.Add("numel_unpadded", int64(size))
	return d, nil
}
