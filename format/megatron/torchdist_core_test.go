package megatron_test

// This file tests torch_dist with Megatron-Core, where it is installed.
import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/internal/framework"
)

// vocabulary is how many rows Megatron-Core's model has for those of the samples: it fills them up.
const vocabulary = 12

// coreWant returns what Megatron-Core's model has of a tensor of a sample, on one of the tensor
// parallel ranks: under names of the whole model. tp is the rank, of how many there are. It stops
// the test where the sample has no such tensor.
func coreWant(t *testing.T, want formattest.What, name string, tp, of int) [3]any {
	t.Helper()
	x, ok := want[name]
	if !ok {
		t.Fatalf("there is no %s", name)
	}
	b, err := hex.DecodeString(x[2].(string))
	if err != nil {
		t.Fatal(err)
	}
	shape := x[1].([]any)
	if len(shape) == 1 {
		return x
	}
	n, columns := int(shape[0].(float64)), int(shape[1].(float64))
	var m rows
	for i := range n {
		m = append(m, b[i*len(b)/n:(i+1)*len(b)/n])
	}
	part := func(m rows) rows { return m[len(m)*tp/of : len(m)*(tp+1)/of] }
	switch {
	case strings.HasSuffix(name, "word_embeddings.weight"):
		for len(m) < vocabulary {
			m = append(m, make([]byte, len(m[0])))
		}
		m = part(m)
	case strings.HasSuffix(name, "linear_fc1.weight"):
		m = append(append(rows{}, part(m[:n/2])...), part(m[n/2:])...)
	case strings.HasSuffix(name, "linear_qkv.weight"):
		m = part(m)
	default:
		for i, row := range m {
			m[i] = row[len(row)*tp/of : len(row)*(tp+1)/of]
		}
		columns /= of
	}
	text := ""
	for _, row := range m {
		text += hex.EncodeToString(row)
	}
	return [3]any{x[0], []any{float64(len(m)), float64(columns)}, text}
}

// TestDistOfMegatronCore reads what Megatron-Core 0.16.1 has saved: of mixed.zip, loaded by it,
// without the numbers of steps.
func TestDistOfMegatronCore(t *testing.T) {
	_, whole := formattest.Load(t, "testdata/mixed.zip")
	want := formattest.What{}
	for name := range whole {
		if !strings.HasPrefix(name, "optimizer.step.") {
			want[name] = coreWant(t, whole, name, 0, 1)
		}
	}
	dir, _ := formattest.Load(t, "testdata/core.zip")
	c, files := readDist(t, dir)
	formattest.Compare(t, files, c, want)
	if v, _ := c.Value("iteration"); v != int64(12) {
		t.Errorf("iteration is %v", v)
	}
}

// TestMegatronCoreLoads has Megatron-Core load what is written into a model of its own, cut for two
// tensor and two pipeline parallel ranks, and optimizers of both kinds.
func TestMegatronCoreLoads(t *testing.T) {
	dir, want := formattest.Load(t, "testdata/mixed.zip")
	c, files := mustRead(t, dir)
	folder := filepath.Join(t.TempDir(), "checkpoint")
	if err := os.CopyFS(folder, writeDist(t, c, files)); err != nil {
		t.Fatal(err)
	}
	out := framework.Ask(t, "megatron/core", []string{"testdata/torch_dist.py", folder}, folder)
	var ranks []struct {
		TP, PP        int
		LR            float64
		Step          int
		CommonStep    int `json:"common_step"`
		Model, States formattest.What
	}
	if err := json.Unmarshal(out, &ranks); err != nil {
		t.Fatal(err)
	}
	n := 0
	for i, r := range ranks {
		if r.TP != i%2 || r.PP != i/2 || r.LR != 1e-4 || r.Step != 12 || r.CommonStep != 12 {
			t.Errorf("rank %d: %v", i, r)
		}
		found := formattest.What{}
		for name, x := range r.Model {
			found["model."+wholeName(name, r.PP)] = x
		}
		for name, x := range r.States {
			kind, param, _ := strings.Cut(name, ".")
			found["optimizer."+kind+"."+wholeName(param, r.PP)] = x
		}
		expected := formattest.What{}
		for name := range maps.Keys(found) {
			own := strings.Replace(strings.Replace(name, "optimizer.param.", "optimizer.fp32.", 1),
				"optimizer.fp32_param.", "optimizer.fp32.", 1)
			expected[name] = coreWant(t, want, own, r.TP, 2)
		}
		if diff := cmp.Diff(expected, found); diff != "" {
			t.Errorf("rank %d: -written +loaded\n%s", i, diff)
		}
		n += len(found)
	}
	if n != 270 {
		t.Errorf("%d tensors are compared", n)
	}
}

// wholeName returns what a parameter of a stage, of modules that have norms of their own, is called
// in the samples. pp is the stage; it has two layers.
func wholeName(name string, pp int) string {
	for i := range 2 {
		if rest, ok := strings.CutPrefix(name, fmt.Sprintf("decoder.layers.%d.", i)); ok {
			rest = strings.NewReplacer("input_layernorm.", "self_attention.linear_qkv.layer_norm_",
				"pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_").Replace(rest)
			return fmt.Sprintf("decoder.layers.%d.%s", i+2*pp, rest)
		}
	}
	return strings.Replace(name, "output_layer.", "embedding.word_embeddings.", 1)
}
