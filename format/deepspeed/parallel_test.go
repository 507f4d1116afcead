package deepspeed_test

// This file tests checkpoints of several model parallel ranks: experts, pipelines, tensors.
import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/internal/envtest"
)

// parallel are checkpoints of pipelines and of experts, which testdata/make_parallel.py made.
var parallel = []string{"pipe", "pipebf16", "moe1", "moe2", "moepipe", "robin", "tensor"}

// fuzzFiles is a fuzz test that changes three files of a checkpoint: nothing panics, and what is
// read is sound. The archive is a zip of testdata; the others are names of files in it.
func fuzzFiles(f *testing.F, archive, one, two, three string) {
	dir, _ := formattest.Load(f, archive)
	f.Add(dir[one].Data, dir[two].Data, dir[three].Data)
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		changed := maps.Clone(dir)
		for name, data := range map[string][]byte{one: a, two: b, three: c} {
			changed[name] = &fstest.MapFile{Data: bytes.Clone(data)}
		}
		formattest.IsSound(changed, deepspeed.Read)
	})
}

// TestDamageParallel demands that damage to checkpoints of several model parallel ranks is found.
func TestDamageParallel(t *testing.T) {
	for _, name := range parallel {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		switch name { // one of two files with the same, in each
		case "pipe":
			delete(dir, "global_step2/layer_05-model_states.pt")
		case "pipebf16":
			delete(dir, "global_step2/layer_00-model_states.pt")
		}
		formattest.CheckDamage(t, envtest.Places(t), dir, deepspeed.Read, func(name string) bool {
			// in which ZeRO has nothing
			return name != deepspeed.LatestName && !strings.Contains(name, "expp_rank_")
		})
	}
}

// TestParallelToUniversal makes universal checkpoints of those of several ranks: they hold the
// same.
func TestParallelToUniversal(t *testing.T) {
	for _, name := range parallel {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		c, files := mustRead(t, dir)
		again, other := mustRead(t, writeUniversal(t, c, files))
		if diff := cmp.Diff(formattest.Contents(t, files, c),
			formattest.Contents(t, other, again)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestUniversalOfPart leaves out some of the state, of which the groups then tell nothing.
func TestUniversalOfPart(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/zero2.zip")
	c, files := mustRead(t, dir)
	const names = "optimizer_state.param_groups.0.param_names"
	for _, part := range []bool{false, true} {
		if part {
			c.Tensors = slices.DeleteFunc(c.Tensors, func(x format.Tensor) bool {
				return strings.HasSuffix(x.Name, "2.weight")
			})
		}
		again, _ := mustRead(t, writeUniversal(t, c, files))
		if list, ok := again.Value(names); ok == part {
			t.Errorf("part %v: %v", part, list)
		}
	}
}

// TestExpertsLack says what is missing of experts, or does not fit.
func TestExpertsLack(t *testing.T) {
	const at, name = "global_step2/", "global_step2/layer_0_expert_%_mp_rank_00_model_states.pt"
	expert := func(n string) string { return strings.Replace(name, "%", n, 1) }
	for _, c := range []struct {
		change func(fstest.MapFS)
		err    string
	}{
		{func(d fstest.MapFS) {
			delete(d, expert("1"))
		}, "there is no file of expert 1 of layer 0 of the mixture, mp rank 0"},
		{func(d fstest.MapFS) {
			delete(d, expert("3"))
		}, "says that layer 0 of the mixture has 4 experts, and there are the files of 3"},
		{func(d fstest.MapFS) {
			d[expert("4")] = d[expert("3")]
		}, "has 4 experts, and there are the files of 5"},
		{func(d fstest.MapFS) {
			d[strings.Replace(expert("0"), "layer_0", "layer_1", 1)] = d[expert("0")]
		}, "there are 1 layers of experts, and there are the files of 2"},
		{func(d fstest.MapFS) {
			d[expert("0")], d[expert("1")] = d[expert("1")], d[expert("0")]
		}, "which is no parameter of expert 0"},
		{func(d fstest.MapFS) { d[expert("00")] = d[expert("0")] }, "are of the same expert"},
		{func(d fstest.MapFS) {
			d[strings.Replace(expert("0"), "rank_00", "rank_01", 1)] = d[expert("0")]
		}, "of a model parallel rank of which there are no model states"},
		{func(d fstest.MapFS) {
			delete(d, at+"bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt")
		}, "no optimizer states file of mp rank 0, dp rank 2"},
		{func(d fstest.MapFS) {
			delete(d, at+"bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt")
		}, "was cut over 4 ranks, and there are the files of 3"},
	} {
		dir, _ := formattest.Load(t, "testdata/moe2.zip")
		c.change(dir)
		if _, err := deepspeed.Read(format.NewFiles(dir)); err == nil ||
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%v; want %q", err, c.err)
		}
	}
}

// TestExpertStagesLack says what is missing of experts in stages of a pipeline, or is another
// stage's.
func TestExpertStagesLack(t *testing.T) {
	const at, end = "global_step2/", "_model_states.pt"
	swap := func(a, b string) func(fstest.MapFS) {
		return func(d fstest.MapFS) { d[at+a+end], d[at+b+end] = d[at+b+end], d[at+a+end] }
	}
	remove := func(name string) func(fstest.MapFS) {
		return func(d fstest.MapFS) { delete(d, at+name) }
	}
	for _, c := range []struct {
		change func(fstest.MapFS)
		err    string
	}{
		{remove("layer_0_expert_0_mp_rank_01" + end), "there is no file of expert 0 of layer 0 " +
			"of the mixture, mp rank 1 (layer_0_expert_0_mp_rank_01_model_states.pt)"},
		{remove("layer_1_expert_3_mp_rank_01" + end), "mp_rank_01_model_states.pt says that " +
			"layer 1 of the mixture has 4 experts, and there are the files of 3"},
		{swap("layer_0_expert_1_mp_rank_00", "layer_0_expert_1_mp_rank_01"),
			`layer_0_expert_1_mp_rank_00_model_states.pt has "3.moe.deepspeed_moe.experts.deepspeed_experts.1.weight", and stage 0 has nothing else of that layer`},
		{swap("layer_0_expert_1_mp_rank_01", "layer_1_expert_1_mp_rank_01"),
			`layer_0_expert_1_mp_rank_01_model_states.pt has "4.moe.deepspeed_moe.experts.deepspeed_experts.1.weight", and other experts of layer 0`},
		{swap("mp_rank_00", "mp_rank_01"), "mp_rank_00_model_states.pt says that layer 0 of the " +
			"mixture has 2 experts, and there are the files of 4"},
		{remove("mp_rank_01" + end), "there is no model states file of mp rank 1, dp rank 0"},
		{remove("zero_pp_rank_1_mp_rank_01_optim_states.pt"),
			"no optimizer states file of mp rank 1, dp rank 1"},
		{func(d fstest.MapFS) {
			maps.DeleteFunc(d, func(name string, _ *fstest.MapFile) bool {
				return strings.Contains(name, "_mp_rank_00_")
			})
		}, "mp_rank_00_model_states.pt says that layer 0 of the mixture has 4 experts, and " +
			"there are the files of 0"},
	} {
		dir, _ := formattest.Load(t, "testdata/moepipe.zip")
		c.change(dir)
		if _, err := deepspeed.Read(format.NewFiles(dir)); err == nil ||
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%v; want %q", err, c.err)
		}
	}
}

// TestExpertsAsTrained writes experts for as many ranks as have trained them: every tensor of every
// file is as it was.
func TestExpertsAsTrained(t *testing.T) {
	for from, z := range map[string]deepspeed.Zero{"moe1": {Stage: 1, DP: 4, EP: 2},
		"moe2": {Stage: 2, DP: 4, EP: 2}, "moepipe": {Stage: 1, DP: 2, EP: 2, PP: 2}} {
		dir, _ := formattest.Load(t, "testdata/"+from+".zip")
		c, files := mustRead(t, dir)
		written := writeZeroRanks(t, z, c, files)
		for name := range dir {
			if name == deepspeed.LatestName {
				continue
			}
			if diff := cmp.Diff(fileTensors(t, dir, name),
				fileTensors(t, written, name)); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
		if len(written) != len(dir) {
			t.Errorf("%d files, and there were %d", len(written), len(dir))
		}
	}
}

// TestExpertStagesTied cuts a pipeline anew whose tied layers have no files: which one of the first
// stage it is follows from the numbers of the others there, that of the last stage counts as the
// last. In one stage it does not follow.
func TestExpertStagesTied(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/moepipe.zip")
	c, files := mustRead(t, dir)
	again, other := mustRead(t,
		writeZeroRanks(t, deepspeed.Zero{Stage: 1, DP: 1, PP: 3, Starts: []int{2, 4}}, c, files))
	if diff := cmp.Diff(formattest.Contents(t, files, c),
		formattest.Contents(t, other, again)); diff != "" {
		t.Error(diff)
	}
	for stage, due := range []string{"[tied_modules.word.weight 1.up.weight", "[2.weight",
		"[tied_modules.word.weight 4.up.weight"} {
		if names, _ := again.Value(fmt.Sprintf("pipeline_stages.%d.0", stage)); !strings.HasPrefix(
			fmt.Sprint(names), due) {
			t.Errorf("stage %d has %v, want %s…", stage, names, due)
		}
	}
	one, files := mustRead(t, writeZeroRanks(t, deepspeed.Zero{Stage: 1, DP: 4, PP: 1}, c, files))
	const want = `which layers are tied as "word" is not known`
	if _, err := deepspeed.LayoutZero(deepspeed.Zero{Stage: 1, DP: 2, PP: 2, Starts: []int{3}},
		one.Tensors, one.Values, files.Read); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
}

// TestExpertsInTurn reads experts with round_robin_gradients or use_data_before_expert_parallelism,
// of which DeepSpeed 0.19.0 says only in the optimizer states: the weights, which are found by
// name, are the master weights, which are found by position, rounded.
func TestExpertsInTurn(t *testing.T) {
	for _, name := range []string{"moe2", "moerobin", "moefirst"} {
		dir, want := formattest.Load(t, "testdata/"+name+".zip")
		c, files := mustRead(t, dir)
		n := 0
		for i := range c.Tensors {
			param, ok := strings.CutPrefix(c.Tensors[i].Name, "module.")
			if !ok {
				continue
			}
			main := slices.IndexFunc(c.Tensors, func(x format.Tensor) bool {
				return x.Name == "optimizer.fp32."+param
			})
			p := &format.Proof{Main: c.Tensors[main], Model: c.Tensors[i]}
			model := formattest.ReadTensor(t, files, &p.Model)
			if at := p.FirstDifference(formattest.ReadTensor(t, files, &p.Main), model); at >= 0 {
				t.Errorf("%s: element %d of %s is not that of its master weights", name, at, param)
			}
			n++
		}
		if n != len(want) && name != "moe2" || n < 10 {
			t.Errorf("%s: %d parameters, and there are %d", name, n, len(want))
		}
	}
}

// TestExpertsNot says why experts cannot be written.
func TestExpertsNot(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/moe2.zip")
	c, files := mustRead(t, dir)
	without := func(cut func(string) bool) *format.Checkpoint {
		less := *c
		less.Tensors = slices.DeleteFunc(slices.Clone(c.Tensors), func(x format.Tensor) bool {
			return cut(x.Name)
		})
		return &less
	}
	valued := func(path string, is any) *format.Checkpoint {
		other := *c
		other.Values = append(slices.DeleteFunc(slices.Clone(c.Values), func(v format.Value) bool {
			return v.Path == path
		}), format.Value{Path: path, Data: is})
		return &other
	}
	order := func(g string) []any {
		v, _ := c.Value("optimizer_state.param_groups." + g + ".param_names")
		list, _ := v.([]any)
		return slices.Clone(list)
	}
	plain, _ := formattest.Load(t, "testdata/zero2.zip")
	dense, _ := mustRead(t, plain)
	odd := valued("optimizer_state.param_groups.0.param_names", append(order("0"), order("1")[0]))
	odd.Values = append(slices.DeleteFunc(odd.Values, func(v format.Value) bool {
		return v.Path == "optimizer_state.param_groups.1.param_names"
	}), format.Value{Path: "optimizer_state.param_groups.1.param_names", Data: order("1")[1:]})
	for _, x := range []struct {
		z   deepspeed.Zero
		c   *format.Checkpoint
		err string
	}{
		{deepspeed.Zero{Stage: 3, DP: 2}, c,
			"DeepSpeed itself trains no experts (deepspeed.moe) with ZeRO of stage 3"},
		{deepspeed.Zero{Stage: 3, DP: 2, PP: 2}, c, "DeepSpeed itself trains no experts " +
			"(deepspeed.moe) in a pipeline with ZeRO of stage 3; choose zero1"},
		{deepspeed.Zero{Stage: 1, DP: 2, PP: 2}, c, "it is of no pipeline"},
		{deepspeed.Zero{Stage: 1, DP: 3, EP: 2}, c,
			"3 ranks are no multiple of 2 expert parallel ones"},
		{deepspeed.Zero{Stage: 1, DP: 3, EP: 3}, c, "4 experts " +
			"(moe.deepspeed_moe.experts.deepspeed_experts.3) are not shared evenly by 3 expert " +
			"parallel ranks"},
		{deepspeed.Zero{Stage: 1, DP: 2, EP: 2}, dense,
			"there are no experts of DeepSpeed's own layer"},
		{deepspeed.Zero{Stage: 1, DP: 2, EP: 2}, odd,
			"a group of the optimizer has experts and other parameters"},
		{deepspeed.Zero{Stage: 1, DP: 2, EP: 2},
			valued("optimizer_state.param_groups.1.param_names", order("1")[1:]),
			"expert parallel rank 1 would have other parameters in a group than rank 0"},
		{deepspeed.Zero{Stage: 1, DP: 2, EP: 2},
			valued("optimizer_state.param_groups.0.name", "ep_size_4"),
			"over different numbers of expert parallel ranks"},
		{deepspeed.Zero{Stage: 1, DP: 2, EP: 2}, without(func(name string) bool {
			return name == "module.moe.deepspeed_moe.experts.deepspeed_experts.1.bias"
		}), "there are master weights only"},
		{deepspeed.Zero{Stage: 1, DP: 2, EP: 2}, without(func(name string) bool {
			return strings.Contains(name, "deepspeed_experts.3.")
		}), "3 experts (moe.deepspeed_moe.experts.deepspeed_experts.2) are not shared evenly by " +
			"2 expert parallel ranks"},
	} {
		if _, err := deepspeed.LayoutZero(x.z, x.c.Tensors, x.c.Values, files.Read); err == nil ||
			!strings.Contains(err.Error(), x.err) {
			t.Errorf("%v; want %q", err, x.err)
		}
	}
}

// FuzzReadExperts changes files of a checkpoint with experts, as fuzzFiles does.
func FuzzReadExperts(f *testing.F) {
	fuzzFiles(f, "testdata/moe2.zip", "global_step2/layer_0_expert_1_mp_rank_00_model_states.pt",
		"global_step2/mp_rank_00_model_states.pt",
		"global_step2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt")
}

// FuzzReadExpertStages changes files of a pipeline with experts, as fuzzFiles does.
func FuzzReadExpertStages(f *testing.F) {
	fuzzFiles(f, "testdata/moepipe.zip", "global_step2/layer_1_expert_1_mp_rank_01_model_states.pt",
		"global_step2/mp_rank_01_model_states.pt",
		"global_step2/zero_pp_rank_1_mp_rank_01_optim_states.pt")
}

// TestTiedFunction reads a pipeline whose last stage gives the tied layer a function of its own:
// DeepSpeed writes no file of it there.
func TestTiedFunction(t *testing.T) {
	for _, layer := range []string{"00", "05"} {
		dir, want := formattest.Load(t, "testdata/pipe.zip")
		delete(dir, "global_step2/layer_"+layer+"-model_states.pt")
		c, files := mustRead(t, dir)
		c.Tensors = slices.DeleteFunc(c.Tensors, func(x format.Tensor) bool {
			return strings.HasPrefix(x.Name, "optimizer.step.")
		})
		formattest.Compare(t, files, c, want)
	}
}

// TestPipeLacks says what is missing of a pipeline.
func TestPipeLacks(t *testing.T) {
	const at = "global_step2/"
	for _, c := range []struct {
		change func(fstest.MapFS)
		err    string
	}{
		{func(d fstest.MapFS) {
			delete(d, at+"mp_rank_01_model_states.pt")
		}, "there is no model states file of mp rank 1, dp rank 0"},
		{func(d fstest.MapFS) {
			maps.DeleteFunc(d, func(name string, _ *fstest.MapFile) bool {
				return strings.Contains(name, "mp_rank_01_")
			})
		}, "says that there are 2 model parallel ranks, and of rank 1 there is no file"},
		{func(d fstest.MapFS) {
			delete(d, at+"zero_pp_rank_1_mp_rank_01_optim_states.pt")
		}, "no optimizer states file of mp rank 1, dp rank 1"},
		{func(d fstest.MapFS) {
			delete(d, at+"layer_03-model_states.pt")
		}, `parameter "3.weight", which is trained, is in no file of a layer`},
		{func(d fstest.MapFS) {
			delete(d, at+"layer_00-model_states.pt")
			delete(d, at+"layer_05-model_states.pt")
		}, `there is no file of the layers that are tied as "word"`},
		{func(d fstest.MapFS) {
			d[at+"layer_04-model_01-model_states.pt"] = d[at+"layer_04-model_states.pt"]
		}, "there is no file of layer 0, tensor parallel rank 1"},
		{func(d fstest.MapFS) {
			d[at+"layer_04-seq_01-model_states.pt"] = d[at+"layer_04-model_states.pt"]
		}, "another axis"},
		{func(d fstest.MapFS) {
			d[at+"layer_4-model_states.pt"] = d[at+"layer_04-model_states.pt"]
		}, "are of the same layer"},
		{func(d fstest.MapFS) {
			maps.DeleteFunc(d, func(name string, _ *fstest.MapFile) bool {
				return strings.Contains(name, "layer_")
			})
		}, "module"},
	} {
		dir, _ := formattest.Load(t, "testdata/pipe.zip")
		c.change(dir)
		if _, err := deepspeed.Read(format.NewFiles(dir)); err == nil ||
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%v; want %q", err, c.err)
		}
	}
}

// FuzzReadPipe changes files of a pipeline, as fuzzFiles does.
func FuzzReadPipe(f *testing.F) {
	fuzzFiles(f, "testdata/pipe.zip", "global_step2/layer_00-model_states.pt",
		"global_step2/mp_rank_01_model_states.pt",
		"global_step2/zero_pp_rank_0_mp_rank_01_optim_states.pt")
}

// TestTiedValues has two stages say how many steps a tied parameter has made: the same is one
// value, and of two nobody knows which is true.
func TestTiedValues(t *testing.T) {
	const step, other = "optimizer.step.tied_modules.embed.weight", "optimizer.step.3.weight"
	for second, want := range map[float64]int{2: 2, 3: 0} {
		values, err := deepspeed.JoinTiedValues(
			[]format.Value{{Path: step, Data: 2.0}, {Path: other, Data: 9.0},
				{Path: step, Data: second}})
		if (err == nil) != (want > 0) || err == nil && len(values) != want {
			t.Errorf("2 and %v: %v (%v)", second, values, err)
		}
	}
}
