package optim_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/state/format/formattest"
	"github.com/shoal-ml/shoal/state/layout"
)

// trained is a checkpoint of FSDP on the disk, and what is in it.
func trained(t *testing.T, name string) (string, formattest.What) {
	t.Helper()
	files, want := formattest.Load(t, "../dcp/testdata/"+name+".zip")
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, files); err != nil {
		t.Fatal(err)
	}
	return dir, want
}

// convert writes a checkpoint in a format that goes by groups, for the ranks of a mesh.
func convert(t *testing.T, from, to string, mesh layout.Mesh) string {
	t.Helper()
	c, err := checkpoint.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Adopt(to, nil); err != nil {
		t.Fatal(err)
	}
	f := checkpoint.Form{Format: to, BF16: true} // in which load.py trains
	if preset := checkpoint.Preset(to); preset != "" {
		if f.Spec, err = layout.Preset(preset, mesh, checkpoint.Catalogue(c.Checkpoint), 2); err != nil {
			t.Fatal(err)
		}
	}
	out, _, err := c.Lay(f)
	if err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(t.TempDir(), to)
	if _, err := checkpoint.Move(t.Context(), c, out, dst, checkpoint.Options{Workers: 2, Seal: true}); err != nil {
		t.Fatal(err)
	}
	return dst
}

// run has Python run a script, and returns what it prints.
func run(t *testing.T, python, script string, args ...string) (found map[string]any) {
	t.Helper()
	out, err := exec.Command(python, append([]string{script}, args...)...).Output()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", script, args, err, err.(*exec.ExitError).Stderr)
	}
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatal(err)
	}
	return found
}

// TestDeepSpeedLoads has DeepSpeed load what FSDP has trained, over as many ranks as it is written for, and go on: each parameter gets its weights, moments, rates and number of steps.
func TestDeepSpeedLoads(t *testing.T) {
	python := formattest.Python(t, "deepspeed")
	t.Setenv("MODEL", "llama")
	var args []string
	dir, want := trained(t, "flat")
	for stage := 2; stage <= 3; stage++ {
		args = append(args, convert(t, dir, fmt.Sprintf("zero%d", stage), layout.Mesh{{Name: "dp", Size: stage}}), strconv.Itoa(stage), strconv.Itoa(stage))
	}
	for folder, found := range run(t, python, "../deepspeed/testdata/load.py", args...) {
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
		if n != 3*21 || found["lr"] != 1e-2 || found["step"] != 3.0 || found["weight_decay.0"] != 0.1 || found["weight_decay.1"] != 0.0 {
			t.Errorf("%s: %d states, %v, %v, %v, %v", folder, n, found["lr"], found["step"], found["weight_decay.0"], found["weight_decay.1"])
		}
	}
}
