package deepspeed

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// This file reads universal checkpoints: on the reader's goroutine, and blocking on files.

// stateKey is the file beside zero/NAME, without .pt, and what its values are under; those of
// ZeRO's files are under it too.
const stateKey = "optimizer_state"

const universalFormat = "DeepSpeed universal"

// readUniversal adds what is in zero/NAME/KIND.pt, and the model states, to the checkpoint.
func (r *reader) readUniversal() error {
	r.Format = universalFormat
	shapes, trained := map[string]tensor.Shape{}, map[string]string{}
	var order []params
	for mp := range r.mp {
		group, err := r.openModels(mp)
		if err != nil {
			return err
		}
		if err := r.addModel(mp, group); err != nil {
			return err
		}
		m := group[0]
		// else the order is that of a number of ranks
		if robin, _ := pickle.Get[bool](m.file.Root, "ds_config", "zero_optimization",
			"round_robin_gradients"); mp == 0 && !robin {
			order = m.shapes
		} else if !slices.EqualFunc(order, m.shapes, sameNames) { // it is that of a stage
			order = nil
		}
		r.recordNames(m)
		for _, p := range slices.Concat(append(m.shapes, m.frozen)...) {
			shapes[p.name] = p.shape
		}
		for _, p := range slices.Concat(m.shapes...) {
			trained[p.name] = m.file.Name
		}
	}
	names, err := fs.ReadDir(r.files.FS(), path.Join(r.dir, "zero"))
	if err != nil {
		return err
	}
	counted := false // whether parameters have their steps
	found := map[string][]string{}
	for _, name := range names {
		if !name.IsDir() {
			continue
		}
		kinds, err := fs.ReadDir(r.files.FS(), path.Join(r.dir, "zero", name.Name()))
		if err != nil {
			return err
		}
		found[name.Name()] = nil
		for _, kind := range kinds {
			k, ok := strings.CutSuffix(kind.Name(), ".pt")
			if !ok {
				continue
			}
			if err := r.readState(path.Join("zero", name.Name(), kind.Name()),
				"optimizer."+k+"."+name.Name(), shapes); err != nil {
				return err
			}
			counted = counted || k == "step"
			found[name.Name()] = append(found[name.Name()], k)
		}
	}
	if err := r.checkComplete(found, trained); err != nil {
		return err
	}
	for _, name := range names {
		if !name.IsDir() {
			if err := r.readCommon(path.Join("zero", name.Name()), names, counted,
				order); err != nil {
				return err
			}
		}
	}
	return r.addValues()
}

// sameNames reports whether groups have the same parameters, of which tensor parallel ranks have
// parts.
func sameNames(a, b params) bool {
	return slices.EqualFunc(a, b, func(x, y param) bool { return x.name == y.name })
}

// readCommon adds to the checkpoint what the parameters have in common, such as learning rates.
// params are the folders of zero/, counted is whether these have the numbers of steps, and order
// has the parameters of each group, if it is known. After stage 3 the file has the flat buffers of
// the first rank beside, which are in the files of the parameters too, and the number of steps,
// which is not.
func (r *reader) readCommon(file string, params []fs.DirEntry, counted bool, order []params) error {
	f, err := r.openFile(file)
	if err != nil {
		return err
	}
	part := format.Checkpoint{}
	if err := f.Flatten(&part, strings.TrimSuffix(path.Base(file), ".pt"), f.Root); err != nil {
		return err
	}
	for _, v := range part.Values {
		// it stands under param_groups too
		if !strings.HasPrefix(v.Path, stateKey+".optimizer_state_dict.") {
			r.Values = append(r.Values, v)
		}
	}
	for _, t := range part.Tensors {
		if strings.HasPrefix(t.Name, stateKey+".optimizer_state_dict.") ||
			strings.HasPrefix(t.Name, stateKey+".fp32_flat_groups.") {
			continue
		}
		if is, err := t.Number(r.files.Read); err == nil { // such as a learning rate
			r.Values = append(r.Values, format.Value{Path: t.Name, Data: is})
		} else {
			r.Tensors = append(r.Tensors, t)
		}
	}
	if groups, err := pickle.Get[*pickle.List](f.Root, "param_groups"); err == nil {
		r.Values = append(r.Values, groupNames(groups, order)...)
	}
	inner, _ := pickle.Get[*pickle.Dict](f.Root, "optimizer_state_dict", "state")
	if counted || inner == nil || len(inner.Items) == 0 {
		return nil
	}
	step, err := pickle.Get[any](inner.Items[0].Value, "step")
	for _, p := range params {
		if err != nil || !p.IsDir() {
			continue
		}
		switch name := "optimizer.step." + p.Name(); t := step.(type) {
		case *torchzip.Tensor:
			r.Tensors = append(r.Tensors, t.AsTensor(name))
		case int64, float64:
			r.Values = append(r.Values, format.Value{Path: name, Data: t})
		}
	}
	return nil
}

// readState adds one kind of state of a parameter to the checkpoint, under a name: a dict with the
// tensor under "param"; or a tensor alone, which after stage 3 is flat and gets its shape from the
// model; or a number such as the step.
func (r *reader) readState(file, name string, shapes map[string]tensor.Shape) error {
	f, err := r.openFile(file)
	if err != nil {
		return err
	}
	t, isTensor := f.Root.(*torchzip.Tensor)
	if param, err := pickle.Get[*torchzip.Tensor](f.Root, "param"); err == nil {
		t, isTensor = param, true
	}
	if !isTensor {
		part := format.Checkpoint{}
		if err := f.Flatten(&part, name, f.Root); err != nil {
			return err
		}
		r.Tensors, r.Values = append(r.Tensors, part.Tensors...), append(r.Values, part.Values...)
		return nil
	}
	whole, known := shapes[path.Base(path.Dir(file))]
	if n, err := whole.Elements(); known && err == nil && len(t.Shape) == 1 && t.Shape[0] == n {
		s, err := joinShares(param{name, whole}, []*torchzip.Tensor{t}, 0)
		if err != nil {
			return err
		}
		s.Name = name
		r.Tensors = append(r.Tensors, s)
		return nil
	}
	r.Tensors = append(r.Tensors, t.AsTensor(name))
	return nil
}
