package megatron

// This file puts what a reshardable found into its checkpoint: one goroutine, no I/O.
import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
)

// replaceBuffers replaces the buffers in the checkpoint by the state of parameters, and moves what
// the first rank has for all to its usual paths.
func (r *reshardable) replaceBuffers(found []format.Tensor) {
	var tensors []format.Tensor
	for _, t := range r.c.Tensors {
		if bucketKey.MatchString(t.Name) {
			continue
		}
		if path, keep := domainPath(t.Name); keep {
			t.Name = path
			tensors = append(tensors, t)
		}
	}
	r.c.Tensors = append(tensors, found...)
	var values []format.Value
	for _, v := range r.c.Values {
		if path, keep := domainPath(v.Path); keep {
			v.Path = path
			values = append(values, v)
		}
	}
	r.c.Values = append(values, r.memberNames(values)...)
}

// memberNames returns, as values, the names of the parameters of each group of the optimizers, as
// Megatron divides them, if each parameter fits into one.
func (r *reshardable) memberNames(values []format.Value) (names []format.Value) {
	groups, odd := map[string]*group{}, map[string]bool{}
	for _, v := range values {
		m := groupPath.FindStringSubmatch(v.Path)
		if m == nil {
			continue
		}
		path := strings.TrimSuffix(v.Path, m[4])
		if groups[path] == nil {
			groups[path] = &group{path: path}
		}
		g := groups[path]
		n, isFloat := v.Data.(float64)
		switch m[4] {
		case "wd_mult":
			g.decays, g.decided = n != 0, isFloat
		case "lr_mult":
			odd[path] = odd[path] || n != 1
		case "is_decoupled_lr":
			odd[path] = odd[path] || v.Data == true
		case "is_expert_parallel":
			g.expert = v.Data == true
		}
	}
	in := map[string][]string{}
	for _, t := range r.model {
		q := &param{Tensor: t}
		name := strings.TrimPrefix(t.Name, "model.")
		q.expert = cutExperts.MatchString(name)
		var into []string
		for path, g := range groups {
			if g.decided && !odd[path] && g.accepts(q, r.size) {
				into = append(into, path)
			}
		}
		if len(into) == 1 {
			in[into[0]] = append(in[into[0]], name)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(in)) {
		names = append(names,
			format.Value{Path: path + namesKey, Data: sortByRegistration(in[path])})
	}
	return names
}

// domainPath returns the path of a value without the ranks whose buffer it belongs to; keep is
// false for values that ranks other than the first have too, and for sizes of buckets.
func domainPath(path string) (other string, keep bool) {
	o, isObject := parseObject(path)
	m := domainKey.FindStringSubmatch(o.key)
	if !isObject || m == nil {
		return path, true
	}
	if m[2] != "0" || strings.HasPrefix(m[3], "per_bucket_numel") {
		return "", false
	}
	other = optimizerKey + "."
	if m[1] != "" {
		other += m[1] + "."
	}
	return fmt.Sprint(other, m[3], strings.TrimPrefix(o.rest, "0")), true
}
