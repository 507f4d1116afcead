package megatron

// This file counts steps, for the writers (layout.go, torchdist_layout.go), on their goroutine.
import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/tensor"
)

// planState finds out which optimizers there are and how many steps they have made, and checks the
// shapes of their state. It removes from the writer's values what is said anew.
func (w *distWriter) planState(tensors []format.Tensor,
	read func(*format.Tensor, []byte) error) error {
	if err := w.planOptimizers(); err != nil {
		return err
	}
	s := w.ranks[0]
	if len(s.states) > 0 && len(w.optimizers) == 0 {
		return fmt.Errorf("there is state of an optimizer (such as %q), and nothing of its "+
			"groups (values optimizer.….param_groups.0.lr), without which Megatron loads none; "+
			"leave it out with --only 'model.**', or choose another format, such as dcp",
			w.anyStateName())
	}
	shapes := map[string]tensor.Shape{}
	for _, l := range s.model {
		shapes[l.param] = l.Shape
	}
	for _, param := range slices.Sorted(maps.Keys(s.states)) {
		for _, l := range s.states[param] {
			if own, there := shapes[param]; there && l.kind != "step" && !l.Shape.Equal(own) {
				return fmt.Errorf("tensor %q has shape %v, its parameter %v; Megatron has state "+
					"of the same shape only", l.Name, l.Shape, own)
			}
		}
	}
	if err := w.countSteps(tensors, read); err != nil {
		return err
	}
	// what is said anew
	w.values = slices.DeleteFunc(slices.Clone(w.values), func(v format.Value) bool {
		return strings.HasPrefix(v.Path, optimizerKey+".") &&
			(strings.HasSuffix(v.Path, "."+shardingKey) ||
				w.made >= 0 && strings.HasSuffix(v.Path, commonStep))
	})
	return nil
}

// anyStateName returns the name of a tensor of state, of which there is one.
func (w *distWriter) anyStateName() string {
	states := w.ranks[0].states
	return states[slices.Sorted(maps.Keys(states))[0]][0].Name
}

// countSteps sets made to the steps of the optimizer, which Megatron has once for all parameters.
func (w *writer) countSteps(tensors []format.Tensor,
	read func(*format.Tensor, []byte) error) error {
	said := ""
	add := func(name string, n float64) error {
		if n < 0 || n != math.Trunc(n) || n > 1<<53 || said != "" && int64(n) != w.made {
			return fmt.Errorf(
				"%q is %v, and %q is %d; Megatron has one number of steps for all parameters", name,
				n, cmp.Or(said, name), max(w.made, 0))
		}
		w.made, said = int64(n), name
		return nil
	}
	for i := range tensors {
		t := &tensors[i]
		if !strings.HasPrefix(t.Name, stepPrefix) {
			continue
		}
		n, err := readNumber(t, read)
		if err == nil {
			err = add(t.Name, n)
		}
		if err != nil {
			return err
		}
	}
	for _, param := range slices.Sorted(maps.Keys(w.steps)) {
		for _, v := range w.steps[param] {
			if v.Path != "step" {
				return fmt.Errorf("value %q: Megatron keeps tensors for each parameter, and the "+
					"number of steps; leave it out with --no-values",
					optimizerKey+"."+v.Path+"."+param)
			}
			n, isNumber := floatOf(v.Data)
			if !isNumber {
				n = -1
			}
			if err := add(stepPrefix+param, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// floatOf returns a number among values, which can be an integer; false for what is none.
func floatOf(v any) (float64, bool) {
	if n, ok := v.(int64); ok {
		return float64(n), true
	}
	n, ok := v.(float64)
	return n, ok
}

// readNumber reads a tensor that is a number.
func readNumber(t *format.Tensor, read func(*format.Tensor, []byte) error) (float64, error) {
	v, err := t.Number(read)
	n, isNumber := floatOf(v)
	if err == nil && !isNumber {
		err = fmt.Errorf("tensor %q is of %v, which is no number of steps", t.Name, t.DType)
	}
	return n, err
}
