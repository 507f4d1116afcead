package deepspeed_test

// This file tests universal checkpoints that are written. Helpers stop the test on an error.
import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// writeUniversal returns a folder, in memory, with a checkpoint as a universal one. It stops the
// test if the layout fails, or differs when it is made again.
func writeUniversal(t *testing.T, c *format.Checkpoint, files *format.Files) fstest.MapFS {
	t.Helper()
	out, err := deepspeed.Layout(c.Tensors, c.Values)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := deepspeed.Layout(c.Tensors, c.Values); err != nil ||
		!reflect.DeepEqual(out, again) {
		t.Fatalf("the same is laid out otherwise: %v", err)
	}
	return formattest.WriteOutput(t, out, c, files)
}

// mustRead reads a folder, and stops the test if it cannot be read. It does not check what it
// reads.
func mustRead(t *testing.T, dir fstest.MapFS) (*format.Checkpoint, *format.Files) {
	t.Helper()
	files := format.NewFiles(dir)
	c, err := deepspeed.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	return c, files
}

// TestLayout makes universal checkpoints of those of every stage, and of universal ones: whoever
// reads them finds the same tensors and values.
func TestLayout(t *testing.T) {
	for _, name := range []string{"zero1", "zero2", "zero3", "universal1", "universal3"} {
		t.Run(name, func(t *testing.T) {
			dir, _ := formattest.Load(t, "testdata/"+name+".zip")
			c, files := mustRead(t, dir)
			want := formattest.Contents(t, files, c)
			written := writeUniversal(t, c, files)
			again, files := mustRead(t, written)
			for _, f := range again.Check(files) {
				t.Error(f)
			}
			if diff := cmp.Diff(want, formattest.Contents(t, files, again)); diff != "" {
				t.Errorf("-read +written:\n%s", diff)
			}
			for path, want := range map[string]any{"note": "ours", "global_steps": int64(2),
				"mp_world_size": int64(1), "optimizer_state.param_groups.1.weight_decay": 0.0,
				"optimizer_state.param_groups.0.lr": 1e-2} {
				if v, ok := again.Value(path); !ok || v != want {
					t.Errorf("%s = %v, want %v", path, v, want)
				}
			}
			twice, files := mustRead(t, writeUniversal(t, again, files))
			if diff := cmp.Diff(want, formattest.Contents(t, files, twice)); diff != "" {
				t.Errorf("once more:\n%s", diff)
			}
			if diff := cmp.Diff(again.Values, twice.Values); diff != "" {
				t.Errorf("values:\n%s", diff)
			}
		})
	}
}

// TestLayoutAsDeepSpeed compares the files with those that DeepSpeed's own converter makes of the
// same checkpoint.
func TestLayoutAsDeepSpeed(t *testing.T) {
	for from, to := range map[string]string{"zero1": "universal1", "zero3": "universal3",
		"tensor": "universaltensor"} {
		dir, _ := formattest.Load(t, "testdata/"+from+".zip")
		theirs, _ := formattest.Load(t, "testdata/"+to+".zip")
		c, files := mustRead(t, dir)
		ours := writeUniversal(t, c, files)
		n := 0
		for name := range theirs {
			if !strings.Contains(name, "/zero/") || strings.HasSuffix(name, "optimizer_state.pt") {
				continue
			}
			if ours[name] == nil {
				// frozen, a buffer: the converter makes state of them
				if !strings.Contains(name, "/1.weight/") && !strings.Contains(name, "/counts/") {
					t.Errorf("%s is missing", name)
				}
				continue
			}
			if a, b := fileElements(t, theirs, name), fileElements(t, ours, name); a != b {
				t.Errorf("%s: %s, want %s", name, b, a)
			}
			n++
		}
		if n < 12 {
			t.Errorf("%s: only %d files are compared", from, n)
		}
	}
}

// fileElements returns the elements of the one tensor of a file, with its key if it has one and all
// that stands beside, flat: after stage 3 DeepSpeed does not keep shapes. It stops the test where
// the file cannot be read, or has not one tensor.
func fileElements(t *testing.T, dir fstest.MapFS, name string) string {
	t.Helper()
	files := format.NewFiles(dir)
	f, err := torchzip.Open(files, name, deepspeed.Globals)
	if err != nil {
		t.Fatal(err)
	}
	c := &format.Checkpoint{}
	if err := errors.Join(f.Flatten(c, "x", f.Root), c.Finish()); err != nil ||
		len(c.Tensors) != 1 {
		t.Fatal(name, c.Tensors, err)
	}
	return fmt.Sprint(c.Tensors[0].Name, c.Tensors[0].DType,
		formattest.ReadTensor(t, files, &c.Tensors[0]), c.Values)
}

// TestLayoutOfMegatron makes one of what another framework wrote: the model of f32 is its own copy,
// what scales gradients of f16 stands beside the model, and there is a group for each parameter.
func TestLayoutOfMegatron(t *testing.T) {
	for _, name := range []string{"mixed", "half", "fp32"} {
		dir, _ := formattest.Load(t, "../megatron/testdata/"+name+".zip")
		files := format.NewFiles(dir)
		c, err := megatron.Read(files)
		if err == nil {
			err = megatron.JoinRanks(c)
		}
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for path, x := range formattest.Contents(t, files, c) {
			if param, ok := strings.CutPrefix(path, "model."); ok {
				want["module."+param] = x
				if name == "fp32" {
					want["optimizer.fp32."+param] = x
				}
			} else {
				want[path] = x
			}
		}
		again, files := mustRead(t, writeUniversal(t, c, files))
		if diff := cmp.Diff(want, formattest.Contents(t, files, again)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
		if v, ok := again.Value("iteration"); !ok || v != int64(12) {
			t.Errorf("%s: iteration %v", name, v)
		}
	}
}

// TestLayoutRefuses says why a checkpoint cannot be written as a universal one.
func TestLayoutRefuses(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/zero2.zip")
	c, _ := mustRead(t, dir)
	one := func(name string, d tensor.DType, shape ...int) format.Tensor {
		return format.Tensor{Name: name, DType: d, Shape: shape}
	}
	for err, x := range map[string]struct {
		tensors []format.Tensor
		values  []format.Value
	}{
		"there is no state of an optimizer": {
			[]format.Tensor{one("module.w", tensor.F32, 2)}, nil},
		`parameter "w": it has state (optimizer.exp_avg.w)`: {
			[]format.Tensor{one("module.w", tensor.BF16, 2),
				one("optimizer.exp_avg.w", tensor.F32, 2)}, nil},
		"optimizer.exp_avg.w has shape [3], its weights [2]": {
			[]format.Tensor{one("optimizer.fp32.w", tensor.F32, 2),
				one("optimizer.exp_avg.w", tensor.F32, 3)}, nil},
		"it is no name of a folder": {
			[]format.Tensor{one("optimizer.fp32.../w", tensor.F32, 2)}, nil},
		`vocabulary_parameter_patterns: the pattern "("`: {c.Tensors,
			append(slices.Clone(c.Values),
				format.Value{Path: "universal_checkpoint_info.vocabulary_parameter_patterns",
					Data: []any{"("}})},
		`value "optimizer.rate.0.weight"`: {c.Tensors,
			append(slices.Clone(c.Values),
				format.Value{Path: "optimizer.rate.0.weight", Data: 1.5})},
	} {
		if _, got := deepspeed.Layout(x.tensors, x.values); got == nil ||
			!strings.Contains(got.Error(), err) {
			t.Errorf("%v; want %q", got, err)
		}
	}
}

// TestSteps finds the number of steps of each parameter, as the samples have it: a tensor, or after
// stage 3 beside the parameters.
func TestSteps(t *testing.T) {
	for _, name := range []string{"zero1", "zero2", "zero3", "universal1", "universal3"} {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		c, files := mustRead(t, dir)
		steps := map[string]string{}
		for path, x := range formattest.Contents(t, files, c) {
			if param, ok := strings.CutPrefix(path, "optimizer.step."); ok {
				steps[param] = x
			}
		}
		for _, v := range c.Values {
			if param, ok := strings.CutPrefix(v.Path, "optimizer.step."); ok {
				steps[param] = fmt.Sprint(v.Data)
			}
		}
		for _, param := range []string{"0.weight", "0.bias", "2.weight", "2.bias"} {
			if want := fmt.Sprint(tensor.F32, tensor.Shape{},
				[]byte{0, 0, 0, 64}); steps[param] != want {
				t.Errorf("%s: step of %s is %q, want %q (of %v)", name, param, steps[param], want,
					slices.Sorted(maps.Keys(steps)))
			}
		}
	}
}

// TestStepBesideFrozen has a frozen parameter, which has made no steps, before all that are
// trained: the file in which stage 3 looks for their number has it.
func TestStepBesideFrozen(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/universal1.zip")
	c, files := mustRead(t, dir)
	for i := range c.Tensors {
		x := &c.Tensors[i]
		x.Name = strings.Replace(x.Name, ".1.weight", ".+.weight", 1)
	}
	if err := c.Finish(); err != nil {
		t.Fatal(err)
	}
	out := writeUniversal(t, c, files)
	f, err := torchzip.Open(format.NewFiles(out),
		"global_step2_universal/zero/optimizer_state.pt", deepspeed.Globals)
	if err != nil {
		t.Fatal(err)
	}
	state, err := pickle.Get[*pickle.Dict](f.Root, "optimizer_state_dict", "state")
	if err != nil {
		t.Fatal(err)
	}
	step, err := pickle.Get[*torchzip.Tensor](state.Items[0].Value, "step")
	if err != nil {
		t.Fatal(err)
	}
	x := step.AsTensor("step")
	if got := formattest.ReadTensor(t, format.NewFiles(out), &x); !slices.Equal(got,
		[]byte{0, 0, 0, 64}) {
		t.Errorf("the step is %v", got)
	}
}

// FuzzReadUniversal changes files of a universal checkpoint: nothing panics, and what is read is
// sound.
func FuzzReadUniversal(f *testing.F) {
	dir, _ := formattest.Load(f, "testdata/universal3.zip")
	const state = "global_step2_universal/zero/optimizer_state.pt"
	f.Add(dir[state].Data)
	f.Fuzz(func(t *testing.T, b []byte) {
		changed := maps.Clone(dir)
		changed[state] = &fstest.MapFile{Data: b}
		formattest.IsSound(changed, deepspeed.Read)
	})
}

// TestDeepSpeedLoads has DeepSpeed load what is written: with stages 1 and 2 what was trained with
// one of them, and with 3 what was with 3.
func TestDeepSpeedLoads(t *testing.T) {
	wants, args, folders := map[string]formattest.What{}, []string{}, []string{}
	stages := map[string][]string{"zero2": {"1", "2"}, "zero3": {"3"}}
	for _, name := range slices.Sorted(maps.Keys(stages)) {
		dir, want := formattest.Load(t, "testdata/"+name+".zip")
		c, files := mustRead(t, dir)
		for _, stage := range stages[name] {
			folder := filepath.Join(t.TempDir(), name+" with stage "+stage)
			if err := os.CopyFS(folder, writeUniversal(t, c, files)); err != nil {
				t.Fatal(err)
			}
			wants[folder], args, folders = want, append(args, folder, stage, "1"),
				append(folders, folder)
		}
	}
	loaded := askDeepSpeed(t, "load.py", folders, args...)
	if len(loaded) != 3 {
		t.Errorf("%d are loaded", len(loaded))
	}
	for folder, found := range loaded {
		found, n := found.(map[string]any), 0
		for path, x := range found {
			if !strings.HasPrefix(path, "optimizer.") {
				continue
			}
			n++
			if w := wants[folder][path]; !cmp.Equal(x, any([]any{w[0], w[1], w[2]})) {
				t.Errorf("%s: %s is %v, want %v", folder, path, x, w)
			}
		}
		if n != 12 || found["note"] != "ours" || found["lr"] != 1e-2 || found["steps"] != 2.0 ||
			found["step"] != 2.0 {
			t.Errorf("%s: %d states, %v", folder, n, found)
		}
	}
}
