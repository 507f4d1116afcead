package megatron

// This file converts a Megatron Core model that was read to Hugging Face's names. It does no I/O.
import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// ToHuggingFace gives the tensors of a Megatron Core model the names of Hugging Face, and splits
// the tensors that Megatron joins, by the rules of layout.MegatronCoreStores: q, k and v, gate and
// up. It removes padding rows of the vocabulary. Optimizer state is split like its parameter. No
// element moves: the pieces change. renamed has the old name of each tensor that was only renamed,
// by the new one. dropped counts tensors that are left out: states of ranks, extras of modules.
func ToHuggingFace(c *format.Checkpoint, m Model) (renamed map[string]string, dropped int,
	err error) {
	u := splitter{c: c, model: m, stored: map[string]*joinedTensor{}, renamed: map[string]string{}}
	for _, step := range []func() error{u.sortTensors, u.checkSupported, u.findRules, u.checkGates,
		u.splitTensors} {
		if err := step(); err != nil {
			return nil, 0, fmt.Errorf("Megatron: %w", err)
		}
	}
	u.renameValues()
	c.Tensors = u.out
	return u.renamed, u.dropped, c.Finish()
}

// HasCoreNames reports whether there are tensors with names of Megatron Core.
func HasCoreNames(c *format.Checkpoint) bool {
	return slices.ContainsFunc(c.Tensors, func(t format.Tensor) bool {
		return knownTensor.MatchString(t.Name) && !isLeftOut(t.Name)
	})
}

// A splitter splits the joined tensors of a model c, which it changes. One goroutine; no I/O.
type splitter struct {
	c       *format.Checkpoint
	model   Model
	params  []*joinedTensor          // the model's tensors, and state
	stores  []layout.Store           // the rules; findRules sets them
	parts   *layout.Parts            // the rules by name
	logical []layout.Tensor          // tensors that are made from joined ones
	stored  map[string]*joinedTensor // joined tensors, by their names in the layout
	renamed map[string]string        // old names of tensors that were only renamed
	dropped int                      // tensors that were left out
	out     []format.Tensor          // the result
}

// A joinedTensor is a parameter, or its state in the optimizer. Its methods never change it.
type joinedTensor struct {
	*format.Tensor
	kind, param string // kind of state, and the parameter's name in the rules
}

// location describes the tensor with a file in which it lies.
func (f *joinedTensor) location() string {
	if len(f.Pieces) == 0 {
		return fmt.Sprintf("tensor %q", f.Name)
	}
	return fmt.Sprintf("tensor %q (in %s)", f.Name, f.Pieces[0].File)
}

// layoutName returns the tensor's name in the layout.
func (f *joinedTensor) layoutName() string { return stateName(f.kind, f.param) }

// stateName returns the name of a kind of state of a parameter; kind "" is the parameter itself.
func stateName(kind, param string) string {
	if kind == "" {
		return param
	}
	return optimizerKey + "." + kind + "." + param
}

// isLeftOut reports whether a tensor is no parameter, but of a rank or kept by a module besides.
func isLeftOut(name string) bool {
	key, _, _ := strings.Cut(name, ".")
	key, _, _ = strings.Cut(key, "/") // of several objects of torch_dist
	return key == "rng_state" || key == "rerun_state_machine" ||
		strings.HasSuffix(name, extraState) || strings.Contains(name, extraState+".") ||
		strings.Contains(name, extraState+"/")
}

// sortTensors finds out which tensors belong to the model, and puts those of an optimizer that
// belong to no parameter into the result.
func (u *splitter) sortTensors() error {
	if !HasCoreNames(u.c) {
		return errors.New("no tensor has a name of Megatron Core, such as " +
			"model.decoder.layers.0.mlp.linear_fc2.weight")
	}
	for i := range u.c.Tensors {
		f := &joinedTensor{Tensor: &u.c.Tensors[i]}
		m := knownTensor.FindStringSubmatch(f.Name)
		switch {
		case isLeftOut(f.Name):
			u.dropped++
		case f.Coords != nil:
			return fmt.Errorf("of tensor %q there is the part of rank %v, and %s; leave it out "+
				"with --only, such as --only 'model.**'", f.Name, f.Coords,
				cmp.Or(f.WhyPart, "nobody says how the parts fit together"))
		case m != nil:
			f.kind, f.param = m[1], expertParam(m[2])
			u.params = append(u.params, f)
		case bufferKeys.MatchString(f.Name):
			return flatBufferError(f.location())
		case f.WhyPart != "": // of a single rank
			return fmt.Errorf(
				"%s goes by position: %s; leave the optimizer out with --only 'model.**'",
				f.location(), f.WhyPart)
		case strings.HasPrefix(f.Name, optimizerKey+"."):
			u.out = append(u.out, *f.Tensor)
		default:
			return f.nameError()
		}
	}
	return nil
}

// nameError is the error for a tensor whose name Hugging Face's decoders do not have.
func (f *joinedTensor) nameError() error {
	return fmt.Errorf("%s has no name in Hugging Face's decoders that shoal knows; leave it out "+
		"with --only, or give the beginning of its name another with --rename", f.location())
}

// findRules sets the rules for this model, and gives each parameter its name in them.
func (u *splitter) findRules() error {
	units, err := u.headUnits()
	if err != nil {
		return err
	}
	experts, err := u.expertNaming()
	if err != nil {
		return err
	}
	u.stores = layout.MegatronCoreStores(units, experts, nil, 1)
	if u.parts, err = layout.NewParts(u.stores); err != nil {
		return err
	}
	for _, f := range u.params {
		if f.param = u.ruleName(f.param); f.param == "" {
			return f.nameError()
		}
	}
	return nil
}

// expertParam returns a parameter's name in the rules but for norms: an expert's number has one
// place.
func expertParam(param string) string {
	if m := groupedExperts.FindStringSubmatch(param); m != nil {
		return m[1] + "experts." + m[3] + "." + m[2]
	}
	return numbered.ReplaceAllString(param, "${1}experts.$2.")
}

// ruleName returns a parameter's name in the rules; "" if they do not name it. Norms have one name
// as modules, and another as parts of the products after them.
func (u *splitter) ruleName(param string) string {
	if u.parts.Names(param) != nil {
		return param
	}
	for _, n := range norms {
		for _, x := range [][2]string{{n[0], n[1]}, {n[1], n[0]}} {
			if m := layer.FindString(param); strings.HasPrefix(param[len(m):], x[0]) {
				if other := m + x[1] + param[len(m)+len(x[0]):]; u.parts.Names(other) != nil {
					return other
				}
			}
		}
	}
	return ""
}

// splitTensors adds to the result the tensors of which the joined ones are made.
func (u *splitter) splitTensors() error {
	shapes := map[string]tensor.Shape{}
	for _, f := range u.params {
		if f.kind == "" {
			shapes[f.param] = f.Shape
		}
	}
	for _, f := range u.params {
		own, there := shapes[f.param]
		switch {
		// such as a step, which all parts have alike
		case f.kind != "" && f.Shape.Box().Elements() == 1 &&
			(f.isScalar() || there && !f.Shape.Equal(own)):
			for _, name := range u.parts.Names(f.layoutName()) {
				t := *f.Tensor
				t.Name = name
				u.addRenamed(t, f)
			}
		case there && !f.Shape.Equal(own):
			return fmt.Errorf("%s has shape %v, its parameter %v", f.location(), f.Shape, own)
		default:
			if err := u.splitOne(f); err != nil {
				return err
			}
		}
	}
	return u.mapPieces()
}

// addRenamed adds to the result a tensor that is not split, and records the old name of it.
func (u *splitter) addRenamed(t format.Tensor, of *joinedTensor) {
	if u.out = append(u.out, t); len(u.parts.Names(of.layoutName())) == 1 {
		u.renamed[t.Name] = of.Name
	}
}

// splitOne adds the parts of a joined tensor to logical; one that is only renamed to the result.
func (u *splitter) splitOne(f *joinedTensor) error {
	rows := 0
	if u.parts.IsPadded(f.layoutName()) {
		var err error
		if rows, err = u.vocabularyRows(f); err != nil {
			return err
		}
	}
	made, err := u.parts.Split(layout.Tensor{Name: f.layoutName(), DType: f.DType, Shape: f.Shape},
		rows)
	if err != nil {
		return fmt.Errorf("%s: %w", f.location(), err)
	}
	if len(made) == 1 && made[0].Shape.Equal(f.Shape) {
		t := *f.Tensor
		t.Name = made[0].Name
		u.addRenamed(t, f)
		return nil
	}
	if f.DType.Size() == 0 {
		return fmt.Errorf("%s: elements of %v share bytes, and cannot be cut", f.location(),
			f.DType)
	}
	if other := u.stored[f.layoutName()]; other != nil {
		return fmt.Errorf("%s and %s are the same parameter", f.location(), other.location())
	}
	u.stored[f.layoutName()] = f
	u.logical = append(u.logical, made...)
	return nil
}

// mapPieces adds the logical tensors to the result, and finds their pieces: it takes them from
// where the layout would write them in the joined tensors.
func (u *splitter) mapPieces() error {
	spec := &layout.Spec{Shoal: layout.Version, Store: slices.Clone(u.stores),
		Rules: []layout.Rule{{Match: "**"}}}
	for i := range spec.Store {
		spec.Store[i].Pad = nil // it is at the end, and nobody's
	}
	l, err := spec.Resolve(u.logical)
	if err != nil {
		return err
	}
	for _, f := range l.Families {
		for member, index := range f.Tensors {
			t := format.Tensor{Name: u.logical[index].Name, DType: u.logical[index].DType,
				Shape: u.logical[index].Shape}
			for _, cell := range f.Grid.Cells {
				if cell.Box.Empty() {
					continue
				}
				held := cell.Held[0]
				slot := &l.Slots[f.Slots[held.Slot]]
				from := u.stored[slot.Names[member]]
				t.Proofs = from.Proofs
				moved := boxFrom(cell.Box, slot.Shape, held.View.At(cell.Box))
				t.Pieces = append(t.Pieces,
					format.RestrictPieces(from.DType, from.Pieces, moved, cell.Box)...)
				t.Replicas = append(t.Replicas,
					format.RestrictPieces(from.DType, from.Replicas, moved, cell.Box)...)
			}
			u.out = append(u.out, t)
		}
	}
	return nil
}

// boxFrom returns a box as large as box that begins at an element of a packed tensor of a shape.
func boxFrom(box tensor.Box, shape tensor.Shape, element int) tensor.Box {
	moved := slices.Clone(box)
	for d, stride := range shape.Strides() {
		from := element / stride
		element %= stride
		moved[d] = tensor.Span{From: from, To: from + box[d].Len()}
	}
	return moved
}

// renameValues renames in the checkpoint step counts, and the parameters in an optimizer's groups.
func (u *splitter) renameValues() {
	names := func(kind, param string) []string {
		return u.parts.Names(stateName(kind, u.ruleName(expertParam(param))))
	}
	var all []format.Value
	for _, v := range u.c.Values {
		m := knownTensor.FindStringSubmatch(v.Path)
		list, isList := v.Data.([]any)
		switch {
		case m != nil && m[1] == "": // what a module keeps
		case m != nil && names(m[1], m[2]) != nil:
			for _, name := range names(m[1], m[2]) {
				all = append(all, format.Value{Path: name, Data: v.Data})
			}
		case isList && groupPath.MatchString(v.Path) && strings.HasSuffix(v.Path, "."+namesKey):
			var renamed []any
			for _, x := range list {
				param, _ := x.(string)
				if own := names("", param); own != nil {
					for _, name := range own {
						renamed = append(renamed, name)
					}
				} else {
					renamed = append(renamed, x)
				}
			}
			all = append(all, format.Value{Path: v.Path, Data: renamed})
		default:
			all = append(all, v)
		}
	}
	u.c.Values = all
}
