package megatron

// Optimizers by expert parallelism: one, or a chain of several (ChainedOptimizer). It does no I/O.
import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/megatron/order"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/state/layout"
)

const (
	// expertKey is where a group says that expert parallel ranks have different experts in it.
	expertKey = "is_expert_parallel"
	// scalerKey is what the optimizers of f16 keep of the scale of gradients. Each counts its own
	// overflows, and Megatron scales by that of the first.
	scalerKey = "grad_scaler."
)

// ofSeveral matches the path of a value of one of several optimizers, or of the only one.
var ofSeveral = pattern.New(`^optimizer\.(?:(\d+)\.)?(.+)$`)

// ChainOptimizers changes the values and tensors of a checkpoint to the optimizers that Megatron
// has over the ranks of a spec: with expert parallel ranks experts have one of their own, and
// without there is one for all. Their groups come apart, or together with those that differ in
// nothing else; state, which goes by the names of parameters, stays. renamed are the tensors that
// have other names now, with those they had. A checkpoint that is so already stays as it is.
func ChainOptimizers(c *format.Checkpoint, spec *layout.Spec) (renamed map[string]string,
	err error) {
	mesh, err := layout.ParseMesh(spec.Mesh)
	if err != nil {
		return nil, err
	}
	own := slices.ContainsFunc(mesh, func(a layout.Axis) bool {
		return a.Name == "ep" && a.Size > 1
	})
	old, err := readPlans(c.Values)
	if err == nil && !old.isChained(own) {
		var made plans
		if made, err = old.rechain(own); err == nil {
			ch := chaining{c: c, old: old, made: made, renamed: map[string]string{}}
			err = ch.replaceOptimizers()
			renamed = ch.renamed
		}
	}
	if err != nil {
		return nil, fmt.Errorf("Megatron: %w", err)
	}
	return renamed, nil
}

// isChained reports whether experts have an optimizer of their own if own is set, else that of all.
func (p plans) isChained(own bool) bool {
	dense := 0
	for _, o := range p {
		experts := false
		for _, g := range o.groups {
			if experts = experts || g.isOfExperts(); g.isOfExperts() != own &&
				(g.isOfExperts() || slices.ContainsFunc(g.names, cutExperts.MatchString)) {
				return false
			}
		}
		if !experts {
			dense++
		}
	}
	// of older versions, stages without experts have one optimizer only
	return dense < 2 && (len(p) < 2 || p[0].prefix != optimizerKey+".")
}

// isOfExperts reports whether the group belongs to an optimizer of experts.
func (g *groupPlan) isOfExperts() bool {
	return slices.ContainsFunc(g.values, func(v format.Value) bool {
		return v.Path == expertKey && v.Data == true
	})
}

// withParams returns a copy of the group with the given parameters, of experts or not.
func (g *groupPlan) withParams(names []string, expert bool) *groupPlan {
	made := &groupPlan{names: names}
	said := false
	for _, v := range g.values {
		if v.Path == expertKey {
			v, said = format.Value{Path: expertKey, Data: expert}, true
		}
		made.values = append(made.values, v)
	}
	if expert && !said {
		made.values = append(made.values, format.Value{Path: expertKey, Data: true})
	}
	return made
}

// rechain returns new optimizers with the old groups: experts have one of their own if own is set.
func (p plans) rechain(own bool) (plans, error) {
	all, experts := &optimizerPlan{inner: p[0].inner, groups: map[int]*groupPlan{}},
		&optimizerPlan{inner: p[0].inner, groups: map[int]*groupPlan{}}
	for _, o := range p {
		if o.inner != p[0].inner {
			return nil, fmt.Errorf("of the optimizers of a rank one keeps copies of its "+
				"parameters and another does not (%q and %q): give it an ep with which Megatron "+
				"has the same optimizers, or leave the optimizer out with --only 'model.**'",
				p[0].prefix, o.prefix)
		}
		for i := range len(o.groups) {
			g := o.groups[i]
			var mine, theirs []string
			for _, name := range g.names {
				if own && cutExperts.MatchString(name) {
					theirs = append(theirs, name)
				} else {
					mine = append(mine, name)
				}
			}
			if len(theirs) > 0 || own && g.isOfExperts() {
				if err := experts.joinGroup(g.withParams(theirs, true)); err != nil {
					return nil, err
				}
			}
			if len(mine) > 0 || len(theirs) == 0 && !(own && g.isOfExperts()) {
				if err := all.joinGroup(g.withParams(mine, false)); err != nil {
					return nil, err
				}
			}
		}
	}
	if len(experts.groups) == 0 {
		all.prefix = optimizerKey + "."
		return plans{all}, nil
	}
	all.prefix, experts.prefix = optimizerKey+".0.", optimizerKey+".1."
	return plans{all, experts}, nil
}

// joinGroup adds g's parameters to that group of o which is the same for Megatron, or else g
// itself.
func (o *optimizerPlan) joinGroup(g *groupPlan) error {
	for i := range len(o.groups) {
		other := o.groups[i]
		same, differs := other.isSameGroup(g)
		if !same {
			continue
		}
		if differs != "" {
			return fmt.Errorf("Megatron has one group of parameters for %q and %q over these "+
				"ranks, and their %s is not the same; choose an ep that stays on the same side "+
				"of 1, or leave the optimizer out with --only 'model.**'",
				firstName(other.names), firstName(g.names), differs)
		}
		other.names = inModelOrder(append(slices.Clone(other.names), g.names...))
		return nil
	}
	o.groups[len(o.groups)] = g
	return nil
}

// firstName returns the first of some names, "" if there are none.
func firstName(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// isSameGroup reports whether Megatron takes two groups for the same: by their factors of weight
// decay and learning rate. differs is the key of another value in which they differ.
func (g *groupPlan) isSameGroup(other *groupPlan) (same bool, differs string) {
	mine, theirs := g.valuesByKey(), other.valuesByKey()
	for _, key := range []string{"wd_mult", "lr_mult", "is_decoupled_lr"} {
		if !reflect.DeepEqual(mine[key], theirs[key]) {
			return false, ""
		}
	}
	if _, said := mine["wd_mult"]; !said &&
		!reflect.DeepEqual(mine["weight_decay"], theirs["weight_decay"]) {
		return false, ""
	}
	for _, v := range slices.Concat(g.values, other.values) {
		if v.Path != expertKey && !reflect.DeepEqual(mine[v.Path], theirs[v.Path]) {
			return true, v.Path
		}
	}
	return true, ""
}

// valuesByKey returns the values of the group by their keys.
func (g *groupPlan) valuesByKey() map[string]any {
	all := map[string]any{}
	for _, v := range g.values {
		all[v.Path] = v.Data
	}
	return all
}

// A chaining replaces the optimizers of a checkpoint by new ones, on one goroutine and without I/O.
type chaining struct {
	c         *format.Checkpoint
	old, made plans
	renamed   map[string]string // by the new name, the old name of each renamed tensor
}

// replaceOptimizers replaces those values and tensors of the checkpoint that belong to an optimizer
// and to no parameter: groups are those made; of the rest that of the first optimizer is for all.
func (ch *chaining) replaceOptimizers() error {
	var values []format.Value
	firsts := map[string]any{}
	for _, v := range ch.c.Values {
		number, rest, is := ch.optimizerItem(v.Path)
		if is && number == ch.old[0].number() {
			firsts[rest] = v.Data
		}
	}
	for _, v := range ch.c.Values {
		number, rest, is := ch.optimizerItem(v.Path)
		switch {
		case !is && groupPath.MatchString(v.Path):
		case !is:
			values = append(values, v)
		case number == ch.old[0].number():
			for _, o := range ch.made {
				values = append(values,
					format.Value{Path: o.prefix + rest, Data: v.Data, Python: v.Python})
			}
		case !strings.HasPrefix(rest, scalerKey) && !reflect.DeepEqual(firsts[rest], v.Data):
			return fmt.Errorf("value %q is %v, and the first optimizer has %v there; over these "+
				"ranks Megatron has one for both", v.Path, v.Data, firsts[rest])
		}
	}
	for _, o := range ch.made {
		values = append(values, o.groupValues()...)
	}
	var tensors []format.Tensor
	for _, t := range ch.c.Tensors {
		number, rest, is := ch.optimizerItem(t.Name)
		switch {
		case !is:
			tensors = append(tensors, t)
		case number == ch.old[0].number():
			for _, o := range ch.made {
				same := t
				same.Name = o.prefix + rest
				if _, twice := ch.renamed[same.Name]; twice {
					continue // of a rank with one optimizer, and of one with several
				}
				ch.renamed[same.Name] = t.Name
				tensors = append(tensors, same)
			}
		case !strings.HasPrefix(rest, scalerKey):
			return fmt.Errorf("tensor %q is of one of several optimizers, and of no parameter: "+
				"shoal does not know what becomes of it where there are others", t.Name)
		}
	}
	ch.c.Values, ch.c.Tensors = values, tensors
	return ch.c.Finish()
}

// optimizerItem splits the path of something that belongs to an optimizer, and to no parameter and
// no group, into the number of the optimizer and the rest.
func (ch *chaining) optimizerItem(path string) (number int, rest string, is bool) {
	m := ofSeveral.FindStringSubmatch(path)
	if m == nil || knownTensor.MatchString(path) || huggingFaceState.MatchString(path) ||
		groupPath.MatchString(path) {
		return 0, "", false
	}
	number, _ = strconv.Atoi(cmp.Or(m[1], "0"))
	return number, m[2], true
}

// groupValues returns the groups of an optimizer as values, with their whole paths.
func (o *optimizerPlan) groupValues() (values []format.Value) {
	for i := range len(o.groups) {
		path := o.prefix
		if o.inner != "" {
			path += o.inner + "."
		}
		path += fmt.Sprintf("param_groups.%d.", i)
		for _, v := range o.groups[i].values {
			v.Path = path + v.Path
			values = append(values, v)
		}
		if names := o.groups[i].names; len(names) > 0 {
			values = append(values, namesValue(path, names))
		}
	}
	return values
}

// namesValue returns the value with the parameters of the group at a path, which ends with a dot.
func namesValue(path string, names []string) format.Value {
	list := make([]any, len(names))
	for i, name := range names {
		list[i] = name
	}
	return format.Value{Path: path + namesKey, Data: list}
}

// inModelOrder returns the parameters of a group in the order in which Megatron's models register
// them, which is that of their numbers in an optimizer: layer by layer; in one, experts after the
// router and before what all tokens share; experts one by one, but those whose products are
// computed together module by module. What this does not tell stays as it is.
func inModelOrder(names []string) []string {
	type place struct {
		name string
		at   [4]int
	}
	seen := map[string]int{}
	var list []place
	for _, name := range names {
		p := place{name, [4]int{order.Depth(name)}}
		if m := groupedExperts.FindStringSubmatch(name); m != nil {
			module, _, _ := strings.Cut(m[2], ".") // which has the weight and the bias of each
			if _, there := seen[module]; !there {
				seen[module] = len(seen)
			}
			n, _ := strconv.Atoi(m[3])
			p.at = [4]int{p.at[0], 1, seen[module], n}
		} else if m := numbered.FindStringSubmatch(name); m != nil {
			n, _ := strconv.Atoi(m[2])
			p.at = [4]int{p.at[0], 1, n}
		} else if cutExperts.MatchString(name) {
			p.at[1] = 1
		} else if strings.Contains(name, ".shared_experts.") {
			p.at[1] = 2
		}
		list = append(list, p)
	}
	slices.SortStableFunc(list, func(a, b place) int { return slices.Compare(a.at[:], b.at[:]) })
	ordered := make([]string, len(list))
	for i, p := range list {
		ordered[i] = p.name
	}
	return ordered
}
