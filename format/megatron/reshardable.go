package megatron

// This file splits the buffers of dp_reshardable, for ReadDist: its goroutine, and reading files.
import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/megatron/order"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

var (
	// bucketKey is that of a bucket in the distributed optimizer's format dp_reshardable: of which
	// optimizer, if there are several; of which of the ranks that have other parameters; of which
	// buffer, of what types; which bucket, and which kind of state.
	bucketKey = pattern.New(
		`^(?:chained_(\d+)\.)?optimizer\.distributed\.dp_group_idx_(\d+)\.gbuf_idx_(\d+)\.dtype` +
			`_(.+)\.bucket_idx_(\d+)\.([^.]+)$`)
	// domainKey is that of what such ranks have beside.
	domainKey = pattern.New(
		`^(?:chained_(\d+)\.)?optimizer\.distributed\.dp_group_idx_(\d+)\.(\w+)$`)
)

// A bufferID identifies a flat buffer by optimizer, rank and index.
type bufferID struct{ optimizer, rank, number int }

// A bucketList is the buckets of a buffer, in order: flat tensors by the kind of state.
type bucketList []map[string]*format.Tensor

// A reshardable is a torch_dist checkpoint with buffers of the distributed optimizer. No key says
// which parameters are in a buffer, nor in which order. But arguments tell which ranks there were,
// and Megatron Core's rules which parameters these had, and in which order it registers them. This
// determines the position of each parameter, which must match the sizes of the buckets; the copies
// in f32 prove it. It is for one goroutine. Only splitBuffers and countMismatches read files.
type reshardable struct {
	c       *format.Checkpoint // what is read, and changed
	files   *format.Files
	buffers map[bufferID]bucketList
	several bool            // whether there are several optimizers
	size    degrees         // sizes of the axes; readSizes sets them
	ranks   *writer         // tells which parameters each rank has
	model   []format.Tensor // the model's parameters
}

// splitBuckets replaces the distributed optimizer's buffers of a torch_dist checkpoint by the state
// of parameters. Buffers that cannot be split stay, with the reason.
func splitBuckets(files *format.Files, c *format.Checkpoint) error {
	r := reshardable{c: c, files: files, buffers: map[bufferID]bucketList{}}
	err := r.collectBuckets()
	if len(r.buffers) == 0 && err == nil {
		return nil
	}
	if err == nil {
		err = r.splitBuffers()
	}
	var why *unnamedError
	if errors.As(err, &why) {
		for i := range c.Tensors {
			if t := &c.Tensors[i]; bucketKey.MatchString(t.Name) {
				t.WhyPart = why.Error()
			}
		}
		return nil
	}
	return err
}

// collectBuckets finds the buckets, and sorts their pieces.
func (r *reshardable) collectBuckets() (err error) {
	types := map[bufferID]string{}
	for i := range r.c.Tensors {
		t := &r.c.Tensors[i]
		m := bucketKey.FindStringSubmatch(t.Name)
		if m == nil {
			continue
		}
		var n [4]int
		for k, text := range []string{cmp.Or(m[1], "0"), m[2], m[3], m[5]} {
			if n[k], err = strconv.Atoi(text); err != nil || n[k] > 1<<20 {
				return unnamedErrorf("%q has a number that no buffer has", t.Name)
			}
		}
		id := bufferID{n[0], n[1], n[2]}
		r.several = r.several || m[1] != ""
		if len(t.Shape) != 1 || t.DType.Size() == 0 || types[id] != "" && types[id] != m[4] ||
			m[6] == mainKind || m[6] == aloneKind && t.DType != tensor.F32 {
			return unnamedErrorf("%q is of %v %v, and no flat buffer like the others",
				t.Name, t.DType, t.Shape)
		}
		types[id] = m[4]
		for len(r.buffers[id]) <= n[3] {
			if len(r.buffers[id]) > len(r.c.Tensors) {
				return unnamedErrorf("%q has the number of a bucket, and there are fewer", t.Name)
			}
			r.buffers[id] = append(r.buffers[id], map[string]*format.Tensor{})
		}
		r.buffers[id][n[3]][m[6]] = t
	}
	for id, list := range r.buffers {
		for k, kinds := range list {
			main := kinds[aloneKind]
			for _, t := range kinds {
				if main == nil || !t.Shape.Equal(main.Shape) || len(kinds) != len(list[0]) {
					return unnamedErrorf(
						"bucket %d of buffer %d of ranks %d has no copies of "+
							"the parameters, or other state than others", k, id.number, id.rank)
				}
			}
			if main == nil {
				return unnamedErrorf("bucket %d of buffer %d of ranks %d is missing", k, id.number,
					id.rank)
			}
			for _, t := range kinds {
				slices.SortFunc(t.Pieces, func(a, b format.Piece) int {
					return a.Box[0].From - b.Box[0].From
				})
			}
		}
	}
	return nil
}

// splitBuffers finds the parameters in the buffers, and puts their state into the checkpoint.
func (r *reshardable) splitBuffers() error {
	if err := r.assignTensors(); err != nil {
		return err
	}
	var best []format.Tensor
	var first error // of the first naming that does not fit
	fewest := 2     // of one, its proof will say where
	for _, names := range r.formerNamings() {
		found, err := r.joinState(names)
		if why := (*unnamedError)(nil); errors.As(err, &why) {
			first = cmp.Or(first, err)
			continue
		}
		wrong := 0
		if err == nil {
			wrong, err = r.countMismatches(found)
		}
		if err != nil {
			return err
		}
		if wrong < fewest {
			fewest, best = wrong, found
		}
		first = unnamedErrorf(
			"in the distributed optimizer's buffers the copies in f32 are not those " +
				"of the model's parameters, in the order in which Megatron Core registers these")
	}
	if best == nil {
		return first
	}
	r.replaceBuffers(best)
	return nil
}

// assignTensors finds out which parameters each rank had, and sets model and ranks.
func (r *reshardable) assignTensors() error {
	chunks, err := r.readSizes()
	if err != nil {
		return err
	}
	var catalogue []layout.Tensor
	experts := false
	for i := range r.c.Tensors {
		t := &r.c.Tensors[i]
		param, isModel := strings.CutPrefix(t.Name, "model.")
		if !isModel || noParameter.MatchString(param) || isLeftOut(t.Name) {
			continue
		}
		if _, ok := order.Position(param); !ok || !format.CanRound(t.DType) {
			return unnamedErrorf(
				"of the parameter %q, of %v, shoal does not know where among others "+
					"it stands in the distributed optimizer's buffers", param, t.DType)
		}
		experts = experts || cutExperts.MatchString(param)
		r.model = append(r.model, *t)
		catalogue = append(catalogue, layout.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	if v, _ := r.c.Value("args.expert_tensor_parallel_size"); experts && v != nil &&
		v != int64(r.size.tp) {
		return unnamedErrorf(
			"by args.expert_tensor_parallel_size experts are cut over other tensor "+
				"parallel ranks than the rest (%v), and shoal does not know which parameters "+
				"are in the distributed optimizer's buffers of each", v)
	}
	if experts && r.several != (r.size.ep > 1) {
		return unnamedErrorf(
			"by args.expert_model_parallel_size experts have an optimizer of their "+
				"own if it is more than 1 (it is %d), and the buffers are of another number of "+
				"optimizers", r.size.ep)
	}
	mesh := layout.Mesh{{Name: "pp", Size: r.size.pp}, {Name: "ep", Size: r.size.ep},
		{Name: "tp", Size: r.size.tp}}
	spec, err := layout.Preset("megatron-core", mesh, catalogue, KVHeads(r.c))
	if err == nil {
		err = layout.Interleave(spec, chunks)
	}
	if err == nil {
		for i := range spec.Store {
			spec.Store[i].Pad = nil // rows that only fill up the vocabulary are there
		}
		r.ranks = newWriter(r.c.Values)
		r.ranks.size = r.size
		err = r.ranks.placeTensors(spec, mesh, r.model)
	}
	if err == nil {
		err = r.ranks.numberLayers()
	}
	if err != nil {
		return unnamedErrorf(
			"which parameters are in the distributed optimizer's buffers shoal cannot "+
				"make out: %v", err)
	}
	return nil
}

// readSizes reads how many ranks of each kind there were into size, and returns the number of
// chunks of layers in each pipeline stage.
func (r *reshardable) readSizes() (chunks int, err error) {
	chunks = 1
	for path, to := range map[string]*int{"tensor_model_parallel_size": &r.size.tp,
		"pipeline_model_parallel_size": &r.size.pp, "expert_model_parallel_size": &r.size.ep,
		"virtual_pipeline_model_parallel_size": &chunks} {
		*to = 1
		v, said := r.c.Value("args." + path)
		n, isNumber := v.(int64)
		if isNumber && n > 0 && n <= 1<<16 {
			*to = int(n)
		} else if v != nil || !said && !strings.Contains(path, "expert") &&
			!strings.Contains(path, "virtual") {
			return 0, unnamedErrorf(
				"which parameters are in the distributed optimizer's buffers the "+
					"ranks tell that there were, and there is no args.%s that says how many", path)
		}
	}
	for _, path := range []string{"pipeline_model_parallel_layout",
		"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
		"account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"} {
		if v, _ := r.c.Value("args." + path); v != nil && v != false {
			return 0, unnamedErrorf(
				"by args.%s stages have unlike numbers of layers, and shoal does not "+
					"know which parameters are in the distributed optimizer's buffers of each",
				path)
		}
	}
	return chunks, nil
}

// oneExpert matches a parameter of one of several experts, under its name in mp_rank folders.
var oneExpert = pattern.New(
	`experts\.local_experts\.(\d+)\.(linear_fc[12]\.(?:weight|bias))$`)

// formerNamings returns functions from the names that parameters have now to those that they may
// have had when they were registered: torch_dist has one name for norms that are modules and for
// norms that are part of the products after them, and one for single experts and for experts that
// are computed together. The naming of the arguments comes first.
func (r *reshardable) formerNamings() (list []func(string) string) {
	alone := func(name string) string {
		for _, n := range norms {
			name = strings.Replace(name, n[1], n[0], 1)
		}
		return name
	}
	same := func(name string) string { return name }
	together := func(name string) string { return oneExpert.ReplaceAllString(name, "experts.$2$1") }
	byNorms, byExperts := []func(string) string{same, alone}, []func(string) string{same, together}
	if v, _ := r.c.Value("args.transformer_impl"); v == "local" {
		slices.Reverse(byNorms)
	}
	if v, _ := r.c.Value("args.moe_grouped_gemm"); v == true {
		slices.Reverse(byExperts)
	}
	for _, norm := range byNorms {
		for _, expert := range byExperts {
			list = append(list, func(name string) string { return expert(norm(name)) })
		}
	}
	return list
}

// countMismatches reads the first elements of the parameters and of their copies in found, and
// counts those that differ. It sets the proofs of found, by which the copies prove the names.
func (r *reshardable) countMismatches(found []format.Tensor) (n int, err error) {
	proofs, model := map[string][]*format.Proof{}, map[string]*format.Tensor{}
	for i := range r.model {
		model[strings.TrimPrefix(r.model[i].Name, "model.")] = &r.model[i]
	}
	const before = optimizerKey + ".fp32."
	for i := range found {
		param, isMain := strings.CutPrefix(found[i].Name, before)
		if !isMain {
			continue
		}
		own := model[param]
		proofs[param] = []*format.Proof{{Main: found[i], Model: *own}}
		some := min(own.Shape.Box().Elements(), comparedElements)
		main, rounded, theirs := make([]byte, some*4), make([]byte, some*own.DType.Size()),
			make([]byte, some*own.DType.Size())
		if err := r.files.ReadRange(&found[i], 0, some, main); err != nil {
			return 0, err
		}
		if err := r.files.ReadRange(own, 0, some, theirs); err != nil {
			return 0, err
		}
		if format.Round(own.DType, rounded, main); !bytes.Equal(rounded, theirs) {
			n++
		}
	}
	for i := range found {
		_, rest, _ := strings.Cut(found[i].Name, ".")
		_, param, _ := strings.Cut(rest, ".")
		found[i].Proofs = proofs[param]
	}
	return n, nil
}
