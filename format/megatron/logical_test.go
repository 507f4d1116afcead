package megatron_test

// This file tests the conversion to Hugging Face's names.
import (
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/tensor"
)

// contents returns the model's tensors by Hugging Face's names, in the form of formattest.Contents.
func (m *model) contents() map[string]string {
	all := map[string]string{}
	for name, x := range m.whole {
		all[name] = fmt.Sprint(m.DType, m.shapeOf(name), slices.Concat(x...))
	}
	return all
}

// oneExpert matches a parameter of one of several experts, under its name in mp_rank folders.
var oneExpert = regexp.MustCompile(`experts\.local_experts\.(\d+)\.(linear_fc\d\.[a-z]+)`)

// checkByFolders writes a model as folders mp_rank, reads these, and gives it the names it had: it
// is the model, bit by bit. Norms and experts can be modules of their own there, or not. It stops
// the test at the first failure.
func (m *model) checkByFolders(t *testing.T) {
	c, files := m.asCheckpoint()
	out, err := megatron.Layout(m.spec(t, c), c.Tensors, c.Values)
	if err != nil {
		t.Fatal(err)
	}
	written, files := mustRead(t, formattest.WritePaddedOutput(t, out, c, files))
	for i := range written.Tensors {
		x := &written.Tensors[i]
		if m.Hidden%2 == 0 {
			x.Name = strings.Replace(x.Name, "self_attention.linear_qkv.layer_norm_",
				"input_layernorm.", 1)
			x.Name = strings.Replace(x.Name, "mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm.", 1)
		}
		if m.FFN%2 == 0 {
			x.Name = oneExpert.ReplaceAllString(x.Name, "experts.$2$1")
		}
	}
	m.checkSame(t, written, files)
}

// checkByDist does what checkByFolders does, by way of torch_dist.
func (m *model) checkByDist(t *testing.T) {
	one := *m
	one.TP, one.PP, one.EP, one.Cuts, one.Mesh = 1, 1, 1, []int{0}, ""
	c, files := m.asCheckpoint()
	out, err := megatron.LayoutDist(one.spec(t, c), c.Tensors, c.Values, files.Read)
	if err != nil {
		t.Fatal(err)
	}
	written, files := readDist(t, innerFolder(t, formattest.WriteOutput(t, out, c, files)))
	m.checkSame(t, written, files)
}

// checkSame gives a checkpoint the names of Hugging Face, and demands that it is the model. It
// changes the checkpoint, and fails or stops the test.
func (m *model) checkSame(t *testing.T, c *format.Checkpoint, files *format.Files) {
	t.Helper()
	facts := megatron.ModelOf(c)
	if facts.Type = "qwen3_moe"; m.Mixtral {
		facts.Type = "mixtral"
	}
	if _, _, err := megatron.ToHuggingFace(c, facts); err != nil {
		t.Fatal(err)
	}
	for _, f := range c.Check(files) {
		t.Error(f)
	}
	if diff := cmp.Diff(m.contents(), formattest.Contents(t, files, c)); diff != "" {
		t.Fatal(diff)
	}
}

// TestLogicalRandom writes random models of Hugging Face for Megatron over random meshes, and takes
// them back.
func TestLogicalRandom(t *testing.T) {
	tryModels(t, func(m *model, t *testing.T) {
		if m.Vocab%2 == 0 {
			m.checkByFolders(t)
		} else {
			m.checkByDist(t)
		}
	})
}

// TestLogicalModels does so for each kind of model over each of the usual meshes.
func TestLogicalModels(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	for _, tp := range []int{1, 2, 4} {
		for _, pp := range []int{1, 2} {
			for kind, d := range map[string]dims{
				"llama": {}, "groups": {Each: 3}, "one group a rank": {Each: 5, Groups: tp},
				"tied": {Tied: true}, "qwen2": {Bias: true, Each: 2},
				"qwen3":             {Norms: true, Each: 2, Tied: true},
				"qwen3_moe":         {Norms: true, Expert: 4, Each: 2},
				"a full vocabulary": {Vocab: 128 * tp},
				"mixtral":           {Mixtral: true, Expert: 2, Each: 4},
				"dense layers too":  {Expert: 4, Dense: true},
			} {
				d.TP, d.PP, d.EP, d.Cuts, d.Layers, d.Mesh = tp, pp, 1, []int{0, 2}[:pp], 4,
					fmt.Sprintf("pp=%d,tp=%d", pp, tp)
				d.Groups, d.Each, d.Head, d.Hidden, d.FFN = max(d.Groups, 4), max(d.Each, 1), 2, 6,
					8
				d.Vocab, d.DType = max(d.Vocab, 11), tensor.BF16
				m := fillModel(r, d)
				t.Run(kind+" "+d.Mesh, m.checkByFolders)
				if tp*pp == 1 { // which has no mesh
					t.Run(kind, m.checkByDist)
				}
			}
		}
	}
}

// sampleVocabulary is how many rows of the samples are meant to be of the vocabulary.
const sampleVocabulary = 9

var (
	sampleName = regexp.MustCompile(
		`^(?:model\.|(optimizer\.[^.]+\.))((?:decoder|embedding|output_layer)\..*)$`)
	sampleLayer = regexp.MustCompile(`^decoder\.layers\.(\d+)\.(.*)$`)
)

// huggingNames returns the parameters that a parameter of Megatron's is made of: an oracle for the
// rules.
func huggingNames(param string) []string {
	m := sampleLayer.FindStringSubmatch(param)
	if m == nil {
		return []string{map[string]string{
			"embedding.word_embeddings.weight": "model.embed_tokens.weight",
			"decoder.final_layernorm.weight":   "model.norm.weight"}[param]}
	}
	var names []string
	for _, name := range map[string][]string{
		"self_attention.linear_qkv.weight": {"self_attn.q_proj.weight",
			"self_attn.k_proj.weight", "self_attn.v_proj.weight"},
		"self_attention.linear_qkv.layer_norm_weight": {"input_layernorm.weight"},
		"self_attention.linear_proj.weight":           {"self_attn.o_proj.weight"},
		"mlp.linear_fc1.weight": {"mlp.gate_proj.weight",
			"mlp.up_proj.weight"},
		"mlp.linear_fc1.layer_norm_weight": {"post_attention_layernorm.weight"},
		"mlp.linear_fc2.weight":            {"mlp.down_proj.weight"},
	}[m[2]] {
		names = append(names, "model.layers."+m[1]+"."+name)
	}
	return names
}

// underHuggingNames returns what a sample holds, given as formattest.Load does, with Megatron's
// tensors renamed and split as Hugging Face has them. It knows the samples' rows only: 9 of the
// vocabulary, 6 each of gate and up, and two groups of 4 of q, 2 of k and 2 of v. It stops the test
// where elements are not hex.
func underHuggingNames(t *testing.T, want formattest.What) formattest.What {
	t.Helper()
	all := formattest.What{}
	for name, x := range want {
		m := sampleName.FindStringSubmatch(name)
		if m == nil {
			all[name] = x
			continue
		}
		names, shape := huggingNames(m[2]), x[1].([]any)
		b, err := hex.DecodeString(x[2].(string))
		if err != nil {
			t.Fatal(err)
		}
		n := 1
		if len(shape) > 0 {
			n = int(shape[0].(float64))
		}
		take := func(rows ...int) (s string) {
			for _, i := range rows {
				s += hex.EncodeToString(b[i*len(b)/n : (i+1)*len(b)/n])
			}
			return s
		}
		put := func(name string, rows ...int) {
			all[m[1]+name] = [3]any{x[0], append([]any{float64(len(rows))}, shape[1:]...),
				take(rows...)}
		}
		switch {
		case len(shape) == 0 || len(names) == 1 &&
			!strings.HasSuffix(name, "word_embeddings.weight"):
			for _, name := range names {
				all[m[1]+name] = x
			}
		case len(names) == 1:
			put(names[0], 0, 1, 2, 3, 4, 5, 6, 7, 8)
		case len(names) == 2:
			put(names[0], 0, 1, 2, 3, 4, 5)
			put(names[1], 6, 7, 8, 9, 10, 11)
		default: // in each group 4 rows of q, 2 of k, 2 of v
			put(names[0], 0, 1, 2, 3, 8, 9, 10, 11)
			put(names[1], 4, 5, 12, 13)
			put(names[2], 6, 7, 14, 15)
		}
	}
	return all
}

// sampleModel returns what the arguments of a sample tell, and its vocabulary.
func sampleModel(c *format.Checkpoint) megatron.Model {
	m := megatron.ModelOf(c)
	m.Vocabulary = megatron.Fact{N: sampleVocabulary, By: "the test"}
	return m
}

// TestLogicalOptimizer takes samples with their optimizers apart, and what shoal and Megatron-Core
// make of them as torch_dist.
func TestLogicalOptimizer(t *testing.T) {
	for _, name := range []string{"mixed", "swapped", "half", "frozen", "distributed", "single"} {
		t.Run(name, func(t *testing.T) {
			dir, want := formattest.Load(t, "testdata/"+name+".zip")
			c, files := mustRead(t, dir)
			dist, distFiles := readDist(t, writeDist(t, c, files))
			for _, x := range []struct {
				c     *format.Checkpoint
				files *format.Files
			}{{c, files}, {dist, distFiles}} {
				groups := strings.Count(fmt.Sprint(x.c.Values), "param_names")
				whole, _, err := megatron.ToHuggingFace(x.c, sampleModel(x.c))
				if err != nil {
					t.Fatal(err)
				}
				formattest.Compare(t, x.files, x.c, underHuggingNames(t, want))
				if faults, err := formattest.CheckProofs(x.files, x.c); err != nil ||
					len(faults) > 0 {
					t.Errorf("%v, %v", faults, err)
				}
				if whole["model.norm.weight"] != "model.decoder.final_layernorm.weight" ||
					whole["model.layers.0.self_attn.q_proj.weight"]+
						whole["model.embed_tokens.weight"] != "" {
					t.Errorf("under another name is %v", whole)
				}
				n := 0
				for _, v := range x.c.Values {
					if !strings.HasSuffix(v.Path, ".param_names") {
						continue
					}
					n++
					for _, name := range v.Data.([]any) {
						if !strings.HasPrefix(name.(string), "model.") ||
							!slices.ContainsFunc(x.c.Tensors, func(x format.Tensor) bool {
								return x.Name == "optimizer.exp_avg."+name.(string)
							}) {
							t.Errorf("%s has %s", v.Path, name)
						}
					}
				}
				if n != groups || n == 0 {
					t.Errorf("%d groups have names, of %d", n, groups)
				}
			}
			for i := range c.Tensors {
				if x := &c.Tensors[i]; strings.HasPrefix(x.Name, "optimizer.") &&
					!strings.HasPrefix(x.Name, "optimizer.grad_scaler") && len(x.Proofs) == 0 {
					t.Errorf("%s has no proof", x.Name)
				}
			}
		})
	}
	dir, _ := formattest.Load(t, "testdata/core.zip")
	_, want := formattest.Load(t, "testdata/mixed.zip")
	maps.DeleteFunc(want, func(name string, _ [3]any) bool {
		return strings.HasPrefix(name, "optimizer.step.")
	})
	c, files := readDist(t, dir)
	if _, _, err := megatron.ToHuggingFace(c, sampleModel(c)); err != nil {
		t.Fatal(err)
	}
	formattest.Compare(t, files, c, underHuggingNames(t, want))
}

// TestLogicalSteps: what is no tensor, and is of a parameter, is of all that were joined in it.
func TestLogicalSteps(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/mixed.zip")
	c, _ := mustRead(t, dir)
	c.Tensors = slices.DeleteFunc(c.Tensors, func(x format.Tensor) bool {
		return strings.HasPrefix(x.Name, "optimizer.step.")
	})
	c.Values = append(c.Values,
		format.Value{Path: "model.decoder.layers.0.mlp.linear_fc1._extra_state", Data: int64(1)},
		format.Value{Path: "optimizer.step.decoder.layers.0.mlp.linear_fc1.weight", Data: int64(7)},
		format.Value{Path: "optimizer.x.param_groups.0.param_names", Data: []any{"vision.weight"}})
	c.Tensors = append(c.Tensors,
		format.Tensor{Name: "rng_state.0.torch_rng_state", DType: tensor.U8, Shape: tensor.Shape{8},
			Coords: format.Coords{{Axis: "tp", Index: 1, Of: 2}}},
		format.Tensor{Name: "rng_state/shard_0_1", DType: tensor.U8, Shape: tensor.Shape{8}},
		format.Tensor{Name: "model.decoder.layers.0.mlp.linear_fc2._extra_state", DType: tensor.U8,
			Shape: tensor.Shape{8}})
	if _, dropped, err := megatron.ToHuggingFace(c, sampleModel(c)); err != nil || dropped != 3 {
		t.Fatalf("%d tensors are dropped, %v", dropped, err)
	}
	for path, want := range map[string]any{
		"optimizer.step.model.layers.0.mlp.gate_proj.weight": int64(7),
		"optimizer.step.model.layers.0.mlp.up_proj.weight":   int64(7), "iteration": int64(12)} {
		if is, _ := c.Value(path); is != want {
			t.Errorf("%s is %v", path, is)
		}
	}
	for _, v := range c.Values {
		if strings.Contains(v.Path, "linear_fc1") {
			t.Errorf("%s is left", v.Path)
		}
	}
}

// TestLogicalEmpty: tensors without elements come apart too.
func TestLogicalEmpty(t *testing.T) {
	c := &format.Checkpoint{Tensors: []format.Tensor{
		{Name: "model.decoder.layers.0.mlp.linear_fc1.weight", DType: tensor.F32,
			Shape: tensor.Shape{4, 0}},
		{Name: "model.decoder.layers.0.mlp.linear_fc2.weight", DType: tensor.F32,
			Shape: tensor.Shape{0, 2}},
	}}
	if _, _, err := megatron.ToHuggingFace(c, megatron.Model{}); err != nil ||
		len(c.Tensors) != 3 ||
		!c.Tensors[1].Shape.Equal(tensor.Shape{2, 0}) {
		t.Errorf("%v, %v", c.Tensors, err)
	}
}

// TestLogicalRefuses says which models cannot get the names of Hugging Face.
func TestLogicalRefuses(t *testing.T) {
	const layer = "model.decoder.layers.1."
	for _, x := range []struct {
		name   string
		change func(c *format.Checkpoint, m *megatron.Model)
		err    string
	}{
		{"no vocabulary", func(_ *format.Checkpoint, m *megatron.Model) { m.Vocabulary.N = 0 },
			`tensor "model.embedding.word_embeddings.weight" (in iter_0000012/mp_rank_00_000/model_optim_rng.pt) has 10 rows, and nobody says how many of them are of the vocabulary`},
		{"a large vocabulary", func(_ *format.Checkpoint, m *megatron.Model) {
			m.Vocabulary.N = 11
		}, "has 10 rows, fewer than the vocabulary: 11 (the test)"},
		{"no heads", func(_ *format.Checkpoint, m *megatron.Model) { *m = megatron.Model{} },
			`tensor "model.decoder.layers.0.self_attention.linear_qkv.weight" (in iter_0000012/mp_rank_00_000/model_optim_rng.pt) has 16 rows for q, k and v: nobody says of how many heads; give the model's config.json (--config)`},
		{"too many heads", func(_ *format.Checkpoint, m *megatron.Model) {
			m.KVHeads.N = 20
		}, "has 16 rows for q, k and v: they are not enough for 20 heads of k and v " +
			"(args.num_query_groups)"},
		{"other heads", func(_ *format.Checkpoint, m *megatron.Model) {
			m.KVHeads.N = 1
		}, "has 16 rows for q, k and v: "},
		{"as many heads", func(_ *format.Checkpoint, m *megatron.Model) { m.KVHeads.N = 4 },
			"they are not for 4 heads of q (args.num_attention_heads) and 4 heads of k and v " +
				"(args.num_query_groups) with 1 rows each"},
		{"heads that divide", func(_ *format.Checkpoint, m *megatron.Model) {
			m.KVHeads.N, m.Heads.N = 1, 6
		},
			`with 1 heads of k and v (args.num_query_groups) and 2 rows each, q has 12 of them, and tensor "model.decoder.layers.0.self_attention.linear_proj.weight" (in iter_0000012/mp_rank_00_000/model_optim_rng.pt) has 8 columns for it`},
		{"other heads than rows", func(_ *format.Checkpoint, m *megatron.Model) {
			m.HeadSize = megatron.Fact{N: 3, By: "config.json"}
		}, "they are not for 2 heads of k and v (args.num_query_groups) with 3 rows each " +
			"(config.json)"},
		{"a norm of q", func(c *format.Checkpoint, _ *megatron.Model) {
			c.Tensors = append(c.Tensors,
				format.Tensor{Name: layer + "self_attention.q_layernorm.weight", DType: tensor.BF16,
					Shape: tensor.Shape{4}})
		}, `q_layernorm.weight" is for heads of 4 rows, and by tensor`},
		{"unlike layers", func(c *format.Checkpoint, _ *megatron.Model) {
			setShape(c, layer+"self_attention.linear_qkv.weight", 32, 8)
		}, "the layers have unlike heads"},
		{"no gate", func(c *format.Checkpoint, _ *megatron.Model) {
			setShape(c, layer+"mlp.linear_fc1.weight", 6, 8)
		},
			`tensor "model.decoder.layers.1.mlp.linear_fc1.weight" (in iter_0000012/mp_rank_00_000/model_optim_rng.pt) has 6 rows, and tensor`},
		{"swiglu is false", func(c *format.Checkpoint, _ *megatron.Model) {
			setValue(c, "args.swiglu", false)
		}, "args.swiglu is false: tensor"},
		{"nobody knows the gate", func(c *format.Checkpoint, _ *megatron.Model) {
			c.Values = nil
			c.Tensors = slices.DeleteFunc(c.Tensors, func(x format.Tensor) bool {
				return strings.Contains(x.Name, "linear_fc2")
			})
		}, "nobody says whether tensor"},
		{"state of another shape", func(c *format.Checkpoint, _ *megatron.Model) {
			setShape(c, "optimizer.exp_avg.decoder.layers.1.mlp.linear_fc2.weight", 6, 8)
		},
			`tensor "optimizer.exp_avg.decoder.layers.1.mlp.linear_fc2.weight" (in iter_0000012/mp_rank_00_000/model_optim_rng.pt) has shape [6,8], its parameter [8,6]`},
		{"norms less 1", func(c *format.Checkpoint, _ *megatron.Model) {
			setValue(c, "args.apply_layernorm_1p", true)
		}, "args.apply_layernorm_1p is true: norms have the difference"},
		{"rotary", func(c *format.Checkpoint, _ *megatron.Model) {
			setValue(c, "args.rotary_interleaved", true)
		}, "args.rotary_interleaved is true"},
		{"another gate", func(c *format.Checkpoint, _ *megatron.Model) {
			setValue(c, "args.quick_geglu", true)
		}, "args.quick_geglu is true: the gate is not that of SwiGLU"},
		{"gate and up in turns", func(c *format.Checkpoint, _ *megatron.Model) {
			setValue(c, "args.moe_mlp_glu_interleave_size", int64(32))
		}, "args.moe_mlp_glu_interleave_size is 32: gate and up lie in turns"},
		{"an old version", func(c *format.Checkpoint, _ *megatron.Model) {
			setValue(c, "checkpoint_version", 1.0)
		}, "checkpoint_version is 1: q, k and v lie in another order"},
		{"another tensor", func(c *format.Checkpoint, _ *megatron.Model) {
			c.Tensors[0].Name = "vision.weight"
		},
			`tensor "vision.weight" (in iter_0000012/mp_rank_00_001/model_optim_rng.pt) has no name in Hugging Face's`},
		{"a bias of a norm", func(c *format.Checkpoint, _ *megatron.Model) {
			c.Tensors[0].Name = layer + "mlp.linear_fc1.layer_norm_bias"
		}, "linear_fc1.layer_norm_bias\" (in iter_0000012/mp_rank_00_001/model_optim_rng.pt) " +
			"has no name"},
		{"a norm twice", func(c *format.Checkpoint, _ *megatron.Model) {
			x := *findTensor(t, c, layer+"mlp.linear_fc1.layer_norm_weight")
			x.Name = layer + "pre_mlp_layernorm.weight"
			c.Tensors = append(c.Tensors, x)
		}, `"model.layers.1.post_attention_layernorm.weight" stands twice`},
		{"a parameter twice", func(c *format.Checkpoint, _ *megatron.Model) {
			x := *findTensor(t, c, layer+"mlp.linear_fc1.weight")
			x.Name = strings.TrimPrefix(x.Name, "model.")
			c.Tensors = append(c.Tensors, x)
		}, "are the same parameter"},
		{"a scalar", func(c *format.Checkpoint, _ *megatron.Model) {
			setShape(c, "model.embedding.word_embeddings.weight")
		},
			`word_embeddings.weight" (in iter_0000012/mp_rank_00_000/model_optim_rng.pt) has no rows`},
		{"a scalar for q, k and v", func(c *format.Checkpoint, _ *megatron.Model) {
			setShape(c, layer+"self_attention.linear_qkv.weight")
		}, "its shape is []"},
		{"parts", func(c *format.Checkpoint, _ *megatron.Model) {
			c.Tensors[0].Coords,
				c.Tensors[0].WhyPart = format.Coords{{Axis: "tp", Index: 1, Of: 2}},
				"for a reason"
		}, "the part of rank tp=1/2, and for a reason"},
		{"experts of nobody knows what", func(c *format.Checkpoint, _ *megatron.Model) {
			c.Tensors[0].Name = layer + "mlp.router.weight"
		}, "is of experts, which models name in ways of their own; give the model's config.json " +
			"(--config)"},
		{"experts of a llama", func(c *format.Checkpoint, m *megatron.Model) {
			c.Tensors[0].Name, m.Type = layer+"mlp.experts.local_experts.0.linear_fc2.weight",
				"llama"
		}, "by its config.json the model is a llama, of whose experts shoal knows no names"},
		{"a position", func(c *format.Checkpoint, _ *megatron.Model) {
			c.Tensors[0].Name, c.Tensors[0].WhyPart = "optimizer.state.0.exp_avg", "for a reason"
		},
			`tensor "optimizer.state.0.exp_avg" (in iter_0000012/mp_rank_00_001/model_optim_rng.pt) goes by position: for a reason; leave the optimizer out`},
		{"a flat buffer", func(c *format.Checkpoint, _ *megatron.Model) {
			c.Tensors[0].Name = "optimizer.distributed.x"
		}, "is a flat buffer of Megatron's distributed optimizer"},
		{"nothing of Megatron", func(c *format.Checkpoint, _ *megatron.Model) {
			c.Tensors = nil
		}, "no tensor has a name of Megatron Core"},
	} {
		dir, _ := formattest.Load(t, "testdata/mixed.zip")
		c, _ := mustRead(t, dir)
		m := sampleModel(c)
		x.change(c, &m)
		if _, _, err := megatron.ToHuggingFace(c, m); err == nil ||
			!strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %v; want %q", x.name, err, x.err)
		}
	}
}

// setShape changes the shape of a tensor of a checkpoint. It does nothing where there is no such
// tensor.
func setShape(c *format.Checkpoint, name string, shape ...int) {
	for i := range c.Tensors {
		if c.Tensors[i].Name == name {
			c.Tensors[i].Shape = shape
		}
	}
}

// setValue changes a value of a checkpoint, or adds it. Values stay in order.
func setValue(c *format.Checkpoint, path string, is any) {
	c.Values = slices.DeleteFunc(c.Values, func(v format.Value) bool { return v.Path == path })
	c.Values = append(c.Values, format.Value{Path: path, Data: is})
	slices.SortFunc(c.Values, func(a, b format.Value) int {
		return strings.Compare(a.Path, b.Path)
	})
}
