package deepspeed

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// This file reads ranks' optimizers, with ZeRO's flat buffers, on the reader's goroutine.

// A rank is the optimizer states file of a data parallel rank. parseRank and openRanks fill it in;
// later nothing changes it. Its methods do no I/O, and are for one goroutine at a time, as look-ups
// in the dicts of its file are.
type rank struct {
	file *torchzip.File
	// stage that the file states; 0 = none, as in DeepSpeed's optimizer for bf16 with gradients in
	// f32.
	stage       int64
	bufferStage int64              // stage of its buffers
	fp32        []*torchzip.Tensor // the rank's part of the flat buffer of each group
	groups      []flatGroup        // further state of each group
	others      []map[string]any   // other state of each group, such as the number of steps
	uncut       *pickle.Dict       // state that cannot be cut like the weights, by its path
}

// A flatGroup is the state of a group besides the master weights, by kind: flat buffers like those
// of the weights.
type flatGroup map[string]*torchzip.Tensor

// addOptimizer adds the optimizer state of a model parallel rank to the checkpoint. m is its model
// states, which get the parameters of each group where they do not name them.
func (r *reader) addOptimizer(mp int, m *model) error {
	ranks, stage, err := r.openRanks(mp)
	if err != nil {
		return err
	}
	if len(m.shapes) == 0 && stage < 3 {
		every := ranks
		if r.single {
			if every, err = r.stageRanks(mp); err != nil {
				return err
			}
		}
		if m.shapes, err = r.groupsFromMappings(mp, m, every); err != nil {
			return err
		}
	}
	for _, one := range ranks {
		if len(one.fp32) != len(ranks[0].fp32) || len(m.shapes) != len(one.fp32) {
			return fmt.Errorf("%s has %d groups of parameters, %s %d and the model %d",
				one.file.Name, len(one.fp32), ranks[0].file.Name, len(ranks[0].fp32), len(m.shapes))
		}
	}
	order := slices.Clone(m.shapes)
	whole := r.pp == 1 // whether one rank says of all parameters which group they are in
	for g := range ranks[0].fp32 {
		cuts, err := r.groupCuts(mp, g, m, ranks)
		if err != nil {
			return err
		}
		if len(cuts) == 0 {
			continue
		}
		for _, c := range cuts {
			if err := r.addGroup(mp, g, stage, m, c); err != nil {
				return err
			}
		}
		configured := isRoundRobin(m, ranks[0])
		// else it is not known over how many ranks they are to be dealt out anew
		whole = whole && cuts[0].roundRobin == configured
		if configured {
			order[g] = slices.Clone(m.shapes[g])
			for i, k := range roundRobinOrder(len(order[g]), len(cuts[0].ranks)) {
				order[g][k] = m.shapes[g][i]
			}
		}
		if len(cuts) > 1 {
			order[g] = orderOnOneRank(cuts, order[g])
		}
	}
	if (len(r.layers) > 0 || r.pp > 1) && mp%r.tp == 0 {
		r.addStageGroups(mp/r.tp, order)
	}
	for dp, one := range ranks {
		if err := r.addRankExtras(mp, dp, len(ranks), one); err != nil {
			return err
		}
	}
	if mp > 0 {
		return nil
	}
	if whole {
		groups, err := pickle.Get[*pickle.List](ranks[0].file.Root, "optimizer_state_dict",
			optimizerKeys(stage)[1], "param_groups")
		if err == nil {
			r.Values = append(r.Values, groupNames(groups, order)...)
		}
	}
	return r.addConfig(m, ranks[0])
}

// addConfig adds to the checkpoint what optimizer states say of the configuration and the version
// where the model states say nothing, as those of a mixture of experts before DeepSpeed 0.19.6.
func (r *reader) addConfig(m *model, one *rank) error {
	part := format.Checkpoint{}
	for _, key := range []string{"ds_config", "ds_version"} {
		v, err := pickle.Get[any](one.file.Root, key)
		if _, said := pickle.Get[any](m.file.Root, key); said == nil || err != nil {
			continue
		}
		if err := one.file.Flatten(&part, key, v); err != nil {
			return err
		}
	}
	r.Values = append(r.Values, part.Values...)
	return nil
}

// openRanks opens the optimizer states of all data parallel ranks of a model parallel rank, once,
// and returns the stage that they are of.
func (r *reader) openRanks(mp int) (ranks []*rank, stage int64, err error) {
	if ranks = r.openedRanks[mp]; ranks != nil {
		return ranks, ranks[0].bufferStage, nil
	}
	for dp := range r.dp {
		name := r.optims[rankID{mp, dp}]
		if name == "" {
			return nil, 0, fmt.Errorf("there is no optimizer states file of mp rank %d, dp rank "+
				"%d; a rank did not finish its save, or the file was not copied", mp, dp)
		}
		f, err := r.openFile(name)
		if err != nil {
			return nil, 0, err
		}
		one, s, err := parseRank(f)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", f.Name, err)
		}
		if dp > 0 && s != stage {
			return nil, 0, fmt.Errorf("%s is of ZeRO stage %d, another rank's file of %d", f.Name,
				s, stage)
		}
		one.bufferStage = s
		stage, ranks = s, append(ranks, one)
	}
	r.openedRanks[mp] = ranks
	return ranks, stage, nil
}

// addGroup adds to the checkpoint the state of a group of parameters, or of the experts in it that
// some ranks share.
func (r *reader) addGroup(mp, g int, stage int64, m *model, c groupCut) error {
	tensors, err := joinGroup(g, stage, c)
	if err != nil {
		return err
	}
	for _, v := range c.ranks[0].numberValues(g, c.names) {
		if mp%r.tp == 0 {
			r.Values = append(r.Values, v)
			r.steps[v.Path] = v.Data
		} else if is, there := r.steps[v.Path]; !there || is != v.Data {
			return fmt.Errorf("%s says that %q is %v, and another tensor parallel rank %v",
				c.ranks[0].file.Name, v.Path, v.Data, is)
		}
	}
	for _, t := range tensors {
		if t.Coords = r.rankCoords(mp); len(c.names) > 0 &&
			expertName.MatchString(c.names[0].name) {
			t.Coords = r.expertCoords(mp)
		}
		if name, ok := strings.CutPrefix(t.Name, "optimizer.fp32."); ok {
			if same, ok := m.duplicates[name]; ok && same.DType == t.DType &&
				same.Shape.Equal(t.Shape) {
				t.Replicas = append(t.Replicas, same.Pieces...)
			}
		}
		r.Tensors = append(r.Tensors, t)
	}
	return nil
}

// groupsFromMappings returns the parameters of each group where the model states do not name them,
// as those of a mixture of experts before DeepSpeed 0.19.6: by what the ranks have of them, in this
// order, and the shapes by the model.
func (r *reader) groupsFromMappings(mp int, m *model, ranks []*rank) ([]params, error) {
	shapes := map[string]tensor.Shape{}
	for _, t := range r.Tensors {
		if name, ok := strings.CutPrefix(t.Name, modulePrefix); ok &&
			(t.Coords == nil || t.Coords.Compare(r.rankCoords(mp)) == 0) {
			shapes[name] = t.Shape
		}
	}
	groups := make([]params, len(ranks[0].fp32))
	for g := range groups {
		names, err := mappedNames(g, ranks)
		if err != nil {
			return nil, fmt.Errorf("%w, and the model states name none (param_shapes)", err)
		}
		for _, name := range names {
			shape, there := shapes[name]
			if !there {
				return nil, fmt.Errorf(
					"%s has state of parameter %q, and the model has none of this name",
					ranks[0].file.Name, name)
			}
			groups[g] = append(groups[g], param{name, shape})
		}
		if isRoundRobin(m, ranks[0]) { // these names are in the model's order
			count, err := ranks[0].partitionCount(g, len(ranks))
			if err != nil {
				return nil, err
			}
			groups[g] = inRoundRobinOrder(groups[g], count)
		}
	}
	return groups, nil
}

// mappedNames returns the parameters of a group in the order of param_slice_mappings. Each is
// there once.
func mappedNames(g int, ranks []*rank) (names []string, err error) {
	seen := map[string]bool{}
	for _, one := range ranks {
		maps, err := pickle.Get[*pickle.List](one.file.Root, "optimizer_state_dict",
			"param_slice_mappings")
		if err != nil || g >= len(maps.Items) {
			return nil, fmt.Errorf("%s says no parameters of group %d (param_slice_mappings)",
				one.file.Name, g)
		}
		d, ok := maps.Items[g].(*pickle.Dict)
		if !ok {
			return nil, fmt.Errorf("%s: param_slice_mappings has %s", one.file.Name,
				pickle.KindWithArticle(maps.Items[g]))
		}
		for _, item := range d.Items {
			if name, _ := item.Key.(string); !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// parseRank finds the flat buffers in an optimizer states file, and returns the stage that it is
// of. It does no I/O, and leaves bufferStage to its caller.
func parseRank(f *torchzip.File) (*rank, int64, error) {
	state, err := pickle.Get[*pickle.Dict](f.Root, "optimizer_state_dict")
	if err != nil {
		return nil, 0, err
	}
	stage, err := parseStage(state)
	if err != nil {
		return nil, 0, err
	}
	if _, cut := state.Get("ds_zero_partition_groups"); cut {
		return nil, 0, fmt.Errorf("its groups are cut over different ranks (a mixture of " +
			"experts), which shoal does not read yet")
	}
	keys := optimizerKeys(stage)
	weights, inner := keys[0], keys[1]
	buffers, err := pickle.Get[*pickle.List](state, weights)
	if err != nil {
		return nil, 0, err
	}
	one := &rank{file: f}
	if _, said := state.Get("zero_stage"); said {
		one.stage = stage
	}
	for _, b := range buffers.Items {
		t, ok := b.(*torchzip.Tensor)
		if !ok || len(t.Shape) != 1 {
			return nil, 0, fmt.Errorf("%s holds %s where a flat buffer is due", weights,
				pickle.KindWithArticle(b))
		}
		one.fp32 = append(one.fp32, t)
	}
	err = one.readInnerState(state, inner)
	return one, stage, err
}

// optimizerKeys returns the keys of the flat buffers of the weights, and of torch's optimizer, in a
// stage.
func optimizerKeys(stage int64) [2]string {
	if stage == 3 {
		return [2]string{"fp32_flat_groups", "optimizer_state_dict"}
	}
	return [2]string{"single_partition_of_fp32_groups", "base_optimizer_state"}
}

// parseStage returns the stage of ZeRO that the state of an optimizer is of.
func parseStage(state *pickle.Dict) (int64, error) {
	v, ok := state.Get("zero_stage")
	if _, flat := state.Get("single_partition_of_fp32_groups"); flat && !ok {
		// the optimizer that DeepSpeed has for bf16 with gradients in f32, which cuts as stage 1
		// does
		return 1, nil
	}
	switch o := v.(type) {
	case *pickle.Object:
		if len(o.Args) == 1 {
			v = o.Args[0]
		}
	case pickle.Member:
		v = int64(slices.Index([]string{"disabled", "optimizer_states", "gradients", "weights"},
			o.Name))
	}
	stage, is := v.(int64)
	if !ok || !is || stage < 1 || stage > 3 {
		return 0, fmt.Errorf("zero_stage is %v; shoal reads the stages 1, 2 and 3", v)
	}
	return stage, nil
}

// readInnerState sets groups, others and uncut of the rank from the state that torch's optimizer
// keeps for each group, which stands under key.
func (one *rank) readInnerState(state *pickle.Dict, key string) error {
	groups := len(one.fp32)
	one.groups, one.others, one.uncut = make([]flatGroup, groups), make([]map[string]any, groups),
		&pickle.Dict{}
	inner, err := pickle.Get[*pickle.Dict](state, key, "state")
	if err != nil {
		return fmt.Errorf("%w; checkpoints with elastic_checkpoint set are not read", err)
	}
	for _, item := range inner.Items {
		g, ok := item.Key.(int64)
		kinds, is := item.Value.(*pickle.Dict)
		if !ok || !is || g < 0 || g >= int64(groups) {
			return fmt.Errorf("%s.state has the key %v, and there are %d groups", key, item.Key,
				groups)
		}
		one.groups[g], one.others[g] = flatGroup{}, map[string]any{}
		for _, kind := range kinds.Items {
			name, ok := kind.Key.(string)
			if !ok {
				return fmt.Errorf("%s.state.%d has %s as a key", key, g,
					pickle.KindWithArticle(kind.Key))
			}
			t, isTensor := kind.Value.(*torchzip.Tensor)
			if isTensor && (len(t.Shape) < 2 || tensor.Shape(t.Shape).Box().Elements() == 1) {
				one.groups[g][name] = t
				continue
			}
			switch v := kind.Value.(type) {
			case int64, float64:
				one.others[g][name] = v
			default:
				one.uncut.Add(fmt.Sprintf("%s.state.%d.%s", key, g, name), v)
			}
		}
	}
	beside, err := pickle.Get[*pickle.Dict](state, key)
	if err != nil {
		return err
	}
	for _, item := range beside.Items {
		if name, _ := item.Key.(string); name != "" && name != "state" && name != "param_groups" {
			one.uncut.Add(key+"."+name, item.Value)
		}
	}
	return nil
}

// numberValues returns the numbers that a group has besides tensors, for each of its parameters, as
// universal checkpoints have them.
func (one *rank) numberValues(g int, shapes params) (values []format.Value) {
	for kind, v := range one.others[g] {
		for _, p := range shapes {
			values = append(values, format.Value{Path: "optimizer." + kind + "." + p.name, Data: v})
		}
	}
	return values
}
