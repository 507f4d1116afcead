package deepspeed_test

// This file tests ZeRO written for data parallel ranks. Helpers stop the test on an error.
import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/internal/framework"
)

// writeZero returns a folder, in memory, with a checkpoint as one of ZeRO over some data parallel
// ranks. It stops the test if the layout fails, or differs when it is made again.
func writeZero(t testing.TB, stage, ranks int, c *format.Checkpoint,
	files *format.Files) fstest.MapFS {
	t.Helper()
	out, err := deepspeed.LayoutZero(deepspeed.Zero{Stage: stage, DP: ranks}, c.Tensors, c.Values,
		files.Read)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := deepspeed.LayoutZero(deepspeed.Zero{Stage: stage, DP: ranks}, c.Tensors,
		c.Values, files.Read); err != nil || !reflect.DeepEqual(out, again) {
		t.Fatalf("the same is laid out otherwise: %v", err)
	}
	return formattest.WritePaddedOutput(t, out, c, files)
}

// TestZero makes checkpoints of every stage over other numbers of ranks of those of every stage,
// and of universal ones. State is the same; what stage 3 does not keep is in the master weights,
// and stands for the model's where that is left out.
func TestZero(t *testing.T) {
	for _, name := range []string{"zero1", "zero2", "zero3", "universal1", "universal3"} {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		c, files := mustRead(t, dir)
		from := formattest.Contents(t, files, c)
		for stage := 1; stage <= 3; stage++ {
			for ranks := 1; ranks <= 5; ranks++ {
				want := maps.Clone(from)
				for _, p := range []string{"0.weight", "0.bias", "2.weight", "2.bias"} {
					if stage == 3 {
						delete(want, "module."+p)
					}
				}
				// DeepSpeed's converter makes state of them
				for _, p := range []string{"1.weight", "counts"} {
					maps.DeleteFunc(want, func(name, _ string) bool {
						return strings.HasPrefix(name, "optimizer.") &&
							strings.HasSuffix(name, "."+p)
					})
				}
				again, files := mustRead(t, writeZero(t, stage, ranks, c, files))
				for _, f := range again.Check(files) {
					t.Error(f)
				}
				if diff := cmp.Diff(want, formattest.Contents(t, files, again)); diff != "" {
					t.Errorf("%s as stage %d over %d:\n-read +written: %s", name, stage, ranks,
						diff)
				}
				for path, want := range map[string]any{"note": "ours", "global_steps": int64(2),
					"dp_world_size":                               int64(ranks),
					"ds_config.zero_optimization.stage":           int64(stage),
					"optimizer_state.param_groups.1.weight_decay": 0.0,
					"optimizer_state.param_groups.0.lr":           1e-2} {
					if v, ok := again.Value(path); !ok || v != want {
						t.Errorf("%s as stage %d: %s = %v, want %v", name, stage, path, v, want)
					}
				}
			}
		}
	}
}

// TestZeroLacksOptimizer takes the optimizer states files away, in which stage 3 has the weights.
// There that is an error; in the stages 1 and 2 the model is read, and Doubt says it.
func TestZeroLacksOptimizer(t *testing.T) {
	dir, want := formattest.Load(t, "testdata/zero3.zip")
	c, files := mustRead(t, dir)
	for stage := 1; stage <= 3; stage++ {
		written := writeZero(t, stage, 1, c, files)
		maps.DeleteFunc(written, func(name string, _ *fstest.MapFile) bool {
			return strings.HasSuffix(name, "_optim_states.pt")
		})
		if stage == 3 {
			if _, err := deepspeed.Read(format.NewFiles(written)); err == nil ||
				!strings.Contains(err.Error(), "there are no optimizer states files") {
				t.Error(err)
			}
			continue
		}
		again, other := mustRead(t, written)
		if !strings.Contains(again.Doubt, "there are no optimizer states files") {
			t.Errorf("stage %d: %q", stage, again.Doubt)
		}
		what := formattest.What{"module.1.weight": want["module.1.weight"],
			"module.counts": want["module.counts"]}
		// its master weights, in the model's place
		for _, p := range []string{"0.weight", "0.bias", "2.weight", "2.bias"} {
			what["module."+p] = want["optimizer.fp32."+p]
		}
		formattest.Compare(t, other, again, what)
	}
}

// TestZeroShared keeps what is frozen and shared, of which stage 3 has no master weights, and
// proves what is of trained ones, be it of the model's own.
func TestZeroShared(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/zero2.zip")
	c, files := mustRead(t, dir)
	for i := range c.Tensors {
		switch x := c.Tensors[i]; x.Name {
		case "module.1.weight":
			x.Name = "module.still"
			c.Tensors = append(c.Tensors, x)
		case "optimizer.fp32.0.weight": // a model in f32 of which there is no other copy
			x.Name = "module.head"
			c.Tensors = append(c.Tensors, x)
			c.Tensors[i].Name = "module.0.weight"
		case "module.0.weight":
			c.Tensors[i].Name = "gone"
		}
	}
	c.Tensors = slices.DeleteFunc(c.Tensors, func(x format.Tensor) bool { return x.Name == "gone" })
	c.Values = append(c.Values, format.Value{Path: "shared_params.still", Data: "1.weight"},
		format.Value{Path: "shared_params.head", Data: "0.weight"})
	out, err := deepspeed.LayoutZero(deepspeed.Zero{Stage: 3, DP: 2}, c.Tensors, c.Values,
		files.Read)
	if err != nil {
		t.Fatal(err)
	}
	implied := map[string]string{}
	for _, p := range out.Implied {
		implied[p.Model.Name] = p.Main.Name
	}
	if implied["module.head"] != "module.0.weight" || len(implied) != 4 {
		t.Errorf("implied are %v", implied)
	}
	for _, x := range c.Tensors {
		if !slices.ContainsFunc(out.Tensors, func(y format.Tensor) bool {
			return x.Name == y.Name
		}) && implied[x.Name] == "" {
			t.Errorf("%s is gone", x.Name)
		}
	}
	again, other := mustRead(t, formattest.WritePaddedOutput(t, out, c, files))
	from, to := formattest.Contents(t, files, c), formattest.Contents(t, other, again)
	if from["module.still"] != to["module.still"] {
		t.Error("what is frozen and shared is another")
	}
}

// askDeepSpeed has DeepSpeed run a script of testdata over folders, and returns what it prints.
// framework.Ask decides whether the test is skipped where DeepSpeed is not there. It stops the test
// if what is printed is no JSON.
func askDeepSpeed(t *testing.T, script string, folders []string,
	args ...string) (found map[string]any) {
	t.Helper()
	out := framework.Ask(
		t,
		"deepspeed",
		append([]string{"testdata/" + script}, args...),
		folders...)
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatal(err)
	}
	return found
}

// TestDeepSpeedConsolidates has DeepSpeed's zero_to_fp32 find the master weights in what is
// written, in every stage over even and uneven numbers of ranks.
func TestDeepSpeedConsolidates(t *testing.T) {
	wants, folders := map[string]formattest.What{}, []string{}
	for from, name := range []string{"zero1", "zero2", "zero3"} {
		dir, want := formattest.Load(t, "testdata/"+name+".zip")
		c, files := mustRead(t, dir)
		for stage := 1; stage <= 3; stage++ {
			folder := t.TempDir()
			if err := os.CopyFS(folder, writeZero(t, stage, 2*stage+from-1, c, files)); err != nil {
				t.Fatal(err)
			}
			wants[folder], folders = want, append(folders, folder)
		}
	}
	for folder, found := range askDeepSpeed(t, "fp32.py", folders, folders...) {
		found, want := found.(map[string]any), wants[folder]
		for _, p := range []string{"0.weight", "0.bias", "2.weight", "2.bias"} {
			if w := want["optimizer.fp32."+p]; !cmp.Equal(found[p], any([]any{w[0], w[1], w[2]})) {
				t.Errorf("%s: %s is %v, want %v", folder, p, found[p], w)
			}
		}
		if w := want["module.counts"]; !cmp.Equal(found["counts"], any([]any{w[0], w[1], w[2]})) {
			t.Errorf("%s: the buffer is %v, want %v", folder, found["counts"], w)
		}
		if w, ok := found["1.weight"]; ok && w.([]any)[2] != want["module.1.weight"][2] {
			t.Errorf("%s: the frozen parameter is %v", folder, w)
		}
	}
}

// TestDeepSpeedResumes has DeepSpeed load what is written over three ranks, which two have trained,
// and go on.
func TestDeepSpeedResumes(t *testing.T) {
	wants, args, folders := map[string]formattest.What{}, []string{}, []string{}
	for stage, from := range []string{2: "zero3", 3: "zero2"} {
		if from == "" {
			continue
		}
		dir, want := formattest.Load(t, "testdata/"+from+".zip")
		c, files := mustRead(t, dir)
		folder := t.TempDir()
		if err := os.CopyFS(folder, writeZero(t, stage, 3, c, files)); err != nil {
			t.Fatal(err)
		}
		if stage == 2 { // what is rounded
			_, rounded := formattest.Load(t, "testdata/zero2.zip")
			for name := range rounded {
				if strings.HasPrefix(name, "module.") {
					want[name] = rounded[name]
				}
			}
		}
		want["module.counts"] = [3]any{
			"torch.bfloat16",
			[]any{3.0},
			"0000803f0040",
		} // DeepSpeed trains the whole model in bf16
		wants[folder], args, folders = want, append(
			args,
			folder,
			fmt.Sprint(stage),
			"3",
		), append(
			folders,
			folder,
		)
	}
	for folder, found := range askDeepSpeed(t, "load.py", folders, args...) {
		found, n := found.(map[string]any), 0
		for path, x := range found {
			if w, ok := wants[folder][path]; ok {
				n++
				if !cmp.Equal(x, any([]any{w[0], w[1], w[2]})) {
					t.Errorf("%s: %s is %v, want %v", folder, path, x, w)
				}
			}
		}
		if n != 18 || found["note"] != "ours" || found["lr"] != 1e-2 || found["steps"] != 2.0 ||
			found["step"] != 2.0 {
			t.Errorf("%s: %d tensors, %v", folder, n, found)
		}
	}
}
