package deepspeed_test

// This file tests that files of universal checkpoints are missed.
import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
)

// TestUniversalLacksFile takes every file away, and cuts it in two, of universal checkpoints by
// DeepSpeed's converter and by shoal. Nothing is missed that is not in another file too.
func TestUniversalLacksFile(t *testing.T) {
	for _, name := range []string{"universal1", "universal3", "zero2", "zero3"} {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		// frozen, and a buffer: they are in the model too
		elsewhere := []string{"/zero/1.weight/", "/zero/counts/"}
		if strings.HasPrefix(name, "zero") {
			c, files := mustRead(t, dir)
			dir, elsewhere = writeUniversal(t, c, files), []string{"/zero_pp_rank_0_"}
		}
		for file, f := range dir {
			if slices.ContainsFunc(elsewhere, func(part string) bool {
				return strings.Contains(file, part)
			}) {
				continue
			}
			without := maps.Clone(dir)
			delete(without, file)
			if formattest.IsSound(without, deepspeed.Read) {
				t.Errorf("%s: %s is missing, and nobody notices", name, file)
			}
			without[file] = &fstest.MapFile{Data: f.Data[:len(f.Data)/2]}
			if formattest.IsSound(without, deepspeed.Read) {
				t.Errorf("%s: %s is cut in two, and nobody notices", name, file)
			}
		}
	}
}

// TestIncomplete says what is missing of universal checkpoints.
func TestIncomplete(t *testing.T) {
	const zero = "global_step2_universal/zero/"
	without := func(parts ...string) func(string) bool {
		return func(file string) bool {
			for _, p := range parts {
				if strings.HasPrefix(file, p) {
					return true
				}
			}
			return false
		}
	}
	for _, c := range []struct {
		from string
		gone func(string) bool
		err  string
	}{
		{"zero2", without(zero + "2.weight/"),
			zero +
				`2.weight is missing, with the state of parameter "2.weight", which global_step2_universal/mp_rank_00_model_states.pt names`},
		{"zero2", without(zero + "2.weight/fp32.pt"),
			zero + `2.weight/fp32.pt is missing, the weights of parameter "2.weight"`},
		{"zero2", without(zero + "2.weight/exp_avg.pt"),
			zero +
				`2.weight/exp_avg.pt is missing: parameter "0.bias" has such state and "2.weight" lacks it`},
		{"zero2", without(zero+"2.weight/exp_avg", zero+"2.weight/step.pt"), `"2.weight" lacks it`},
		{"zero2", without(zero + "0.bias/step.pt"),
			zero + `0.bias/step.pt is missing: parameter "0.weight" has`},
		{"zero2", without(zero + "optimizer_state.pt"), zero + "optimizer_state.pt is missing"},
		{"zero2", without("global_step2_universal/mp_rank"),
			"mp_rank_00_model_states.pt is missing"},
		{"universal1", without(zero + "0.weight/"), zero + `0.weight is missing`},
		{"universal3", without(zero + "0.weight/"), zero + `0.weight is missing`},
		{"universal1", without(zero+"1.weight/", zero+"counts/"), ""}, // frozen, and a buffer
	} {
		dir, _ := formattest.Load(t, "testdata/"+c.from+".zip")
		if c.from == "zero2" {
			from, files := mustRead(t, dir)
			dir = writeUniversal(t, from, files)
		}
		maps.DeleteFunc(dir, func(name string, _ *fstest.MapFile) bool { return c.gone(name) })
		got, err := deepspeed.Read(format.NewFiles(dir))
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v; want %q", c.from, err, c.err)
		}
		if err == nil && got.Doubt != "" {
			t.Errorf("%s: %s", c.from, got.Doubt)
		}
	}
}

// TestTwoOptimizers reads parameters whose state is of different kinds, as Muon beside Adam leaves
// it.
func TestTwoOptimizers(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/zero2.zip")
	c, files := mustRead(t, dir)
	dir = writeUniversal(t, c, files)
	const folder = "global_step2_universal/zero/2.weight/"
	dir[folder+"momentum_buffer.pt"] = dir[folder+"exp_avg.pt"]
	delete(dir, folder+"exp_avg.pt")
	delete(dir, folder+"exp_avg_sq.pt")
	mustRead(t, dir)
	delete(dir, folder+"momentum_buffer.pt")
	if _, err := deepspeed.Read(format.NewFiles(dir)); err == nil {
		t.Error("the state of one of two optimizers is missing, and nobody notices")
	}
}
