package deepspeed

import (
	"slices"

	"github.com/shoal-ml/shoal/format/deepspeed/stages"
	"github.com/shoal-ml/shoal/format/pickle"
)

// This file tells stages with experts apart by names that it reads, on its reader's goroutine.

// stageUnits returns the layers, and what tied layers share, of which a stage's model states have
// something besides experts.
func (r *reader) stageUnits(stage int) (map[string]bool, error) {
	names, err := r.moduleNames(stage * r.tp)
	units := map[string]bool{}
	for _, name := range names {
		units[stages.UnitOf(name)] = true
	}
	return units, err
}

// moduleNames returns the names of the model's tensors in the model states of a model parallel
// rank.
func (r *reader) moduleNames(mp int) (names []string, err error) {
	name := r.models[rankID{mp, 0}]
	if name == "" {
		return nil, missingModelError(mp, 0)
	}
	f, err := r.openFile(name)
	if err != nil {
		return nil, err
	}
	module, err := pickle.Get[*pickle.Dict](f.Root, "module")
	if err != nil {
		return nil, nil // who reads it says so
	}
	for _, item := range module.Items {
		if name, ok := item.Key.(string); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// tensorRanksByName returns how many tensor parallel ranks a stage has, where the model is in the
// model states, as that of a pipeline with experts: these have the same names, and stages have no
// name in common but of what is tied. Else all ranks are of one stage.
func (r *reader) tensorRanksByName() (tp int, err error) {
	lists := make([][]string, r.mp)
	seen := map[string]int{} // the first rank of each name
	for mp := range lists {
		if lists[mp], err = r.moduleNames(mp); err != nil {
			return 0, err
		}
	}
	for tp = 1; tp < r.mp && slices.Equal(lists[tp], lists[0]); tp++ {
	}
	for mp, names := range lists {
		first := mp / tp * tp
		if len(names) == 0 || !slices.Equal(names, lists[first]) {
			return r.mp, nil
		}
		for _, name := range names {
			if at, again := seen[name]; again && at != first && stages.TiedKey(name) == "" {
				return r.mp, nil
			}
			seen[name] = first
		}
	}
	if r.mp%tp != 0 {
		return r.mp, nil
	}
	return tp, nil
}
