package megatron_test

// This file tests torch_dist that is written and read. Helpers stop the test on an error.
import (
	"bytes"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/internal/envtest"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// whole is one rank with everything.
var whole = &layout.Spec{Shoal: layout.Version, Rules: []layout.Rule{{Match: "**"}}}

// writeDist writes a checkpoint as one of torch_dist, in memory, and returns the folder of the
// iteration. It stops the test if the layout fails, or differs when it is made again.
func writeDist(t testing.TB, c *format.Checkpoint, files *format.Files) fstest.MapFS {
	t.Helper()
	spec := corePreset(t, "", c)
	out, err := megatron.LayoutDist(spec, c.Tensors, c.Values, files.Read)
	if err != nil {
		t.Fatal(err)
	}
	again, err := megatron.LayoutDist(spec, c.Tensors, c.Values, files.Read)
	if err != nil || !reflect.DeepEqual(out, again) {
		t.Fatalf("the same is laid out otherwise: %v", err)
	}
	return innerFolder(t, formattest.WriteOutput(t, out, c, files))
}

// innerFolder returns the folder of the newest iteration of dir. It fails the test where other
// files than those of torch_dist are there.
func innerFolder(t testing.TB, dir fstest.MapFS) fstest.MapFS {
	t.Helper()
	name, err := megatron.Latest(format.NewFiles(dir))
	if err != nil {
		t.Fatal(err)
	}
	sub := fstest.MapFS{}
	for file, x := range dir {
		if rest, ok := strings.CutPrefix(file, name+"/"); ok {
			sub[rest] = x
		} else if file != megatron.LatestName {
			t.Errorf("%s is there", file)
		}
	}
	if names := slices.Sorted(maps.Keys(sub)); !slices.Equal(names,
		[]string{".metadata", "__0_0.distcp", "common.pt", "metadata.json"}) {
		t.Errorf("the files are %v", names)
	}
	return sub
}

// readDist reads a folder of torch_dist, and stops the test if it cannot be read. It does not check
// what it reads.
func readDist(t testing.TB, dir fs.FS) (*format.Checkpoint, *format.Files) {
	t.Helper()
	files := format.NewFiles(dir)
	c, err := megatron.ReadDist(files)
	if err != nil {
		t.Fatal(err)
	}
	return c, files
}

// TestDistSamples writes Megatron's checkpoints of all meshes as torch_dist, reads that, writes it
// as torch_dist once more, and for other meshes: everything is as in the whole model each time.
func TestDistSamples(t *testing.T) {
	for name, mesh := range map[string]string{
		"mixed": "pp=4,tp=1", "swapped": "tp=2", "half": "pp=2,tp=2", "frozen": "tp=2",
		"fp32": "pp=4,tp=2", "distributed": "pp=4,tp=2", "single": "pp=2,tp=2",
		"chained": "pp=2,ep=2,tp=2",
	} {
		t.Run(name, func(t *testing.T) {
			dir, want := formattest.Load(t, "testdata/"+name+".zip")
			first, files := mustRead(t, dir)
			c := first
			for range 2 {
				c, files = readDist(t, writeDist(t, c, files))
				if c.Format != "Megatron torch_dist" {
					t.Errorf("it is %s", c.Format)
				}
				formattest.Compare(t, files, c, want)
			}
			c, files = mustRead(t, writeForMesh(t, c, files, mesh))
			formattest.Compare(t, files, c, want)
			if said := whyUnnamed(c); said != "" {
				t.Error(said)
			}
			// what torch_dist adds
			c.Values = slices.DeleteFunc(c.Values, func(v format.Value) bool {
				_, before := first.Value(v.Path)
				added := strings.HasPrefix(v.Path, "content_metadata.") ||
					strings.HasSuffix(v.Path, ".step") ||
					strings.HasSuffix(v.Path, ".param_state_sharding_type") ||
					v.Path == "args.no_save_rng" || v.Path == "args.no_save_optim"
				return added && !before
			})
			checkValues(t, first, c)
		})
	}
}

// TestDistCommon looks at what stands beside the tensors, where Megatron looks for it.
func TestDistCommon(t *testing.T) {
	for name, want := range map[string]map[string]any{
		"mixed": {"optimizer.optimizer.param_groups.0.step": int64(12),
			"optimizer.optimizer.state.common_step": int64(12),
			"optimizer.param_state_sharding_type":   "fully_reshardable",
			"args.no_save_optim":                    false},
		"fp32": {"optimizer.param_groups.1.step": int64(12)},
		"half": {"optimizer.optimizer.param_groups.0.step": int64(12)},
		"chained": {"optimizer.0.optimizer.param_groups.0.step": int64(12),
			"optimizer.1.optimizer.state.common_step": int64(12)},
	} {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		c, files := mustRead(t, dir)
		written := writeDist(t, c, files)
		delete(written, megatron.ConfigName) // so that all stands where it lies
		got, _ := readDist(t, written)
		maps.Copy(want, map[string]any{"args.ckpt_format": "torch_dist", "args.no_save_rng": true,
			"iteration": int64(12), "checkpoint_version": 3.0,
			"content_metadata.distrib_optim_sharding_type": "fully_reshardable"})
		for path, x := range want {
			if v, ok := got.Value(path); !ok || v != x {
				t.Errorf("%s: %s is %v, want %v", name, path, v, x)
			}
		}
		for _, v := range got.Values {
			if strings.HasSuffix(v.Path, ".param_names") &&
				!strings.HasPrefix(v.Path, "shoal.optimizer.") ||
				strings.HasPrefix(v.Path, "rng_state") {
				t.Errorf("%s: %s is there", name, v.Path)
			}
		}
	}
}

// tinyCheckpoint returns a checkpoint of matrices of u8, whose elements are their place in the
// list.
func tinyCheckpoint(names ...string) (*format.Checkpoint, *format.Files) {
	c, data := &format.Checkpoint{}, []byte{}
	for i, name := range names {
		s := tensor.Shape{2, 2}
		if strings.Contains(name, "norm") {
			s = s[1:]
		}
		c.Tensors = append(c.Tensors,
			format.Tensor{Name: name, DType: tensor.U8, Shape: s,
				Pieces: []format.Piece{{Box: s.Box(), File: "file", Offset: int64(len(data))}}})
		data = append(data, bytes.Repeat([]byte{byte(i)}, s.Box().Elements())...)
	}
	return c, format.NewFiles(fstest.MapFS{"file": {Data: data}})
}

// TestDistRefuses says what cannot be written as torch_dist.
func TestDistRefuses(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/mixed.zip")
	c, files := mustRead(t, dir)
	unread := func(*format.Tensor, []byte) error { return fs.ErrPermission }
	others := func(*format.Tensor, []byte) error { return nil }
	with := func(v ...format.Value) []format.Value { return append(slices.Clone(c.Values), v...) }
	for _, x := range []struct {
		name    string
		mesh    string
		tensors []format.Tensor
		values  []format.Value
		read    func(*format.Tensor, []byte) error
		err     string
	}{
		{"a mesh", "pp=2,tp=1", c.Tensors, c.Values, files.Read,
			"the mesh pp=2,tp=1 has several ranks"},
		{"no groups", "", c.Tensors, nil, files.Read,
			`there is state of an optimizer (such as "optimizer.exp_avg.decoder.final_layernorm.weight"), and nothing of its groups`},
		{"another tensor", "",
			append(slices.Clone(c.Tensors),
				format.Tensor{Name: "vision.w", DType: tensor.F32, Shape: tensor.Shape{1}}),
			c.Values, files.Read, `tensor "vision.w" is none of a model of Megatron Core`},
		{"a flat buffer", "",
			append(slices.Clone(c.Tensors),
				format.Tensor{Name: "optimizer.distributed.x", DType: tensor.F32,
					Shape: tensor.Shape{1}}), c.Values, files.Read,
			"--dist-ckpt-optim-fully-reshardable"},
		{"another shape", "",
			append(slices.Clone(c.Tensors),
				format.Tensor{Name: "optimizer.rows.decoder.final_layernorm.weight",
					DType: tensor.F32, Shape: tensor.Shape{1}}), c.Values, files.Read,
			"Megatron has state of the same shape only"},
		{"steps that cannot be read", "", c.Tensors, c.Values, unread, fs.ErrPermission.Error()},
		{"several numbers of steps", "", c.Tensors,
			with(format.Value{Path: "optimizer.step.decoder.layers.0.mlp.linear_fc2.weight",
				Data: int64(11)}), files.Read,
			"Megatron has one number of steps for all parameters"},
		{"half a step", "", c.Tensors,
			with(format.Value{Path: "optimizer.step.decoder.layers.0.mlp.linear_fc2.weight",
				Data: 0.5}), others, `linear_fc2.weight" is 0.5`},
		{"a rate", "", c.Tensors,
			with(format.Value{Path: "optimizer.rate.decoder.layers.0.mlp.linear_fc2.weight",
				Data: 0.5}), files.Read,
			`value "optimizer.rate.decoder.layers.0.mlp.linear_fc2.weight"`},
		{"a value in a value", "", c.Tensors,
			with(format.Value{Path: "a", Data: int64(1)},
				format.Value{Path: "a.b", Data: int64(2)}),
			files.Read, `value "a.b"`},
	} {
		spec := corePreset(t, "", c)
		spec.Mesh = x.mesh
		if _, err := megatron.LayoutDist(spec, x.tensors, x.values, x.read); err == nil ||
			!strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %v; want %q", x.name, err, x.err)
		}
	}
}

// TestDistDamage demands that damage to any file of a torch_dist checkpoint is found.
func TestDistDamage(t *testing.T) {
	c, files := tinyCheckpoint("model.decoder.layers.0.mlp.linear_fc2.weight",
		"model.decoder.layers.1.mlp.linear_fc2.weight")
	out, err := megatron.LayoutDist(whole, c.Tensors, c.Values, files.Read)
	if err != nil {
		t.Fatal(err)
	}
	dir := innerFolder(t, formattest.WriteOutput(t, out, c, files))
	formattest.CheckDamage(t, envtest.Places(t), dir, megatron.ReadDist, func(name string) bool {
		return name == dcp.MetadataName || strings.HasSuffix(name, ".distcp")
	})
}

// FuzzDist changes files of a torch_dist checkpoint: nothing panics, and what is read is sound.
func FuzzDist(f *testing.F) {
	c, files := tinyCheckpoint("model.decoder.layers.0.mlp.linear_fc2.weight",
		"model.decoder.layers.1.mlp.linear_fc2.weight")
	out, err := megatron.LayoutDist(whole, c.Tensors, c.Values, files.Read)
	if err != nil {
		f.Fatal(err)
	}
	dir := innerFolder(f, formattest.WriteOutput(f, out, c, files))
	f.Add(dir[dcp.MetadataName].Data)
	f.Fuzz(func(t *testing.T, metadata []byte) {
		changed := maps.Clone(dir)
		changed[dcp.MetadataName] = &fstest.MapFile{Data: metadata}
		formattest.IsSound(changed, megatron.ReadDist)
	})
}
