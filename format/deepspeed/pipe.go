package deepspeed

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed/stages"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// This file reads pipelines: stages, files of layers, what is tied, on the reader's goroutine.

// A layerAt is the layer and the tensor parallel rank of a file, both from 0.
type layerAt struct{ layer, tp int }

// findDegrees finds out how many stages and tensor parallel ranks there are, and sets pp and tp:
// model parallel ranks count stage by stage.
func (r *reader) findDegrees() error {
	r.pp, r.tp = 1, r.mp
	first, err := r.openFile(r.models[rankID{0, 0}])
	if err != nil {
		return nil // who reads it says so
	}
	if err := r.checkRankCount(first); err != nil {
		return err
	}
	pp, unsaid := pickle.Get[int64](first.Root, degreesKey, "pp_degree")
	if len(r.layers) == 0 {
		if unsaid == nil && pp > 1 && pp <= int64(r.mp) && r.mp%int(pp) == 0 {
			r.pp, r.tp = int(pp), r.mp/int(pp)
		} else if unsaid != nil && len(r.experts) > 0 {
			if r.tp, err = r.tensorRanksByName(); err != nil {
				return err
			}
			r.pp = r.mp / r.tp
		}
		return nil
	}
	r.tp = 1
	for l := range r.layers {
		r.tp = max(r.tp, l.tp+1)
	}
	r.pp = r.mp / r.tp
	if r.mp%r.tp != 0 || unsaid == nil && pp != int64(r.pp) {
		return fmt.Errorf("there are model states of %d ranks, layers of %d tensor parallel "+
			"ranks, and %s says there are %d stages; a rank did not finish its save, or a file "+
			"was not copied", r.mp, r.tp, first.Name, pp)
	}
	return nil
}

// checkRankCount fails when there are the files of fewer model parallel ranks than the model states
// of the first say, or those of more, which another save has left.
func (r *reader) checkRankCount(first *torchzip.File) error {
	said, err := pickle.Get[int64](first.Root, "mp_world_size")
	if err != nil {
		pp, err := pickle.Get[int64](first.Root, degreesKey, "pp_degree")
		tp, err2 := pickle.Get[int64](first.Root, degreesKey, "tp_degree")
		if err != nil || err2 != nil || min(pp, tp) < 1 || max(pp, tp) > 1<<20 {
			return nil // older versions do not say
		}
		said = pp * tp
	}
	switch mp := int64(r.mp); {
	case said > mp:
		which := fmt.Sprintf("rank %d", mp)
		if said > mp+1 {
			which = fmt.Sprintf("the ranks %d to %d", mp, said-1)
		}
		return fmt.Errorf("%s says that there are %d model parallel ranks, and of %s there is "+
			"no file (mp_rank_%02d_model_states.pt); a rank did not finish its save, or it was "+
			"not copied", first.Name, said, which, mp)
	case said > 0 && said < mp:
		return fmt.Errorf("%s says that there are %d model parallel ranks, and there are files "+
			"of %d; move away what another save has left (those of mp_rank_%02d, and more)",
			first.Name, said, mp, said)
	}
	return nil
}

// A pipeline is the model of a pipeline that is being read, by its reader's goroutine.
type pipeline struct {
	*reader
	shapes  map[string]tensor.Shape // shapes of the trained parameters
	missing map[string]bool         // trained parameters that no file has had so far
	tied    tiedLayers              // tied layers of the trained parameters
	seen    map[string]bool         // keys of tied layers that have a file
	found   map[string]int          // index in Tensors of each tied tensor, by name and coordinates
	at      map[string][]any        // numbers of the layers that are tied, by key
}

// readLayers adds the model of a pipeline, whose layers have files of their own, to the checkpoint.
// models are the model states of the first tensor parallel rank in each stage.
func (r *reader) readLayers(models []*model) error {
	p := &pipeline{reader: r, shapes: map[string]tensor.Shape{}, missing: map[string]bool{},
		seen: map[string]bool{}, found: map[string]int{}, at: map[string][]any{}}
	for _, m := range models {
		for _, x := range slices.Concat(m.shapes...) {
			p.shapes[x.name], p.missing[x.name] = x.shape, true
		}
	}
	if len(p.shapes) == 0 && r.Doubt == "" {
		r.Doubt = "its model states do not name the parameters (param_shapes), so it is not " +
			"known whether a file of a layer is missing"
	}
	p.tied = findTiedLayers(p.shapes)
	for _, layer := range slices.Sorted(maps.Keys(layerNumbers(r.layers))) {
		for tp := range r.tp {
			if err := p.readLayer(layer, tp); err != nil {
				return err
			}
		}
	}
	for key, layers := range p.at {
		r.Values = append(r.Values, format.Value{Path: tiedKey + "." + key, Data: layers})
	}
	for _, name := range slices.Sorted(maps.Keys(p.missing)) {
		if !strings.HasPrefix(name, stages.TiedPrefix) {
			layer, _, _ := strings.Cut(name, ".")
			return fmt.Errorf("parameter %q, which is trained, is in no file of a layer; that "+
				"of layer %s was not copied, or its save did not finish", name, layer)
		}
	}
	// a stage that gives such a layer a function of its own (forward_fn) writes none of it
	for _, key := range slices.Sorted(maps.Keys(p.tied)) {
		if !p.seen[key] && !p.tied.hasTwin(key) {
			return fmt.Errorf("there is no file of the layers that are tied as %q; a rank did "+
				"not finish its save, or it was not copied", key)
		}
	}
	return nil
}

// readLayer adds what is in the file of a layer to the checkpoint. A layer that is tied to others
// has no layer number in its names; its content tells which one it is.
func (p *pipeline) readLayer(layer, tp int) error {
	file := p.layers[layerAt{layer, tp}]
	if file == "" {
		return fmt.Errorf("there is no file of layer %d, tensor parallel rank %d "+
			"(layer_%02d-model_%02d-model_states.pt); a rank did not finish its save, or it was "+
			"not copied", layer, tp, layer, tp)
	}
	f, err := p.openFile(file)
	if err != nil {
		return err
	}
	part := format.Checkpoint{}
	if err := f.Flatten(&part, "", f.Root); err != nil {
		return err
	}
	prefix := strconv.Itoa(layer) + "."
	key := p.tied.keyOf(part.Tensors, prefix, p.shapes, p.tp)
	if key != "" {
		prefix = stages.TiedPrefix + key + "."
		p.seen[key] = true
		if tp == 0 {
			p.at[key] = append(p.at[key], int64(layer))
		}
	}
	for _, t := range part.Tensors {
		name := prefix + t.Name
		delete(p.missing, name)
		t.Name, t.Coords = "module."+name, p.rankCoords(tp)
		if key != "" {
			whole := t.Name + " " + t.Coords.String()
			if i, again := p.found[whole]; again {
				if err := addReplica(&p.Tensors[i], &t); err != nil {
					return fmt.Errorf("%s: %w", f.Name, err)
				}
				continue
			}
			p.found[whole] = len(p.Tensors)
		}
		p.Tensors = append(p.Tensors, t)
	}
	for _, v := range part.Values {
		if tp == 0 && key == "" {
			p.Values = append(p.Values,
				format.Value{Path: "module." + prefix + v.Path, Data: v.Data})
		}
	}
	return nil
}

// addReplica adds the pieces of t to the replicas of first. It fails where the two differ in type
// or shape.
func addReplica(first, t *format.Tensor) error {
	if first.DType != t.DType || !first.Shape.Equal(t.Shape) {
		return fmt.Errorf(
			"%q is of %v %v, and in another layer or stage that it is tied to of %v %v", t.Name,
			t.DType, t.Shape, first.DType, first.Shape)
	}
	first.Replicas = slices.Concat(first.Replicas, t.Pieces, t.Replicas)
	return nil
}

// hasTwin reports whether another tied layer has the same names and shapes: then nothing tells
// which files belong to which.
func (tied tiedLayers) hasTwin(key string) bool {
	for other, params := range tied {
		same := other != key && len(params) == len(tied[key])
		for name, shape := range tied[key] {
			same = same && shape.Equal(params[name])
		}
		if same {
			return true
		}
	}
	return false
}

// joinTied turns the copies of tied parameters and of their state, of which each stage that has one
// keeps its own, into replicas of the first, among the tensors and values of the checkpoint. With
// layers in files of their own these belong to the model.
func (r *reader) joinTied() error {
	if r.pp == 1 {
		return nil
	}
	first := map[string]int{}
	kept := r.Tensors[:0]
	for _, t := range r.Tensors {
		if _, param := parameterOf(t.Name); !strings.HasPrefix(param, stages.TiedPrefix) {
			kept = append(kept, t)
			continue
		}
		whole := t.Name + " " + t.Coords.String()
		i, again := first[whole]
		if !again {
			first[whole] = len(kept)
			kept = append(kept, t)
			continue
		}
		if err := addReplica(&kept[i], &t); err != nil {
			return err
		}
	}
	r.Tensors = kept
	said := map[string]any{}
	values := r.Values[:0]
	for _, v := range r.Values {
		if m := stateName.FindStringSubmatch(v.Path); m == nil ||
			!strings.HasPrefix(m[2], stages.TiedPrefix) {
			values = append(values, v)
		} else if is, twice := said[v.Path]; !twice {
			said[v.Path] = v.Data
			values = append(values, v)
		} else if !reflect.DeepEqual(is, v.Data) {
			return fmt.Errorf("%q is %v in one stage and %v in another, and both are tied", v.Path,
				is, v.Data)
		}
	}
	r.Values = values
	return nil
}

// addOtherRanks adds to part, which is what the first rank says, what only the other model parallel
// ranks do: the names of their stages' buffers, their numbers of experts, and without ZeRO the
// state of their optimizers, which is numbered anew in each.
func (r *reader) addOtherRanks(part *format.Checkpoint) error {
	numbered := func(t *format.Tensor) bool { return strings.HasPrefix(t.Name, "optimizer.") }
	for i := range part.Tensors {
		if t := &part.Tensors[i]; numbered(t) {
			t.Coords, t.WhyPart = r.stageCoords(0), whyUnnamed
		}
	}
	for mp := 1; mp < r.mp; mp++ {
		f, err := r.openFile(r.models[rankID{mp, 0}])
		if err != nil {
			return err
		}
		if state, err := pickle.Get[*pickle.Dict](f.Root, "optimizer"); err == nil &&
			!r.expertOptimizers {
			own := format.Checkpoint{}
			if err := f.Flatten(&own, "optimizer", state); err != nil {
				return err
			}
			for _, t := range own.Tensors {
				t.Coords, t.WhyPart = r.stageCoords(mp), whyUnnamed
				part.Tensors = append(part.Tensors, t)
			}
		}
		for i, v := range part.Values {
			if v.Path != buffersKey && v.Path != expertCountsKey || mp%r.tp != 0 {
				continue
			}
			list, err := pickle.Get[*pickle.List](f.Root, v.Path)
			if all, ok := v.Data.([]any); ok && err == nil {
				part.Values[i].Data = slices.Concat(all, list.Items)
			}
		}
	}
	return nil
}

// layerNumbers returns the numbers of the layers that have a file.
func layerNumbers(files map[layerAt]string) map[int]bool {
	numbers := map[int]bool{}
	for l := range files {
		numbers[l.layer] = true
	}
	return numbers
}

// A tiedLayers is the shapes of the parameters of tied layers, by key and name.
type tiedLayers map[string]map[string]tensor.Shape

// findTiedLayers returns those of some parameters, given with their shapes, that are tied.
func findTiedLayers(shapes map[string]tensor.Shape) tiedLayers {
	tied := tiedLayers{}
	for name, shape := range shapes {
		rest, ok := strings.CutPrefix(name, stages.TiedPrefix)
		if key, name, cut := strings.Cut(rest, "."); ok && cut {
			if tied[key] == nil {
				tied[key] = map[string]tensor.Shape{}
			}
			tied[key][name] = shape
		}
	}
	return tied
}

// keyOf returns the key of the one tied layer whose parameters have these names and shapes; "" if
// they have names of their own, or several could be it. Parts of tensor parallel ranks are known by
// their names alone.
func (tied tiedLayers) keyOf(tensors []format.Tensor, prefix string, shapes map[string]tensor.Shape,
	tp int) (key string) {
	has := map[string]tensor.Shape{}
	for _, t := range tensors {
		if _, own := shapes[prefix+t.Name]; own {
			return ""
		}
		has[t.Name] = t.Shape
	}
	for k, params := range tied {
		fits := true
		for name, shape := range params {
			s, ok := has[name]
			fits = fits && ok && (s.Equal(shape) || tp > 1)
		}
		if fits && key != "" {
			return ""
		}
		if fits {
			key = k
		}
	}
	return key
}
