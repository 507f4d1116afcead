package deepspeed

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/format/pickle"
)

// This file finds over which ranks groups are cut, and which experts those ranks have, on the
// reader's goroutine; it may read.

// A groupCut is how the flat buffer of a group lies over the ranks: over all of them, or for
// experts over some ranks for each expert parallel rank.
type groupCut struct {
	ranks      []*rank // ranks that share it, in the order of their parts
	shapes     params  // parameters, under their names on the rank
	names      params  // names of the parameters in the whole model
	roundRobin bool    // whether round_robin_gradients has ordered the parameters
}

// A groupAt is a group of the optimizer of a model parallel rank.
type groupAt struct{ mp, group int }

// groupCuts finds out how the flat buffers of a group are cut over ranks. Experts have fewer data
// parallel ranks: each of those that share one expert parallel rank has a part of its experts. The
// result is empty where another model parallel rank describes the group, which it records in
// together. It fails for files that contradict each other, or are cut as shoal does not know. g is
// the group, m and ranks are of the model parallel rank mp.
func (r *reader) groupCuts(mp, g int, m *model, ranks []*rank) ([]groupCut, error) {
	experts := slices.ContainsFunc(m.shapes[g], func(p param) bool {
		return expertName.MatchString(p.name)
	})
	if experts && r.single {
		first := mp / r.tp * r.tp
		group := groupAt{first, g}
		if mp > first && !r.together[group] {
			return nil, fmt.Errorf(
				"%s has state of experts (%q, …) in group %d, and %s has none there",
				ranks[0].file.Name, m.shapes[g][0].name, g, r.openedRanks[first][0].file.Name)
		}
		if mp > first {
			return nil, nil
		}
		r.together[group] = true
		var err error
		if ranks, err = r.stageRanks(mp); err != nil {
			return nil, err
		}
	}
	count := len(ranks)
	for _, one := range ranks {
		n, err := one.partitionCount(g, len(ranks))
		if err != nil {
			return nil, err
		}
		if one != ranks[0] && n != count || len(ranks)%n != 0 {
			return nil, fmt.Errorf(
				"%s says that group %d is cut over %d ranks, and there are the files of %d",
				one.file.Name, g, n, len(ranks))
		}
		count = n
	}
	robin := isRoundRobin(m, ranks[0]) || hasOtherOrder(g, m.shapes[g], ranks)
	if robin && hasAlignment(ranks[0]) {
		return nil, fmt.Errorf("%s: round_robin_gradients and parameter_alignment together, "+
			"with which shoal does not know where parameters lie", ranks[0].file.Name)
	}
	degree := len(ranks) / count // of expert parallelism
	all := make([]groupCut, degree)
	// neighbours have the same experts
	dataFirst := isConfigured(m, ranks[0], "use_data_before_expert_parallelism")
	for i, one := range ranks {
		e := i % degree
		if dataFirst {
			e = i / count
		}
		all[e].ranks = append(all[e].ranks, one)
	}
	for e := range all {
		all[e].shapes, all[e].names, all[e].roundRobin = m.shapes[g], m.shapes[g], robin
		if degree == 1 && !(experts && len(r.numbers) > 0) {
			continue
		}
		var err error
		if all[e].names, err = r.namesInModel(m.shapes[g], e, degree, count,
			len(ranks)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// namesInModel returns the parameters of an expert parallel rank under their names in the whole
// model, and records their names on the rank in locals. degree is the number of these ranks, count
// over how many ranks the group is cut, and files of how many there are files.
func (r *reader) namesInModel(shapes params, e, degree, count, files int) (called params,
	err error) {
	for _, p := range shapes {
		name := expertName.FindStringSubmatch(p.name)
		if name == nil && degree > 1 {
			return nil, fmt.Errorf("parameter %q was cut over %d ranks, and there are the files "+
				"of %d; only experts of DeepSpeed's own layer (deepspeed_moe) are cut so", p.name,
				count, files)
		}
		if name == nil {
			called = append(called, p)
			continue
		}
		local, err := strconv.Atoi(name[2])
		own := r.numbers[name[1]] / degree
		if err != nil || local >= own || r.numbers[name[1]]%degree != 0 {
			return nil, fmt.Errorf("parameter %q is of an expert of a rank, and there are the "+
				"files of %d experts for %d ranks", p.name, r.numbers[name[1]], degree)
		}
		global := numberedExpert(name, e*own+local)
		r.locals[global] = p.name
		called = append(called, param{global, p.shape})
	}
	return called, nil
}

// numberedExpert returns the name of an expert's parameter, split by expertName, with another
// number.
func numberedExpert(name []string, number int) string {
	return name[1] + strconv.Itoa(number) + name[3]
}

// stageRanks opens the optimizer states of all ranks of the stage of a model parallel rank, and
// returns them in DeepSpeed's order: tensor parallel ranks are neighbours.
func (r *reader) stageRanks(mp int) (all []*rank, err error) {
	all = make([]*rank, r.tp*r.dp)
	for tp := range r.tp {
		ranks, _, err := r.openRanks(mp/r.tp*r.tp + tp)
		if err != nil {
			return nil, err
		}
		for dp, one := range ranks {
			all[dp*r.tp+tp] = one
		}
	}
	return all, nil
}

// orderOnOneRank returns the parameters of a group under their names in the whole model, in the
// order that one rank with all experts would have: the consecutive experts of a layer of each rank.
// local is the order on each rank.
func orderOnOneRank(cuts []groupCut, local params) (all params) {
	called := make([]map[string]string, len(cuts))
	for e, c := range cuts {
		called[e] = map[string]string{}
		for i, p := range c.shapes {
			called[e][p.name] = c.names[i].name
		}
	}
	for from := 0; from < len(local); {
		to := from + 1
		for to < len(local) && continuesLayer(local[to-1].name, local[to].name) {
			to++
		}
		for e := range cuts {
			for _, p := range local[from:to] {
				all = append(all, param{called[e][p.name], p.shape})
			}
		}
		from = to
	}
	return all
}

// continuesLayer reports whether a parameter belongs to the same layer of experts as the one before
// it, and to no earlier expert.
func continuesLayer(before, name string) bool {
	a, b := expertName.FindStringSubmatch(before), expertName.FindStringSubmatch(name)
	if a == nil || b == nil || a[1] != b[1] {
		return false
	}
	x, _ := strconv.Atoi(a[2])
	y, _ := strconv.Atoi(b[2])
	return x <= y
}

// partitionCount returns over how many ranks the file says that group g is cut. It fails where the
// file does not say it, and for more than there are files.
func (one *rank) partitionCount(g, files int) (int, error) {
	state, _ := pickle.Get[*pickle.Dict](one.file.Root, "optimizer_state_dict")
	v, _ := state.Get("partition_count")
	if l, ok := v.(*pickle.List); ok {
		if g >= len(l.Items) {
			return 0, fmt.Errorf(
				"%s does not say over how many ranks group %d is cut (partition_count)",
				one.file.Name, g)
		}
		v = l.Items[g]
	}
	n, ok := v.(int64)
	if !ok || n < 1 || n > int64(files) {
		return 0, fmt.Errorf("%s: the state was cut over %v ranks, and there are the files of %d",
			one.file.Name, v, files)
	}
	return int(n), nil
}
