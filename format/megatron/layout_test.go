package megatron_test

// This file tests mp_rank folders that are written. Helpers stop the test on an error.
import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/envtest"
	"github.com/shoal-ml/shoal/internal/framework"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// mustRead reads a checkpoint that was written, from its top folder, joins its parts, and stops the
// test if that fails. It does not check what it reads.
func mustRead(t testing.TB, dir fstest.MapFS) (*format.Checkpoint, *format.Files) {
	t.Helper()
	files := format.NewFiles(dir)
	c, err := readJoined(files)
	if err != nil {
		t.Fatal(err)
	}
	return c, files
}

// catalogue returns the tensors of a checkpoint as a layout has them.
func catalogue(c *format.Checkpoint) (list []layout.Tensor) {
	for _, x := range c.Tensors {
		list = append(list, layout.Tensor{Name: x.Name, DType: x.DType, Shape: x.Shape})
	}
	return list
}

// corePreset returns how Megatron Core cuts a checkpoint over a mesh. It stops the test where there
// is no such mesh or preset.
func corePreset(t testing.TB, mesh string, c *format.Checkpoint) *layout.Spec {
	t.Helper()
	m, err := layout.ParseMesh(mesh)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := layout.Preset("megatron-core", m, catalogue(c), megatron.KVHeads(c))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// writeForMesh returns a folder, in memory, with a checkpoint for another mesh, for which it
// changes the optimizers of c. It stops the test if the layout fails, or differs when it is made
// again.
func writeForMesh(t testing.TB, c *format.Checkpoint, files *format.Files,
	mesh string) fstest.MapFS {
	t.Helper()
	if _, err := megatron.ChainOptimizers(c, corePreset(t, mesh, c)); err != nil {
		t.Fatalf("%s: %v", mesh, err)
	}
	out, err := megatron.Layout(corePreset(t, mesh, c), c.Tensors, c.Values)
	if err != nil {
		t.Fatalf("%s: %v", mesh, err)
	}
	again, err := megatron.Layout(corePreset(t, mesh, c), c.Tensors, c.Values)
	if err != nil || !reflect.DeepEqual(out, again) {
		t.Fatalf("the same is laid out otherwise: %v", err)
	}
	return formattest.WriteOutput(t, out, c, files)
}

// TestLayoutSamples writes Megatron's checkpoints with their optimizers for every mesh, from one to
// the next, and reads them again: everything is as in the whole model.
func TestLayoutSamples(t *testing.T) {
	for name, meshes := range map[string][]string{
		"mixed": {"pp=2,tp=2", "tp=2,pp=4", "", "pp=1,tp=2", "pp=4,tp=1", "pp=2",
			"pp=2,tp=2"},
		"swapped":     {"tp=1", "pp=4,tp=2", "pp=2,tp=2"},
		"half":        {"pp=4,tp=2", "tp=2", "pp=2,tp=1"},
		"frozen":      {"tp=2", "tp=1", "tp=2"},
		"fp32":        {"pp=1,tp=1", "pp=4,tp=2", "pp=2,tp=2"},
		"distributed": {"pp=4,tp=2", "tp=1", "pp=2,tp=2"},
		"single":      {"pp=2,tp=2", "pp=4,tp=1"},
		"chained":     {"ep=4", "pp=2,ep=2,tp=2", "pp=2,tp=2", "pp=4,ep=4", "", "ep=2"},
		"together":    {"ep=2", "pp=4,ep=4", "tp=2"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, want := formattest.Load(t, "testdata/"+name+".zip")
			first, _ := mustRead(t, dir)
			c, files := mustRead(t, dir)
			for _, mesh := range meshes {
				c, files = mustRead(t, writeForMesh(t, c, files, mesh))
				formattest.Compare(t, files, c, want)
				if faults, err := formattest.CheckProofs(files, c); err != nil || len(faults) > 0 {
					t.Errorf("%s: %v, %v", mesh, faults, err)
				}
				if said := whyUnnamed(c); said != "" {
					t.Errorf("%s: %s", mesh, said)
				}
				_, several := c.Value("optimizer.1.optimizer.param_groups.0.lr")
				if _, before := first.Value(
					"optimizer.1.optimizer.param_groups.0.lr"); before == several {
					checkValues(t, first, c)
				}
			}
		})
	}
}

// TestLayoutGrouped: experts whose products are computed together have their number after the
// name; their numbers count over all expert parallel ranks, and each is cut by itself.
func TestLayoutGrouped(t *testing.T) {
	dir, alone := formattest.Load(t, "testdata/chained.zip")
	want := formattest.What{}
	for name, x := range alone {
		want[oneExpert.ReplaceAllString(name, "experts.$2$1")] = x
	}
	c, files := mustRead(t, dir)
	for i := range c.Tensors {
		c.Tensors[i].Name = oneExpert.ReplaceAllString(c.Tensors[i].Name, "experts.$2$1")
	}
	for i, v := range c.Values {
		if list, ok := v.Data.([]any); ok && strings.HasSuffix(v.Path, ".param_names") {
			var names []any
			for _, name := range list {
				names = append(names, oneExpert.ReplaceAllString(name.(string), "experts.$2$1"))
			}
			c.Values[i].Data = names
		}
	}
	for _, mesh := range []string{"ep=4", "pp=2,ep=2,tp=2", "tp=2,ep=2"} {
		written := writeForMesh(t, c, files, mesh)
		if mesh == "ep=4" {
			if _, ok := fileTensors(t, written,
				"iter_0000012/mp_rank_00_003/model_optim_rng.pt")["model.decoder.layers.3.mlp.e"+
				"xperts.linear_fc1.weight0"]; !ok {
				t.Error("expert 3 is not the first of its rank")
			}
		}
		c, files = mustRead(t, written)
		formattest.Compare(t, files, c, want)
		if faults, err := formattest.CheckProofs(files, c); err != nil || len(faults) > 0 ||
			whyUnnamed(c) != "" {
			t.Errorf("%s: %v, %v, %s", mesh, faults, err, whyUnnamed(c))
		}
	}
}

// checkValues compares what is no tensor, but for arguments that say how the model is cut. It fails
// the test where they differ.
func checkValues(t *testing.T, a, b *format.Checkpoint) {
	t.Helper()
	values := func(c *format.Checkpoint) map[string]any {
		all := map[string]any{}
		for _, v := range c.Values {
			all[v.Path] = v.Data
		}
		for _, name := range []string{"tensor_model_parallel_size", "pipeline_model_parallel_size",
			"expert_model_parallel_size", "ckpt_format", "padded_vocab_size",
			"use_distributed_optimizer",
			"virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage",
			"untie_embeddings_and_output_weights"} {
			delete(all, "args."+name)
		}
		delete(all, "checkpoint_version") // which some lack
		return all
	}
	if diff := cmp.Diff(values(a), values(b)); diff != "" {
		t.Errorf("values:\n%s", diff)
	}
}

// TestLayoutSameMesh writes checkpoints for the mesh that they are of: each rank's file has what
// Megatron had put there, under the same names and numbers.
func TestLayoutSameMesh(t *testing.T) {
	for name, mesh := range map[string]string{"mixed": "pp=2,tp=2", "half": "pp=2,tp=2",
		"fp32": "pp=2,tp=2", "frozen": "", "chained": "ep=2", "together": ""} {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		c, files := mustRead(t, dir)
		written := writeForMesh(t, c, files, mesh)
		if diff := cmp.Diff(slices.Sorted(maps.Keys(dir)),
			slices.Sorted(maps.Keys(written))); diff != "" {
			t.Fatalf("%s: files\n%s", name, diff)
		}
		for file := range dir {
			if !strings.HasSuffix(file, ".pt") {
				continue
			}
			theirs, ours := fileTensors(t, dir, file), fileTensors(t, written, file)
			// the samples' last stage has the embedding under its own name
			if strings.HasSuffix(file, "_001/model_optim_rng.pt") && name != "chained" {
				ours["model.embedding.word_embeddings.weight"] = ours["model.output_layer.weight"]
				delete(ours, "model.output_layer.weight")
			}
			if diff := cmp.Diff(theirs, ours); diff != "" {
				t.Errorf("%s: %s\n%s", name, file, diff)
			}
		}
	}
}

// fileTensors returns the tensors of a file, with their shapes and bytes. It stops the test if the
// file cannot be read.
func fileTensors(t testing.TB, dir fstest.MapFS, file string) map[string]string {
	t.Helper()
	files := format.NewFiles(dir)
	c, err := torchzip.Read(files, file)
	if err != nil {
		t.Fatal(err)
	}
	return formattest.Contents(t, files, c)
}

// TestLayoutRandom writes models of Hugging Face's names for random meshes, and compares every
// rank's file with what slicing its matrices row by row gives.
func TestLayoutRandom(t *testing.T) {
	tryModels(t, (*model).checkLayout)
}

// tryModels runs a test as a subtest on each of 200 random models, until one fails, which stops the
// test t. The environment can say which models (SEED), how many (CASES), and by what to divide 200
// (SLICES).
func tryModels(t *testing.T, test func(*model, *testing.T)) {
	t.Helper()
	seed := envtest.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range envtest.Number(t, "CASES", 200/envtest.Slices(t)) {
		m := drawModel(r)
		if !t.Run(fmt.Sprint(i), func(t *testing.T) { test(m, t) }) {
			t.Fatalf("case %d of SEED=%d: %+v", i, seed, m.dims)
		}
	}
}

// TestLayoutRefusesUnevenMiddles has stages between the first and the last that have unlike numbers
// of layers: Megatron gives all of these as many.
func TestLayoutRefusesUnevenMiddles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	m := drawModel(r)
	for m.PP != 4 || m.Layers < 5 {
		m = drawModel(r)
	}
	m.Cuts = []int{0, 1, 2, 4}
	c, _ := m.asCheckpoint()
	if _, err := megatron.Layout(m.spec(t, c), c.Tensors, c.Values); err == nil ||
		!strings.Contains(err.Error(), "[1 1 2 ") {
		t.Errorf("%v, want an error that says how many layers the stages have", err)
	}
}

// TestLayoutRefuses says what cannot be written for Megatron.
func TestLayoutRefuses(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/mixed.zip")
	c, _ := mustRead(t, dir)
	moved := func(match string, place string) *layout.Spec {
		spec := corePreset(t, "pp=2,tp=2", c)
		for i := range spec.Rules {
			if spec.Rules[i].Match == match {
				spec.Rules[i].Place = place
			}
		}
		return spec
	}
	const layers = "**decoder.layers.#.**"
	chunked := corePreset(t, "pp=2", c)
	chunked.Rules = slices.Concat(
		[]layout.Rule{{Match: "**decoder.layers.1.**", Place: "pp=at(1)"},
			{Match: layers, Place: "pp=at(0)"}}, chunked.Rules)
	for _, x := range []struct {
		name   string
		spec   *layout.Spec
		change func(tensors []format.Tensor, values []format.Value) ([]format.Tensor,
			[]format.Value)
		err string
	}{
		{"data parallel ranks", corePreset(t, "dp=2,tp=2", c), nil,
			"the mesh dp=2,tp=2 has the axis dp, and there are folders for tp, pp and ep only"},
		{"chunks of several sizes", chunked, nil,
			"stage 0 of the pipeline has [1 2] layers in its chunks"},
		{"a layer elsewhere", moved(layers, "pp=at(0)"), nil,
			"two stages of the pipeline have the same layers"},
		{"an embedding elsewhere",
			moved("**embedding.word_embeddings.weight", "pp=at(-1), tp=shard(0)"), nil,
			"the layout puts the embedding on other stages than the first and the last"},
		{"a layer is missing", corePreset(t, "tp=2", c),
			func(x []format.Tensor, v []format.Value) ([]format.Tensor, []format.Value) {
				return append(slices.Clone(x),
					format.Tensor{Name: "model.decoder.layers.7.mlp.linear_fc2.weight",
						DType: tensor.F32, Shape: tensor.Shape{2, 2}}), v
			}, "stage 0 of the pipeline has layer"},
		{"another tensor", corePreset(t, "tp=2", c),
			func(x []format.Tensor, v []format.Value) ([]format.Tensor, []format.Value) {
				x = slices.Clone(x)
				x[0].Name = "vision.weight"
				return x, v
			},
			`tensor "vision.weight" is none of a model of Megatron Core; leave it out with --only`},
		{"a flat buffer", corePreset(t, "tp=2", c),
			func(x []format.Tensor, v []format.Value) ([]format.Tensor, []format.Value) {
				x = slices.Clone(x)
				x[0].Name = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.param"
				return x, v
			}, "shoal cannot tell which parameters are in it (shoal state check says why)"},
		{"stacked layers", corePreset(t, "tp=2", c),
			func(x []format.Tensor, v []format.Value) ([]format.Tensor, []format.Value) {
				x = slices.Clone(x)
				x[0].Name = "decoder.layers.mlp.linear_fc1.weight"
				return x, v
			}, `has no number of a layer`},
		{"no groups", corePreset(t, "tp=2", c),
			func(x []format.Tensor, v []format.Value) ([]format.Tensor, []format.Value) {
				return x, slices.DeleteFunc(slices.Clone(v), func(v format.Value) bool {
					return strings.HasSuffix(v.Path, ".param_names")
				})
			}, "is of a parameter that no group of the optimizer names"},
		{"names that are none", corePreset(t, "tp=2", c),
			func(x []format.Tensor, v []format.Value) ([]format.Tensor, []format.Value) {
				return x, append(slices.Clone(v),
					format.Value{Path: "optimizer.optimizer.param_groups.2.param_names",
						Data: []any{int64(1)}})
			}, "an int as a name"},
		{"a hole", corePreset(t, "tp=2", c),
			func(x []format.Tensor, v []format.Value) ([]format.Tensor, []format.Value) {
				return x, append(slices.Clone(v),
					format.Value{Path: "optimizer.optimizer.param_groups.3.lr", Data: 0.1})
			}, "of the groups of optimizer (param_groups), 2 of 3 is missing"},
		{"a value in a value", corePreset(t, "tp=2", c),
			func(x []format.Tensor, v []format.Value) ([]format.Tensor, []format.Value) {
				return x, append(slices.Clone(v), format.Value{Path: "a", Data: int64(1)},
					format.Value{Path: "a.b", Data: int64(2)})
			}, `value "a.b"`},
	} {
		tensors, values := c.Tensors, c.Values
		if x.change != nil {
			tensors, values = x.change(tensors, values)
		}
		if _, err := megatron.Layout(x.spec, tensors, values); err == nil ||
			!strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %v; want %q", x.name, err, x.err)
		}
	}
}

// load has torch load the files of ranks, and an optimizer of torch take the state of theirs and go
// on with it.
const load = `
import argparse, json, sys, torch
torch.serialization.add_safe_globals([argparse.Namespace])
show = lambda t: [str(t.dtype), list(t.shape), bytes(t.contiguous().reshape(-1).view(torch.uint8).tolist()).hex()]
for path in sys.argv[1:]:
    state = torch.load(path, weights_only=True)
    args, own = vars(state["args"]), state["optimizer"]
    groups = [{"params": [torch.nn.Parameter(t) for t in g]} for g in own["fp32_from_fp16_params"]]
    optimizer = torch.optim.AdamW(groups)
    optimizer.load_state_dict(own["optimizer"])
    found = {"tp": args["tensor_model_parallel_size"], "pp": args["pipeline_model_parallel_size"], "iteration": state["iteration"],
             "state": all(set(optimizer.state[p]) == {"step", "exp_avg", "exp_avg_sq"} and optimizer.state[p]["exp_avg"].shape == p.shape for g in groups for p in g["params"]),
             "lr": optimizer.param_groups[1]["lr"], "parameters": sum(len(g["params"]) for g in groups)}
    optimizer.step()
    print(json.dumps([found, {k: show(t) for k, t in state["model"].items()}]))
`

// TestTorchLoads has torch read what is written, with nothing but its own rules and a plain
// namespace.
func TestTorchLoads(t *testing.T) {
	dir, want := formattest.Load(t, "testdata/mixed.zip")
	c, files := mustRead(t, dir)
	folder := t.TempDir()
	if err := os.CopyFS(folder, writeForMesh(t, c, files, "pp=4,tp=1")); err != nil {
		t.Fatal(err)
	}
	args := []string{"-c", load}
	for pp := range 4 {
		args = append(args,
			filepath.Join(folder,
				fmt.Sprintf("iter_0000012/mp_rank_00_%03d/model_optim_rng.pt", pp)))
	}
	out := framework.Ask(t, "torch", args, folder)
	for pp, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		var found map[string]any
		var model formattest.What
		if err := json.Unmarshal([]byte(line), &[]any{&found, &model}); err != nil {
			t.Fatal(err)
		}
		parameters := 6.0 // of a layer
		if pp == 0 {
			parameters++
		} else if pp == 3 {
			parameters += 2
		}
		if diff := cmp.Diff(
			map[string]any{"tp": 1.0, "pp": 4.0, "iteration": 12.0, "state": true, "lr": 1e-4,
				"parameters": parameters}, found); diff != "" {
			t.Errorf("stage %d:\n%s", pp, diff)
		}
		if len(model) != int(parameters) {
			t.Errorf("stage %d has %d tensors", pp, len(model))
		}
		for name, x := range model {
			whole := "model." +
				strings.Replace(strings.Replace(name, "layers.0.", fmt.Sprintf("layers.%d.", pp),
					1), "output_layer", "embedding.word_embeddings", 1)
			if diff := cmp.Diff(want[whole], x); diff != "" {
				t.Errorf("stage %d, %s:\n%s", pp, name, diff)
			}
		}
	}
}
