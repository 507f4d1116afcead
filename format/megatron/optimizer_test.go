package megatron_test

// This file tests optimizers that are read.
import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/internal/envtest"
	"github.com/shoal-ml/shoal/tensor"
)

// readJoined reads a checkpoint and puts its parts together.
func readJoined(files *format.Files) (*format.Checkpoint, error) {
	c, err := megatron.Read(files)
	if err != nil {
		return nil, err
	}
	return c, megatron.JoinRanks(c)
}

// findTensor returns the tensor of a name, and fails the test if there is none. It is the
// checkpoint's own, not a copy.
func findTensor(t *testing.T, c *format.Checkpoint, name string) *format.Tensor {
	t.Helper()
	i := slices.IndexFunc(c.Tensors, func(x format.Tensor) bool { return x.Name == name })
	if i < 0 {
		t.Fatalf("there is no tensor %q", name)
	}
	return &c.Tensors[i]
}

// TestOptimizer reads optimizers, whose tensors go by position, and compares with the whole tensors
// of which they were cut.
func TestOptimizer(t *testing.T) {
	for _, name := range []string{"mixed", "swapped", "half", "frozen", "fp32", "distributed",
		"single", "chained", "together"} {
		t.Run(name, func(t *testing.T) {
			dir, want := formattest.Load(t, "testdata/"+name+".zip")
			files := format.NewFiles(dir)
			c, err := readJoined(files)
			if err != nil {
				t.Fatal(err)
			}
			formattest.Compare(t, files, c, want)
			for i := range c.Tensors {
				x := &c.Tensors[i]
				// Whatever the ranks have of a tensor has a proof of its own, but in the optimizer
				// of f32, and what has no parameter.
				due := len(x.Pieces) + len(x.Replicas)
				if strings.Contains(x.Name, "linear_fc1.weight") && len(x.Pieces) > 1 {
					due /= 2 // the halves of a part
				}
				if name == "fp32" || !strings.HasPrefix(x.Name, "optimizer.") ||
					strings.HasPrefix(x.Name, "optimizer.grad_scaler") {
					due = 0
				}
				if name == "chained" {
					due = min(due, 1)
				}
				if len(x.Proofs) != due {
					t.Errorf("%s has %d proofs, want %d", x.Name, len(x.Proofs), due)
				}
			}
			if faults, err := formattest.CheckProofs(files, c); err != nil || len(faults) > 0 {
				t.Errorf("%v, %v", faults, err)
			}
			if v, ok := c.Value("iteration"); !ok || v != int64(12) {
				t.Errorf("iteration: %v", v)
			}
			for _, v := range c.Values {
				if strings.HasSuffix(v.Path, ".params") || strings.Contains(v.Path, ".state.") {
					t.Errorf("%s goes by position", v.Path)
				}
			}
		})
	}
}

// TestLearningRates finds what groups of parameters have in common, which every optimizer keeps
// elsewhere.
func TestLearningRates(t *testing.T) {
	for name, at := range map[string]string{"mixed": "optimizer.optimizer.", "fp32": "optimizer.",
		"distributed": "optimizer.optimizer.", "chained": "optimizer.1.optimizer."} {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		c, err := readJoined(format.NewFiles(dir))
		if err != nil {
			t.Fatal(err)
		}
		if v, ok := c.Value(at + "param_groups.0.lr"); !ok || v != 1e-4 {
			t.Errorf("%s: %sparam_groups.0.lr is %v", name, at, v)
		}
	}
}

// TestGroupsOfStages has stages that number their groups otherwise: each parameter is in the group
// that it was in.
func TestGroupsOfStages(t *testing.T) {
	dir, want := formattest.Load(t, "testdata/stages.zip")
	c, files := mustRead(t, dir)
	for _, mesh := range []string{"", "pp=4,tp=2"} {
		formattest.Compare(t, files, c, want)
		for i, decay := range []float64{1, 0} {
			at := fmt.Sprintf("optimizer.optimizer.param_groups.%d.", i)
			names, _ := c.Value(at + "param_names")
			list, _ := names.([]any)
			if got, _ := c.Value(at + "wd_mult"); got != decay || len(list) != []int{17, 5}[i] {
				t.Errorf("group %d has wd_mult %v, and %d parameters", i, got, len(list))
			}
			for _, name := range list {
				if vector := strings.Contains(name.(string), "norm"); vector != (decay == 0) {
					t.Errorf("%v is in the group with wd_mult %v", name, decay)
				}
			}
		}
		if got, _ := c.Value("optimizer.optimizer.param_groups.1.lr"); got != 1e-4 {
			t.Errorf("lr is %v", got)
		}
		c, files = mustRead(t, writeForMesh(t, c, files, mesh))
	}
}

// TestWrongValue changes one element of a copy in f32, or of the model: the proof names both
// places.
func TestWrongValue(t *testing.T) {
	const layer = "decoder.layers.1."
	for _, c := range []struct {
		file, name string
		n          int // of the element in its first piece
	}{
		{"mixed", "optimizer.fp32." + layer + "mlp.linear_fc1.weight", 0},
		{"mixed", "optimizer.fp32." + layer + "self_attention.linear_proj.weight", 5},
		// one of many that are alike
		{"mixed", "optimizer.fp32." + layer + "mlp.linear_fc1.layer_norm_weight", 7},
		// the only one of its shape
		{"mixed", "optimizer.fp32.embedding.word_embeddings.weight", 39},
		// what is left is its parameter
		{"swapped", "optimizer.fp32." + layer + "mlp.linear_fc2.weight", 3},
		{"half", "model." + layer + "self_attention.linear_qkv.weight", 0},
		{"half", "model.decoder.final_layernorm.weight", 2},
		{"distributed", "optimizer.fp32." + layer + "self_attention.linear_qkv.weight", 63},
		{"chained", "optimizer.fp32." + layer + "mlp.experts.local_experts.3.linear_fc2.weight", 1},
	} {
		dir, _ := formattest.Load(t, "testdata/"+c.file+".zip")
		files := format.NewFiles(dir)
		whole, err := readJoined(files)
		if err != nil {
			t.Fatal(err)
		}
		x := findTensor(t, whole, c.name)
		p := &x.Pieces[0]
		at := p.Offset + format.BytesOf(x.DType, c.n)
		b := bytes.Clone(dir[p.File].Data)
		b[at+int64(x.DType.Size())-1] ^= 0x40 // of the exponent
		dir[p.File] = &fstest.MapFile{Data: b}

		files = format.NewFiles(dir)
		if whole, err = readJoined(files); err != nil {
			t.Fatal(err)
		}
		faults, err := formattest.CheckProofs(files, whole)
		if err != nil || len(faults) != 1 {
			t.Errorf("%s, element %d: %v, %v", c.name, c.n, faults, err)
			continue
		}
		f := faults[0].String()
		where := fmt.Sprintf("%s, byte %d", p.File, at)
		if !strings.Contains(f, where) ||
			!strings.Contains(f,
				strings.TrimPrefix(strings.TrimPrefix(c.name, "model."), "optimizer.fp32.")) {
			t.Errorf("%s in %s: %s", c.name, where, f)
		}
	}
}

// TestUnnamedState has optimizers of which nobody can tell what is what: they stay as they go in
// the files, with the reason.
func TestUnnamedState(t *testing.T) {
	for name, why := range map[string]string{
		"alike": "do not tell which it is, and the order of the optimizer is not the model's",
		"scaled": "mp_rank_00: an optimizer without copies in f32 goes by order alone, and its " +
			"groups are not only by weight decay",
		"fewer": "mp_rank_00: a group of the optimizer (weight decay: false) has 20 " +
			"parameters, and the model 21 for it",
		"turned": "mp_rank_00: the optimizer has no state of shape [10,8] where that of " +
			"\"model.embedding.word_embeddings.weight\" is due",
		"twice": "mp_rank_00: \"model.embedding.word_embeddings.weight\" is in two groups of " +
			"the optimizer",
		"tp2pp2": "of shape [2], that is none of the model's (copies left: 1, parameters left: 0)",
	} {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		c, err := readJoined(format.NewFiles(dir))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if said := whyUnnamed(c); said == "" || !strings.Contains(said, why) {
			t.Errorf("%s: %q, want %q", name, said, why)
		}
	}

	// In an order that is not the model's, of two copies that are damaged nobody can tell which is
	// which.
	dir, _ := formattest.Load(t, "testdata/swapped.zip")
	c, err := readJoined(format.NewFiles(dir))
	if err != nil {
		t.Fatal(err)
	}
	for layer := range 2 {
		p := &findTensor(t, c, fmt.Sprintf("optimizer.fp32.decoder.layers.%d.mlp.linear_fc2.weight",
			layer)).Pieces[0]
		b := bytes.Clone(dir[p.File].Data)
		b[p.Offset+3] ^= 0x40
		dir[p.File] = &fstest.MapFile{Data: b}
	}
	if c, err = readJoined(format.NewFiles(dir)); err != nil {
		t.Fatal(err)
	}
	if said, why := whyUnnamed(c),
		"of shape [8,3], do not tell which it is"; !strings.Contains(said, why) {
		t.Errorf("swapped: %q, want %q", said, why)
	}
}

// whyUnnamed returns why all tensors of an optimizer are in parts by position; empty if one is not.
func whyUnnamed(c *format.Checkpoint) (why string) {
	for _, x := range c.Tensors {
		switch {
		case !strings.HasPrefix(x.Name, "optimizer."):
		case x.WhyPart == "" || why != "" && x.WhyPart != why || len(x.Proofs) > 0:
			return ""
		default:
			why = x.WhyPart
		}
	}
	return why
}

// TestDistributedMissing takes the distributed optimizer's file of a rank away, which is an error,
// or that of the only rank, which Check tells.
func TestDistributedMissing(t *testing.T) {
	for _, rank := range []string{"mp_rank_00_000", "mp_rank_01_001"} {
		dir, _ := formattest.Load(t, "testdata/distributed.zip")
		delete(dir, "iter_0000012/"+rank+"/distrib_optim.pt")
		if _, err := readJoined(format.NewFiles(dir)); err == nil ||
			!strings.Contains(err.Error(), "a rank did not finish its save") {
			t.Errorf("without that of %s: %v", rank, err)
		}
	}
	dir, _ := formattest.Load(t, "testdata/single.zip")
	delete(dir, "iter_0000012/mp_rank_00/distrib_optim.pt")
	files := format.NewFiles(dir)
	c, err := readJoined(files)
	if err != nil {
		t.Fatal(err)
	}
	if faults := c.Check(files); len(faults) != 1 ||
		!strings.Contains(faults[0].String(),
			"keeps the optimizer's state in distrib_optim.pt beside it, and that is not there") {
		t.Errorf("without any: %v", faults)
	}
}

// TestDamageOptimizer demands that damage to files with an optimizer is found.
func TestDamageOptimizer(t *testing.T) {
	for _, name := range []string{"frozen", "single"} {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		if !formattest.IsSound(dir, readJoined) {
			t.Fatalf("%s is not sound", name)
		}
		formattest.CheckDamage(t, envtest.Places(t), dir, readJoined, func(name string) bool {
			return name != megatron.LatestName
		})
	}
}

// FuzzOptimizer changes a file with an optimizer: nothing panics, and what is read is sound.
func FuzzOptimizer(f *testing.F) {
	const one, two = "iter_0000012/mp_rank_00/model_optim_rng.pt",
		"iter_0000012/mp_rank_00/distrib_optim.pt"
	mixed, _ := formattest.Load(f, "testdata/frozen.zip")
	single, _ := formattest.Load(f, "testdata/single.zip")
	f.Add(mixed[one].Data, []byte(nil))
	f.Add(single[one].Data, single[two].Data)
	f.Fuzz(func(t *testing.T, a, b []byte) {
		changed := maps.Clone(single)
		changed[one], changed[two] = &fstest.MapFile{Data: a}, &fstest.MapFile{Data: b}
		if len(b) == 0 {
			delete(changed, two)
		}
		formattest.IsSound(changed, readJoined)
	})
}

// TestProof rounds numbers at the edges.
func TestProof(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		d     tensor.DType
		main  float32
		model uint16
		same  bool
	}{
		{tensor.BF16, 1, 0x3f80, true}, {tensor.BF16, 1.00390625, 0x3f80, true},
		{tensor.BF16, 1.00390637, 0x3f81, true},
		{tensor.BF16, 1.01171875, 0x3f82, true}, {tensor.BF16, nan, 0x7fff, true},
		{tensor.BF16, nan, 0x7f80, false}, {tensor.BF16, 0, 0x8000, false},
		{tensor.F16, 1, 0x3c00, true}, {tensor.F16, 65520, 0x7c00, true},
		{tensor.F16, 0x1p-24, 1, true}, {tensor.F16, 0x1p-26, 0, true},
		{tensor.F16, nan, 0xfe01, true}, {tensor.F16, 1, 0x3c01, false},
	} {
		main, model := binary.LittleEndian.AppendUint32(nil, math.Float32bits(c.main)),
			binary.LittleEndian.AppendUint16(nil, c.model)
		p := format.Proof{Main: format.Tensor{DType: tensor.F32, Shape: tensor.Shape{1}},
			Model: format.Tensor{DType: c.d, Shape: tensor.Shape{1}}}
		if got := p.FirstDifference(main, model); (got < 0) != c.same {
			t.Errorf("%v in %v against %#x: %d", c.main, c.d, c.model, got)
		}
	}
}
