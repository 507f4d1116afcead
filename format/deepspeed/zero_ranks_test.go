package deepspeed_test

// This file tests ZeRO written for several tensor parallel ranks and stages.
import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// writeZeroRanks returns a folder, in memory, with a checkpoint for the ranks of z. It stops the
// test if that cannot be laid out.
func writeZeroRanks(t testing.TB, z deepspeed.Zero, c *format.Checkpoint,
	files *format.Files) fstest.MapFS {
	t.Helper()
	out, err := deepspeed.LayoutZero(z, c.Tensors, c.Values, files.Read)
	if err != nil {
		t.Fatal(err)
	}
	return formattest.WritePaddedOutput(t, out, c, files)
}

// An evenParam is a parameter of which tensor parallel ranks have equal parts.
type evenParam struct {
	name  string
	whole array
	rule  string // which pattern it is in
	rows  int    // of the vocabulary that only fill it up, zeros
}

// partOf returns what one of the tensor parallel ranks has of the parameter. tp is the rank, of how
// many there are.
func (e evenParam) partOf(tp, of int) array {
	indices := func(from, size int) (list []int) { // the share of a block
		for i := range size / of {
			list = append(list, from+tp*size/of+i)
		}
		return list
	}
	switch whole := e.whole; e.rule {
	case "alike":
		return whole
	case "columns":
		return whole.atIndices(1, indices(0, whole.shape[1]))
	case "halves":
		n := whole.shape[0] / 2
		return whole.atIndices(0, append(indices(0, n), indices(n, n)...))
	case "sub": // of 24, 12 and 12
		n := whole.shape[0] / 4
		return whole.atIndices(0, slices.Concat(indices(0, 2*n), indices(2*n, n), indices(3*n, n)))
	default:
		return whole.atIndices(0, indices(0, whole.shape[0]))
	}
}

// savedProgram returns what ranks of a program have of some parameters, in the words of DeepSpeed;
// with stages of a pipeline, these have them in a row.
func savedProgram(all []evenParam, stage, tp, dp, pp int, version any) *saved {
	s := &saved{stage: stage, tp: tp, dp: dp, pp: pp, count: int64(tp * max(pp, 1))}
	named := map[string][]any{}
	for i, e := range all {
		p := shared{name: e.name, stage: i * pp / len(all)}
		for rank := range tp {
			p.parts = append(p.parts, e.partOf(rank, tp))
		}
		s.params = append(s.params, p)
		named[e.rule] = append(named[e.rule], e.name)
	}
	info := newDict()
	if version != nil {
		info.Add("universal_checkpoint_version", version)
	}
	for rule, key := range map[string]string{"alike": "tp_replicated_parameter_patterns",
		"columns": "parameter_with_row_parallelism_patterns",
		"halves":  "parameter_with_2_sub_params_cat_dim_0",
		"words":   "vocabulary_parameter_patterns"} {
		info.Add(key, newList(named[rule]...))
	}
	subs, widths := newList(), newDict()
	for _, e := range all {
		switch e.rule {
		case "sub":
			n := int64(e.whole.shape[0] / 4)
			subs.Items = append(subs.Items,
				newDict("patterns", newList(e.name), "shape",
					pickle.Tuple{pickle.Tuple{2 * n, n, n}, int64(e.whole.shape[1])},
					"partition_dim", int64(0)))
			of := newList()
			for _, n := range []int64{2 * n, n, n} {
				of.Items = append(of.Items, newList(slices.Repeat([]any{n / int64(tp)}, tp)...))
			}
			widths.Add(e.name, of)
		case "words":
			info.Add("original_vocab_size", int64(e.whole.shape[0]-e.rows))
			info.Add("padded_vocab_size", int64(e.whole.shape[0]))
		}
	}
	info.Add("parameter_with_sub_params", subs)
	info.Add("sub_param_shard_widths", widths)
	s.info = info
	return s
}

// TestZeroTensorParallel writes what some tensor and data parallel ranks have saved for others, and
// compares each rank's model and flat buffers with those that a program of so many ranks has, which
// are cut here.
func TestZeroTensorParallel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(r, name) }
		var all []evenParam
		first := 1
		for i, rule := range rapid.Permutation(
			[]string{"alike", "columns", "halves", "sub", "words", "rest", "rest"}).Draw(r,
			"rules")[:n("parameters", 1, 7)] {
			e := evenParam{name: fmt.Sprintf("%c%d", 'z'-rune(i), i), rule: rule,
				whole: numberedArray(first, 24*n("rows", 1, 2), 12)}
			if rule == "sub" {
				e.whole = numberedArray(first, 48, n("columns", 1, 3))
			}
			if rule == "words" {
				e.rows = n("filling up", 0, 5)
				clear(e.whole.data[(e.whole.shape[0]-e.rows)*12:])
			}
			first += len(e.whole.data)
			all = append(all, e)
		}
		pp := 0
		if len(all) > 1 && rapid.Bool().Draw(r, "pipeline") {
			pp = n("stages", 2, min(3, len(all)))
			for i := range all {
				all[i].name = fmt.Sprintf("%d.%s", i, all[i].name)
			}
		}
		version := rapid.SampledFrom([]any{nil, 0.4}).Draw(r, "version")
		rankses := []int{2, 3, 4, 6}
		most := 3
		if pp > 0 {
			most = 1 // DeepSpeed has no others of pipelines
		}
		from := savedProgram(all, n("stage of the source", 1, most),
			rapid.SampledFrom(rankses).Draw(r, "tp of the source"), n("dp of the source", 1, 3), pp,
			version)
		z := deepspeed.Zero{Stage: n("stage", 1, most), DP: n("dp", 1, 3),
			TP: rapid.SampledFrom(rankses).Draw(r, "tp"), PP: pp}
		c, files := mustRead(t, from.write(t))
		dir := writeZeroRanks(t, z, c, files)
		to := savedProgram(all, z.Stage, z.TP, z.DP, pp, version)
		for mp := range z.TP * max(pp, 1) {
			to.compareFiles(r, dir, mp)
		}
		again, other := mustRead(t, dir)
		want := formattest.Contents(t, files, c)
		maps.DeleteFunc(want, func(name, _ string) bool {
			return z.Stage == 3 && strings.HasPrefix(name, "module.")
		})
		if diff := cmp.Diff(want, formattest.Contents(t, other, again)); diff != "" {
			r.Fatal(diff)
		}
		if faults := again.Check(other); len(faults) > 0 {
			r.Fatal(faults)
		}
	})
}

// compareFiles fails unless the files of a model parallel rank are what it has. dir is the folder,
// and c is what the ranks of such a program would have saved.
func (c *saved) compareFiles(r *rapid.T, dir fstest.MapFS, mp int) {
	files := format.NewFiles(dir)
	tag := string(dir[deepspeed.LatestName].Data)
	open := func(name string) *torchzip.File {
		f, err := torchzip.Open(files, tag+"/"+name, deepspeed.Globals)
		if err != nil {
			r.Fatal(err)
		}
		return f
	}
	floats := func(v any) (list []float32) {
		x := v.(*torchzip.Tensor).AsTensor("x")
		b := make([]byte, x.Bytes())
		if err := files.Read(&x, b); err != nil {
			r.Fatal(err)
		}
		for i := 0; i < len(b); i += 4 {
			list = append(list, math.Float32frombits(binary.LittleEndian.Uint32(b[i:])))
		}
		return list
	}
	first := fmt.Sprintf("mp_rank_%02d_model_states.pt", mp)
	if c.stage == 3 {
		first = "zero_pp_rank_0_" + first
	}
	model := open(first)
	var flat []float32
	flats := make([][]float32, c.dp) // of each rank, in stage 3
	for _, p := range c.paramsOf(mp) {
		a := p.parts[0]
		flat = append(flat, a.data...)
		each := (len(a.data) + c.dp - 1) / c.dp
		filled := append(slices.Clone(a.data), make([]float32, each*c.dp-len(a.data))...)
		for dp := range flats {
			flats[dp] = append(flats[dp], filled[dp*each:(dp+1)*each]...)
		}
		if c.stage == 3 {
			a = array{shape: tensor.Shape{0}}
		}
		root, _ := pickle.Get[any](model.Root, "module")
		numbers, name := c.layersWith(p.name)
		if c.pp > 0 {
			file := fmt.Sprintf("layer_%02d-model_%02d-model_states.pt", numbers[0], mp%c.tp)
			if c.tp == 1 {
				file = fmt.Sprintf("layer_%02d-model_states.pt", numbers[0])
			}
			root = open(file).Root
		}
		v, err := pickle.Get[*torchzip.Tensor](root, name)
		if err != nil || !slices.Equal(floats(v), a.data) || !tensor.Shape(v.Shape).Equal(a.shape) {
			r.Fatalf("rank %d: the model has another %s: %v", mp, p.name, err)
		}
	}
	if c.stage == 3 {
		flat = slices.Concat(flats...)
	}
	weightsKey, innerKey := "single_partition_of_fp32_groups", "base_optimizer_state"
	if c.stage == 3 {
		weightsKey, innerKey = "fp32_flat_groups", "optimizer_state_dict"
	}
	for scale, kind := range map[float32]string{1: "fp32", -1: "exp_avg"} {
		var got []float32
		for dp := range c.dp {
			f := open(fmt.Sprintf("zero_pp_rank_%d_mp_rank_%02d_optim_states.pt", dp, mp))
			weights, err := pickle.Get[*pickle.List](f.Root, "optimizer_state_dict", weightsKey)
			if err != nil {
				r.Fatal(err)
			}
			v := weights.Items[0]
			if kind != "fp32" {
				state, err := pickle.Get[*pickle.Dict](f.Root, "optimizer_state_dict", innerKey,
					"state")
				if err != nil {
					r.Fatal(err)
				}
				v, _ = state.Items[0].Value.(*pickle.Dict).Get(kind)
			}
			got = append(got, floats(v)...)
		}
		want := array{data: flat}.scaled(scale).data
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) ||
			slices.ContainsFunc(got[len(want):], func(x float32) bool {
				return x != 0
			}) {
			r.Fatalf("rank %d: the flat buffer %s is %v, want %v", mp, kind, got, want)
		}
	}
	if n, _ := pickle.Get[int64](model.Root, "mp_world_size"); n != c.count {
		r.Fatalf("mp_world_size is %d", n)
	}
}

// TestZeroAsTrained writes what two tensor parallel ranks of DeepSpeed have trained for as many:
// each rank's model is as it was, but for what fills up the vocabulary.
func TestZeroAsTrained(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/tensor.zip")
	c, files := mustRead(t, dir)
	written := writeZeroRanks(t, deepspeed.Zero{Stage: 1, DP: 2, TP: 2}, c, files)
	for tp := range 2 {
		name := fmt.Sprintf("global_step2/mp_rank_%02d_model_states.pt", tp)
		was, is := modelContents(t, dir, name), modelContents(t, written, name)
		if tp == 1 {
			delete(was, "module.words.weight")
			delete(is, "module.words.weight")
		}
		if diff := cmp.Diff(was, is); diff != "" || len(is) < 8 {
			t.Errorf("rank %d: %s", tp, diff)
		}
	}
}

// modelContents returns the tensors of the model in a file. It stops the test if the file cannot be
// read.
func modelContents(t *testing.T, dir fstest.MapFS, name string) map[string]string {
	t.Helper()
	all := fileTensors(t, dir, name)
	maps.DeleteFunc(all, func(name, _ string) bool { return !strings.HasPrefix(name, "module.") })
	return all
}

// TestZeroStagesAsTrained writes what two stages of DeepSpeed have trained for as many: every
// tensor of every file is as it was. Over other data parallel ranks state is the same.
func TestZeroStagesAsTrained(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/pipe.zip")
	c, files := mustRead(t, dir)
	written := writeZeroRanks(t, deepspeed.Zero{Stage: 1, DP: 2, PP: 2}, c, files)
	for name := range dir {
		if name == deepspeed.LatestName {
			continue
		}
		was, is := fileTensors(t, dir, name), fileTensors(t, written, name)
		if diff := cmp.Diff(was, is); diff != "" ||
			len(was) == 0 && !strings.Contains(name, "/mp_rank") {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for dp := 1; dp <= 3; dp++ {
		again, other := mustRead(t,
			writeZeroRanks(t, deepspeed.Zero{Stage: 1, DP: dp, PP: dp}, c, files))
		if diff := cmp.Diff(formattest.Contents(t, files, c),
			formattest.Contents(t, other, again)); diff != "" {
			t.Errorf("over %d: %s", dp, diff)
		}
	}
	less := slices.DeleteFunc(slices.Clone(c.Tensors), func(x format.Tensor) bool {
		return x.Name == "module.3.weight"
	})
	if _, err := deepspeed.LayoutZero(deepspeed.Zero{Stage: 1, DP: 2, PP: 2}, less, c.Values,
		files.Read); err == nil ||
		!strings.Contains(err.Error(), "of parameter 3.weight there are master weights only") {
		t.Error(err)
	}
}

// fileTensors returns the tensors of a file, by their paths. It stops the test if the file is not
// there, or cannot be read.
func fileTensors(t *testing.T, dir fstest.MapFS, name string) map[string]string {
	t.Helper()
	if dir[name] == nil {
		t.Fatalf("there is no %s", name)
	}
	files := format.NewFiles(dir)
	f, err := torchzip.Open(files, name, deepspeed.Globals)
	if err != nil {
		t.Fatal(err)
	}
	c := &format.Checkpoint{}
	if err := f.Flatten(c, "", f.Root); err != nil {
		t.Fatal(err)
	}
	return formattest.Contents(t, files, c)
}

// TestDeepSpeedJoins has DeepSpeed's own converter put together what is written for two tensor
// parallel ranks, of which it was trained, over three data parallel ones.
func TestDeepSpeedJoins(t *testing.T) {
	dir, want := formattest.Load(t, "testdata/tensor.zip")
	c, files := mustRead(t, dir)
	var folders []string
	for stage := 1; stage <= 2; stage++ {
		folder := filepath.Join(t.TempDir(), fmt.Sprint("stage", stage))
		if err := os.CopyFS(folder,
			writeZeroRanks(t, deepspeed.Zero{Stage: stage, DP: 3, TP: 2}, c, files)); err != nil {
			t.Fatal(err)
		}
		folders = append(folders, filepath.Join(folder, "global_step2"))
	}
	joined := askDeepSpeed(t, "join.py", folders, folders...)
	for _, folder := range folders {
		found, _ := joined[folder].(map[string]any)
		for name, x := range found {
			if w := want[name]; !cmp.Equal(x, any([]any{w[0], w[1], w[2]})) {
				t.Errorf("%s: %s is %v, want %v", folder, name, x, w)
			}
		}
		if len(found) != 27 {
			t.Errorf("%s: %d tensors", folder, len(found))
		}
	}
}

// TestZeroFrozenParts cuts what is frozen as parameters are cut, and leaves buffers whole.
func TestZeroFrozenParts(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/tensor.zip")
	c, files := mustRead(t, dir)
	up := slices.IndexFunc(c.Tensors, func(x format.Tensor) bool {
		return x.Name == "module.up.weight"
	})
	for _, name := range []string{"module.still", "module.counts"} {
		x := c.Tensors[up]
		x.Name = name
		c.Tensors = append(c.Tensors, x)
	}
	c.Values = append(slices.DeleteFunc(c.Values, func(v format.Value) bool {
		return v.Path == "buffer_names"
	}), format.Value{Path: "buffer_names", Data: []any{"counts"}})
	for stage := 2; stage <= 3; stage++ {
		written := writeZeroRanks(t, deepspeed.Zero{Stage: stage, DP: 3, TP: 2}, c, files)
		name := "global_step2/mp_rank_01_model_states.pt"
		if stage == 3 {
			name = "global_step2/zero_pp_rank_0_mp_rank_01_model_states.pt"
		}
		f, err := torchzip.Open(format.NewFiles(written), name, deepspeed.Globals)
		if err != nil {
			t.Fatal(err)
		}
		still, err := pickle.Get[any](f.Root, "frozen_param_shapes", "still")
		counts, err2 := pickle.Get[*torchzip.Tensor](f.Root, "module", "counts")
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		if shape, err := pickle.ParseSizes(still); err != nil ||
			!slices.Equal(shape, []int{3, 4}) ||
			!slices.Equal(counts.Shape, []int{6, 4}) {
			t.Errorf("stage %d: what is frozen has the shape %v, the buffer %v: %v", stage, shape,
				counts.Shape, err)
		}
		again, other := mustRead(t, written)
		all := formattest.Contents(t, other, again)
		for _, name := range []string{"module.still", "module.counts"} {
			if all[name] != formattest.Contents(t, files, c)[name] {
				t.Errorf("stage %d: another %s", stage, name)
			}
		}
	}
}

// TestZeroSharesNot refuses to cut what nobody says how to cut, or what does not come out even.
func TestZeroSharesNot(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/tensor.zip")
	c, files := mustRead(t, dir)
	plain, _ := formattest.Load(t, "testdata/zero2.zip")
	other, _ := mustRead(t, plain)
	with := func(key string, is any) []format.Value {
		key = "universal_checkpoint_info." + key
		return append(slices.DeleteFunc(slices.Clone(c.Values), func(v format.Value) bool {
			return v.Path == key
		}), format.Value{Path: key, Data: is})
	}
	for _, x := range []struct {
		z      deepspeed.Zero
		c      *format.Checkpoint
		values []format.Value
		err    string
	}{
		{deepspeed.Zero{Stage: 3, DP: 2, TP: 2, PP: 2}, c, c.Values,
			"DeepSpeed itself trains no pipeline with ZeRO of stage 3"},
		{deepspeed.Zero{Stage: 2, DP: 2, TP: 2, PP: 2}, c, c.Values,
			"DeepSpeed itself trains no pipeline with ZeRO of stage 2"},
		{deepspeed.Zero{Stage: 2, DP: 2, TP: 2}, other, other.Values,
			"nothing says how tensor parallel ranks share the parameters"},
		{deepspeed.Zero{Stage: 1, DP: 1, TP: 5}, c, c.Values,
			"are not shared evenly by 5 tensor parallel ranks"},
		{deepspeed.Zero{Stage: 1, DP: 1, TP: 2}, c,
			with("parameter_with_row_parallelism_patterns", []any{"down.weight", "down"}),
			"two patterns"},
		{deepspeed.Zero{Stage: 1, DP: 1, TP: 2}, c,
			with("tp_replicated_parameter_patterns",
				[]any{`norm\.(weight|bias)`, "down.bias", "words"}),
			"in a tensor that is not cut along these"},
		{deepspeed.Zero{Stage: 1, DP: 1, TP: 2}, c,
			with("parameter_with_row_parallelism_patterns", []any{"down.weight", "up.bias"}),
			"is to be cut along dimension 1"},
	} {
		if _, err := deepspeed.LayoutZero(x.z, x.c.Tensors, x.values, files.Read); err == nil ||
			!strings.Contains(err.Error(), x.err) {
			t.Errorf("%v; want %q", err, x.err)
		}
	}
}
