package deepspeed

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed/stages"
	"github.com/shoal-ml/shoal/format/pickle"
)

// This file divides a ZeRO checkpoint among stages of a pipeline: one goroutine, no I/O.

// What the reader says of a pipeline, for whoever writes one: under stagesKey.S.G the names of the
// parameters in group G of stage S, in the order of the flat buffer, and under tiedKey.KEY the
// layers that have the parameters tied_modules.KEY.
const (
	stagesKey = "pipeline_stages"
	tiedKey   = "pipeline_tied"
)

// addStageGroups adds to the checkpoint's values which parameters are in which group of a stage.
func (r *reader) addStageGroups(stage int, groups []params) {
	for g, shapes := range groups {
		var names []any
		for _, p := range shapes {
			names = append(names, p.name)
		}
		r.Values = append(r.Values,
			format.Value{Path: fmt.Sprintf("%s.%d.%d", stagesKey, stage, g), Data: names})
	}
}

// A stage is a stage of a pipeline that is being laid out; nil without a pipeline. planStages makes
// it; later nothing changes it, so that any goroutine may call its methods.
type stage struct {
	groups [][]string       // parameters of each group of the optimizer
	first  bool             // whether it is the first stage
	layers map[int]bool     // layers of its parameters that are not tied
	tied   map[string][]int // layers whose files it writes, by key
}

// planStages returns the stages of a pipeline, as the values say, or cut anew where there are to be
// others; one nil stage without a pipeline. count is how many elements a parameter has on a rank.
func (z Zero) planStages(values []format.Value, count func(string) int, m *mixture) (all []*stage,
	err error) {
	groups, tied := statedStages(values)
	if len(groups) == 0 && m != nil {
		groups = groupsOfOneStage(values)
	}
	switch {
	case z.PP == 0 || z.PP == 1 && len(groups) == 0:
		return []*stage{nil}, nil
	case z.Stage > 1:
		return nil, fmt.Errorf("DeepSpeed itself trains no pipeline with ZeRO of stage %d; "+
			"choose zero1, or universal", z.Stage)
	case len(groups) == 0:
		return nil, fmt.Errorf(
			"it is of no pipeline (values %s.…), which %d stages could have; leave out pp",
			stagesKey, z.PP)
	case len(groups) != z.PP || z.Starts != nil:
		first := func(name string) (is [2]bool) {
			for i, ranks := range m.degrees() {
				is[i] = m.isOnFirstRank(name, ranks)
			}
			return is
		}
		if groups, err = stages.Recut(groups, tied, count, first, z.PP, z.Starts); err != nil {
			return nil, err
		}
	}
	tied = maps.Clone(tied)
	for i, own := range groups {
		if err := m.checkStage(own, i, len(groups)); err != nil {
			return nil, err
		}
		if g := slices.IndexFunc(own, func(names []string) bool {
			return len(names) == 0
		}); g >= 0 {
			return nil, fmt.Errorf("stage %d of %d would have no parameter in group %d of the "+
				"optimizer, with which DeepSpeed does not train; choose fewer stages, or others", i,
				len(groups), g)
		}
		to := &stage{groups: own, first: i == 0, layers: map[int]bool{}, tied: map[string][]int{}}
		for _, name := range slices.Concat(own...) {
			if key := stages.TiedKey(name); key != "" {
				// the first stage writes them
				to.tied[key], tied[key] = append(to.tied[key], tied[key]...), nil
			} else {
				layer, _ := stages.LayerOf(name)
				to.layers[layer] = true
			}
		}
		all = append(all, to)
	}
	return all, nil
}

// groupsOfOneStage returns the parameters in each group of a pipeline with one stage, as the values
// say them where all have the names of layers: with experts nothing else tells it from another
// model.
func groupsOfOneStage(values []format.Value) [][][]string {
	var groups [][]string
	for _, v := range values {
		m := groupPath.FindStringSubmatch(v.Path)
		list, ok := v.Data.([]any)
		if m == nil || m[2] != namesKey || !ok {
			continue
		}
		group, err := strconv.Atoi(m[1])
		if err != nil || group >= maxGroups {
			return nil
		}
		for len(groups) <= group {
			groups = append(groups, nil)
		}
		for _, x := range list {
			name, _ := x.(string)
			if layer, _ := stages.LayerOf(name); layer < 0 && stages.TiedKey(name) == "" {
				return nil
			}
			groups[group] = append(groups[group], name)
		}
	}
	if groups == nil {
		return nil
	}
	return [][][]string{groups}
}

// statedStages returns the parameters in each group of each stage, and the layers that are tied by
// key, as the values state them.
func statedStages(values []format.Value) (groups [][][]string, tied map[string][]int) {
	tied = map[string][]int{}
	for _, v := range values {
		list, _ := v.Data.([]any)
		if key, is := strings.CutPrefix(v.Path, tiedKey+"."); is {
			for _, x := range list {
				if n, ok := x.(int64); ok && n >= 0 && n < 1<<20 {
					tied[key] = append(tied[key], int(n))
				}
			}
			continue
		}
		path, ok := strings.CutPrefix(v.Path, stagesKey+".")
		s, g, _ := strings.Cut(path, ".")
		at, err := strconv.Atoi(s)
		group, err2 := strconv.Atoi(g)
		if !ok || err != nil || err2 != nil || min(at, group) < 0 || max(at, group) >= maxGroups {
			continue
		}
		for len(groups) <= at {
			groups = append(groups, nil)
		}
		for len(groups[at]) <= group {
			groups[at] = append(groups[at], nil)
		}
		for _, x := range list {
			name, _ := x.(string)
			groups[at][group] = append(groups[at][group], name)
		}
	}
	return groups, tied
}

// hasTensor reports whether a stage has something of a tensor; all are the stages. What is no
// parameter is of the stage that has the last layer up to its own.
func (s *stage) hasTensor(t *format.Tensor, all []*stage) bool {
	if s == nil {
		return true
	}
	_, param := parameterOf(t.Name)
	if in := func(s *stage) bool {
		return slices.ContainsFunc(s.groups, func(g []string) bool {
			return slices.Contains(g, param)
		})
	}; slices.ContainsFunc(all, in) {
		return in(s)
	}
	layer, _ := stages.LayerOf(param)
	if param == "" || layer < 0 {
		return s.first
	}
	best, of := -1, all[0]
	for _, x := range all {
		for l := range x.layers {
			if l <= layer && l > best {
				best, of = l, x
			}
		}
	}
	return of == s
}

// stageValues returns the values of a checkpoint with the groups of this stage instead of those of
// all.
func (s *stage) stageValues(values []format.Value) []format.Value {
	if s == nil {
		return values
	}
	values = slices.DeleteFunc(slices.Clone(values), func(v format.Value) bool {
		m := groupPath.FindStringSubmatch(v.Path)
		return m != nil && m[2] == namesKey || strings.HasPrefix(v.Path, stagesKey+".") ||
			strings.HasPrefix(v.Path, tiedKey+".")
	})
	for g, names := range s.groups {
		var list []any
		for _, name := range names {
			list = append(list, name)
		}
		values = append(values,
			format.Value{Path: fmt.Sprintf("%s.param_groups.%d.%s", stateKey, g, namesKey),
				Data: list})
	}
	return values
}

// mergeStageValues returns the values of the first stage with what all says of all stages instead
// of its groups: the reader says it of the files.
func mergeStageValues(first, all []format.Value) []format.Value {
	said := func(v format.Value) bool {
		return strings.HasPrefix(v.Path, stagesKey+".") || strings.HasPrefix(v.Path, tiedKey+".")
	}
	first = slices.DeleteFunc(slices.Clone(first), func(v format.Value) bool {
		return strings.HasSuffix(v.Path, "."+namesKey)
	})
	return append(first, slices.DeleteFunc(slices.Clone(all), func(v format.Value) bool {
		return !said(v)
	})...)
}

// hasLayerFiles reports whether the model is in files of layers: that of a pipeline is, but with
// experts each stage has what is of none in its model states.
func (w *zeroWriter) hasLayerFiles() bool { return w.stageOf != nil && w.mixture == nil }

// layLayerFiles lays out the files of the layers of a stage, with what the model has of them.
func (w *zeroWriter) layLayerFiles() error {
	files, roots, numbers := map[int]*file{}, map[int]*pickle.Dict{}, []int{}
	add := func(layer int, name string, t *format.Tensor) error {
		if files[layer] == nil {
			files[layer], roots[layer] = &file{}, &pickle.Dict{}
			numbers = append(numbers, layer)
		}
		p, err := files[layer].addStore(tensorStore(t))
		roots[layer].Add(name, p)
		return err
	}
	for _, t := range w.models {
		name, ok := strings.CutPrefix(t.Name, modulePrefix)
		if !ok {
			continue
		}
		if key, rest, is := strings.Cut(strings.TrimPrefix(name, stages.TiedPrefix), "."); is &&
			strings.HasPrefix(name, stages.TiedPrefix) {
			for _, layer := range w.stageOf.tied[key] {
				if err := add(layer, rest, t); err != nil {
					return err
				}
			}
			continue
		}
		layer, rest := stages.LayerOf(name)
		if layer < 0 {
			return fmt.Errorf("tensor %q is of no layer of the pipeline", t.Name)
		}
		if err := add(layer, rest, t); err != nil {
			return err
		}
	}
	slices.Sort(numbers)
	for _, layer := range numbers {
		name := fmt.Sprintf("layer_%02d-model_states.pt", layer)
		if w.tps > 1 {
			name = fmt.Sprintf("layer_%02d-model_%02d-model_states.pt", layer, w.tp)
		}
		if err := w.layStores(name, roots[layer], files[layer]); err != nil {
			return err
		}
	}
	return nil
}
