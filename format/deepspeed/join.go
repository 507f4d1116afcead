package deepspeed

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/internal/pattern"
)

// This file joins what tensor parallel ranks have, after all else, on the reader's goroutine.

// Reasons for which parts of tensor parallel ranks stay parts.
const (
	unsaid = "its model states do not say how tensor parallel parts fit together (" + infoKey +
		", which DeepSpeed's ds_to_universal asks for too); Megatron-DeepSpeed and DeepSpeed's " +
		"AutoTP " +
		"write that, other programs give it to save_checkpoint as client_state"
	noParameter = "the model states name it neither as trained nor as frozen (param_shapes), as " +
		"buffers are, and of what is no parameter DeepSpeed says nothing; ranks do not have it " +
		"alike, or it is all one number"
	differ = "DeepSpeed takes the mean of what the ranks have of it (" + infoKey + "." +
		averagedKey +
		"), and they differ; shoal moves bytes and computes none, ds_to_universal does"
	undue = "all ranks have the same of it, and no pattern says so (" + infoKey + "." +
		replicatedKey + "); DeepSpeed's ds_to_universal would put the copies one after the other"
	ofExperts = "the patterns of " + infoKey +
		" name experts by their numbers on a rank, and it is not known which these are"
)

// mostCompared bounds the bytes that are read to find out whether ranks have something alike.
const mostCompared = 256 << 20

// autoExpert matches the experts of DeepSpeed's AutoEP, which are one tensor on each rank.
var autoExpert = pattern.New(`\.experts\.w[123]$`)

// recordSharing records what the model states of a model parallel rank say of how parameters are
// shared, which must be the same on all, and of which have another name.
func (r *reader) recordSharing(mp int, m *model) error {
	part := format.Checkpoint{}
	if info, err := pickle.Get[any](m.file.Root, infoKey); err == nil {
		if err := m.file.Flatten(&part, infoKey, info); err != nil {
			return err
		}
	}
	part.Values = slices.DeleteFunc(part.Values, func(v format.Value) bool {
		key, _, _ := strings.Cut(strings.TrimPrefix(v.Path, infoKey+"."), ".")
		return !slices.Contains(sharingKeys, key)
	})
	if mp == 0 {
		r.info = part.Values
	} else if r.infoError == nil && !reflect.DeepEqual(r.info, part.Values) {
		r.infoError = fmt.Errorf(
			"%s and %s do not say the same of how tensor parallel parts fit together (%s)",
			r.models[rankID{0, 0}], m.file.Name, infoKey)
	}
	if shared, err := pickle.Get[*pickle.Dict](m.file.Root, sharedKey); err == nil {
		for _, item := range shared.Items {
			name, is := item.Key.(string)
			if other, ok := item.Value.(string); is && ok {
				r.aliases[name] = other
			}
		}
	}
	return nil
}

// recordNames records which parameters the model states of a model parallel rank name.
func (r *reader) recordNames(m *model) {
	for _, p := range slices.Concat(append(m.shapes, m.frozen)...) {
		r.params[p.name] = true
	}
}

// A joiner joins the parts of tensor parallel ranks. It is for the goroutine of its reader. Of its
// methods joinTensor, joinShared, checkDistinct and equalParts can read elements from files, as far
// as bytesLeft allows; the others do no I/O.
type joiner struct {
	*reader
	rules          *rules                     // what readRules has read; nil before
	groups         map[string][]format.Tensor // parts of each tensor, by name
	distinctErrors map[string]error           // results of checkDistinct
	bytesLeft      int64                      // bytes that may still be compared
}

// joinTensorParallel joins the parts of tensor parallel ranks among the checkpoint's tensors, as
// universal_checkpoint_info says. Other parts stay, with the reason.
func (r *reader) joinTensorParallel() error {
	if err := r.Finish(); err != nil { // in order, what is of one name stands together
		return err
	}
	j := &joiner{reader: r, groups: map[string][]format.Tensor{},
		distinctErrors: map[string]error{},
		bytesLeft:      mostCompared}
	var names []string
	for from := 0; from < len(r.Tensors); {
		to := from + 1
		for to < len(r.Tensors) && r.Tensors[to].Name == r.Tensors[from].Name {
			to++
		}
		name := r.Tensors[from].Name
		names = append(names, name)
		j.groups[name] = r.Tensors[from:to]
		from = to
	}
	never := j.readRules(names)
	var joined []format.Tensor
	for _, name := range names {
		parts := j.groups[name]
		if !slices.ContainsFunc(parts, func(t format.Tensor) bool {
			return t.Coords != nil && t.WhyPart == ""
		}) {
			joined = append(joined, parts...)
			continue
		}
		whole, err := format.Tensor{}, never
		if err == nil {
			whole, err = j.joinTensor(name, parts)
		}
		if err == nil {
			joined = append(joined, whole)
			continue
		}
		for _, t := range parts {
			if t.Coords != nil && t.WhyPart == "" {
				t.WhyPart = err.Error()
			}
			joined = append(joined, t)
		}
	}
	r.Tensors = joined
	return nil
}

// readRules reads the patterns, and finds out what they say of all names. It fails where nothing is
// to be joined.
func (j *joiner) readRules(names []string) (err error) {
	if j.infoError != nil {
		return j.infoError
	}
	if j.rules, err = parseRules(j.info); err != nil {
		return err
	}
	if j.rules == nil || !j.rules.saysSharing {
		return errors.New(unsaid)
	}
	if err := j.rules.checkVersion(); err != nil {
		return err
	}
	for _, name := range names {
		if _, param := parameterOf(name); param != "" {
			// what it says counts when the parameter is joined
			_, _ = j.rules.sharingOf(j.ruleName(param))
		}
	}
	if err := j.rules.effort.CheckLeft(); err != nil {
		return err
	}
	return j.rules.checkAllUsed()
}

// parameterOf splits the name of a tensor of the model or of optimizer state into the kind of
// state, "" for the model's own tensors, and the parameter; both are "" for other tensors.
func parameterOf(name string) (kind, param string) {
	if param, ok := strings.CutPrefix(name, modulePrefix); ok {
		return "", param
	}
	if m := stateName.FindStringSubmatch(name); m != nil {
		return m[1], m[2]
	}
	return "", ""
}

// firstName returns the name under which the patterns know a parameter: shared parameters have the
// name of the first.
func (j *joiner) firstName(param string) string {
	if other, ok := j.aliases[param]; ok {
		return other
	}
	return param
}

// ruleName returns the name by which the patterns find a parameter: an expert has its number on its
// rank.
func (j *joiner) ruleName(param string) string {
	if local, ok := j.locals[j.firstName(param)]; ok {
		return local
	}
	return j.firstName(param)
}

// joinTensor joins the parts of the tensor of a name. It reads elements where only these show how
// they fit together.
func (j *joiner) joinTensor(name string, parts []format.Tensor) (whole format.Tensor, err error) {
	var list []format.Part
	for i := range parts {
		t := &parts[i]
		if len(t.Coords) != 1 || t.Coords[0].Axis != "tp" || t.WhyPart != "" {
			return whole, fmt.Errorf("beside what tensor parallel ranks have there is another %q",
				t.Name)
		}
		list = append(list, format.Part{Tensor: t, Rank: t.Coords[0].Index})
	}
	kind, param := parameterOf(name)
	if param == "" {
		return whole, errors.New("it has no name of a parameter")
	}
	param = j.firstName(param)
	weights := j.groups[stateTensorName("fp32", param)]
	if number, err := checkAgainstWeights(kind, list, weights); err != nil {
		return whole, err
	} else if number {
		return format.JoinReplicas(list)
	}
	if _, known := j.locals[param]; !known && expertName.MatchString(param) ||
		autoExpert.MatchString(param) && j.usesAutoEP() {
		return whole, errors.New(ofExperts)
	}
	s, err := j.rules.sharingOf(j.ruleName(param))
	if err != nil {
		return whole, err
	}
	if whole, err = j.joinShared(s, param, list); err != nil {
		return whole, err
	}
	if s.vocabulary {
		err = j.rules.cropVocabulary(&whole)
	}
	if one := len(weights) == 1 && weights[0].Coords == nil; err == nil && one &&
		!weights[0].Shape.Equal(whole.Shape) {
		err = fmt.Errorf("its parts come to the shape %v, and %s has %v", whole.Shape,
			weights[0].Name, weights[0].Shape)
	}
	return whole, err
}

// usesAutoEP reports whether DeepSpeed's AutoEP has placed experts.
func (j *joiner) usesAutoEP() bool {
	return slices.ContainsFunc(j.info, func(v format.Value) bool {
		return v.Path == infoKey+"."+expertsKey
	})
}

// stateTensorName returns the name of a tensor of optimizer state of a parameter.
func stateTensorName(kind, param string) string { return "optimizer." + kind + "." + param }

// checkAgainstWeights compares parts with the weights of their parameter on the same ranks, of
// which they should have the shape. It reports whether they are single numbers of an optimizer
// beside these, such as the step, and fails where they are something else.
func checkAgainstWeights(kind string, list []format.Part, weights []format.Tensor) (number bool,
	err error) {
	if len(weights) != len(list) || weights[0].Coords == nil {
		return false, nil
	}
	for i, p := range list {
		if p.Shape.Equal(weights[i].Shape) {
			continue
		}
		if kind == "" || p.Shape.Box().Elements() != 1 {
			return false, fmt.Errorf("rank %d has it in the shape %v, and %s in the shape %v",
				p.Rank, p.Shape, weights[i].Name, weights[i].Shape)
		}
		number = true
	}
	return number, nil
}

// joinShared joins the parts of a tensor of a parameter in the way that the parameter is shared.
func (j *joiner) joinShared(s sharing, param string, list []format.Part) (format.Tensor, error) {
	if s.unmatched && !j.params[j.ruleName(param)] {
		same, one, err := j.equalParts(list, math.MaxInt)
		if err != nil || !same || one && len(list[0].Shape) > 0 {
			return format.Tensor{}, errors.Join(err, errors.New(noParameter))
		}
		return format.JoinReplicas(list)
	}
	switch {
	case s.alike:
		return format.JoinReplicas(list)
	case s.averaged:
		same, _, err := j.equalParts(list, math.MaxInt)
		if err != nil || !same {
			return format.Tensor{}, errors.Join(err, errors.New(differ))
		}
		return format.JoinReplicas(list)
	case s.unmatched:
		if err := j.checkDistinct(param); err != nil {
			return format.Tensor{}, err
		}
	}
	c, err := j.rules.cutOf(s, list, j.tp)
	if err != nil {
		return format.Tensor{}, err
	}
	return format.JoinParts(list, c)
}

// checkDistinct fails for a parameter that no pattern names, and of which all ranks have the same
// numbers, as far as it reads them: it is not cut, and was forgotten. Numbers that are all the same
// tell nothing. All state of a parameter is as its weights.
func (j *joiner) checkDistinct(param string) error {
	err, known := j.distinctErrors[param]
	if known {
		return err
	}
	parts := j.groups[stateTensorName("fp32", param)]
	if len(parts) < 2 {
		parts = j.groups[modulePrefix+param]
	}
	var list []format.Part
	for i := range parts {
		list = append(list, format.Part{Tensor: &parts[i]})
	}
	if len(list) > 1 {
		same, one, wrong := j.equalParts(list, 1<<18)
		if err = wrong; same && !one {
			err = errors.New(undue)
		}
	}
	j.distinctErrors[param] = err
	return err
}

// equalParts reads at most a number of elements of each part, and reports whether the parts are
// equal bit by bit, and whether all these elements are one. What it reads counts against bytesLeft.
func (j *joiner) equalParts(list []format.Part, most int) (same, one bool, err error) {
	first := list[0]
	for _, p := range list[1:] {
		if p.DType != first.DType || !p.Shape.Equal(first.Shape) {
			return false, false, nil
		}
	}
	n, err := first.Shape.Elements()
	size := first.DType.Size()
	if err != nil || size == 0 {
		return false, false, fmt.Errorf("elements of %v are not compared", first.DType)
	}
	n = min(n, most)
	const block = 1 << 16 // elements
	var head []byte
	x, y := make([]byte, min(n, block)*size), make([]byte, min(n, block)*size)
	one = true
	for from, step := 0, 1<<10; from < n; from, step = from+step, min(4*step, block) {
		to := min(from+step, n)
		x, y = x[:(to-from)*size], y[:(to-from)*size]
		if j.bytesLeft -= int64(len(list) * len(x)); j.bytesLeft < 0 {
			return false, false,
				errors.New("there is too much to compare when the checkpoint is opened")
		}
		if err := j.files.ReadRange(first.Tensor, from, to, x); err != nil {
			return false, false, err
		}
		if from == 0 {
			head = bytes.Clone(x[:size])
		}
		one = one && bytes.Equal(x, bytes.Repeat(head, to-from))
		for _, p := range list[1:] {
			if err := j.files.ReadRange(p.Tensor, from, to, y); err != nil {
				return false, false, err
			}
			if !bytes.Equal(x, y) {
				return false, false, nil
			}
		}
	}
	return true, one, nil
}
