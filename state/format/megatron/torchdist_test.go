package megatron_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/state/format"
	"github.com/shoal-ml/shoal/state/format/dcp"
	"github.com/shoal-ml/shoal/state/format/formattest"
	"github.com/shoal-ml/shoal/state/format/megatron"
	"github.com/shoal-ml/shoal/state/format/pickle"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// whole is one rank with everything.
var whole = &layout.Spec{Shoal: layout.Version, Rules: []layout.Rule{{Match: "**"}}}

// relayDist writes a checkpoint as one of torch_dist, and returns the folder of the iteration.
func relayDist(t testing.TB, c *format.Checkpoint, files *format.Files) fstest.MapFS {
	t.Helper()
	spec := preset(t, "", c)
	out, err := megatron.LayoutDist(spec, c.Tensors, c.Values, files.Read)
	if err != nil {
		t.Fatal(err)
	}
	again, err := megatron.LayoutDist(spec, c.Tensors, c.Values, files.Read)
	if err != nil || !reflect.DeepEqual(out, again) {
		t.Fatalf("the same is laid out otherwise: %v", err)
	}
	return inner(t, formattest.Write(t, out, c, files))
}

// inner is the folder of the newest iteration, of which nothing else is there.
func inner(t testing.TB, dir fstest.MapFS) fstest.MapFS {
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
	if names := slices.Sorted(maps.Keys(sub)); !slices.Equal(names, []string{".metadata", "__0_0.distcp", "common.pt", "metadata.json"}) {
		t.Errorf("the files are %v", names)
	}
	return sub
}

func readDist(t testing.TB, dir fs.FS) (*format.Checkpoint, *format.Files) {
	t.Helper()
	files := format.NewFiles(dir)
	c, err := megatron.ReadDist(files)
	if err != nil {
		t.Fatal(err)
	}
	return c, files
}

// TestDistSamples writes Megatron's checkpoints of all meshes as torch_dist, reads that, writes it as torch_dist once more, and for other meshes: everything is as in
// the whole model each time.
func TestDistSamples(t *testing.T) {
	for name, mesh := range map[string]string{
		"mixed": "pp=4,tp=1", "swapped": "tp=2", "half": "pp=2,tp=2", "frozen": "tp=2", "fp32": "pp=4,tp=2", "distributed": "pp=4,tp=2", "single": "pp=2,tp=2", "chained": "pp=2,ep=2,tp=2",
	} {
		t.Run(name, func(t *testing.T) {
			dir, want := formattest.Load(t, "testdata/"+name+".zip")
			first, files := read(t, dir)
			c := first
			for range 2 {
				c, files = readDist(t, relayDist(t, c, files))
				if c.Format != "Megatron torch_dist" {
					t.Errorf("it is %s", c.Format)
				}
				formattest.Compare(t, files, c, want)
			}
			c, files = read(t, relay(t, c, files, mesh))
			formattest.Compare(t, files, c, want)
			if said := apart(c); said != "" {
				t.Error(said)
			}
			c.Values = slices.DeleteFunc(c.Values, func(v format.Value) bool { // what torch_dist adds
				_, before := first.Value(v.Path)
				added := strings.HasPrefix(v.Path, "content_metadata.") || strings.HasSuffix(v.Path, ".step") || strings.HasSuffix(v.Path, ".param_state_sharding_type") ||
					v.Path == "args.no_save_rng" || v.Path == "args.no_save_optim"
				return added && !before
			})
			sameValues(t, first, c)
		})
	}
}

// TestDistCommon looks at what stands beside the tensors, where Megatron looks for it.
func TestDistCommon(t *testing.T) {
	for name, want := range map[string]map[string]any{
		"mixed":   {"optimizer.optimizer.param_groups.0.step": int64(12), "optimizer.optimizer.state.common_step": int64(12), "optimizer.param_state_sharding_type": "fully_reshardable", "args.no_save_optim": false},
		"fp32":    {"optimizer.param_groups.1.step": int64(12)},
		"half":    {"optimizer.optimizer.param_groups.0.step": int64(12)},
		"chained": {"optimizer.0.optimizer.param_groups.0.step": int64(12), "optimizer.1.optimizer.state.common_step": int64(12)},
	} {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		c, files := read(t, dir)
		written := relayDist(t, c, files)
		delete(written, megatron.ConfigName) // so that all stands where it lies
		got, _ := readDist(t, written)
		maps.Copy(want, map[string]any{"args.ckpt_format": "torch_dist", "args.no_save_rng": true, "iteration": int64(12), "checkpoint_version": 3.0, "content_metadata.distrib_optim_sharding_type": "fully_reshardable"})
		for path, x := range want {
			if v, ok := got.Value(path); !ok || v != x {
				t.Errorf("%s: %s is %v, want %v", name, path, v, x)
			}
		}
		for _, v := range got.Values {
			if strings.HasSuffix(v.Path, ".param_names") && !strings.HasPrefix(v.Path, "shoal.optimizer.") || strings.HasPrefix(v.Path, "rng_state") {
				t.Errorf("%s: %s is there", name, v.Path)
			}
		}
	}
}

// raw are the tensors of a folder as torch sees them.
func raw(t testing.TB, dir fs.FS) map[string]string {
	t.Helper()
	files := format.NewFiles(dir)
	c, err := dcp.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for i := range c.Tensors {
		b := make([]byte, c.Tensors[i].Bytes())
		if err := files.Read(&c.Tensors[i], b); err != nil {
			t.Fatal(err)
		}
		for name, part := range sliced(c.Tensors[i].Name, c.Tensors[i].Shape, b) {
			all[name] = fmt.Sprint(c.Tensors[i].DType, part.shape, part.bytes)
		}
	}
	return all
}

type slice struct {
	shape tensor.Shape
	bytes []byte
}

var (
	allLayers  = regexp.MustCompile(`^(.*decoder\.layers\.)([a-z].*)$`)
	allExperts = regexp.MustCompile(`^(.*\.experts)\.experts\.(.*)$`)
)

// sliced takes a tensor of all layers, or all experts, apart, along its first dimension.
func sliced(name string, s tensor.Shape, b []byte) map[string]slice {
	form := ""
	if m := allLayers.FindStringSubmatch(name); m != nil {
		form = m[1] + "%d." + m[2]
	} else if m := allExperts.FindStringSubmatch(name); m != nil {
		form = m[1] + ".local_experts.%d." + m[2]
	} else {
		return map[string]slice{name: {s, b}}
	}
	all := map[string]slice{}
	for i := range s[0] {
		n := len(b) / s[0]
		maps.Copy(all, sliced(fmt.Sprintf(form, i), s[1:], b[i*n:(i+1)*n]))
	}
	return all
}

// TestDistRandom writes models of Hugging Face's names, and compares what torch sees with what slicing and joining their matrices row by row gives.
func TestDistRandom(t *testing.T) {
	n, seed := cases(t, 200)
	r := rand.New(rand.NewPCG(seed, 2))
	for i := range n {
		m := drawModel(r)
		m.TP, m.PP, m.EP, m.Cuts, m.Mesh = 1, 1, 1, []int{0}, ""
		if !t.Run(strconv.Itoa(i), m.testDist) {
			t.Fatalf("case %d of SEED=%d: %+v", i, seed, m.dims)
		}
	}
}

func (m *model) testDist(t *testing.T) {
	c, files := m.source()
	out, err := megatron.LayoutDist(m.spec(t, c), c.Tensors, c.Values, files.Read)
	if err != nil {
		t.Fatal(err)
	}
	dir := inner(t, formattest.Write(t, out, c, files))
	want := map[string]string{}
	for name, x := range m.rank(0, 0, 0) {
		want[strings.TrimPrefix(name, "model.")] = x
	}
	for name, from := range map[string]string{"embedding.word_embeddings.weight": "model.embed_tokens.weight", "output_layer.weight": "lm_head.weight"} {
		if x := m.whole[from]; x != nil { // without rows that fill up
			want[name] = fmt.Sprint(m.DType, m.shape(from), bytes.Join(x, nil))
		}
	}
	if diff := cmp.Diff(want, raw(t, dir)); diff != "" {
		t.Fatalf("-sliced +torch's\n%s", diff)
	}
	again, files := readDist(t, dir)
	for _, f := range again.Check(files) {
		t.Error(f)
	}
	got := map[string]string{}
	for i := range again.Tensors {
		b := make([]byte, again.Tensors[i].Bytes())
		if err := files.Read(&again.Tensors[i], b); err != nil {
			t.Fatal(err)
		}
		got[strings.TrimPrefix(again.Tensors[i].Name, "model.")] = fmt.Sprint(again.Tensors[i].DType, again.Tensors[i].Shape, b)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("-sliced +read\n%s", diff)
	}
	for path, want := range map[string]any{
		"args.num_layers": int64(m.Layers), "args.hidden_size": int64(m.Hidden), "args.num_attention_heads": int64(m.Groups * m.Each), "args.untie_embeddings_and_output_weights": !m.Tied,
		"args.no_save_optim": true, "iteration": int64(0),
	} {
		if got, ok := again.Value(path); !ok || got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
}

// tiny is a checkpoint of matrices of u8, whose elements are their place in the list.
func tiny(names ...string) (*format.Checkpoint, *format.Files) {
	c, data := &format.Checkpoint{}, []byte{}
	for i, name := range names {
		s := tensor.Shape{2, 2}
		if strings.Contains(name, "norm") {
			s = s[1:]
		}
		c.Tensors = append(c.Tensors, format.Tensor{Name: name, DType: tensor.U8, Shape: s, Pieces: []format.Piece{{Box: s.Box(), File: "file", Offset: int64(len(data))}}})
		data = append(data, bytes.Repeat([]byte{byte(i)}, s.Box().Elements())...)
	}
	return c, format.NewFiles(fstest.MapFS{"file": {Data: data}})
}

// items are the names in the metadata.
func items(t *testing.T, c *format.Checkpoint, files *format.Files) []string {
	t.Helper()
	out, err := megatron.LayoutDist(whole, c.Tensors, c.Values, files.Read)
	if err != nil {
		t.Fatal(err)
	}
	dir := inner(t, formattest.Write(t, out, c, files))
	read, err := dcp.Read(format.NewFiles(dir))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range read.Tensors {
		names = append(names, fmt.Sprint(x.Name, x.Shape))
	}
	for _, v := range read.Values {
		names = append(names, v.Path)
	}
	again, files := readDist(t, dir)
	for _, f := range again.Check(files) {
		t.Error(f)
	}
	return names
}

// TestDistKeys: layers and experts stand in one tensor where Megatron has them in one, modules have what they keep beside, and norms the name that they have everywhere.
func TestDistKeys(t *testing.T) {
	const one, two = "model.decoder.layers.0.", "model.decoder.layers.1."
	for name, x := range map[string]struct {
		tensors []string
		values  []format.Value
		want    []string
	}{
		"alike": {[]string{one + "self_attention.linear_proj.weight", two + "self_attention.linear_proj.weight"}, nil, []string{
			"decoder.layers.self_attention.linear_proj.weight[2,2,2]",
			"decoder.layers.self_attention.core_attention._extra_state/shard_0_2", "decoder.layers.self_attention.core_attention._extra_state/shard_1_2",
			"decoder.layers.self_attention.linear_proj._extra_state/shard_0_2", "decoder.layers.self_attention.linear_proj._extra_state/shard_1_2"}},
		"unlike": {[]string{one + "mlp.linear_fc2.weight", two + "mlp.linear_fc1.weight"}, nil, []string{
			"decoder.layers.0.mlp.linear_fc2.weight[2,2]", "decoder.layers.1.mlp.linear_fc1.weight[2,2]",
			"decoder.layers.0.mlp.linear_fc2._extra_state/shard_0_1", "decoder.layers.1.mlp.linear_fc1._extra_state/shard_0_1"}},
		"said to be unlike": {[]string{one + "mlp.experts.local_experts.0.linear_fc2.weight", one + "mlp.experts.local_experts.1.linear_fc2.weight"},
			[]format.Value{{Path: "args.moe_layer_freq", Is: []any{int64(1)}}}, []string{
				"decoder.layers.0.mlp.experts.experts.linear_fc2.weight[2,2,2]",
				"decoder.layers.0.mlp.experts.experts.linear_fc2._extra_state/shard_0_2", "decoder.layers.0.mlp.experts.experts.linear_fc2._extra_state/shard_1_2"}},
		"experts": {[]string{one + "mlp.experts.linear_fc1.weight0", one + "mlp.experts.linear_fc1.weight1"},
			[]format.Value{{Path: "args.moe_layer_freq", Is: int64(1)}}, []string{
				"decoder.layers.mlp.experts.experts.linear_fc1.weight[1,2,2,2]",
				"decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_0.0_1.2", "decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_0.1_1.2"}},
		"norms": {[]string{one + "self_attention.linear_qkv.weight", one + "input_layernorm.weight", one + "pre_mlp_layernorm.bias", "model.decoder.final_layernorm.weight"}, nil, []string{
			"decoder.final_layernorm.weight[2]", "decoder.layers.mlp.linear_fc1.layer_norm_bias[1,2]", "decoder.layers.self_attention.linear_qkv.layer_norm_weight[1,2]",
			"decoder.layers.self_attention.linear_qkv.weight[1,2,2]",
			"decoder.final_layernorm._extra_state/shard_0_1", "decoder.layers.mlp.linear_fc1._extra_state/shard_0_1", "decoder.layers.self_attention.linear_qkv._extra_state/shard_0_1"}},
		"norms of their own": {[]string{one + "self_attention.linear_q_proj.weight", one + "input_layernorm.weight"}, nil, []string{
			"decoder.layers.input_layernorm.weight[1,2]", "decoder.layers.self_attention.linear_q_proj.weight[1,2,2]",
			"decoder.layers.input_layernorm._extra_state/shard_0_1", "decoder.layers.self_attention.linear_q_proj._extra_state/shard_0_1"}},
		"state of a module": {[]string{one + "mlp.linear_fc2.weight", one + "mlp.linear_fc2._extra_state"}, []format.Value{{Path: "model.decoder.layers.0.x._extra_state", Is: nil}}, []string{
			"decoder.layers.mlp.linear_fc2._extra_state/shard_0_1.0[2,2]", "decoder.layers.mlp.linear_fc2.weight[1,2,2]"}},
	} {
		c, files := tiny(x.tensors...)
		c.Values = x.values
		if diff := cmp.Diff(x.want, items(t, c, files)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// TestDistNames: of two names for the same, one counts; what lacks a layer, or lies otherwise, stays as it is.
func TestDistNames(t *testing.T) {
	one := func(from, to int) format.Shard {
		s := tensor.Shape{2, 3}
		b := s.Box()
		b[0] = tensor.Span{From: from, To: to}
		return format.Shard{DType: tensor.U8, Shape: s, Box: b}
	}
	named := func(name string, shards ...format.Shard) []format.Shard {
		for i := range shards {
			shards[i].Name = name
		}
		return shards
	}
	common := &pickle.Dict{}
	common.Add("iteration", int64(7))
	content := dcp.Content{Ranks: [][]format.Shard{slices.Concat(
		named("decoder.layers.a", one(0, 1), one(1, 2)), named("decoder.layers.b", one(0, 1)), named("decoder.layers.c", one(0, 2)),
		named("optimizer.state.exp_avg.decoder.layers.a", one(1, 2)), named("optimizer.state.fp32_param.decoder.layers.a", one(0, 1), one(1, 2)),
		named("chained_0.optimizer.state.param.decoder.layers.b", one(0, 1)), named("optimizer.distributed.x", one(0, 2)))},
		Values:  []format.Value{{Path: "rng_state/shard_0.0_1.2", Is: []any{"r"}}, {Path: "decoder.layers.a._extra_state/shard_1_2", Is: []any{"kept"}}},
		Objects: []dcp.Object{{Name: "common_state/shard_0_1", Root: &pickle.List{Items: []any{common}}}},
		Also:    map[string][]string{"optimizer.state.fp32_param.decoder.layers.a": {"optimizer.state.param.decoder.layers.a"}, "decoder.layers.a": {"optimizer.state.param.decoder.layers.d"}},
	}
	out, err := content.Layout()
	if err != nil {
		t.Fatal(err)
	}
	dir := fstest.MapFS{megatron.ConfigName: {Data: []byte(`{"sharded_backend": "torch_dist"}`)}}
	for _, f := range out.Files {
		dir[f.Name] = &fstest.MapFile{Data: make([]byte, f.Size)}
	}
	for _, f := range out.Frames {
		copy(dir[f.File].Data[f.Offset:], f.Bytes)
	}
	c, _ := readDist(t, dir)
	var names []string
	for _, x := range c.Tensors {
		names = append(names, fmt.Sprint(x.Name, x.Shape))
	}
	for _, v := range c.Values {
		names = append(names, fmt.Sprint(v.Path, "=", v.Is))
	}
	if diff := cmp.Diff([]string{
		"decoder.layers.b[2,3]", "decoder.layers.c[2,3]", "model.decoder.layers.0.a[3]", "model.decoder.layers.1.a[3]", "optimizer.distributed.x[2,3]",
		"optimizer.exp_avg.decoder.layers.1.a[3]", "optimizer.fp32.decoder.layers.0.a[3]", "optimizer.fp32.decoder.layers.0.b[3]", "optimizer.fp32.decoder.layers.1.a[3]",
		"iteration=7", "model.decoder.layers.1.a._extra_state=kept", "rng_state/shard_0.0_1.2=[r]",
	}, names); diff != "" {
		t.Error(diff)
	}
	dir[megatron.ConfigName].Data = []byte(`{"sharded_backend": "zarr"}`)
	if c, _ = readDist(t, dir); c.Format != "torch DCP" || c.Tensors[0].Name != "chained_0.optimizer.state.param.decoder.layers.b" {
		t.Errorf("%s, %s", c.Format, c.Tensors[0].Name)
	}
}

func TestDistRefuses(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/mixed.zip")
	c, files := read(t, dir)
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
		{"a mesh", "pp=2,tp=1", c.Tensors, c.Values, files.Read, "the mesh pp=2,tp=1 has several ranks"},
		{"no groups", "", c.Tensors, nil, files.Read, `there is state of an optimizer (such as "optimizer.exp_avg.decoder.final_layernorm.weight"), and nothing of its groups`},
		{"another tensor", "", append(slices.Clone(c.Tensors), format.Tensor{Name: "vision.w", DType: tensor.F32, Shape: tensor.Shape{1}}), c.Values, files.Read, `tensor "vision.w" is none of a model of Megatron Core`},
		{"a flat buffer", "", append(slices.Clone(c.Tensors), format.Tensor{Name: "optimizer.distributed.x", DType: tensor.F32, Shape: tensor.Shape{1}}), c.Values, files.Read, "--dist-ckpt-optim-fully-reshardable"},
		{"another shape", "", append(slices.Clone(c.Tensors), format.Tensor{Name: "optimizer.rows.decoder.final_layernorm.weight", DType: tensor.F32, Shape: tensor.Shape{1}}), c.Values, files.Read, "Megatron has state of the same shape only"},
		{"steps that cannot be read", "", c.Tensors, c.Values, unread, fs.ErrPermission.Error()},
		{"several numbers of steps", "", c.Tensors, with(format.Value{Path: "optimizer.step.decoder.layers.0.mlp.linear_fc2.weight", Is: int64(11)}), files.Read, "Megatron has one number of steps for all parameters"},
		{"half a step", "", c.Tensors, with(format.Value{Path: "optimizer.step.decoder.layers.0.mlp.linear_fc2.weight", Is: 0.5}), others, `linear_fc2.weight" is 0.5`},
		{"a rate", "", c.Tensors, with(format.Value{Path: "optimizer.rate.decoder.layers.0.mlp.linear_fc2.weight", Is: 0.5}), files.Read, `value "optimizer.rate.decoder.layers.0.mlp.linear_fc2.weight"`},
		{"a value in a value", "", c.Tensors, with(format.Value{Path: "a", Is: int64(1)}, format.Value{Path: "a.b", Is: int64(2)}), files.Read, `value "a.b"`},
	} {
		spec := preset(t, "", c)
		spec.Mesh = x.mesh
		if _, err := megatron.LayoutDist(spec, x.tensors, x.values, x.read); err == nil || !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %v; want %q", x.name, err, x.err)
		}
	}
}

func TestDistDamage(t *testing.T) {
	c, files := tiny("model.decoder.layers.0.mlp.linear_fc2.weight", "model.decoder.layers.1.mlp.linear_fc2.weight")
	out, err := megatron.LayoutDist(whole, c.Tensors, c.Values, files.Read)
	if err != nil {
		t.Fatal(err)
	}
	dir := inner(t, formattest.Write(t, out, c, files))
	formattest.Damage(t, dir, megatron.ReadDist, func(name string) bool { return name == dcp.MetadataName || strings.HasSuffix(name, ".distcp") })
}

func FuzzDist(f *testing.F) {
	c, files := tiny("model.decoder.layers.0.mlp.linear_fc2.weight", "model.decoder.layers.1.mlp.linear_fc2.weight")
	out, err := megatron.LayoutDist(whole, c.Tensors, c.Values, files.Read)
	if err != nil {
		f.Fatal(err)
	}
	dir := inner(f, formattest.Write(f, out, c, files))
	f.Add(dir[dcp.MetadataName].Data)
	f.Fuzz(func(t *testing.T, metadata []byte) {
		changed := maps.Clone(dir)
		changed[dcp.MetadataName] = &fstest.MapFile{Data: metadata}
		formattest.Sound(changed, megatron.ReadDist)
	})
}

// loadDist has torch load a folder into tensors of zeros, and print what they hold then, and objects.
const loadDist = `
import io, json, sys, torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
items = FileSystemReader(sys.argv[1]).read_metadata().state_dict_metadata
state = {k: torch.zeros(m.size, dtype=m.properties.dtype) if hasattr(m, "size") else None for k, m in items.items()}
dcp.load(state, checkpoint_id=sys.argv[1], no_dist=True)
show = lambda t: [str(t.dtype), list(t.shape), bytes(t.contiguous().reshape(-1).view(torch.uint8).tolist()).hex()]
print(json.dumps([{k: show(v) for k, v in state.items() if isinstance(v, torch.Tensor)}, sorted(k for k, v in state.items() if v == [None])]))
`

// TestDistTorchLoads has torch's own loader read what is written: every layer of every key, under both names of a copy in f32.
func TestDistTorchLoads(t *testing.T) {
	const python = "../../../.venv-torch2/bin/python"
	if _, err := os.Stat(python); err != nil || testing.Short() {
		t.Skip("no torch to read with; scripts/setup torch2 makes one")
	}
	dir, want := formattest.Load(t, "testdata/mixed.zip")
	c, files := read(t, dir)
	folder := filepath.Join(t.TempDir(), "checkpoint")
	if err := os.CopyFS(folder, relayDist(t, c, files)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(python, "-W", "ignore", "-c", loadDist, folder).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, err.(*exec.ExitError).Stderr)
	}
	var tensors formattest.What
	var objects []string
	if err := json.Unmarshal(out, &[]any{&tensors, &objects}); err != nil {
		t.Fatal(err)
	}
	got := formattest.What{}
	kinds := strings.NewReplacer("optimizer.state.fp32_param.", "optimizer.fp32.", "optimizer.state.", "optimizer.")
	for name, x := range tensors {
		var s tensor.Shape
		for _, d := range x[1].([]any) {
			s = append(s, int(d.(float64)))
		}
		text := x[2].(string)
		for name, part := range sliced(name, s, []byte(text)) {
			shape := []any{}
			for _, d := range part.shape {
				shape = append(shape, float64(d))
			}
			if name = kinds.Replace(name); !strings.HasPrefix(name, "optimizer.") {
				name = "model." + name
			}
			got[name] = [3]any{x[0], shape, string(part.bytes)}
		}
	}
	for name, x := range want {
		if param, ok := strings.CutPrefix(name, "optimizer.fp32."); ok {
			want["optimizer.param."+param] = x
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-written +torch:\n%s", diff)
	}
	if !slices.Contains(objects, "decoder.layers.mlp.linear_fc1._extra_state/shard_3_4") || !slices.Contains(objects, "decoder.final_layernorm._extra_state/shard_0_1") {
		t.Errorf("objects: %v", objects)
	}
}
