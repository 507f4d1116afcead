package deepspeed

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
)

// This file knows what is in which group, for reader and writer: their goroutine, no I/O.

// namesKey is the reader's key for the names of the parameters in a group of the optimizer, in the
// order of its flat buffer. DeepSpeed has them in param_shapes only: it numbers groups, and names
// nothing in them.
const namesKey = "param_names"

// groupNames returns, as values, the names of the parameters in each group of the optimizer: groups
// are its param_groups, whose params are the numbers of the dicts of param_shapes. They are as
// many, but that stage 3 cuts large groups in several. Where that does not come out, nothing is
// known.
func groupNames(groups *pickle.List, shapes []params) (values []format.Value) {
	used := make([]bool, len(shapes))
	for i, g := range groups.Items {
		numbers, err := pickle.Get[*pickle.List](g, "params")
		if err != nil {
			return nil
		}
		var names []any
		for _, x := range numbers.Items {
			n, ok := x.(int64)
			if !ok || n < 0 || n >= int64(len(shapes)) || used[n] || len(shapes[n]) == 0 {
				return nil
			}
			used[n] = true
			for _, p := range shapes[n] {
				names = append(names, p.name)
			}
		}
		values = append(values,
			format.Value{Path: fmt.Sprintf("%s.param_groups.%d.%s", stateKey, i, namesKey),
				Data: names})
	}
	if slices.Contains(used, false) {
		return nil
	}
	return values
}

// paramsByGroup returns the names of the parameters in each group of the optimizer, in the order of
// its flat buffer; nil where the values do not tell all of them.
func (w *writer) paramsByGroup() ([][]string, error) {
	found, groups := map[string]bool{}, 0
	names := map[int][]string{}
	for _, v := range w.values {
		m := groupPath.FindStringSubmatch(v.Path)
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(m[1])
		if err != nil || n > maxGroups {
			return nil, fmt.Errorf("value %q: a group of such a number", v.Path)
		}
		groups = max(groups, n+1)
		list, ok := v.Data.([]any)
		if m[2] != namesKey || !ok {
			continue
		}
		for _, x := range list {
			name, ok := x.(string)
			if !ok || found[name] || w.states[name] == nil {
				return nil, fmt.Errorf("value %q names the parameter %v, of which there is no "+
					"state, or which it names twice", v.Path, x)
			}
			found[name] = true
			names[n] = append(names[n], name)
		}
	}
	if len(names) == 0 || len(names) < groups {
		return nil, nil
	}
	all := make([][]string, groups)
	for n := range all {
		all[n] = names[n]
	}
	return all, nil
}

// isRoundRobin reports whether parameters lie in the flat buffers as round_robin_gradients has
// them: in the order of param_shapes. What param_slice_mappings says of such checkpoints is that of
// the model's order, and wrong.
func isRoundRobin(m *model, one *rank) bool {
	is := isConfigured(m, one, "zero_optimization", "round_robin_gradients")
	version, _ := pickle.Get[string](one.file.Root, "ds_version")
	return is && roundRobinApplies(one.stage, version)
}

// isConfigured reports whether DeepSpeed's configuration has true at a path. Model states of a
// mixture of experts have no configuration before DeepSpeed 0.19.6; optimizer states have it too.
func isConfigured(m *model, one *rank, path ...string) bool {
	for _, root := range []any{m.file.Root, one.file.Root} {
		if is, err := pickle.Get[bool](root,
			append([]string{"ds_config"}, path...)...); err == nil {
			return is
		}
	}
	return false
}

// roundRobinApplies reports whether round_robin_gradients has an effect in a stage of a version:
// stage 3 ignores it, and stage 1 did before 0.13.
func roundRobinApplies(stage int64, version string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return stage == 2 || stage == 1 && (n < 2 || major > 0 || minor >= 13)
}

// hasOtherOrder reports whether param_slice_mappings has the parameters of a group in another order
// than param_shapes, which happens with round_robin_gradients only. Versions that record the name
// of a configuration's file, and not its content, show it in no other way.
func hasOtherOrder(g int, shapes params, ranks []*rank) bool {
	names, err := mappedNames(g, ranks)
	if err != nil {
		return false // stage 3 has none, and who needs them says so
	}
	at := map[string]int{}
	for i, name := range names {
		at[name] = i
	}
	last := -1
	for _, p := range shapes {
		if i, ok := at[p.name]; ok {
			if i < last {
				return true
			}
			last = i
		}
	}
	return false
}

// hasAlignment reports whether there is a gap between neighbouring parameters of a rank's flat
// buffers, which parameter_alignment makes from DeepSpeed 0.19.8 on.
func hasAlignment(one *rank) bool {
	groups, err := pickle.Get[*pickle.List](one.file.Root, "optimizer_state_dict",
		"param_alignment_paddings")
	if err != nil {
		return false
	}
	return slices.ContainsFunc(groups.Items, func(g any) bool {
		list, ok := g.(*pickle.List)
		return !ok || slices.ContainsFunc(list.Items, func(n any) bool { return n != int64(0) })
	})
}

// roundRobinOrder returns the order of a group's n parameters, by index, when they are distributed
// round-robin over ranks: first all of the first rank.
func roundRobinOrder(n, ranks int) (order []int) {
	for r := range ranks {
		for i := r; i < n; i += ranks {
			order = append(order, i)
		}
	}
	return order
}
