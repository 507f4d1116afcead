package deepspeed_test

// This file tests that DeepSpeed loads what is written, where it is installed.
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

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
)

// reload is what DeepSpeed is to load, into which model over which ranks.
type reload struct {
	from string // the archive of the source
	kind string // model, as testdata/load_parallel.py names it
	z    deepspeed.Zero
}

// TestDeepSpeedReloads has DeepSpeed load what is written for other ranks than have trained it, and
// save it: all state is as it was.
func TestDeepSpeedReloads(t *testing.T) {
	var args, folders []string
	var wants []map[string]string
	reloads := []reload{
		{"moe2", "moe", deepspeed.Zero{Stage: 1, DP: 4, EP: 4}},
		{"moe1", "moe", deepspeed.Zero{Stage: 2, DP: 2}},
		{"moepipe", "moepipe", deepspeed.Zero{Stage: 1, DP: 1, PP: 3}},
		{"pipe", "pipe", deepspeed.Zero{Stage: 1, DP: 1, PP: 4, Starts: []int{2, 4, 5}}},
		{"pipe", "pipe", deepspeed.Zero{Stage: 1, DP: 2, PP: 1}},
		{"tensor", "tensor", deepspeed.Zero{Stage: 3, DP: 2, TP: 2}},
	}
	for _, x := range reloads {
		dir, _ := formattest.Load(t, "testdata/"+x.from+".zip")
		c, files := mustRead(t, dir)
		folder := t.TempDir()
		if err := os.CopyFS(folder, writeZeroRanks(t, x.z, c, files)); err != nil {
			t.Fatal(err)
		}
		want := formattest.Contents(t, files, c)
		for name := range want {
			if x.z.Stage == 3 && strings.HasPrefix(name, "module.") {
				delete(want, name)
			}
		}
		wants = append(wants, want)
		tp, pp, ep := max(x.z.TP, 1), max(x.z.PP, 1), max(x.z.EP, 1)
		saved := filepath.Join(t.TempDir(), "saved")
		folders = append(folders, folder, saved)
		args = append(
			args,
			folder,
			saved,
			x.kind,
			fmt.Sprint(x.z.Stage),
			fmt.Sprint(x.z.DP*tp*pp),
			fmt.Sprint(max(ep, pp)),
		)
	}
	compared := askDeepSpeed(t, "load_parallel.py", folders, args...)
	for i, x := range reloads {
		to := args[6*i+1]
		files := format.NewFiles(os.DirFS(to))
		c, err := deepspeed.Read(files)
		if err != nil {
			t.Fatal(err)
		}
		if diff := describeDifferences(wants[i], formattest.Contents(t, files, c)); diff != "" {
			t.Errorf("%s as %+v: %s", x.from, x.z, diff)
		}
		if n, _ := compared[to].(float64); (n == 0) != (x.z.Stage == 3) {
			t.Errorf("%s as %+v: %v parameters were compared", x.from, x.z, compared[to])
		}
	}
}

// TestDeepSpeedTrainsOn has DeepSpeed train a pipeline with experts, go on over other stages and
// expert parallel ranks for a step, and compares loss, weights and optimizer with those of a run
// that nobody has disturbed.
func TestDeepSpeedTrainsOn(t *testing.T) {
	at := t.TempDir()
	train := func(from, to string, steps int, z deepspeed.Zero) []string {
		return []string{from, filepath.Join(at, to), fmt.Sprint(steps), fmt.Sprint(z.DP * z.PP),
			fmt.Sprint(z.PP), fmt.Sprint(z.EP)}
	}
	first := deepspeed.Zero{DP: 2, PP: 2, EP: 2}
	undisturbed := askDeepSpeed(
		t,
		"resume.py",
		[]string{filepath.Join(at, "two"), filepath.Join(at, "three")},
		append(train("-", "two", 2, first), train("-", "three", 3, first)...)...)
	want, _ := undisturbed[filepath.Join(at, "three")].([]any)
	if len(want) != 3 {
		t.Fatal(undisturbed)
	}
	load := func(name string) (*format.Checkpoint, *format.Files) {
		files := format.NewFiles(os.DirFS(filepath.Join(at, name)))
		c, err := deepspeed.Read(files)
		if err != nil {
			t.Fatal(err)
		}
		return c, files
	}
	c, files := load("two")
	others := map[string]deepspeed.Zero{
		"one":     {Stage: 1, DP: 4, PP: 1, EP: 2},
		"sharing": {Stage: 1, DP: 2, PP: 2, EP: 1},
		"stages":  {Stage: 1, DP: 1, PP: 3, EP: 1, Starts: []int{2, 3}},
	}
	others["universal"] = deepspeed.Zero{DP: 1, PP: 2, EP: 1}
	others["universal of one stage"] = deepspeed.Zero{DP: 2, PP: 1, EP: 1}
	var args, folders []string
	for _, name := range slices.Sorted(maps.Keys(others)) {
		z := others[name]
		from, dir := filepath.Join(at, name), fstest.MapFS{}
		if z.Stage == 0 {
			dir = writeUniversal(t, c, files)
		} else {
			dir = writeZeroRanks(t, z, c, files)
		}
		if err := os.CopyFS(from, dir); err != nil {
			t.Fatal(err)
		}
		args = append(args, train(from, name+" resumed", 1, z)...)
		folders = append(folders, from, filepath.Join(at, name+" resumed"))
	}
	resumed := askDeepSpeed(t, "resume.py", folders, args...)
	c, files = load("three")
	for name := range others {
		losses, _ := resumed[filepath.Join(at, name+" resumed")].([]any)
		if len(losses) != 1 || !isNear(losses[0].(float64), want[2].(float64)) {
			t.Errorf("%s: the losses are %v, want %v", name, losses, want[2])
		}
		again, other := load(name + " resumed")
		if len(again.Tensors) != len(c.Tensors) {
			t.Fatalf("%s: %d tensors, want %d", name, len(again.Tensors), len(c.Tensors))
		}
		for i := range c.Tensors {
			x, y := &c.Tensors[i], &again.Tensors[i]
			a, b := readFloats(t, files, x), readFloats(t, other, y)
			if x.Name != y.Name || !slices.EqualFunc(a, b, isNear) {
				t.Errorf("%s: %s is %v, want %s %v", name, y.Name, b, x.Name, a)
			}
		}
	}
}

// isNear reports whether numbers differ by no more than what adding up in another order comes to.
func isNear(a, b float64) bool { return math.Abs(a-b) <= 1e-6+1e-5*math.Abs(a) }

// readFloats returns the elements of a tensor in f32. It stops the test if they cannot be read.
func readFloats(t *testing.T, files *format.Files, x *format.Tensor) (list []float64) {
	t.Helper()
	b := formattest.ReadTensor(t, files, x)
	for i := 0; i+4 <= len(b); i += 4 {
		list = append(list, float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i:]))))
	}
	return list
}
