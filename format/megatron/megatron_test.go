package megatron_test

// This file tests the reader on samples of every mesh, and on damage to them.
import (
	"bytes"
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/internal/envtest"
)

// TestRead reads samples of every mesh, and compares with what their ranks had in memory.
func TestRead(t *testing.T) {
	for _, name := range []string{"tp2pp2", "virtual", "experts"} {
		t.Run(name, func(t *testing.T) {
			dir, want := formattest.Load(t, "testdata/"+name+".zip")
			files := format.NewFiles(dir)
			c, err := megatron.Read(files)
			if err != nil {
				t.Fatal(err)
			}
			formattest.Compare(t, files, c, want)
			for path, want := range map[string]any{
				"iteration": int64(12), "args.num_layers": int64(4),
				"args.params_dtype":      "torch.bfloat16",
				"args.attention_backend": "megatron.core.transformer.enums.AttnBackend.auto",
				"optimizer.grad_scaler":  nil,
			} {
				if v, ok := c.Value(path); !ok || v != want {
					t.Errorf("%s = %v, want %v", path, v, want)
				}
			}
		})
	}
}

// TestIteration reads the folder of an iteration itself. It has the same tensors.
func TestIteration(t *testing.T) {
	dir, want := formattest.Load(t, "testdata/virtual.zip")
	inner := fstest.MapFS{}
	for name, f := range dir {
		if rest, ok := strings.CutPrefix(name, "iter_0000012/"); ok {
			inner[rest] = f
		}
	}
	files := format.NewFiles(inner)
	c, err := megatron.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	formattest.Compare(t, files, c, want)
}

// TestDamage demands that damage to any file of a checkpoint is found.
func TestDamage(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/virtual.zip")
	formattest.CheckDamage(t, envtest.Places(t), dir, megatron.Read, func(name string) bool {
		return name != megatron.LatestName
	})
}

// TestLogicalDamage takes damaged checkpoints apart: nothing panics, and a bit that is flipped is
// noticed as before.
func TestLogicalDamage(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/frozen.zip")
	places := envtest.Places(t)
	formattest.CheckDamage(t, places, dir, func(files *format.Files) (*format.Checkpoint, error) {
		c, err := readJoined(files)
		if err == nil {
			_, _, err = megatron.ToHuggingFace(c, sampleModel(c))
		}
		if err == nil {
			_, err = megatron.FoldOptimizer(c)
		}
		return c, err
	}, func(name string) bool { return name != megatron.LatestName })
}

// TestRefuses says of broken checkpoints what is wrong.
func TestRefuses(t *testing.T) {
	const file = "iter_0000012/mp_rank_01_001/model_optim_rng.pt"
	for _, c := range []struct {
		name   string
		change func(fstest.MapFS)
		err    string
	}{
		{"a rank is missing", func(d fstest.MapFS) {
			delete(d, file)
		}, "iter_0000012 lacks mp_rank_01_001 (tp=1, pp=1): by the args in " +
			"iter_0000012/mp_rank_00_000/model_optim_rng.pt there are 4 ranks (tp=2, pp=2, " +
			"ep=1), and 3 have a folder"},
		{"the first rank is missing, and another", func(d fstest.MapFS) {
			delete(d, "iter_0000012/mp_rank_00_000/model_optim_rng.pt")
			delete(d, "iter_0000012/mp_rank_01_000/model_optim_rng.pt")
		}, "lacks mp_rank_00_000 (tp=0, pp=0), mp_rank_01_000 (tp=1, pp=0): by the args in " +
			"iter_0000012/mp_rank_00_001/model_optim_rng.pt"},
		{"a folder without its file", func(d fstest.MapFS) {
			delete(d, file)
			d["iter_0000012/mp_rank_01_001/other"] = &fstest.MapFile{}
		}, file},
		{"a rank twice", func(d fstest.MapFS) {
			d["iter_0000012/mp_rank_001_001/model_optim_rng.pt"] = d[file]
		}, "mp_rank_001_001 and mp_rank_01_001 are both of rank tp=1, pp=1"},
		{"a rank too many", func(d fstest.MapFS) {
			d["iter_0000012/mp_rank_02_000/model_optim_rng.pt"] = d[file]
		}, "of no rank with tp=2 pp=2"},
		{"a name without a stage", func(d fstest.MapFS) {
			d["iter_0000012/mp_rank_00/model_optim_rng.pt"] = d[file]
		}, "the folder's name has 1 ranks"},
		{"path traversal", func(d fstest.MapFS) {
			d[megatron.LatestName] = &fstest.MapFile{Data: []byte("../../x")}
		}, `"../../x" is no iteration`},
		{"no such iteration", func(d fstest.MapFS) {
			d[megatron.LatestName] = &fstest.MapFile{Data: []byte("13")}
		}, "iter_0000013"},
		{"a changed pickle", func(d fstest.MapFS) {
			replaceText(d, file, "AttnBackend", "AttnBackenx")
		}, "is damaged: its checksum is "},
		{"an empty folder", func(d fstest.MapFS) { clear(d) }, "has no folder mp_rank_*"},
	} {
		dir, _ := formattest.Load(t, "testdata/tp2pp2.zip")
		c.change(dir)
		if _, err := megatron.Read(format.NewFiles(dir)); err == nil ||
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v; want %q", c.name, err, c.err)
		}
	}
}

// TestRefusesOtherRanks: where experts are cut over fewer ranks than the rest, Megatron does not
// write a folder for each pair of ranks, and nothing was lost.
func TestRefusesOtherRanks(t *testing.T) {
	from, _ := formattest.Load(t, "testdata/chained.zip")
	c, files := mustRead(t, from)
	setValue(c, "args.expert_tensor_parallel_siz_", int64(1)) // as the writer would not write it
	out, err := megatron.Layout(corePreset(t, "ep=2,tp=2", c), c.Tensors, c.Values)
	if err != nil {
		t.Fatal(err)
	}
	dir := fstest.MapFS{}
	for name, f := range formattest.WritePaddedOutput(t, out, c, files) {
		if dir[name] = f; strings.HasSuffix(name, ".pt") {
			dir[name] = &fstest.MapFile{
				Data: formattest.ReplaceInZip(t, f.Data, "tensor_parallel_siz_",
					"tensor_parallel_size")}
		}
		if strings.Contains(name, "00_001") || strings.Contains(name, "01_000") {
			delete(dir, name)
		}
	}
	if _, err := megatron.Read(format.NewFiles(dir)); err == nil ||
		!strings.Contains(err.Error(),
			"lacks mp_rank_00_001 (tp=0, pp=0, ep=1), mp_rank_01_000 (tp=1, pp=0, ep=0): ") ||
		!strings.HasSuffix(err.Error(), "and 2 have a folder; with expert_tensor_parallel_size "+
			"1 Megatron does not write all of them, which shoal cannot put together; have "+
			"Megatron load it and save it as torch_dist") {
		t.Error(err)
	}
}

// TestRefusesExtendedRanks: with moe_extended_tp all expert parallel ranks have parts of all
// experts, which do not count as experts of their own. What is written has whole ones.
func TestRefusesExtendedRanks(t *testing.T) {
	from, _ := formattest.Load(t, "testdata/chained.zip")
	c, files := mustRead(t, from)
	setValue(c, "args.moe_extended_tp", true)
	setValue(c, "args.moe_extended_t_", true) // as the writer would not write it
	dir := writeForMesh(t, c, files, "ep=2,tp=2")
	again, _ := mustRead(t, dir)
	if is, _ := again.Value("args.moe_extended_tp"); is != false {
		t.Errorf("written with moe_extended_tp %v", is)
	}
	for name, f := range dir {
		if strings.HasSuffix(name, ".pt") {
			data := formattest.ReplaceInZip(t, f.Data, "moe_extended_tp", "moe_extended_tq")
			dir[name] = &fstest.MapFile{
				Data: formattest.ReplaceInZip(t, data, "moe_extended_t_", "moe_extended_tp")}
		}
	}
	if _, err := megatron.Read(format.NewFiles(dir)); err == nil ||
		!strings.Contains(err.Error(), "args: moe_extended_tp is true: ranks have parts of all") {
		t.Error(err)
	}
}

// replaceText changes text in a file of a folder. It puts a changed copy in place of the file.
func replaceText(d fstest.MapFS, name, old, new string) {
	d[name] = &fstest.MapFile{
		Data: bytes.ReplaceAll(bytes.Clone(d[name].Data), []byte(old), []byte(new))}
}

// FuzzRead changes a file of a checkpoint: nothing panics, and what is read is sound.
func FuzzRead(f *testing.F) {
	dir, _ := formattest.Load(f, "testdata/virtual.zip")
	const one = "iter_0000012/mp_rank_00_000/model_optim_rng.pt"
	f.Add(dir[one].Data)
	f.Fuzz(func(t *testing.T, b []byte) {
		changed := maps.Clone(dir)
		changed[one] = &fstest.MapFile{Data: b}
		formattest.IsSound(changed, megatron.Read)
	})
}
