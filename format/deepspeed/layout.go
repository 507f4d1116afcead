package deepspeed

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/tensor"
)

// This file lays out universal checkpoints: parameters, and what a folder needs. It does no I/O.

// fileVersion is the version of DeepSpeed whose files these resemble, for a checkpoint that
// DeepSpeed did not write.
const fileVersion = "0.19.0"

// Keys of model states.
const (
	// the names of parameters that are others once more, and those of the others
	sharedKey  = "shared_params"
	buffersKey = "buffer_names"
	degreesKey = "checkpoint_parallel_dimensions"
	// Under ownKey is what shoal has written for itself; under mastersKey in it the names of what
	// the model has of the master weights: no tensors of their own.
	ownKey     = "shoal"
	mastersKey = "master_weights"
)

// modulePrefix is the reader's prefix for what the model holds.
const modulePrefix = "module."

// stateName matches state of a parameter: its kind, and the parameter.
var stateName = pattern.New(`^optimizer\.([^.]+)\.(.+)$`)

// megatronScaler is Megatron's scaler of f16 gradients, whose scale is a tensor and not state of a
// parameter.
const megatronScaler = "grad_scaler"

// A writer lays out a universal checkpoint; a zeroWriter contains one, and lays out ZeRO's. It is
// for one goroutine and one checkpoint, in all files of the package. It does no I/O: it only says
// what the files are to hold.
type writer struct {
	*format.Output
	given  []format.Tensor             // tensors of the checkpoint, which are not changed
	values []format.Value              // its values, likewise
	tag    string                      // name of the folder that is written
	params []string                    // parameters with state, in the order of their names
	states map[string][]*format.Tensor // their state, by parameter
	steps  map[string]any              // step counts that are not tensors
	models []*format.Tensor            // tensors that are no state of a parameter
	prefix string                      // prefix of the model's tensors
	shared map[string]string           // as shared_params has them
	stage  int64                       // stage of ZeRO; 0 = a universal checkpoint
	alone  bool                        // whether files of state are in the form that stage 3 reads
	// how tensor parallel ranks share parameters; nil where that is not said
	rules *rules
	index map[string]int // index of each tensor in the output
}

// Layout lays out a universal checkpoint of DeepSpeed, which loads over any number of ranks: a file
// for each parameter and kind of state, what the model holds, for the stages 1 and 2 and for 3, and
// learning rates. Each parameter with state must have its weights in f32, as optimizer.fp32.NAME or
// in the model.
func Layout(tensors []format.Tensor, values []format.Value) (*format.Output, error) {
	w := newWriter(universalFormat, tensors, values)
	err := w.sortTensors(tensors)
	if err == nil {
		err = w.layUniversal()
	}
	if err != nil {
		return nil, fmt.Errorf("DeepSpeed: %w", err)
	}
	return w.Output, w.Finish()
}

// newWriter returns a writer without files for an output of the format name. It keeps both slices.
func newWriter(name string, tensors []format.Tensor, values []format.Value) *writer {
	return &writer{
		Output: &format.Output{Checkpoint: format.Checkpoint{Format: name}},
		given:  tensors, values: values, states: map[string][]*format.Tensor{},
		steps: map[string]any{}, index: map[string]int{}, shared: map[string]string{},
	}
}

// sortTensors finds out what each tensor belongs to, and records it in the writer.
func (w *writer) sortTensors(tensors []format.Tensor) error {
	names := map[string]bool{}
	for i := range tensors {
		t := &tensors[i]
		w.index[t.Name] = i
		w.Tensors = append(w.Tensors, format.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape})
		m := stateName.FindStringSubmatch(t.Name)
		if m == nil || m[1] == megatronScaler {
			w.models = append(w.models, t)
			names[t.Name] = true
			continue
		}
		if w.states[m[2]] == nil {
			w.params = append(w.params, m[2])
		}
		w.states[m[2]] = append(w.states[m[2]], t)
	}
	slices.Sort(w.params)
	if len(w.params) == 0 {
		return fmt.Errorf("there is no state of an optimizer (tensors optimizer.fp32.NAME and " +
			"so on), and DeepSpeed's checkpoints are little else; for weights alone choose hf " +
			"or pt")
	}
	switch {
	case slices.ContainsFunc(w.models, func(t *format.Tensor) bool {
		return strings.HasPrefix(t.Name, modulePrefix)
	}):
		w.prefix = modulePrefix
	case slices.ContainsFunc(w.params, func(p string) bool { return names["model."+p] }):
		w.prefix = "model."
	}
	var err error
	if w.rules, err = parseRules(w.values); err != nil {
		return fmt.Errorf("%w, by which DeepSpeed cuts parameters for tensor parallel ranks; "+
			"convert it with ds_to_universal", err)
	}
	return w.sortValues()
}

// sortValues records in the writer what the values say, and which of them are written.
func (w *writer) sortValues() error {
	for _, v := range w.values {
		if v.Path == infoKey+"."+expertsKey && w.stage > 0 &&
			slices.ContainsFunc(w.params, autoExpert.MatchString) {
			return errors.New("it has experts that DeepSpeed's AutoEP has placed (" + v.Path +
				"), whose ZeRO files shoal does not write; choose universal")
		}
		if v.Path == stateKey+".zero_stage" {
			stage := fmt.Sprint(v.Data) // a number, or that of an enumeration, or its name there
			w.alone = (w.rules == nil || !w.rules.saysSharing) &&
				(stage == "3" || strings.HasSuffix(stage, "[3]") ||
					strings.HasSuffix(stage, ".weights"))
		}
		if name, ok := strings.CutPrefix(v.Path, sharedKey+"."); ok {
			if other, ok := v.Data.(string); ok {
				w.shared[name] = other
			}
		}
		if m := stateName.FindStringSubmatch(v.Path); m != nil && w.states[m[2]] != nil {
			if m[1] != "step" {
				return fmt.Errorf("value %q: DeepSpeed has tensors for each parameter, and the "+
					"number of steps; leave it out with --no-values", v.Path)
			}
			switch v.Data.(type) {
			case int64, float64:
				w.steps[m[2]] = v.Data
			default:
				return fmt.Errorf(
					"value %q: %v is no number of steps; leave it out with --no-values", v.Path,
					v.Data)
			}
		} else if strings.HasPrefix(v.Path, "optimizer.") {
			continue // groups of another format, which are numbered otherwise
		}
		w.Values = append(w.Values, v)
	}
	return nil
}

// layUniversal lays out all files of a universal checkpoint.
func (w *writer) layUniversal() error {
	w.tag = w.folderName("universal", "_universal")
	for _, p := range w.params {
		if err := w.layParam(p); err != nil {
			return fmt.Errorf("parameter %q: %w", p, err)
		}
	}
	if err := w.layCommonFile(); err != nil {
		return err
	}
	if err := w.layModel(); err != nil {
		return err
	}
	if err := w.layEmptyExperts(); err != nil {
		return err
	}
	w.layLatestFile(UniversalName)
	return nil
}

// layEmptyExperts lays out the files of experts that DeepSpeed opens before it takes their weights
// from zero/, with nothing in them: those of one stage with all layers, and of a pipeline those of
// the stages after the first. In which order layers are numbered does not matter for that.
func (w *writer) layEmptyExperts() error {
	most := 0
	layers := func(params []string) int {
		found := map[string]map[string]bool{} // numbers of experts, by what their names begin with
		for _, p := range params {
			if name := expertName.FindStringSubmatch(p); name != nil {
				if found[name[1]] == nil {
					found[name[1]] = map[string]bool{}
				}
				found[name[1]][name[2]] = true
				most = max(most, len(found[name[1]]))
			}
		}
		return len(found)
	}
	stages := []int{layers(w.params)}
	groups, _ := statedStages(w.values)
	for i := 1; i < len(groups); i++ {
		stages = append(stages, layers(slices.Concat(groups[i]...)))
	}
	for mp, n := range stages {
		for layer := range n {
			for expert := range most {
				if err := w.layFile(expertFileName(layer, expert, mp), &pickle.Dict{},
					nil); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// folderName returns the name of the folder: global_stepN and the suffix, or other where the number
// of steps is not known.
func (w *writer) folderName(other, suffix string) string {
	for _, path := range []string{"global_steps", "iteration"} {
		if n, ok := w.intValue(path); ok {
			return "global_step" + strconv.FormatInt(n, 10) + suffix
		}
	}
	return other
}

// layLatestFile lays out the file that names the checkpoint's folder, such as latest.
func (w *writer) layLatestFile(name string) {
	w.Files = append(w.Files, format.OutputFile{Name: name, Size: int64(len(w.tag))})
	w.Frames = append(w.Frames, format.Frame{File: name, Bytes: []byte(w.tag)})
}

// value returns the value of a path, of those that were given; false if there is none.
func (w *writer) value(path string) (any, bool) {
	for _, v := range w.values {
		if v.Path == path {
			return v.Data, true
		}
	}
	return nil, false
}

// intValue returns the value of a path if it is a whole number; false if it is not, or is not
// there.
func (w *writer) intValue(path string) (int64, bool) {
	v, _ := w.value(path)
	n, ok := v.(int64)
	return n, ok
}

// layFile lays out a file with a pickle, in which Placeholder(i) stands for tensors[i], and adds
// the pieces in it to the output's tensors.
func (w *writer) layFile(file string, root any, tensors []*format.Tensor) error {
	var list []format.Tensor
	for _, t := range tensors {
		list = append(list, *t)
	}
	name := path.Join(w.tag, file)
	at, err := torchzip.LayoutRoot(w.Output, name, root, list)
	if err != nil {
		return err
	}
	for i, t := range tensors {
		to := &w.Tensors[w.index[t.Name]]
		p := format.Piece{Box: t.Shape.Box(), File: name, Offset: at[i]}
		if len(to.Pieces) == 0 {
			to.Pieces = append(to.Pieces, p)
		} else {
			to.Replicas = append(to.Replicas, p)
		}
	}
	return nil
}

// layParam lays out the files of a parameter.
func (w *writer) layParam(name string) error {
	if !fs.ValidPath(name) || strings.ContainsAny(name, `/\:`) {
		return fmt.Errorf("it is no name of a folder")
	}
	weights := w.weights(name)
	if weights == nil || weights.DType != tensor.F32 {
		return fmt.Errorf("it has state (%s), and no weights in f32: DeepSpeed wants "+
			"optimizer.fp32.%s, or the model's own where these are of f32", w.states[name][0].Name,
			name)
	}
	if err := w.layState(name, "fp32", weights); err != nil {
		return err
	}
	for _, t := range w.states[name] {
		kind := stateName.FindStringSubmatch(t.Name)[1]
		switch {
		case kind == "fp32":
		case kind == "step":
			if err := w.layTensorFile(path.Join("zero", name, "step.pt"), t); err != nil {
				return err
			}
		case !t.Shape.Equal(weights.Shape):
			return fmt.Errorf(
				"%s has shape %v, its weights %v; DeepSpeed has state of the same shape only",
				t.Name, t.Shape, weights.Shape)
		default:
			if err := w.layState(name, kind, t); err != nil {
				return err
			}
		}
	}
	if n, ok := w.steps[name]; ok {
		return w.layFile(path.Join("zero", name, "step.pt"), n, nil)
	}
	return nil
}

// weights returns the weights of a parameter: the master copy, or else the model's own.
func (w *writer) weights(name string) *format.Tensor {
	if t := w.findTensor("optimizer.fp32." + name); t != nil {
		return t
	}
	return w.findTensor(w.prefix + name)
}

// findTensor returns the given tensor of a name, nil when there is none.
func (w *writer) findTensor(name string) *format.Tensor {
	if i, ok := w.index[name]; ok {
		return &w.given[i]
	}
	return nil
}

// layState lays out the file of a kind of state of a parameter. Over tensor parallel ranks
// DeepSpeed cuts it as the keys beside it say. Of stage 3 it is a tensor alone, as DeepSpeed's own
// converter writes it: stage 3 of version 0.19.0 reads nothing else (that of 0.19.6 does), and the
// stages 1 and 2 read that in no version.
func (w *writer) layState(name, kind string, t *format.Tensor) error {
	file := path.Join("zero", name, kind+".pt")
	if w.alone {
		return w.layTensorFile(file, t)
	}
	p, err := torchzip.Placeholder(0, *t)
	if err != nil {
		return err
	}
	root, err := w.rules.cutKeys(name, t)
	if err != nil {
		return err
	}
	root.Add("param", p)
	return w.layFile(file, root, []*format.Tensor{t})
}

// layTensorFile lays out a file with only a tensor.
func (w *writer) layTensorFile(file string, t *format.Tensor) error {
	p, err := torchzip.Placeholder(0, *t)
	if err != nil {
		return err
	}
	return w.layFile(file, p, []*format.Tensor{t})
}
