// Package deepspeed reads DeepSpeed's checkpoints: ZeRO of the stages 1, 2 and 3, whose optimizer
// state lies in flat buffers cut over the data parallel ranks, with tensor parallelism, pipelines
// and experts, and universal checkpoints, which have a file for each parameter and kind of state.
// It writes both, and ZeRO for tensor parallel ranks, expert parallel ones (stages 1 and 2), and
// pipelines (stage 1).
//
// The tensors are named module.NAME for what the model holds, and optimizer.KIND.NAME for the
// optimizer's, of which the kind fp32 is the master copy of the weights.
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

// LatestName and UniversalName are the files that name the newest checkpoint of a folder, and the
// newest universal one.
const (
	LatestName    = "latest"
	UniversalName = "latest_universal"
)

// globals are DeepSpeed's own classes in its files.
var globals = pickle.InertGlobals(
	"deepspeed.runtime.zero.config.ZeroStageEnum", "deepspeed.runtime.fp16.loss_scaler.LossScaler",
	"deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
	"deepspeed.utils.tensor_fragment.fragment_address",
	"deepspeed.checkpoint.universal_checkpoint.SubparamShape",
)

var (
	modelFile = pattern.New(`^(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt$`)
	optimFile = pattern.New(
		`^(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$`)
	layerFile = pattern.New(`^layer_(\d+)-(?:model_(\d+)-)?model_states\.pt$`)
	refusedPP = pattern.New(`^layer_\d+-.*model_states\.pt$`)
)

// A rankID is the rank that wrote a file: model parallel, then data parallel, both from 0.
type rankID struct{ mp, dp int }

// A reader is a checkpoint that is being read. It is for one goroutine and one call of Read, in
// whichever file its methods are. They may read files, and so block; those that only classify
// names, record what was read or return coordinates do not.
type reader struct {
	format.Checkpoint
	files  *format.Files
	dir    string             // folder of the checkpoint in that of files
	models map[rankID]string  // names of model states files
	optims map[rankID]string  // names of optimizer states files
	layers map[layerAt]string // files of the layers of a pipeline
	mp, dp int                // numbers of model and of data parallel ranks; mp is pp * tp
	pp, tp int                // numbers of stages and of tensor parallel ranks

	experts, expp    map[expertAt]string // files of experts: models, and optimizers
	numbers          map[string]int      // number of experts, by the prefix of their names
	expertOptimizers bool                // whether the optimizer's state is in expp
	// whether tensor parallel ranks have experts of their own, and none a part of one
	single bool
	// of single, the groups of experts that all ranks of a stage share
	together map[groupAt]bool
	// names of experts' parameters on their rank, by their names in the model.
	locals      map[string]string
	openedRanks map[int][]*rank // optimizer states, by model parallel rank

	info      []format.Value    // universal_checkpoint_info of the first model parallel rank
	infoError error             // why info cannot be used
	params    map[string]bool   // parameters that model states name
	aliases   map[string]string // second names of parameters
	steps     map[string]any    // step counts and the like, by path
}

// Read reads a folder with a file latest or latest_universal, or one that such a file names. When
// both are there latest counts. It blocks on files, on their goroutine.
func Read(files *format.Files) (*format.Checkpoint, error) {
	r := &reader{Checkpoint: format.Checkpoint{Format: "DeepSpeed"}, files: files, dir: ".",
		models: map[rankID]string{}, optims: map[rankID]string{}, layers: map[layerAt]string{},
		experts: map[expertAt]string{}, expp: map[expertAt]string{}, numbers: map[string]int{},
		locals: map[string]string{}, openedRanks: map[int][]*rank{}, together: map[groupAt]bool{},
		params: map[string]bool{}, aliases: map[string]string{}, steps: map[string]any{}}
	for _, name := range []string{UniversalName, LatestName} {
		tag, err := files.ReadAll(name, 1024)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err == nil {
			r.dir = strings.TrimSpace(string(tag))
		}
		if !fs.ValidPath(r.dir) || strings.ContainsAny(r.dir, `/\:`) {
			return nil, fmt.Errorf("%s: %q is no name of a folder", name, r.dir)
		}
	}
	entries, err := fs.ReadDir(files.FS(), r.dir)
	if err != nil {
		return nil, err
	}
	universal := slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return e.Name() == "zero" && e.IsDir()
	})
	for _, e := range entries {
		if err := r.classifyFile(e.Name(), universal); err != nil {
			return nil, err
		}
	}
	if len(r.models) == 0 {
		return nil, errors.New("DeepSpeed: the folder has no mp_rank_*_model_states.pt")
	}
	if err = r.findDegrees(); err != nil {
		return nil, fmt.Errorf("DeepSpeed: %w", err)
	}
	if universal {
		err = r.readUniversal()
	} else {
		err = r.readZero()
	}
	if err != nil {
		return nil, fmt.Errorf("DeepSpeed: %w", err)
	}
	if r.tp > 1 {
		if err := r.joinTensorParallel(); err != nil {
			return nil, err
		}
	}
	return &r.Checkpoint, r.Finish()
}

// classifyFile records a file of the checkpoint's folder under its rank or layer, by its name
// alone: it does not open it. Other names are ignored, and two files for one rank are an error. A
// universal checkpoint can have the model states for stage 3 too, which hold no weights.
func (r *reader) classifyFile(name string, universal bool) error {
	if is, err := r.classifyExpertFile(name); is {
		return err
	}
	switch {
	case layerFile.MatchString(name):
		m := layerFile.FindStringSubmatch(name)
		layer, err := strconv.Atoi(m[1])
		tp, err2 := 0, error(nil)
		if m[2] != "" {
			tp, err2 = strconv.Atoi(m[2])
		}
		if err != nil || err2 != nil || layer > 1<<20 || tp > 1<<20 {
			return fmt.Errorf("DeepSpeed: %s: a layer of such a number", name)
		}
		if other := r.layers[layerAt{layer, tp}]; other != "" {
			return fmt.Errorf("DeepSpeed: %s and %s are of the same layer", other, name)
		}
		r.layers[layerAt{layer, tp}] = name
		return nil
	case refusedPP.MatchString(name):
		return fmt.Errorf("DeepSpeed: %s is of a pipeline with another axis beside data and "+
			"model, which shoal does not read; convert the checkpoint with ds_to_universal", name)
	}
	for expression, into := range map[*pattern.Pattern]map[rankID]string{modelFile: r.models,
		optimFile: r.optims} {
		m := expression.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		dp, _ := strconv.Atoi(m[1]) // "" is rank 0: the file is not cut over data parallel ranks
		mp, err := strconv.Atoi(m[2])
		if err != nil || dp > 1<<20 || mp > 1<<20 {
			return fmt.Errorf("DeepSpeed: %s: a rank of %s", name, m[2])
		}
		if other := into[rankID{mp, dp}]; other != "" && universal &&
			(m[1] == "") != strings.HasPrefix(other, "mp_") {
			if m[1] != "" {
				continue
			}
		} else if other != "" {
			return fmt.Errorf("DeepSpeed: %s and %s are of the same rank", other, name)
		}
		into[rankID{mp, dp}] = name
		r.mp, r.dp = max(r.mp, mp+1), max(r.dp, dp+1)
	}
	return nil
}

// openFile reads the pickle of a file in the checkpoint's folder, and the elements of no tensor.
func (r *reader) openFile(name string) (*torchzip.File, error) {
	return torchzip.Open(r.files, path.Join(r.dir, name), globals)
}

// rankCoords returns the coordinates of a model parallel rank, nil without tensor parallelism.
// Stages have none, because no two of them share a parameter's name.
func (r *reader) rankCoords(mp int) format.Coords {
	if r.tp == 1 {
		return nil
	}
	return format.Coords{{Axis: "tp", Index: mp % r.tp, Of: r.tp}}
}

// stageCoords returns the coordinates of a model parallel rank for a name that is not unique to a
// stage.
func (r *reader) stageCoords(mp int) format.Coords {
	if r.pp == 1 {
		return r.rankCoords(mp)
	}
	return append(format.Coords{{Axis: "pp", Index: mp / r.tp, Of: r.pp}}, r.rankCoords(mp)...)
}

// readZero adds the model and optimizer states of every rank to the checkpoint.
func (r *reader) readZero() error {
	if r.pp > 1 && len(r.layers)+len(r.experts) == 0 {
		return fmt.Errorf("%s is of a pipeline of %d stages, and there are no files of its "+
			"layers (layer_00-*model_states.pt); copy them from where it was written",
			r.models[rankID{0, 0}], r.pp)
	}
	if err := r.readExperts(); err != nil {
		return err
	}
	if len(r.optims) == 0 {
		if err := r.addNumberedExpertState(); err != nil {
			return err
		}
	}
	var stages []*model
	for mp := range r.mp {
		group, err := r.openModels(mp)
		if err != nil {
			return err
		}
		if len(r.optims) == 0 {
			if err := r.acceptNoOptimizer(group[0]); err != nil {
				return err
			}
		}
		if mp%r.tp == 0 {
			stages = append(stages, group[0])
		}
		if err := r.addModel(mp, group); err != nil {
			return err
		}
		if len(r.optims) > 0 {
			if err := r.addOptimizer(mp, group[0]); err != nil {
				return err
			}
		}
		r.recordNames(group[0])
	}
	if err := r.joinTied(); err != nil {
		return err
	}
	if len(r.layers) > 0 {
		if err := r.readLayers(stages); err != nil {
			return err
		}
	}
	return r.addValues()
}

// acceptNoOptimizer accepts model states beside which there are no optimizer states, as without
// ZeRO. If they were trained with ZeRO it sets Doubt, and takes no tensor of m for a copy of master
// weights; in stage 3 it fails.
func (r *reader) acceptNoOptimizer(m *model) error {
	if len(m.shapes) == 0 {
		return nil
	}
	if m.cut {
		return fmt.Errorf("there are no optimizer states files (*_optim_states.pt), and %s is "+
			"of stage 3, in which only they have the weights that are trained; copy them from "+
			"where it was written", m.file.Name)
	}
	m.duplicates = nil // of no master weights
	r.Doubt = "it was trained with ZeRO, and there are no optimizer states files " +
		"(*_optim_states.pt)"
	return nil
}

// missingModelError is the error for a rank without a model states file.
func missingModelError(mp, dp int) error {
	return fmt.Errorf("there is no model states file of mp rank %d, dp rank %d; a rank did not "+
		"finish its save, or the file was not copied", mp, dp)
}

// openModels opens the model states of a model parallel rank: one file, or in stage 3 one for each
// data parallel rank. It records what the first says of shared parameters.
func (r *reader) openModels(mp int) (group []*model, err error) {
	for dp := range r.dp {
		name := r.models[rankID{mp, dp}]
		if name == "" && dp > 0 && !group[0].cut {
			break
		}
		if name == "" {
			return nil, missingModelError(mp, dp)
		}
		m, err := r.openModel(name)
		if err != nil {
			return nil, err
		}
		group = append(group, m)
	}
	return group, r.recordSharing(mp, group[0])
}

// A model is the content of a model states file.
type model struct {
	file *torchzip.File
	// whether it is one of several files of stage 3, which have a part of each parameter or none.
	cut    bool
	shapes []params     // parameters of each group; nil without ZeRO
	frozen params       // parameters that are not trained
	module *pickle.Dict // the model's tensors, by name
	// tensors of the module that equal master weights, by name; addModel fills them in.
	duplicates map[string]format.Tensor
}

// A params is a list of parameters with their whole shapes, in order.
type params []param

type param struct {
	name  string
	shape tensor.Shape // of the whole parameter
}

// openModel reads a model states file, but for the elements of its tensors.
func (r *reader) openModel(name string) (*model, error) {
	f, err := r.openFile(name)
	if err != nil {
		return nil, err
	}
	m := &model{file: f, cut: strings.HasPrefix(name, "zero_")}
	if names, err := pickle.Get[*pickle.List](f.Root, ownKey, mastersKey); err == nil {
		m.duplicates = map[string]format.Tensor{}
		for _, x := range names.Items {
			if name, ok := x.(string); ok {
				m.duplicates[name] = format.Tensor{}
			}
		}
	}
	if m.module, err = pickle.Get[*pickle.Dict](f.Root, "module"); err != nil {
		if none, _ := pickle.Get[any](f.Root, "module"); none != nil ||
			len(r.layers) == 0 && r.pp == 1 && r.Format != universalFormat {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		m.module = &pickle.Dict{} // a pipeline's is in the files of its layers
	}
	if groups, err := pickle.Get[*pickle.List](f.Root, "param_shapes"); err == nil {
		for _, g := range groups.Items {
			shapes, err := parseShapes(g)
			if err != nil {
				return nil, fmt.Errorf("%s: param_shapes: %w", name, err)
			}
			m.shapes = append(m.shapes, shapes)
		}
	}
	if frozen, err := pickle.Get[*pickle.Dict](f.Root, "frozen_param_shapes"); err == nil {
		if m.frozen, err = parseShapes(frozen); err != nil {
			return nil, fmt.Errorf("%s: frozen_param_shapes: %w", name, err)
		}
	}
	return m, nil
}

// parseShapes reads a dict of whole shapes by the names of parameters, as param_shapes has them.
func parseShapes(v any) (params, error) {
	d, ok := v.(*pickle.Dict)
	if !ok {
		return nil, fmt.Errorf("%s instead of a dict", pickle.KindWithArticle(v))
	}
	var list params
	for _, item := range d.Items {
		name, ok := item.Key.(string)
		if !ok {
			return nil, fmt.Errorf("%s as a name", pickle.KindWithArticle(item.Key))
		}
		shape, err := pickle.ParseSizes(item.Value)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		if _, err := tensor.Shape(shape).Elements(); err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		list = append(list, param{name, shape})
	}
	return list, nil
}

// addModel adds the model's tensors of a model parallel rank to the checkpoint, and notes in
// group[0] those that equal master weights. In stage 3 parameters are cut: frozen ones are kept as
// flat parts, the others as master weights only, and the module has placeholders.
func (r *reader) addModel(mp int, group []*model) error {
	first := group[0]
	if first.cut && len(first.module.Items) == 0 && r.Format == universalFormat {
		return fmt.Errorf("%s has no model in it, as shoal writes it for stage 3 beside the "+
			"model states with the weights: mp_rank_%02d_model_states.pt is missing; %s",
			first.file.Name, mp, copyHint)
	}
	part := format.Checkpoint{}
	if err := first.file.Flatten(&part, "module", first.module); err != nil {
		return err
	}
	shared, err := pickle.Get[*pickle.Dict](first.file.Root, sharedKey)
	if err != nil {
		shared = &pickle.Dict{}
	}
	elsewhere := map[string]bool{} // than in the module
	for _, p := range slices.Concat(append(first.shapes, first.frozen)...) {
		elsewhere[p.name] = true
	}
	for _, t := range part.Tensors {
		name := strings.TrimPrefix(t.Name, "module.")
		if _, tied := shared.Get(name); tied && first.cut {
			continue
		}
		if _, ok := first.duplicates[name]; ok {
			first.duplicates[name] = t
			continue
		}
		if first.cut && elsewhere[name] {
			continue
		}
		t.Coords = r.rankCoords(mp)
		r.Tensors = append(r.Tensors, t)
	}
	if !first.cut {
		return nil
	}
	for _, p := range first.frozen {
		var parts []*torchzip.Tensor
		for _, m := range group {
			t, err := pickle.Get[*torchzip.Tensor](m.file.Root, "frozen_param_fragments", p.name)
			if err != nil {
				return fmt.Errorf("%s: %w", m.file.Name, err)
			}
			parts = append(parts, t)
		}
		t, err := joinShares(p, parts, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", first.file.Name, err)
		}
		t.Name, t.Coords = "module."+p.name, r.rankCoords(mp)
		r.Tensors = append(r.Tensors, t)
	}
	return nil
}

// addValues adds what the model states hold besides the model to the checkpoint: that of the first
// rank, and of other ranks what only they have.
func (r *reader) addValues() error {
	f, err := r.openFile(r.models[rankID{0, 0}])
	if err != nil {
		return err
	}
	root, ok := f.Root.(*pickle.Dict)
	if !ok {
		return fmt.Errorf("%s: %s instead of a dict", f.Name, pickle.KindWithArticle(f.Root))
	}
	part := format.Checkpoint{}
	for _, item := range root.Items {
		key, _ := item.Key.(string)
		switch key {
		case "optimizer":
			if r.expertOptimizers {
				continue
			}
		case "module", "param_shapes", "frozen_param_shapes", "frozen_param_fragments", ownKey, "":
			continue
		}
		if err := f.Flatten(&part, key, item.Value); err != nil {
			return err
		}
	}
	if r.mp > 1 {
		if err := r.addOtherRanks(&part); err != nil {
			return err
		}
	}
	r.Values = append(r.Values, part.Values...)
	r.Tensors = append(r.Tensors, part.Tensors...)
	return nil
}
