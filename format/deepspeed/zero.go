package deepspeed

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/tensor"
)

// This file plans ZeRO's files for one model parallel rank: one goroutine, no I/O but read's.

// bf16Files is the prefix of the names of optimizer states if DeepSpeed trains in bf16: then it
// looks for no others, and else not for these.
const bf16Files = "bf16_"

// subGroup is the number of elements of a rank of which stage 3 makes a group of its own, if the
// configuration does not say.
const subGroup = 1_000_000_000

// A zeroWriter lays out the checkpoint of a ZeRO stage over some ranks. It is for one goroutine and
// one call of layRank. It does no I/O, except through the function read of its methods that have
// one.
type zeroWriter struct {
	*writer
	ranks   int             // number of data parallel ranks
	mp      int             // model parallel rank, from 0
	tp, tps int             // tensor parallel rank, and number of them
	stageOf *stage          // stage of a pipeline; nil = no pipeline
	pps     int             // number of stages
	bf16    string          // prefix of the names of the files of optimizer states
	mixture *mixture        // nil = no experts
	groups  [][]string      // parameters of each group of the optimizer
	in      map[string]bool // parameters that are in a group
	flats   []*flatState
	buffers []string        // names of the model's buffers
	placed  map[string]bool // tensors that have their pieces
}

// A flatState is a group of parameters whose state stands in flat buffers: a group of the
// optimizer, or in stage 3 a part of one. It is for its writer's goroutine, and does no I/O.
type flatState struct {
	group   int        // group of the optimizer, from 0
	params  []string   // names of its parameters, in the order of the buffer
	kinds   []string   // kinds of state that are cut like the weights, besides these
	numbers []string   // kinds of state that are a number, as a tensor
	steps   any        // number of steps where that is not a tensor; nil = none
	experts [][]string // parameters of each expert parallel rank; nil = no experts
}

// A Zero says for which ranks a checkpoint of ZeRO is, and what they look for.
// Its methods do not change it, and do no I/O, except by the function read of layRanks.
type Zero struct {
	Stage int // stage of ZeRO, 1 to 3
	DP    int // data parallel ranks
	TP    int // tensor parallel ranks; 0 means 1
	EP    int // expert parallel ranks, which are data parallel ranks as well; 0 means 1
	// PP is the stages of a pipeline; 0 = no pipeline, and so is 1 for a model without one.
	PP int
	// Starts are the layers with which the stages after the first begin. nil has as many stages as
	// were trained as they were, and others as DeepSpeed cuts them, where what was trained tells in
	// which way that is.
	Starts []int
	// BF16 says that DeepSpeed trains in bf16, where neither the configuration nor the element type
	// of the model tells it.
	BF16 bool
}

// LayoutZero lays out what DeepSpeed saves in a stage over a number of data parallel ranks.
// DeepSpeed loads it over as many only, and by position: so the values must say which parameters
// are in which group and in which order, as those of a checkpoint of DeepSpeed do. Over several
// tensor parallel ranks they must say how these share parameters (universal_checkpoint_info), which
// they do evenly; and over stages of a pipeline which parameters these have, as the reader says it.
// read reads numbers of steps. What stage 3 has no place for, because it makes it of the master
// weights, is in Implied.
func LayoutZero(z Zero, tensors []format.Tensor, values []format.Value,
	read func(*format.Tensor, []byte) error) (*format.Output, error) {
	var out *format.Output
	var err error
	if z.TP > 1 || z.PP > 0 {
		out, err = z.layRanks(tensors, values, read)
	} else {
		w := z.newWriter(tensors, values)
		if w.mixture, err = z.planMixture(tensors, values); err == nil {
			err = w.layRank(tensors, read)
		}
		if err == nil {
			out, err = w.Output, w.Finish()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("DeepSpeed: %w", err)
	}
	return out, nil
}

// newWriter returns a writer for what one model parallel rank saves, which lays out nothing yet.
func (z Zero) newWriter(tensors []format.Tensor, values []format.Value) *zeroWriter {
	w := &zeroWriter{writer: newWriter("DeepSpeed", tensors, values), ranks: z.DP,
		tps: max(z.TP, 1), pps: max(z.PP, 1), in: map[string]bool{}, placed: map[string]bool{}}
	w.stage = int64(z.Stage)
	if z.BF16 {
		w.bf16 = bf16Files
	}
	return w
}

// layRank lays out what one model parallel rank saves. read reads numbers of steps.
func (w *zeroWriter) layRank(tensors []format.Tensor,
	read func(*format.Tensor, []byte) error) error {
	if err := w.sortTensors(tensors); err != nil {
		return err
	}
	if err := w.planBuffers(read); err != nil {
		return err
	}
	if err := w.layZero(); err != nil {
		return err
	}
	w.Tensors = slices.DeleteFunc(w.Tensors, func(t format.Tensor) bool {
		return !w.placed[t.Name] && len(t.Pieces) == 0
	})
	return nil
}

// planBuffers finds out which parameters are in which flat buffer, and records it in the writer.
func (w *zeroWriter) planBuffers(read func(*format.Tensor, []byte) error) error {
	var err error
	if w.groups, err = w.paramsByGroup(); err != nil {
		return err
	}
	if w.groups == nil {
		return fmt.Errorf("nothing says which parameters are in which group of the optimizer, "+
			"and in which order (values %s.param_groups.0.%s), which checkpoints of DeepSpeed "+
			"tell, and it loads by position; choose universal, which it loads by names", stateKey,
			namesKey)
	}
	for _, g := range w.groups {
		for _, p := range g {
			w.in[p] = true
		}
	}
	w.findBF16()
	if list, ok := w.value(buffersKey); ok {
		names, _ := list.([]any)
		for _, x := range names {
			if name, _ := x.(string); w.stageOf == nil || w.findTensor(w.prefix+name) != nil {
				w.buffers = append(w.buffers, name)
			}
		}
	} else if w.stage == 3 {
		if rest := w.untrainedTensors(); len(rest) > 0 {
			return fmt.Errorf("tensor %q is of no parameter that is trained, and nothing says "+
				"whether it is a buffer or frozen (value %s), which stage 3 keeps in different "+
				"ways; choose zero1 or zero2", rest[0].Name, buffersKey)
		}
	} else {
		for _, t := range w.untrainedTensors() {
			w.buffers = append(w.buffers, strings.TrimPrefix(t.Name, w.prefix))
		}
	}
	for g, names := range w.groups {
		experts, err := w.mixture.shareExperts(names)
		if err != nil {
			return err
		}
		parts := [][]string{names}
		version, _ := w.versionToWrite().(string)
		if v, _ := w.value("ds_config.zero_optimization.round_robin_gradients"); w.stage == 3 {
			parts = w.splitGroup(names)
		} else if v == true && roundRobinApplies(w.stage, version) {
			if experts == nil {
				parts[0] = inRoundRobinOrder(names, w.ranks)
			}
			for e := range experts {
				experts[e] = inRoundRobinOrder(experts[e], w.mixture.sharerCount(w))
			}
		}
		for _, part := range parts {
			f := &flatState{group: g, params: part, experts: experts}
			if err := w.findState(f, read); err != nil {
				return fmt.Errorf("group %d of the optimizer: %w", g, err)
			}
			w.flats = append(w.flats, f)
		}
	}
	return w.checkLeftOver()
}

// inRoundRobinOrder returns parameters in the order in which they lie when they are distributed
// round-robin over ranks.
func inRoundRobinOrder[P any](params []P, ranks int) (all []P) {
	for _, i := range roundRobinOrder(len(params), ranks) {
		all = append(all, params[i])
	}
	return all
}

// findBF16 finds out whether DeepSpeed trains in bf16, and sets what the names of files begin with.
func (w *zeroWriter) findBF16() {
	for _, key := range []string{"bf16", "bfloat16"} {
		if v, ok := w.value("ds_config." + key + ".enabled"); ok && v == true {
			w.bf16 = bf16Files
		}
	}
	for _, v := range w.values {
		if strings.HasPrefix(v.Path, "ds_config.") {
			return // it says it all
		}
	}
	for _, p := range w.params {
		if t := w.findTensor(w.prefix + p); t != nil && t.DType == tensor.BF16 {
			w.bf16 = bf16Files
		}
	}
}

// untrainedTensors returns the model's tensors that are not trained: buffers, and frozen
// parameters.
func (w *zeroWriter) untrainedTensors() (list []*format.Tensor) {
	for _, t := range w.models {
		name, ok := strings.CutPrefix(t.Name, w.prefix)
		if ok && !w.in[name] && w.shared[name] == "" {
			list = append(list, t)
		}
	}
	return list
}

// splitGroup splits a group of parameters as stage 3 does: a part is full when it has so many
// elements on a rank.
func (w *zeroWriter) splitGroup(names []string) (parts [][]string) {
	most := subGroup
	if v, ok := w.value("ds_config.zero_optimization.sub_group_size"); ok {
		switch n := v.(type) {
		case int64:
			most = int(n)
		case float64:
			most = int(n)
		}
	}
	first, n := 0, 0
	for i, p := range names {
		if weights := w.weights(p); weights != nil {
			n += shareSize(param{p, weights.Shape}, w.ranks)
		}
		if n >= most || i == len(names)-1 {
			parts = append(parts, names[first:i+1])
			first, n = i+1, 0
		}
	}
	return parts
}

// findState finds out which state a flat buffer has, and records it in f. It fails unless all of
// its parameters have it alike.
func (w *zeroWriter) findState(f *flatState, read func(*format.Tensor, []byte) error) error {
	for i, p := range f.params {
		weights := w.weights(p)
		if weights == nil || weights.DType != tensor.F32 {
			return fmt.Errorf("parameter %q has no weights in f32: DeepSpeed wants "+
				"optimizer.fp32.%s, or the model's own where these are of f32", p, p)
		}
		kinds, numbers := []string{}, []string{}
		for _, t := range w.states[p] {
			switch kind := stateName.FindStringSubmatch(t.Name)[1]; {
			case kind == "fp32":
			case kind != "step" && t.Shape.Equal(weights.Shape):
				kinds = append(kinds, kind)
			case len(t.Shape) == 0:
				numbers = append(numbers, kind)
			default:
				return fmt.Errorf(
					"%s has shape %v, its weights %v; DeepSpeed has state of the same shape only",
					t.Name, t.Shape, weights.Shape)
			}
		}
		slices.Sort(kinds)
		slices.Sort(numbers)
		if i == 0 {
			f.kinds, f.numbers, f.steps = kinds, numbers, w.steps[p]
			continue
		}
		if !slices.Equal(kinds, f.kinds) || !slices.Equal(numbers, f.numbers) {
			return fmt.Errorf("parameter %q has the state %v, and %q %v; DeepSpeed has the same "+
				"for all in a group", p, slices.Concat(kinds, numbers), f.params[0],
				slices.Concat(f.kinds, f.numbers))
		}
		if w.steps[p] != f.steps {
			return fmt.Errorf("parameter %q has made %v steps, and %q %v; DeepSpeed has one "+
				"number for all in a group", p, w.steps[p], f.params[0], f.steps)
		}
		for _, kind := range kinds {
			if a, b := w.stateTensor(kind, p),
				w.stateTensor(kind, f.params[0]); a.DType != b.DType {
				return fmt.Errorf("%s is of %v, and %s of %v; DeepSpeed has one buffer for both",
					a.Name, a.DType, b.Name, b.DType)
			}
		}
		for _, kind := range numbers {
			if err := checkSameNumber(w.stateTensor(kind, p), w.stateTensor(kind, f.params[0]),
				read); err != nil {
				return err
			}
		}
	}
	return nil
}

// stateTensor returns the tensor of a kind of state of a parameter; nil if there is none.
func (w *zeroWriter) stateTensor(kind, param string) *format.Tensor {
	if kind == "fp32" {
		return w.weights(param)
	}
	return w.findTensor("optimizer." + kind + "." + param)
}

// checkSameNumber fails unless two tensors hold the same number; it reads them with read.
func checkSameNumber(a, b *format.Tensor, read func(*format.Tensor, []byte) error) error {
	if a.DType == b.DType && len(a.Pieces) > 0 && len(b.Pieces) > 0 &&
		a.Pieces[0].File == b.Pieces[0].File && a.Pieces[0].Offset == b.Pieces[0].Offset {
		return nil // the file has it once
	}
	x, y := make([]byte, a.Bytes()), make([]byte, b.Bytes())
	if err := read(a, x); err != nil {
		return err
	}
	if err := read(b, y); err != nil {
		return err
	}
	if a.DType != b.DType || string(x) != string(y) {
		return fmt.Errorf(
			"%s and %s are not the same number, and DeepSpeed has one for all in a group", a.Name,
			b.Name)
	}
	return nil
}

// checkLeftOver adds to Implied what is not written because DeepSpeed makes it of the master
// weights, and fails for state for which there is no place.
func (w *zeroWriter) checkLeftOver() error {
	for _, p := range w.params {
		if w.in[p] {
			continue
		}
		master, model := w.findTensor("optimizer.fp32."+p), w.findTensor(w.prefix+p)
		if len(w.states[p]) > 1 || master == nil || model == nil || !format.CanRound(model.DType) ||
			!model.Shape.Equal(master.Shape) {
			return fmt.Errorf(
				"there is state of parameter %q (%s), which is in no group of the optimizer", p,
				w.states[p][0].Name)
		}
		// DeepSpeed's converter makes master weights of what is frozen
		w.Implied = append(w.Implied, &format.Proof{Main: *master, Model: *model})
	}
	if w.stage < 3 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(w.shared)) {
		if !w.in[w.shared[name]] {
			continue // it is written as what is frozen
		}
		if err := w.addImplied(name, w.shared[name]); err != nil {
			return err
		}
	}
	for _, g := range w.groups {
		for _, p := range g {
			if err := w.addImplied(p, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// addImplied adds to Implied that the model's tensor of a name comes of the weights of a parameter
// that is trained.
func (w *zeroWriter) addImplied(name, param string) error {
	model, weights := w.findTensor(w.prefix+name), w.weights(param)
	if model == nil || model == weights {
		return nil
	}
	if !format.CanRound(model.DType) || !model.Shape.Equal(weights.Shape) {
		return fmt.Errorf("tensor %q of %v %v is not what DeepSpeed makes of %q of shape %v",
			model.Name, model.DType, model.Shape, weights.Name, weights.Shape)
	}
	w.Implied = append(w.Implied, &format.Proof{Main: *weights, Model: *model})
	return nil
}

// rankParams returns the parameters of the flat buffer of which a rank has a part, the index of the
// part, and the number of parts.
func (f *flatState) rankParams(w *zeroWriter, rank int) (params []string, index, count int) {
	if f.experts == nil {
		return f.params, rank, w.ranks
	}
	e, index := w.mixture.expertRankOf(w, rank)
	return f.experts[e], index, w.mixture.sharerCount(w)
}

// rankPart returns what a rank has of a flat buffer: for each parameter which elements, and where
// they stand; and how many elements these are, with padding and without.
func (f *flatState) rankPart(w *zeroWriter, rank int) (parts []part, size, lean int) {
	params, index, count := f.rankParams(w, rank)
	total, at := 0, 0
	for _, p := range params {
		n, _ := w.weights(p).Shape.Elements()
		total += n
		if w.stage == 3 {
			each := shareSize(param{p, w.weights(p).Shape}, w.ranks)
			parts = append(parts, part{p, min(rank*each, n), min((rank+1)*each, n), at})
			at += each
		}
	}
	if w.stage == 3 {
		return parts, at, at
	}
	// The buffer is as long as all parameters, and filled up so that the part of each rank is an
	// even number of elements.
	size = (total + 2*count - 1) / (2 * count) * 2
	from, to := index*size, (index+1)*size
	for _, p := range params {
		n, _ := w.weights(p).Shape.Elements()
		if a, b := max(at, from), min(at+n, to); a < b {
			parts = append(parts, part{p, a - at, b - at, a - from})
		}
		at += n
	}
	return parts, size, max(min(total, to)-from, 0)
}

// addFlatBuffer adds to a file the storage with a rank's part, of n elements, of the flat buffer of
// a kind of state. It returns what stands for it in the pickle.
func (w *zeroWriter) addFlatBuffer(out *file, kind string, f *flatState, parts []part, n int) (any,
	error) {
	named := slices.Clone(parts)
	for i := range named {
		named[i].name = w.stateTensor(kind, named[i].name).Name
	}
	return out.addStore(flatStore(w.stateTensor(kind, f.params[0]).DType, n, named))
}
