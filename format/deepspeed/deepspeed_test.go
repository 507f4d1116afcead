package deepspeed_test

// This file tests the reader on checkpoints that DeepSpeed wrote, and on damage to them.
import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/internal/envtest"
)

// TestRead reads what DeepSpeed wrote with two processes, and compares with what its own converter
// finds; and what it wrote with four, with what they had in memory.
func TestRead(t *testing.T) {
	for _, name := range append(
		[]string{"zero1", "zero2", "zero3", "universal1", "universal3", "universalpipe",
			"universaltensor"}, parallel...) {
		t.Run(name, func(t *testing.T) {
			dir, want := formattest.Load(t, "testdata/"+name+".zip")
			c, files := mustRead(t, dir)
			c.Tensors = slices.DeleteFunc(c.Tensors, func(s format.Tensor) bool {
				return strings.HasPrefix(s.Name, "optimizer.step.")
			})
			formattest.Compare(t, files, c, want)
			if v, ok := c.Value("note"); !ok || v != "ours" {
				t.Errorf("note = %v", v)
			}
		})
	}
}

// TestDamage demands that damage to any file of a checkpoint but latest is found.
func TestDamage(t *testing.T) {
	for _, name := range []string{"zero2", "zero3"} {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		formattest.CheckDamage(t, envtest.Places(t), dir, deepspeed.Read, func(name string) bool {
			return name != deepspeed.LatestName
		})
	}
}

// TestRefuses says of broken checkpoints what is wrong.
func TestRefuses(t *testing.T) {
	const optim, model = "global_step2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
		"global_step2/mp_rank_00_model_states.pt"
	for _, c := range []struct {
		name   string
		change func(fstest.MapFS)
		err    string
	}{
		{"a rank is missing", func(d fstest.MapFS) {
			delete(d, optim)
		}, "cut over 2 ranks, and there are the files of 1"},
		{"a rank too many", func(d fstest.MapFS) {
			d[strings.Replace(optim, "rank_1", "rank_2", 1)] = d[optim]
		}, "there are the files of 3"},
		{"a hole", func(d fstest.MapFS) {
			d[strings.Replace(optim, "rank_1", "rank_3", 1)] = d[optim]
			delete(d, optim)
		}, "no optimizer states file of mp rank 0, dp rank 1"},
		{"two of one rank", func(d fstest.MapFS) {
			d[strings.Replace(optim, "bf16", "fp16", 1)] = d[optim]
		}, "are of the same rank"},
		{"no model", func(d fstest.MapFS) { delete(d, model) }, "no mp_rank_*_model_states.pt"},
		{"experts", func(d fstest.MapFS) {
			d["global_step2/layer_0_expert_1_mp_rank_00_model_states.pt"] = d[model]
		}, "there is no file of expert 0 of layer 0 of the mixture"},
		{"a pipeline", func(d fstest.MapFS) {
			d["global_step2/layer_00-model_00-model_states.pt"] = d[model]
		}, "is in no file of a layer"},
		{"path traversal", func(d fstest.MapFS) {
			d[deepspeed.LatestName] = &fstest.MapFile{Data: []byte("../x")}
		}, `"../x" is no name of a folder`},
		{"no folder", func(d fstest.MapFS) {
			d[deepspeed.LatestName] = &fstest.MapFile{Data: []byte("x")}
		}, "x"},
	} {
		dir, _ := formattest.Load(t, "testdata/zero2.zip")
		c.change(dir)
		if _, err := deepspeed.Read(format.NewFiles(dir)); err == nil ||
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v; want %q", c.name, err, c.err)
		}
	}
}

// FuzzRead changes files of a checkpoint: nothing panics, and what is read is sound.
func FuzzRead(f *testing.F) {
	const one, two = "global_step2/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
		"global_step2/mp_rank_00_model_states.pt"
	dir, _ := formattest.Load(f, "testdata/zero1.zip")
	f.Add(dir[one].Data, dir[two].Data)
	f.Fuzz(func(t *testing.T, a, b []byte) {
		changed := maps.Clone(dir)
		changed[one], changed[two] = &fstest.MapFile{Data: bytes.Clone(a)},
			&fstest.MapFile{Data: bytes.Clone(b)}
		formattest.IsSound(changed, deepspeed.Read)
	})
}
