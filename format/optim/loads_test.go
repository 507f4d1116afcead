package optim_test

// This file tests optimizers that frameworks load, where they are installed. Helpers stop the test
// on an error.
import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/internal/framework"
	"github.com/shoal-ml/shoal/state/layout"
)

// trainedFolder unpacks a checkpoint of FSDP into a temporary folder of the test, and returns that
// folder and what is in it.
func trainedFolder(t *testing.T, name string) (string, formattest.What) {
	t.Helper()
	files, want := formattest.Load(t, "../dcp/testdata/"+name+".zip")
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, files); err != nil {
		t.Fatal(err)
	}
	return dir, want
}

// convert writes a checkpoint in a format that goes by groups, for the ranks of a mesh, and returns
// its folder. The folder is a temporary one of the test.
func convert(t *testing.T, from, to string, mesh layout.Mesh) string {
	t.Helper()
	c, err := checkpoint.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.PrepareOptimizer(to, nil); err != nil {
		t.Fatal(err)
	}
	f := checkpoint.TargetFormat{Format: to, BF16: true} // in which load.py trains
	if preset := checkpoint.DefaultPreset(to); preset != "" {
		if f.Spec, err = layout.Preset(preset, mesh, checkpoint.Catalogue(c.Checkpoint),
			2); err != nil {
			t.Fatal(err)
		}
	}
	out, _, err := c.Output(f)
	if err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(t.TempDir(), to)
	if _, err := checkpoint.Move(t.Context(), c, out, dst,
		checkpoint.Options{Workers: 2}); err != nil {
		t.Fatal(err)
	}
	return dst
}

// askFramework has a framework run a script over folders, and returns what it prints. framework.Ask
// decides whether the test is skipped where the module is not there.
func askFramework(
	t *testing.T,
	module, script string,
	folders []string,
	args ...string,
) (found map[string]any) {
	t.Helper()
	out := framework.Ask(t, module, append([]string{script}, args...), folders...)
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatal(err)
	}
	return found
}

// TestDeepSpeedLoads has DeepSpeed load what FSDP has trained, over as many ranks as it is written
// for, and go on: each parameter gets its weights, moments, rates and number of steps.
func TestDeepSpeedLoads(t *testing.T) {
	t.Setenv("MODEL", "llama")
	var args, folders []string
	dir, want := trainedFolder(t, "flat")
	for stage := 2; stage <= 3; stage++ {
		folder := convert(
			t,
			dir,
			fmt.Sprintf("zero%d", stage),
			layout.Mesh{{Name: "dp", Size: stage}},
		)
		args, folders = append(
			args,
			folder,
			strconv.Itoa(stage),
			strconv.Itoa(stage),
		), append(
			folders,
			folder,
		)
	}
	for folder, found := range askFramework(t, "deepspeed", "../deepspeed/testdata/load.py",
		folders,
		args...) {
		found, n := found.(map[string]any), 0
		for path, x := range found {
			kind, name, _ := strings.Cut(strings.TrimPrefix(path, "optimizer."), ".")
			if !strings.HasPrefix(path, "optimizer.") {
				continue
			}
			w := want["optim.state."+name+"."+kind]
			if kind == "fp32" {
				w = want["model."+name]
			}
			n++
			if !cmp.Equal(x, any([]any{w[0], w[1], w[2]})) {
				t.Errorf("%s: %s is %v, want %v", folder, path, x, w)
			}
		}
		if n != 3*21 || found["lr"] != 1e-2 || found["step"] != 3.0 ||
			found["weight_decay.0"] != 0.1 || found["weight_decay.1"] != 0.0 {
			t.Errorf("%s: %d states, %v, %v, %v, %v", folder, n, found["lr"], found["step"],
				found["weight_decay.0"], found["weight_decay.1"])
		}
	}
}

// joinedState returns the state of a parameter of Megatron in hex, made of what FSDP had for the
// parameters of Hugging Face; rows fill it up to the number that Megatron computes with.
func joinedState(want formattest.What, kind, param string, size int) string {
	of := func(name string) string { return want["optim.state."+name+"."+kind][2].(string) }
	layer, module, inside := "", param, false
	if rest, ok := strings.CutPrefix(param, "decoder.layers."); ok {
		layer, module, inside = strings.Cut(rest, ".")
	}
	at := "model.layers." + layer + "."
	outside := map[string]string{"embedding.word_embeddings.weight": "model.embed_tokens.weight",
		"decoder.final_layernorm.weight": "model.norm.weight",
		"output_layer.weight":            "lm_head.weight"}
	if !inside {
		s := of(outside[param])
		return s + strings.Repeat("0", max(size-len(s), 0))
	}
	switch module {
	case "self_attention.linear_qkv.weight":
		const row = 8 * 8 // digits of a row
		q, k, v, s := of(at+"self_attn.q_proj.weight"), of(at+"self_attn.k_proj.weight"),
			of(at+"self_attn.v_proj.weight"), ""
		for g := range 2 {
			s += q[4*g*row:4*(g+1)*row] + k[2*g*row:2*(g+1)*row] + v[2*g*row:2*(g+1)*row]
		}
		return s
	case "mlp.linear_fc1.weight":
		return of(at+"mlp.gate_proj.weight") + of(at+"mlp.up_proj.weight")
	}
	return of(at + map[string]string{"input_layernorm.weight": "input_layernorm.weight",
		"self_attention.linear_proj.weight": "self_attn.o_proj.weight",
		"pre_mlp_layernorm.weight":          "post_attention_layernorm.weight",
		"mlp.linear_fc2.weight":             "mlp.down_proj.weight"}[module])
}

// TestMegatronLoads has an optimizer with Megatron-Core's own groups load what FSDP and DeepSpeed
// have trained: by the order of parameters, and in torch_dist by what groups are.
func TestMegatronLoads(t *testing.T) {
	dir, want := trainedFolder(t, "listed")
	from, args := []string{"FSDP", "zero3"}, []string{}
	for _, src := range []string{dir,
		convert(t, dir, "zero3", layout.Mesh{{Name: "dp", Size: 2}})} {
		args = append(args, convert(t, src, "megatron", layout.Mesh{{Name: "tp", Size: 1}}),
			convert(t, src, "torch_dist", nil))
	}
	loaded := askFramework(t, "megatron/core", "../megatron/testdata/groups.py", args, args...)
	for i, from := range from {
		found, _ := loaded[args[2*i]].(map[string]any)
		n := 0
		for path, x := range found {
			kind, param, ok := strings.Cut(path, ".")
			if !ok || kind == "step" {
				continue
			}
			n++
			is := x.([]any)[2].(string)
			if due := joinedState(want, kind, param, len(is)); is != due {
				t.Errorf("%s: %s is %s, want %s", from, path, is, due)
			}
		}
		groups := map[string]any{"lr": []any{0.01, 0.01}, "weight_decay": []any{0.1, 0.0},
			"matched": []any{[]any{0.01, 0.1, 3.0, []any{0.9, 0.95}},
				[]any{0.01, 0.0, 3.0, []any{0.9, 0.95}}}}
		for key, due := range groups {
			if !cmp.Equal(found[key], due) {
				t.Errorf("%s: %s is %v, want %v", from, key, found[key], due)
			}
		}
		if n != 2*15 {
			t.Errorf("%s: %d states", from, n)
		}
	}
}
