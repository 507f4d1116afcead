package deepspeed

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// This file lays out the files that zero.go has planned: the writer's goroutine, no I/O.

// Classes of DeepSpeed that stand in its files.
var (
	stageClass    = pickle.Global{Module: "deepspeed.runtime.zero.config", Name: "ZeroStageEnum"}
	fragmentClass = pickle.Global{Module: "deepspeed.utils.tensor_fragment",
		Name: "fragment_address"}
)

// A store is a storage of a file, and the tensors of which it is made.
type store struct {
	format.Tensor
	from []part
}

// A part is the elements [from, to) of a tensor, which stand in a store from at on.
type part struct {
	name         string
	from, to, at int
}

// tensorStore returns a store with one tensor.
func tensorStore(t *format.Tensor) store {
	n, _ := t.Shape.Elements()
	return store{*t, []part{{t.Name, 0, n, 0}}}
}

// flatStore returns a store of n elements, made of parts of tensors.
func flatStore(d tensor.DType, n int, from []part) store {
	return store{format.Tensor{DType: d, Shape: tensor.Shape{n}}, from}
}

// A file is a file that is being laid out. It is for its writer's goroutine.
type file struct {
	stores []store
}

// addStore adds a store to the file, and returns what stands for it in the pickle.
func (f *file) addStore(s store) (any, error) {
	f.stores = append(f.stores, s)
	return torchzip.Placeholder(len(f.stores)-1, s.Tensor)
}

// layStores lays out a file with a pickle and its stores, and adds the pieces in it to the output's
// tensors. Bytes of a tensor that has all of its pieces are a replica.
func (w *zeroWriter) layStores(name string, root any, f *file) error {
	var list []format.Tensor
	for _, s := range f.stores {
		list = append(list, s.Tensor)
	}
	name = path.Join(w.tag, name)
	at, err := torchzip.LayoutRoot(w.Output, name, root, list)
	if err != nil {
		return err
	}
	for i, s := range f.stores {
		for _, p := range s.from {
			to := &w.Tensors[w.index[p.name]]
			pieces := format.FlatPieces(to.DType, to.Shape, p.from, p.to, name,
				at[i]+format.BytesOf(to.DType, p.at))
			if w.placed[p.name] {
				to.Replicas = append(to.Replicas, pieces...)
				continue
			}
			to.Pieces = append(to.Pieces, pieces...)
			n, _ := to.Shape.Elements()
			w.placed[p.name] = p.to-p.from == n
		}
	}
	return nil
}

// layZero lays out all files of the writer's ranks.
func (w *zeroWriter) layZero() error {
	w.tag = w.folderName("zero", "")
	for rank := range w.ranks {
		if err := w.layOptimStates(rank); err != nil {
			return err
		}
	}
	for _, f := range w.flats { // all of their pieces are there now
		for _, p := range w.mixture.writtenParams(w, f) {
			w.placed[w.weights(p).Name] = true
			for _, kind := range f.kinds {
				w.placed[w.stateTensor(kind, p).Name] = true
			}
		}
	}
	files := w.ranks
	if w.stage < 3 {
		files = 1
	}
	for rank := range files {
		if err := w.layModelStates(rank); err != nil {
			return err
		}
	}
	if w.hasLayerFiles() {
		if err := w.layLayerFiles(); err != nil {
			return err
		}
	}
	if err := w.layExpertFiles(); err != nil {
		return err
	}
	if w.mp == 0 {
		w.layLatestFile(LatestName)
	}
	return nil
}

// layOptimStates lays out the optimizer states of a rank, with its part of the flat buffers.
func (w *zeroWriter) layOptimStates(rank int) error {
	out := &file{}
	weights, states, mappings, paddings, counts := &pickle.List{}, &pickle.Dict{}, &pickle.List{},
		&pickle.List{}, &pickle.List{}
	for i, f := range w.flats {
		parts, size, lean := f.rankPart(w, rank)
		p, err := w.addFlatBuffer(out, "fp32", f, parts, lean)
		if err != nil {
			return err
		}
		weights.Items = append(weights.Items, p)
		state := &pickle.Dict{}
		for _, kind := range f.numbers {
			if p, err = w.addNumber(out, kind, f, rank); err != nil {
				return err
			}
			state.Add(kind, p)
		}
		if f.steps != nil {
			state.Add("step", f.steps)
		}
		for _, kind := range f.kinds {
			if p, err = w.addFlatBuffer(out, kind, f, parts, size); err != nil {
				return err
			}
			state.Add(kind, p)
		}
		if len(state.Items) > 0 {
			states.Items = append(states.Items, pickle.Item{Key: int64(i), Value: state})
		}
		fragments := &pickle.Dict{}
		for _, p := range parts {
			address := &pickle.Dict{}
			address.Add("numel", int64(p.to-p.from))
			address.Add("start", int64(p.at))
			fragments.Add(w.mixture.localName(p.name),
				pickle.New{Class: fragmentClass, State: address})
		}
		mappings.Items = append(mappings.Items, fragments)
		paddings.Items = append(paddings.Items, int64(size-lean))
		_, _, count := f.rankParams(w, rank)
		counts.Items = append(counts.Items, int64(count))
	}
	groups, err := w.paramGroups()
	if err != nil {
		return err
	}
	state, err := w.commonState()
	if err != nil {
		return err
	}
	inner := &pickle.Dict{}
	inner.Add("state", states)
	inner.Add("param_groups", groups)
	keys := optimizerKeys(w.stage)
	state.Add("zero_stage", &pickle.Object{Class: stageClass, Args: []any{w.stage}})
	state.Add(keys[1], inner)
	state.Add(keys[0], weights)
	if w.stage == 3 {
		state.Add("partition_count", int64(w.ranks))
	} else {
		state.Add("partition_count", counts)
		state.Add("group_paddings", paddings)
		state.Add("param_slice_mappings", mappings)
		state.Add("ds_version", w.versionToWrite())
	}
	root := &pickle.Dict{}
	root.Add("optimizer_state_dict", state)
	if err := torchzip.NestValues(root, w.configValues(),
		torchzip.ObjectsToPickle(globals)); err != nil {
		return err
	}
	root.Add("ds_version", w.versionToWrite())
	return w.layStores(
		fmt.Sprintf("%szero_pp_rank_%d_mp_rank_%02d_optim_states.pt", w.bf16, rank, w.mp),
		root, out)
}

// addNumber adds to a file a number that all parameters of a group have, as a tensor of one
// element, and returns what stands for it in the pickle. After it in the storage stand those of the
// others, which are the same, so that each has its place.
func (w *zeroWriter) addNumber(out *file, kind string, f *flatState, rank int) (any, error) {
	params, _, _ := f.rankParams(w, rank)
	var from []part
	for i, p := range params {
		from = append(from, part{w.stateTensor(kind, p).Name, 0, 1, i})
	}
	p, err := out.addStore(flatStore(w.stateTensor(kind, f.params[0]).DType, len(params), from))
	if o, ok := p.(*pickle.Object); ok {
		o.Args[2], o.Args[3] = pickle.Tuple{}, pickle.Tuple{} // shape and strides
	}
	return p, err
}

// versionToWrite returns the version of DeepSpeed that the files name: that of the source, as it
// stands there, and fileVersion if the source names none.
func (w *zeroWriter) versionToWrite() any {
	if v, ok := w.value("ds_version"); ok {
		return v
	}
	return fileVersion
}

// configValues returns the values of DeepSpeed's configuration, with the stage that is written.
func (w *zeroWriter) configValues() (list []format.Value) {
	for _, v := range w.values {
		if v.Path == "ds_config.zero_optimization.stage" {
			v = format.Value{Path: v.Path, Data: w.stage}
		}
		if strings.HasPrefix(v.Path, "ds_config.") {
			list = append(list, v)
		}
	}
	return list
}

// flatKeys are those of optimizer states that say how buffers are cut, or hold them; they are
// written anew.
var flatKeys = []string{
	"param_groups", "optimizer_state_dict", "base_optimizer_state", "base_optimizer_state_step",
	"zero_stage", "partition_count", "group_paddings",
	"param_alignment_paddings", "param_slice_mappings", "ds_version", "ds_zero_partition_groups",
}

// commonState returns what optimizer states hold that belongs to no parameter, such as the scale of
// gradients. Stage 3 does not load without that.
func (w *zeroWriter) commonState() (*pickle.Dict, error) {
	root, err := w.commonValues(flatKeys)
	if err != nil || w.stage < 3 {
		return root, err
	}
	if _, ok := root.Get("loss_scaler"); !ok {
		if err := addScaler(root,
			[]format.Value{{Path: "cur_scale", Data: 1.0},
				{Path: "dynamic", Data: false}}); err != nil {
			return nil, err
		}
	}
	for _, key := range []string{"dynamic_loss_scale", "overflow"} {
		if _, ok := root.Get(key); !ok {
			root.Add(key, false)
		}
	}
	return root, nil
}

// paramGroups returns the groups of the optimizer, as the values tell them: each has the numbers of
// its flat buffers.
func (w *zeroWriter) paramGroups() (*pickle.List, error) {
	list, err := w.writer.paramGroups()
	if err != nil {
		return nil, err
	}
	if len(list.Items) != len(w.groups) {
		return nil, fmt.Errorf("the optimizer has %d groups of parameters, and there are "+
			"learning rates and the like of %d", len(w.groups), len(list.Items))
	}
	for i, g := range list.Items {
		numbers := &pickle.List{}
		for n, f := range w.flats {
			if f.group == i {
				numbers.Items = append(numbers.Items, int64(n))
			}
		}
		g.(*pickle.Dict).Set("params", numbers)
		if w.mixture != nil {
			w.mixture.renameGroup(g.(*pickle.Dict))
		}
	}
	return list, nil
}

// layModelStates lays out the file with the model: whole in the stages 1 and 2; of a rank in 3,
// where what is trained stands in the optimizer's files only.
func (w *zeroWriter) layModelStates(rank int) error {
	out, root, module := &file{}, &pickle.Dict{}, &pickle.Dict{}
	shapes, frozen := &pickle.Dict{}, &pickle.Dict{}
	if root.Add("module", module); w.hasLayerFiles() {
		root.Set("module", nil) // it is in the files of the layers
	}
	hollow, err := out.addStore(flatStore(tensor.F32, 0, nil)) // stands for what is cut
	if err != nil {
		return err
	}
	for _, t := range w.models {
		name, ok := strings.CutPrefix(t.Name, w.prefix)
		if ok && w.mixture.isExpert(name) {
			continue
		}
		trained := w.in[name] || w.in[w.shared[name]] || w.stage < 3 && w.shared[name] != ""
		still := !trained && !slices.Contains(w.buffers, name)
		p := hollow
		beside := !ok && w.prefix == modulePrefix
		if w.hasLayerFiles() && !beside && !still {
			module.Add(name, nil)
			continue
		}
		if beside || w.stage < 3 || !trained && !still {
			// what a program of DeepSpeed has saved
			if p, err = out.addStore(tensorStore(t)); err == nil && beside {
				err = root.Put(t.Name, p)
			}
			if err != nil {
				return err
			}
			if beside {
				continue
			}
		}
		module.Add(name, p)
		if !still {
			continue
		}
		shapes.Add(name, torchSize(t.Shape))
		if w.stage == 3 {
			n, _ := t.Shape.Elements()
			each := shareSize(param{name, t.Shape}, w.ranks)
			if p, err = out.addStore(
				flatStore(t.DType, each,
					[]part{{t.Name, min(rank*each, n), min((rank+1)*each, n), 0}})); err != nil {
				return err
			}
		}
		frozen.Add(name, p)
	}
	masters, err := w.addMasters(out, module, hollow)
	if err != nil {
		return err
	}
	if len(masters.Items) > 0 && w.hasLayerFiles() {
		return fmt.Errorf("of parameter %v there are master weights only, and the files of a "+
			"pipeline's layers have the model's own; choose universal", masters.Items[0])
	}
	if len(masters.Items) > 0 {
		own := &pickle.Dict{}
		own.Add(mastersKey, masters)
		root.Add(ownKey, own)
	}
	if w.stage > 1 {
		root.Add("frozen_param_shapes", shapes)
		root.Add("frozen_param_fragments", frozen)
	}
	if err := w.addDescription(root, module); err != nil {
		return err
	}
	name := fmt.Sprintf("mp_rank_%02d_model_states.pt", w.mp)
	if w.stage == 3 {
		name = "zero_pp_rank_" + strconv.Itoa(rank) + "_" + name
	}
	return w.layStores(name, root, out)
}

// addMasters adds to the file and the module those parameters of which there are master weights
// only, as after stage 3: DeepSpeed rounds them when it loads the model. hollow stands for what is
// cut. In the stages 1 and 2 it returns their names.
func (w *zeroWriter) addMasters(out *file, module *pickle.Dict, hollow any) (*pickle.List, error) {
	names := &pickle.List{}
	add := func(name string, p any) {
		module.Add(name, p)
		if w.stage < 3 {
			names.Items = append(names.Items, name)
		}
	}
	for _, g := range w.groups {
		for _, name := range g {
			if _, there := module.Get(name); there || w.mixture.isExpert(name) {
				continue
			}
			p := hollow
			if w.stage < 3 {
				var err error
				if p, err = out.addStore(tensorStore(w.weights(name))); err != nil {
					return nil, err
				}
			}
			add(name, p)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.shared)) {
		other, there := module.Get(w.shared[name])
		if _, is := module.Get(name); !is && there {
			add(name, other)
		}
	}
	return names, nil
}

// addDescription adds to the root and the module of model states what is no tensor, and what
// DeepSpeed asks for.
func (w *zeroWriter) addDescription(root, module *pickle.Dict) error {
	if err := w.addModelExtras(root, module, w.tps, w.pps); err != nil {
		return err
	}
	all, names := &pickle.List{}, &pickle.List{}
	for _, f := range w.flats {
		d := &pickle.Dict{}
		params, _, _ := f.rankParams(w, 0)
		for _, p := range params {
			d.Add(w.mixture.localName(p), torchSize(w.weights(p).Shape))
		}
		all.Items = append(all.Items, d)
	}
	for _, name := range w.buffers {
		names.Items = append(names.Items, name)
	}
	root.Set("param_shapes", all)
	root.Set(buffersKey, names)
	root.Set("dp_world_size", int64(w.ranks))
	if w.mixture != nil {
		root.Set(expertCountsKey, w.mixture.expertCounts(w))
	}
	if config, err := pickle.Get[*pickle.Dict](root, "ds_config", "zero_optimization"); err == nil {
		config.Set("stage", w.stage)
	}
	return nil
}
