package deepspeed

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/tensor"
)

// This file lays ZeRO out for tensor parallel ranks and stages in turn: no I/O but read's.

// A tensorSharer says how tensor parallel ranks share the tensors of a checkpoint that is laid out
// for them. It does no I/O, and is for one goroutine at a time, as its rules are.
type tensorSharer struct {
	rules   *rules            // nil for one rank
	ranks   int               // number of tensor parallel ranks
	buffers map[string]bool   // buffers of the model, which are not parameters
	aliases map[string]string // second names of parameters
	mixture *mixture          // nil = no experts
}

// layRanks lays out what each model parallel rank saves, as one with its parts alone would, and
// puts the parts together. read reads numbers of steps.
func (z Zero) layRanks(tensors []format.Tensor, values []format.Value,
	read func(*format.Tensor, []byte) error) (*format.Output, error) {
	mixture, err := z.planMixture(tensors, values)
	if err != nil {
		return nil, err
	}
	s, err := newSharer(z.TP, tensors, values)
	if err != nil {
		return nil, err
	}
	s.mixture = mixture
	stages, err := z.planStages(values, s.elementCounter(tensors), mixture)
	if err != nil {
		return nil, err
	}
	cuts, parts := map[string]*format.Cut{}, map[string][]format.Part{}
	var all *format.Output
	for _, stage := range stages {
		for tp := range max(z.TP, 1) {
			var local []format.Tensor
			for i := range tensors {
				t := tensors[i]
				if t.Shape, err = s.partShape(&tensors[i], tp, cuts); err != nil {
					return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
				}
				if stage.hasTensor(&t, stages) {
					local = append(local, t)
				}
			}
			w := z.newWriter(local, stage.stageValues(values))
			w.mixture = s.mixture
			w.mp, w.tp, w.stageOf = slices.Index(stages, stage)*w.tps+tp, tp, stage
			if err := w.layRank(local, read); err != nil {
				return nil, err
			}
			for i := range w.Tensors {
				t := &w.Tensors[i]
				parts[t.Name] = append(parts[t.Name], format.Part{Tensor: t, Rank: tp})
			}
			if all == nil {
				all = w.Output
				continue
			}
			all.Files, all.Frames, all.Sums = append(all.Files, w.Files...),
				append(all.Frames, w.Frames...), append(all.Sums, w.Sums...)
			all.Implied = append(all.Implied, w.Implied...)
		}
	}
	all.Implied, all.Tensors = wholeProofs(all.Implied, tensors), nil
	if stages[0] != nil {
		all.Values = mergeStageValues(all.Values, values)
	}
	for i := range tensors {
		t := &tensors[i]
		if len(parts[t.Name]) == 0 {
			continue
		}
		joined, err := joinRanks(parts[t.Name], cuts[t.Name], t)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		all.Tensors = append(all.Tensors, joined)
	}
	return all, all.Finish()
}

// joinRanks joins what ranks have of the tensor t; without a cut they all have it whole.
func joinRanks(parts []format.Part, cut *format.Cut, t *format.Tensor) (joined format.Tensor,
	err error) {
	if cut == nil {
		return format.JoinReplicas(parts)
	}
	if joined, err = format.JoinParts(parts, *cut); err == nil &&
		joined.Shape[cut.Dim] > t.Shape[cut.Dim] {
		joined.Crop(cut.Dim, t.Shape[cut.Dim]) // what fills up the vocabulary stays zero
	}
	return joined, err
}

// wholeProofs returns proofs of whole tensors instead of their parts, one for each model's tensor.
func wholeProofs(proofs []*format.Proof, tensors []format.Tensor) (all []*format.Proof) {
	seen := map[string]bool{}
	of := func(name string) format.Tensor {
		return tensors[slices.IndexFunc(tensors, func(t format.Tensor) bool {
			return t.Name == name
		})]
	}
	for _, p := range proofs {
		if seen[p.Model.Name] {
			continue // another rank has said it
		}
		seen[p.Model.Name] = true
		all = append(all, &format.Proof{Main: of(p.Main.Name), Model: of(p.Model.Name)})
	}
	return all
}

// newSharer returns how a number of tensor parallel ranks share tensors, as the values say. It
// fails where they do not say it.
func newSharer(ranks int, tensors []format.Tensor, values []format.Value) (*tensorSharer, error) {
	if ranks <= 1 {
		return &tensorSharer{ranks: 1}, nil
	}
	r, err := parseRules(values)
	if err != nil {
		return nil, err
	}
	if r == nil || !r.saysSharing {
		return nil, fmt.Errorf("nothing says how tensor parallel ranks share the parameters "+
			"(values %s.…, which a checkpoint of several such ranks has); leave out tp, or "+
			"choose universal", infoKey)
	}
	if err := r.checkVersion(); err != nil {
		return nil, err
	}
	s := &tensorSharer{rules: r, ranks: ranks, buffers: map[string]bool{},
		aliases: map[string]string{}}
	state := map[string]bool{}
	for _, t := range tensors {
		if m := stateName.FindStringSubmatch(t.Name); m != nil {
			state[m[2]] = true
		}
	}
	buffers, said := statedBuffers(values)
	for _, t := range tensors {
		if kind, param := parameterOf(t.Name); kind == "" && param != "" && !state[param] {
			// the others are frozen, and cut as parameters are
			s.buffers[param] = !said || buffers[param]
		}
	}
	for _, v := range values { // the second names of parameters are as the first
		if name, ok := strings.CutPrefix(v.Path, sharedKey+"."); ok {
			delete(s.buffers, name)
			s.aliases[name], _ = v.Data.(string)
		}
	}
	return s, nil
}

// statedBuffers returns the names of the model's buffers; said is whether the values tell them.
func statedBuffers(values []format.Value) (names map[string]bool, said bool) {
	names = map[string]bool{}
	for _, v := range values {
		if list, ok := v.Data.([]any); ok && v.Path == buffersKey {
			said = true
			for _, x := range list {
				if name, is := x.(string); is {
					names[name] = true
				}
			}
		}
	}
	return names, said
}

// partShape returns the shape of what a tensor parallel rank has of a tensor. At rank 0 it stores
// in cuts how the tensor is cut, nothing for what all have alike; other ranks take that from there.
func (s *tensorSharer) partShape(t *format.Tensor, tp int,
	cuts map[string]*format.Cut) (tensor.Shape,
	error) {
	c := cuts[t.Name]
	if c == nil && tp == 0 {
		var err error
		if c, err = s.cutOf(t); err != nil {
			return nil, err
		}
		if c != nil {
			cuts[t.Name] = c
		}
	}
	if c == nil {
		return t.Shape, nil
	}
	shape := slices.Clone(t.Shape)
	shape[c.Dim] = 0
	for _, widths := range c.Widths {
		shape[c.Dim] += widths[tp]
	}
	return shape, nil
}

// elementCounter returns a function that counts the elements of a parameter on the first rank. A
// parameter that cannot be shared counts whole, and is refused later.
func (s *tensorSharer) elementCounter(tensors []format.Tensor) func(string) int {
	counts, cuts := map[string]int{}, map[string]*format.Cut{}
	for i := range tensors {
		if kind, param := parameterOf(tensors[i].Name); kind == "" || kind == "fp32" {
			shape, err := s.partShape(&tensors[i], 0, cuts)
			if err != nil {
				shape = tensors[i].Shape
			}
			counts[param] = shape.Box().Elements()
		}
	}
	return func(param string) int { return counts[param] }
}

// ruleName returns the name under which the patterns know a parameter: that of an expert has its
// number on a rank.
func (s *tensorSharer) ruleName(param string) string {
	return s.mixture.localName(cmp.Or(s.aliases[param], param))
}

// cutOf returns how ranks share a tensor, evenly; nil if all have it alike.
func (s *tensorSharer) cutOf(t *format.Tensor) (*format.Cut, error) {
	_, param := parameterOf(t.Name)
	if s.ranks == 1 || param == "" || len(t.Shape) == 0 || s.mixture.isUnshared(param) {
		return nil, nil
	}
	how, err := s.rules.sharingOf(s.ruleName(param))
	if err != nil {
		return nil, err
	}
	padded, said := s.rules.values[paddedKey].(int64)
	fills := said && how.vocabulary && len(t.Shape) > 0 && int(padded) > t.Shape[0]
	if fills && (how.alike || how.averaged || how.sub != nil || how.dim != 0) {
		return nil, fmt.Errorf("it has %d rows of the vocabulary and %d are due, in a tensor "+
			"that is not cut along these; choose universal", t.Shape[0], padded)
	}
	if how.alike || how.averaged || how.unmatched && s.buffers[param] {
		return nil, nil
	}
	c := &format.Cut{Dim: how.dim}
	var sizes []int
	if how.sub != nil {
		if c.Dim = how.sub.dim; c.Dim >= len(t.Shape) {
			return nil, fmt.Errorf("it has shape %v, and is to be cut along dimension %d", t.Shape,
				c.Dim)
		}
		if sizes, err = how.sub.sizesIn(t.Shape); err != nil {
			return nil, err
		}
	} else {
		if c.Dim >= len(t.Shape) {
			return nil, fmt.Errorf("it has shape %v, and is to be cut along dimension %d", t.Shape,
				c.Dim)
		}
		n := t.Shape[c.Dim]
		if fills {
			n = int(padded)
		}
		if n%how.blocks != 0 {
			return nil, fmt.Errorf("its dimension %d of %d does not come apart in %d equal blocks",
				c.Dim, n, how.blocks)
		}
		sizes = slices.Repeat([]int{n / how.blocks}, how.blocks)
	}
	for _, n := range sizes {
		if n%s.ranks != 0 {
			return nil, fmt.Errorf(
				"%d along dimension %d are not shared evenly by %d tensor parallel ranks", n, c.Dim,
				s.ranks)
		}
		c.Widths = append(c.Widths, slices.Repeat([]int{n / s.ranks}, s.ranks))
	}
	return c, nil
}
