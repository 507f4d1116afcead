package megatron_test

// This file tests torch_dist against random models that are sliced here.
import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/internal/framework"
	"github.com/shoal-ml/shoal/tensor"
)

// torchTensors returns the tensors of a folder as torch sees them. It stops the test if they cannot
// be read.
func torchTensors(t testing.TB, dir fs.FS) map[string]string {
	t.Helper()
	files := format.NewFiles(dir)
	c, err := dcp.Read(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for i := range c.Tensors {
		x := &c.Tensors[i]
		for name, part := range sliceTensor(x.Name, x.Shape, formattest.ReadTensor(t, files, x)) {
			all[name] = fmt.Sprint(x.DType, part.shape, part.bytes)
		}
	}
	return all
}

// A slicedTensor is one layer or expert of a tensor: its shape, and its bytes.
type slicedTensor struct {
	shape tensor.Shape
	bytes []byte
}

var (
	allLayers  = regexp.MustCompile(`^(.*decoder\.layers\.)([a-z].*)$`)
	allExperts = regexp.MustCompile(`^(.*\.experts)\.experts\.(.*)$`)
)

// sliceTensor returns the slices of a tensor of all layers, or all experts, along its first
// dimension.
func sliceTensor(name string, s tensor.Shape, b []byte) map[string]slicedTensor {
	form := ""
	if m := allLayers.FindStringSubmatch(name); m != nil {
		form = m[1] + "%d." + m[2]
	} else if m := allExperts.FindStringSubmatch(name); m != nil {
		form = m[1] + ".local_experts.%d." + m[2]
	} else {
		return map[string]slicedTensor{name: {s, b}}
	}
	all := map[string]slicedTensor{}
	for i := range s[0] {
		n := len(b) / s[0]
		maps.Copy(all, sliceTensor(fmt.Sprintf(form, i), s[1:], b[i*n:(i+1)*n]))
	}
	return all
}

// TestDistRandom writes models of Hugging Face's names, and compares what torch sees with what
// slicing and joining their matrices row by row gives.
func TestDistRandom(t *testing.T) {
	tryModels(t, (*model).checkDist)
}

// checkDist writes the model as torch_dist, and compares what torch sees with slices of its
// matrices. It changes the mesh of the model to one rank, and fails or stops the test where they
// differ.
func (m *model) checkDist(t *testing.T) {
	m.TP, m.PP, m.EP, m.Cuts, m.Mesh = 1, 1, 1, []int{0}, ""
	c, files := m.asCheckpoint()
	out, err := megatron.LayoutDist(m.spec(t, c), c.Tensors, c.Values, files.Read)
	if err != nil {
		t.Fatal(err)
	}
	dir := innerFolder(t, formattest.WriteOutput(t, out, c, files))
	want := map[string]string{}
	for name, x := range m.rankTensors(0, 0, 0) {
		want[strings.TrimPrefix(name, "model.")] = x
	}
	for name, from := range map[string]string{
		"embedding.word_embeddings.weight": "model.embed_tokens.weight",
		"output_layer.weight":              "lm_head.weight"} {
		if x := m.whole[from]; x != nil { // without rows that fill up
			want[name] = fmt.Sprint(m.DType, m.shapeOf(from), bytes.Join(x, nil))
		}
	}
	if diff := cmp.Diff(want, torchTensors(t, dir)); diff != "" {
		t.Fatalf("-sliced +torch's\n%s", diff)
	}
	again, files := readDist(t, dir)
	for _, f := range again.Check(files) {
		t.Error(f)
	}
	got := map[string]string{}
	for name, x := range formattest.Contents(t, files, again) {
		got[strings.TrimPrefix(name, "model.")] = x
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("-sliced +read\n%s", diff)
	}
	for path, want := range map[string]any{
		"args.num_layers": int64(m.Layers), "args.hidden_size": int64(m.Hidden),
		"args.num_attention_heads":                 int64(m.Groups * m.Each),
		"args.untie_embeddings_and_output_weights": !m.Tied,
		"args.no_save_optim":                       true, "iteration": int64(0),
	} {
		if got, ok := again.Value(path); !ok || got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
}

// loadDist has torch load a folder into tensors of zeros, and print what they hold then, and
// objects.
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

// TestDistTorchLoads has torch's own loader read what is written: every layer of every key, under
// both names of a copy in f32.
func TestDistTorchLoads(t *testing.T) {
	dir, want := formattest.Load(t, "testdata/mixed.zip")
	c, files := mustRead(t, dir)
	folder := filepath.Join(t.TempDir(), "checkpoint")
	if err := os.CopyFS(folder, writeDist(t, c, files)); err != nil {
		t.Fatal(err)
	}
	out := framework.Ask(t, "torch", []string{"-c", loadDist, folder}, folder)
	var tensors formattest.What
	var objects []string
	if err := json.Unmarshal(out, &[]any{&tensors, &objects}); err != nil {
		t.Fatal(err)
	}
	got := formattest.What{}
	kinds := strings.NewReplacer("optimizer.state.fp32_param.", "optimizer.fp32.",
		"optimizer.state.", "optimizer.")
	for name, x := range tensors {
		var s tensor.Shape
		for _, d := range x[1].([]any) {
			s = append(s, int(d.(float64)))
		}
		text := x[2].(string)
		for name, part := range sliceTensor(name, s, []byte(text)) {
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
	if !slices.Contains(objects, "decoder.layers.mlp.linear_fc1._extra_state/shard_3_4") ||
		!slices.Contains(objects, "decoder.final_layernorm._extra_state/shard_0_1") {
		t.Errorf("objects: %v", objects)
	}
}
