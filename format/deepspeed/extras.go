package deepspeed

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/tensor"
)

// This file writes what a universal checkpoint has beside parameters: one goroutine, no I/O.

// maxGroups bounds the numbers of an optimizer's groups.
const maxGroups = 1 << 16

// groupPath is the path of what an optimizer has for a group of parameters.
var groupPath = pattern.New(`^optimizer_state\.param_groups\.(\d+)\.(.+)$`)

// commonValues returns what optimizer states hold that belongs to no parameter, from the values
// below stateKey; without lists the keys to leave out.
func (w *writer) commonValues(without []string) (*pickle.Dict, error) {
	root := &pickle.Dict{}
	var rest, scale []format.Value
	for _, v := range w.values {
		name, ok := strings.CutPrefix(v.Path, stateKey+".")
		if key, more, _ := strings.Cut(name, "."); !ok || slices.Contains(without, key) {
			continue
		} else if key == "loss_scaler" {
			scale = append(scale, format.Value{Path: more, Data: v.Data})
		} else {
			rest = append(rest, format.Value{Path: name, Data: v.Data})
		}
	}
	if err := torchzip.NestValues(root, rest, torchzip.ObjectsToPickle(globals)); err != nil {
		return nil, err
	}
	return root, addScaler(root, scale)
}

// layCommonFile lays out optimizer_state.pt, which the stages 1 and 2 read in one form and stage 3
// in another: it has both.
func (w *writer) layCommonFile() error {
	groups, err := w.paramGroups()
	if err != nil {
		return err
	}
	root, err := w.commonValues([]string{"param_groups", "optimizer_state_dict"})
	if err != nil {
		return err
	}
	if _, ok := root.Get("ds_version"); !ok {
		root.Add("ds_version", fileVersion)
	}
	root.Add("param_groups", groups)
	first, tensors, err := w.firstStep()
	if err != nil {
		return err
	}
	inner, state := &pickle.Dict{}, &pickle.Dict{}
	state.Items = append(state.Items, pickle.Item{Key: int64(0), Value: first})
	inner.Add("state", state)
	inner.Add("param_groups", groups)
	root.Add("optimizer_state_dict", inner)
	return w.layFile("zero/"+stateKey+".pt", root, tensors)
}

// firstStep returns the dict in which stage 3 finds the number of steps, which all parameters that
// are trained have alike, and the tensors that the dict has placeholders for.
func (w *writer) firstStep() (*pickle.Dict, []*format.Tensor, error) {
	d := &pickle.Dict{}
	for _, name := range w.params { // those that are frozen have none
		if t := w.findTensor("optimizer.step." + name); t != nil {
			p, err := torchzip.Placeholder(0, *t)
			d.Add("step", p)
			return d, []*format.Tensor{t}, err
		}
		if n, ok := w.steps[name]; ok {
			d.Add("step", n)
			break
		}
	}
	return d, nil, nil
}

// paramGroups returns the groups of the optimizer, as the values tell them. DeepSpeed takes as many
// as it has itself: of a checkpoint that tells of none there are as many as there are parameters,
// with nothing in them, and it keeps its own learning rates.
func (w *writer) paramGroups() (*pickle.List, error) {
	list := &pickle.List{}
	group := func(n int) *pickle.Dict {
		for len(list.Items) <= n {
			list.Items = append(list.Items, &pickle.Dict{})
		}
		return list.Items[n].(*pickle.Dict)
	}
	for _, v := range w.values {
		m := groupPath.FindStringSubmatch(v.Path)
		if m == nil || m[2] == "params" || m[2] == namesKey {
			continue
		}
		n, err := strconv.Atoi(m[1])
		if err != nil || n > maxGroups {
			return nil, fmt.Errorf("value %q: a group of such a number", v.Path)
		}
		if err := torchzip.NestValues(group(n), []format.Value{{Path: m[2], Data: v.Data}},
			torchzip.ObjectsToPickle(globals)); err != nil {
			return nil, err
		}
	}
	if len(list.Items) == 0 {
		group(len(w.params) - 1)
	}
	for i := range list.Items {
		group(i).Add("params", &pickle.List{Items: []any{int64(i)}})
	}
	return list, nil
}

// addScaler adds to root the object that scales gradients, if there are values of it: a scaler that
// changes has a window. Paths of values are those in the object.
func addScaler(root *pickle.Dict, values []format.Value) error {
	if len(values) == 0 {
		return nil
	}
	d, class := &pickle.Dict{}, "LossScaler"
	if err := torchzip.NestValues(d, values, torchzip.ObjectsToPickle(globals)); err != nil {
		return err
	}
	if _, ok := d.Get("scale_window"); ok {
		class = "DynamicLossScaler"
	}
	root.Add("loss_scaler",
		pickle.New{Class: pickle.Global{Module: "deepspeed.runtime.fp16.loss_scaler", Name: class},
			State: d})
	return nil
}

// layModel lays out the model: the file that stages 1 and 2 open, and without weights that of stage
// 3.
func (w *writer) layModel() error {
	for _, file := range []string{"mp_rank_00_model_states.pt",
		"zero_pp_rank_0_mp_rank_00_model_states.pt"} {
		root, module := &pickle.Dict{}, &pickle.Dict{}
		root.Add("module", module)
		root.Add("param_shapes", w.trainedShapes())
		var tensors []*format.Tensor
		add := func(d *pickle.Dict, path string, t *format.Tensor) error {
			p, err := torchzip.Placeholder(len(tensors), *t)
			if err != nil {
				return err
			}
			tensors = append(tensors, t)
			if d == module {
				d.Add(path, p)
				return nil
			}
			return d.Put(path, p)
		}
		for _, t := range w.models {
			if file[0] == 'z' {
				break
			}
			to, name := module, t.Name
			if rest, ok := strings.CutPrefix(name, w.prefix); ok {
				name = rest
			} else if w.prefix == modulePrefix || stateName.MatchString(name) {
				// what a program of DeepSpeed has saved beside, or Megatron has beside its model
				to = root
			}
			if err := add(to, name, t); err != nil {
				return err
			}
		}
		if err := w.addModelExtras(root, module, 1, 1); err != nil {
			return err
		}
		if err := w.layFile(file, root, tensors); err != nil {
			return err
		}
	}
	return nil
}

// trainedShapes returns the shapes of the parameters that are trained, by which a reader knows that
// none is missing. DeepSpeed does not look for them in a universal checkpoint. A parameter with
// weights alone is frozen, or a buffer, if others have more. There is a dict for each group, or
// where groups are not known one for all, with an empty one, which no group has: nobody takes their
// order for that of a group.
func (w *writer) trainedShapes() *pickle.List {
	list := &pickle.List{}
	add := func(names []string) {
		d := &pickle.Dict{}
		for _, p := range names {
			d.Add(p, torchSize(w.weights(p).Shape))
		}
		list.Items = append(list.Items, d)
	}
	alone := func(p string) bool {
		_, step := w.steps[p]
		return !step && !slices.ContainsFunc(w.states[p], func(t *format.Tensor) bool {
			return !strings.HasPrefix(t.Name, "optimizer.fp32.")
		})
	}
	trained := slices.DeleteFunc(slices.Clone(w.params), alone)
	if len(trained) == 0 {
		trained = w.params
	}
	groups, err := w.paramsByGroup()
	grouped := map[string]bool{}
	for _, p := range slices.Concat(groups...) {
		grouped[p] = true
	}
	// some of the state was left out
	if err != nil || slices.ContainsFunc(trained, func(p string) bool { return !grouped[p] }) {
		groups = [][]string{trained, nil}
	}
	for _, names := range groups {
		add(names)
	}
	return list
}

// torchSize returns a shape as a pickle has a torch.Size.
func torchSize(shape tensor.Shape) any {
	return &pickle.Object{Class: pickle.Global{Module: "torch", Name: "Size"},
		Args: []any{torchzip.IntTuple(shape)}}
}

// addModelExtras adds the values besides tensors, and what DeepSpeed needs, to the root and the
// module of model states, for the given numbers of tensor parallel ranks and stages.
func (w *writer) addModelExtras(root, module *pickle.Dict, tps, pps int) error {
	var rest []format.Value
	for _, v := range w.values {
		switch key, name, _ := strings.Cut(v.Path, "."); key {
		case stateKey, "optimizer", sharedKey:
		case expertLayersKey, expertsCutKey: // of files of experts the reader says it again
			if w.stage == 0 || key == expertsCutKey && tps == 1 {
				rest = append(rest, v)
			}
		case infoKey:
			if name == "" {
				rest = append(rest, v)
			}
		case "module":
			p, err := torchzip.ToPickle(v.Data)
			if err != nil {
				return err
			}
			module.Add(name, p)
		default:
			rest = append(rest, v)
		}
	}
	if err := torchzip.NestValues(root, rest, torchzip.ObjectsToPickle(globals)); err != nil {
		return err
	}
	info, err := sharingInfo(w.values, tps)
	if err != nil {
		return err
	}
	if len(info.Items) > 0 {
		root.Set(infoKey, info)
	}
	if len(w.shared) > 0 || w.stage > 0 {
		names := &pickle.Dict{}
		for _, name := range slices.Sorted(maps.Keys(w.shared)) {
			names.Add(name, w.shared[name])
		}
		root.Add(sharedKey, names)
	}
	steps, ok := w.intValue("global_steps")
	if !ok {
		steps, _ = w.intValue("iteration")
	}
	for _, d := range []struct {
		key   string
		value any
	}{{"global_steps", steps}, {"skipped_steps", int64(0)}, {"dp_world_size", int64(1)},
		{"optimizer", nil}, {"lr_scheduler", nil}, {"ds_version", fileVersion}} {
		if _, ok := root.Get(d.key); !ok {
			root.Add(d.key, d.value)
		}
	}
	root.Set("mp_world_size", int64(tps*pps))
	if _, ok := root.Get(degreesKey); ok || w.stage > 0 {
		degrees := &pickle.Dict{}
		degrees.Add("pp_degree", int64(pps))
		degrees.Add("tp_degree", int64(tps))
		root.Set(degreesKey, degrees)
	}
	return nil
}
