package megatron

// This file finds by values of which parameter state is; it may read files, on Read's goroutine.
import (
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/tensor"
)

// noParameter matches tensors of models that no optimizer has.
var noParameter = pattern.New(
	`(^|\.)(inv_freq|expert_bias|local_tokens_per_expert|_extra_state)$`)

// maxCompared bounds the elements of a parameter that are compared to distinguish it from others.
const maxCompared = 1 << 16

// A matcher finds the parameters of the slots of a rank.
//
// Where there are copies in f32, it compares shapes and values: a copy, rounded, is its parameter.
// It compares elements until only one parameter matches, up to a bound; parameters that still look
// alike, such as norms that round to 1, are matched in order, if all others of the rank are in the
// model's order too. So names are cheap to find, and proofs guarantee them.
//
// Where there are no copies, only the order tells: a group has the parameters that Megatron puts
// into it, in the order of the model. The numbers of parameters and all shapes must agree.
// One goroutine uses a matcher; matchValues and splitEqual read elements from files.
type matcher struct {
	files *format.Files
	size  degrees         // sizes of the axes
	used  map[*param]bool // parameters of matchGroup's slots
}

// A candidate is a copy whose parameter is not known yet.
type candidate struct {
	group   *group
	main    *format.Tensor // the copy
	param   *param         // nil until it is known
	byOrder bool           // whether the order has told its parameter
}

// matchSlots sets the parameters of a rank's slots, and returns the slots. It reads elements.
func matchSlots(files *format.Files, p *part, groups []*group, size degrees) (list []*slot,
	err error) {
	m := matcher{files, size, map[*param]bool{}}
	var all []*candidate
	byGroup := map[*group][]*candidate{}
	for _, g := range groups {
		for _, t := range g.mains {
			main := t.AsTensor("optimizer")
			byGroup[g] = append(byGroup[g], &candidate{group: g, main: &main})
		}
		all = append(all, byGroup[g]...)
	}
	if err := m.matchValues(all, p.params); err != nil {
		return nil, err
	}
	if err := checkOrder(all, p.params); err != nil {
		return nil, err
	}
	for _, g := range groups {
		if len(byGroup[g]) == len(g.slots) {
			for i, c := range byGroup[g] {
				g.slots[i].main, g.slots[i].param = c.main, c.param
			}
		} else if err := m.matchGroup(g, byGroup[g], p.params); err != nil {
			return nil, err
		}
		list = append(list, g.slots...)
	}
	return list, nil
}

// matchGroup sets the parameters of the slots of a group that has f32 parameters, by the order of
// the model. copies are those of the group's other parameters.
func (m *matcher) matchGroup(g *group, copies []*candidate, params []*param) error {
	if !g.decided {
		return unnamedErrorf(
			"an optimizer without copies in f32 goes by order alone, and its groups " +
				"are not only by weight decay: nobody knows what is in which")
	}
	var due []*param
	paired := map[*param]bool{}
	for _, c := range copies {
		paired[c.param] = true
	}
	for _, p := range params {
		if paired[p] || p.DType == tensor.F32 && g.accepts(p, m.size) &&
			!noParameter.MatchString(p.Name) {
			due = append(due, p)
		}
	}
	if len(due) != len(g.slots) {
		return unnamedErrorf(
			"a group of the optimizer (weight decay: %v) has %d parameters, and the "+
				"model %d for it", g.decays, len(g.slots), len(due))
	}
	for i, p := range due {
		s := g.slots[i]
		if p.DType != tensor.F32 {
			if copies[0].param != p {
				return unnamedErrorf("the optimizer has the copy of %q where that of %q is due",
					copies[0].param.Name, p.Name)
			}
			s.main, copies = copies[0].main, copies[1:]
		} else if m.used[p] {
			return unnamedErrorf("%q is in two groups of the optimizer", p.Name)
		}
		m.used[p], s.param = true, p
		fits := func(k kind) bool {
			t, ok := k.is.(*format.Tensor)
			return ok && t.Shape.Equal(p.Shape)
		}
		if s.main == nil && len(s.kinds) > 0 && !slices.ContainsFunc(s.kinds, fits) {
			return unnamedErrorf("the optimizer has no state of shape %v where that of %q is due",
				p.Shape, p.Name)
		}
	}
	return nil
}

// matchValues sets the parameters of copies by comparing elements, shape by shape.
func (m *matcher) matchValues(copies []*candidate, params []*param) error {
	type class struct {
		copies []*candidate
		params []*param
	}
	var order []string
	classes := map[string]*class{}
	for _, c := range copies {
		key := c.main.Shape.String()
		if classes[key] == nil {
			classes[key], order = &class{}, append(order, key)
		}
		classes[key].copies = append(classes[key].copies, c)
	}
	for _, p := range params {
		if c := classes[p.Shape.String()]; c != nil &&
			(p.DType == tensor.BF16 || p.DType == tensor.F16) {
			c.params = append(c.params, p)
		}
	}
	for _, key := range order {
		c := classes[key]
		for _, p := range c.params {
			if p.DType != c.params[0].DType {
				return unnamedErrorf("the model has parameters of %v and of %v", p.DType,
					c.params[0].DType)
			}
		}
		if err := m.splitEqual(c.copies, c.params, 0); err != nil {
			return err
		}
		if err := matchLeftover(c.copies, c.params); err != nil {
			return err
		}
	}
	return nil
}

// splitEqual tells copies and parameters apart whose first elements, up to from, are equal: it
// reads and compares more elements, and sets the parameters of the copies.
func (m *matcher) splitEqual(copies []*candidate, params []*param, from int) error {
	if len(copies) == 0 || len(params) == 0 {
		return nil
	}
	n := copies[0].main.Shape.Box().Elements()
	if len(copies) == 1 && len(params) == 1 {
		copies[0].param = params[0]
		return nil
	}
	if from == min(n, maxCompared) {
		return m.matchByOrder(copies, params)
	}
	to := min(n, max(2*from, 256), maxCompared)
	d := params[0].DType
	keys, order := map[string]*[2][]int{}, []string{}
	add := func(side, i int, key []byte) {
		k := keys[string(key)]
		if k == nil {
			k = &[2][]int{}
			keys[string(key)], order = k, append(order, string(key))
		}
		k[side] = append(k[side], i)
	}
	rounded, buffer := make([]byte, (to-from)*d.Size()), make([]byte, (to-from)*4)
	for i, c := range copies {
		if err := m.files.ReadRange(c.main, from, to, buffer); err != nil {
			return err
		}
		format.Round(d, rounded, buffer)
		add(0, i, rounded)
	}
	for i, p := range params {
		if err := m.files.ReadRange(&p.Tensor, from, to, rounded); err != nil {
			return err
		}
		add(1, i, rounded)
	}
	for _, key := range order {
		k := keys[key]
		var someCopies []*candidate
		var someParams []*param
		for _, i := range k[0] {
			someCopies = append(someCopies, copies[i])
		}
		for _, i := range k[1] {
			someParams = append(someParams, params[i])
		}
		if err := m.splitEqual(someCopies, someParams, to); err != nil {
			return err
		}
	}
	return nil
}

// matchByOrder sets the parameters of equal copies in the parameters' order, within each group.
func (m *matcher) matchByOrder(copies []*candidate, params []*param) error {
	for len(copies) > 0 {
		g := copies[0].group
		var own, others []*candidate
		for _, c := range copies {
			if c.group == g {
				own = append(own, c)
			} else {
				others = append(others, c)
			}
		}
		mine, rest := params, []*param(nil)
		if len(own) != len(params) {
			mine = nil
			for _, p := range params {
				if g.decided && g.accepts(p, m.size) {
					mine = append(mine, p)
				} else {
					rest = append(rest, p)
				}
			}
		}
		if len(mine) != len(own) {
			return nil // left is left
		}
		for i, c := range own {
			c.param, c.byOrder = mine[i], true
		}
		params, copies = rest, others
	}
	return nil
}

// matchLeftover sets the parameters of copies that equal none, in their order, when as many
// parameters are left: one is damaged, and the proof will say where.
func matchLeftover(copies []*candidate, params []*param) error {
	taken := map[*param]bool{}
	copies = slices.DeleteFunc(slices.Clone(copies), func(c *candidate) bool {
		taken[c.param] = true
		return c.param != nil
	})
	params = slices.DeleteFunc(slices.Clone(params), func(p *param) bool { return taken[p] })
	if len(copies) == 0 {
		return nil
	}
	if len(copies) != len(params) {
		piece := &copies[0].main.Pieces[0]
		return unnamedErrorf(
			"%s, byte %d: a copy of a parameter in f32, of shape %v, that is none of "+
				"the model's (copies left: %d, parameters left: %d)",
			piece.File, piece.Offset, copies[0].main.Shape, len(copies), len(params))
	}
	for i, c := range copies {
		c.param, c.byOrder = params[i], len(params) > 1
	}
	return nil
}

// checkOrder fails when the order has told some parameters, and it is not the model's order.
func checkOrder(copies []*candidate, params []*param) error {
	i := slices.IndexFunc(copies, func(c *candidate) bool { return c.byOrder })
	if i < 0 {
		return nil
	}
	place := map[*param]int{}
	for i, p := range params {
		place[p] = i
	}
	last := map[*group]int{}
	for _, c := range copies {
		if place[c.param] < last[c.group] {
			piece := &copies[i].main.Pieces[0]
			return unnamedErrorf(
				"%s, byte %d: the values of a copy of a parameter in f32, of shape "+
					"%v, do not tell which it is, and the order of the optimizer is not the "+
					"model's: %q comes after a later one",
				piece.File, piece.Offset, copies[i].main.Shape, c.param.Name)
		}
		last[c.group] = place[c.param]
	}
	return nil
}
