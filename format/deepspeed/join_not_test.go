package deepspeed_test

// This file tests parts of tensor parallel ranks that cannot be joined.
import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/tensor"
)

// threeParams returns a checkpoint with a vector that ranks have alike, a matrix cut by rows, and
// one by columns. Each call returns a new one, which the test may change.
func threeParams() *saved {
	return &saved{stage: 2, tp: 2, dp: 2, count: int64(2),
		params: []shared{
			{name: "norm", parts: []array{numberedArray(1, 3), numberedArray(1, 3)}},
			{name: "up", parts: []array{numberedArray(10, 2, 3), numberedArray(20, 2, 3)}},
			{name: "down", parts: []array{numberedArray(30, 3, 2), numberedArray(40, 3, 1)}},
		},
		info: newDict("tp_replicated_parameter_patterns", newList("norm"),
			"parameter_with_row_parallelism_patterns", newList(`down$`)),
	}
}

// TestJoinNot says of each tensor why it stays in parts, and joins the others.
func TestJoinNot(t *testing.T) {
	set := func(key string, is any) func(*saved) {
		return func(c *saved) { c.info.(*pickle.Dict).Set(key, is) }
	}
	also := func(p shared, more ...func(*saved)) func(*saved) {
		return func(c *saved) {
			c.params = append(c.params, p)
			for _, f := range more {
				f(c)
			}
		}
	}
	two := func(name string, a, b array) shared { return shared{name: name, parts: []array{a, b}} }
	sub := func(shape pickle.Tuple, dim int) func(*saved) {
		return set("parameter_with_sub_params",
			newList(newDict("patterns", newList("qkv"), "shape", shape, "partition_dim",
				int64(dim))))
	}
	qkv := two("qkv", numberedArray(100, 6, 2), numberedArray(200, 6, 2))
	sized := pickle.Tuple{pickle.Tuple{int64(8), int64(2), int64(2)}, int64(2)}
	words := two("words", numberedArray(100, 4, 2), numberedArray(200, 4, 2))
	for name, c := range map[string]struct {
		change func(*saved)
		parts  string // the parameter of which parts stay; "" for all
		why    string
	}{
		"nothing is said": {func(c *saved) {
			c.info = nil
		}, "", "do not say how tensor parallel parts fit together (universal_checkpoint_info"},
		"a version alone": {func(c *saved) {
			c.info = newDict("universal_checkpoint_version", 0.2)
		}, "", "do not say how tensor parallel parts fit together"},
		"rows of a vocabulary alone": {func(c *saved) {
			c.info = newDict("vocabulary_parameter_patterns", newList("up"))
		}, "", "do not say how tensor parallel parts fit together"},
		"lookahead": {set("tp_replicated_parameter_patterns", newList("(?!up)norm")),
			"",
			`tp_replicated_parameter_patterns: the pattern "(?!up)norm": error parsing regexp: invalid or unsupported Perl syntax`},
		"a backreference": {set("tp_replicated_parameter_patterns", newList(`(n)orm\1`)),
			"", "invalid escape sequence"},
		"half a group": {set("tp_replicated_parameter_patterns", newList(`norm)|(x`)),
			"", "unexpected )"},
		"Python's repeats": {set("tp_replicated_parameter_patterns", newList(`nor{,2}m`)),
			"", "otherwise than Python"},
		"a long pattern": {
			set("tp_replicated_parameter_patterns", newList(strings.Repeat("n", 5000))), "",
			"it has 5000 bytes, the limit is 4096"},
		"no list": {set("tp_replicated_parameter_patterns", "norm"), "",
			"a list of patterns is due"},
		"no texts": {set("tp_replicated_parameter_patterns", newList(int64(1))), "",
			"patterns are texts"},
		"a pattern of nothing": {set("parameter_to_average_patterns", newList("x.*")), "",
			`the pattern "x.*" of universal_checkpoint_info.parameter_to_average_patterns fits no parameter`},
		"early AutoTP": {func(c *saved) {
			c.info = newDict("universal_checkpoint_version", 0.3,
				"tp_replicated_parameter_patterns",
				newList(), "parameter_with_row_parallelism_patterns", newList(`^down$`))
		}, "", "as AutoTP of DeepSpeed before 0.19.6 writes it"},
		"ranks that differ": {func(c *saved) {
			c.change = func(mp int, root *pickle.Dict) {
				if mp > 0 {
					root.Set("universal_checkpoint_info",
						newDict("tp_replicated_parameter_patterns", newList()))
				}
			}
		}, "", "do not say the same of how tensor parallel parts fit together"},
		"two patterns": {set("tp_replicated_parameter_patterns", newList("nor", "norm")), "norm",
			`two patterns of universal_checkpoint_info.tp_replicated_parameter_patterns fit it, "nor" and "norm"`},
		"other letters": {also(two("é", numberedArray(100, 2), numberedArray(200, 2))), "é",
			"other letters than ASCII's"},
		"different means": {
			also(two("mean", numberedArray(100, 2), numberedArray(200, 2)),
				set("parameter_to_average_patterns", newList("mean"))), "mean",
			"DeepSpeed takes the mean of what the ranks have of it"},
		"means that differ at the end": {
			also(two("mean", numberedArray(100, 70, 1000),
				array{tensor.Shape{70, 1000}, append(numberedArray(100, 69999).data, 0)}),
				set("parameter_to_average_patterns", newList("mean"))), "mean",
			"DeepSpeed takes the mean of what the ranks have of it"},
		"alike, of two shapes": {func(c *saved) {
			c.params[0].parts[1] = numberedArray(1, 4)
		}, "norm", "one rank has it as f32 [3], another as f32 [4]"},
		"a forgotten vector": {also(two("q_norm", numberedArray(100, 3), numberedArray(100, 3))),
			"q_norm",
			"all ranks have the same of it, and no pattern says so"},
		"a forgotten matrix": {
			also(two("router", numberedArray(100, 3, 2), numberedArray(100, 3, 2))),
			"router", "all ranks have the same of it, and no pattern says so"},
		"columns of a vector": {
			also(two("bias", numberedArray(100, 3), numberedArray(200, 3)),
				set("parameter_with_row_parallelism_patterns", newList("down", "bias"))), "bias",
			"a part has shape [3], which cannot be cut along dimension 1"},
		"odd halves": {
			also(two("gate", numberedArray(100, 3, 1), numberedArray(200, 3, 1)),
				set("parameter_with_2_sub_params_cat_dim_0", newList("gate"))), "gate",
			"does not come apart in 2 equal blocks"},
		"other columns": {func(c *saved) {
			c.params[1].parts[1] = numberedArray(20, 2, 4)
		}, "up", "rank 1 has a part of shape [2,4], and [2,3] is due"},
		"sizes of another": {
			also(qkv, sub(pickle.Tuple{pickle.Tuple{int64(8), int64(2), int64(4)}, int64(2)}, 0)),
			"qkv", "says that its sub-parameters are [8 2 4] along dimension 0, and its parts " +
				"come to [12,2]"},
		"another shape": {
			also(qkv, sub(pickle.Tuple{pickle.Tuple{int64(8), int64(2), int64(2)}, int64(3)}, 0)),
			"qkv", "and its parts come to [12,2]"},
		"another rank": {
			also(qkv, sub(pickle.Tuple{pickle.Tuple{int64(8), int64(2), int64(2)}}, 0)), "qkv",
			"and its parts come to [12,2]"},
		"odd sub-parameters": {
			also(qkv, sub(pickle.Tuple{pickle.Tuple{int64(9), int64(1), int64(2)}, int64(-1)}, 0)),
			"qkv", "one of its sub-parameters is 9 long, which 2 ranks cannot have shared evenly"},
		"an odd count": {also(qkv, sub(pickle.Tuple{int64(5), int64(-1)}, 0)), "qkv",
			"says that its sub-parameters are 5 along dimension 0, and its parts come to [12,2]"},
		"no dimension": {also(qkv, sub(sized, 2)), "",
			"parameter_with_sub_params, number 0: partition_dim is 2, and the shape [[8 2 2] 2]"},
		"no sizes": {also(qkv, sub(pickle.Tuple{int64(-1), int64(2)}, 0)), "",
			"has no sizes of sub-parameters"},
		"other fields": {
			also(qkv, set("parameter_with_sub_params",
				newList(newDict("patterns", newList("qkv"), "shape", sized, "partition_dim",
					int64(0), "x",
					true)))), "",
			"is no list of dicts with patterns, shape and partition_dim alone"},
		"no dicts": {also(qkv, set("parameter_with_sub_params", newList("qkv"))), "",
			"is no list of dicts"},
		"no widths": {also(qkv, sub(sized, 0), set("universal_checkpoint_version", 0.4)),
			"qkv",
			`sub_param_shard_widths of the pattern "qkv": widths of 3 sub-parameters are due, and there is <nil>`},
		"widths of three ranks": {also(qkv, sub(sized, 0), set("universal_checkpoint_version", 0.4),
			set("sub_param_shard_widths",
				newDict("qkv", newList(newList(int64(4), int64(4)),
					newList(int64(1), int64(1), int64(0)),
					newList(int64(1), int64(1)))))), "qkv",
			"[1 1 0] are not the widths of 2 ranks"},
		"widths of others": {also(qkv, sub(sized, 0), set("universal_checkpoint_version", 0.4),
			set("sub_param_shard_widths",
				newDict("qkv", newList(newList(int64(4), int64(3)), newList(int64(1), int64(1)),
					newList(int64(1), int64(1)))))), "qkv",
			"[4 3] do not come to the 8 of the sub-parameter"},
		"widths of another cut": {also(qkv, sub(sized, 0), set("universal_checkpoint_version", 0.4),
			set("sub_param_shard_widths",
				newDict("qkv", newList(newList(int64(5), int64(3)), newList(int64(1), int64(1)),
					newList(int64(1), int64(1)))))), "qkv",
			"rank 0 has a part of shape [6,2], and [7,2] is due"},
		"no size of the vocabulary": {
			also(words, set("vocabulary_parameter_patterns", newList("words"))), "words",
			"does not say how large the vocabulary is (original_vocab_size)"},
		"rows that nobody filled": {
			also(words, set("vocabulary_parameter_patterns", newList("words")),
				set("original_vocab_size", int64(6))), "words", "its parts come to 8 rows, more " +
				"than universal_checkpoint_info.original_vocab_size says, 6, and no " +
				"padded_vocab_size"},
		"rows that are missing": {
			also(words, set("vocabulary_parameter_patterns", newList("words")),
				set("original_vocab_size", int64(6)), set("padded_vocab_size", int64(12))), "words",
			"its parts come to 8 rows, and universal_checkpoint_info.padded_vocab_size says " +
				"that there are 12"},
		"a vector of words": {
			also(two("words", numberedArray(100, 4), numberedArray(200, 4)),
				set("vocabulary_parameter_patterns", newList("words")),
				set("original_vocab_size", int64(6))), "words", "DeepSpeed fills up matrices only"},
		"not to be described": {
			set("autotp_unsupported_parameter_patterns", newDict(`^up$`, "it is interleaved")),
			"up",
			"DeepSpeed says of it that it is interleaved"},
		"experts": {
			also(two("a.deepspeed_moe.experts.deepspeed_experts.0.w", numberedArray(100, 2, 2),
				numberedArray(200, 2, 2))), "a.deepspeed_moe.experts.deepspeed_experts.0.w",
			"name experts by their numbers on a rank"},
		"experts of AutoEP": {
			also(two("a.experts.w1", numberedArray(100, 2, 2), numberedArray(200, 2, 2)),
				set("expert_parameter_patterns", newList(`.*\.experts\.w[123]$`))), "a.experts.w1",
			"name experts by their numbers on a rank"},
		"a buffer": {
			also(shared{name: "seen", parts: []array{numberedArray(100, 2), numberedArray(200, 2)},
				buffer: true}), "seen",
			"the model states name it neither as trained nor as frozen"},
		"a buffer of zeros": {
			also(shared{name: "zeros",
				parts: []array{{tensor.Shape{2}, []float32{0, 0}},
					{tensor.Shape{2}, []float32{0, 0}}}, buffer: true}), "zeros",
			"or it is all one number"},
	} {
		t.Run(name, func(t *testing.T) {
			s := threeParams()
			c.change(s)
			got, files := mustRead(t, s.write(t))
			if faults := got.Check(files); len(faults) > 0 {
				t.Error(faults)
			}
			n := 0
			for _, x := range got.Tensors {
				of := c.parts == "" || strings.HasSuffix(x.Name, "."+c.parts) &&
					!strings.HasPrefix(x.Name, "optimizer.step.")
				if of != (x.Coords != nil) || of && !strings.Contains(x.WhyPart, c.why) {
					t.Errorf("%s at %q: %q", x.Name, x.Coords, x.WhyPart)
				}
				if of {
					n++
				}
			}
			if n == 0 {
				t.Error("no tensor is meant")
			}
		})
	}
}

// TestJoinMany has more patterns than are tried. All tensors stay in parts, for that reason.
func TestJoinMany(t *testing.T) {
	s := threeParams()
	var many []any
	for i := range 3000 {
		many = append(many, fmt.Sprintf("x%d(a{1000}|b)", i))
	}
	s.info.(*pickle.Dict).Set("tp_replicated_parameter_patterns", newList(many...))
	c, _ := mustRead(t, s.write(t))
	for _, x := range c.Tensors {
		if x.Coords == nil || !strings.Contains(x.WhyPart, "more patterns, or longer ones") {
			t.Errorf("%s at %q: %q", x.Name, x.Coords, x.WhyPart)
		}
	}
}

// TestJoinRest joins what is beside the parameters: weights that have a second name are as the
// first, buffers that all ranks have are one, and vectors of one number, of which nobody knows it,
// are as no pattern says.
func TestJoinRest(t *testing.T) {
	s := threeParams()
	zeros := array{tensor.Shape{2}, []float32{0, 0}}
	s.params = append(s.params,
		shared{name: "bias", parts: []array{zeros, zeros}},
		// as the tensor of a second name is, in no param_shapes
		shared{name: "head", parts: []array{numberedArray(30, 3, 2), numberedArray(40, 3, 1)},
			buffer: true},
		shared{name: "mask", parts: []array{numberedArray(5, 2, 2), numberedArray(5, 2, 2)},
			buffer: true},
		shared{name: "count", parts: []array{numberedArray(5), numberedArray(5)}, buffer: true},
		shared{name: "mean",
			parts: []array{numberedArray(7, 70, 1000), numberedArray(7, 70, 1000)}})
	s.aliases = newDict("head", "down")
	s.info.(*pickle.Dict).Set("parameter_to_average_patterns", newList("mean"))
	// what stands before it counts
	s.info.(*pickle.Dict).Set("parameter_with_row_parallelism_patterns", newList(`down$|norm|mean`))
	c, files := mustRead(t, s.write(t))
	got := formattest.Contents(t, files, c)
	down := array{tensor.Shape{3, 3}, []float32{30, 31, 40, 32, 33, 41, 34, 35, 42}}
	for name, want := range map[string]array{
		"module.norm": numberedArray(1, 3), "module.down": down, "module.head": down,
		"module.mask": numberedArray(5, 2, 2), "module.count": numberedArray(5),
		"module.mean":            numberedArray(7, 70, 1000),
		"module.bias":            {tensor.Shape{4}, []float32{0, 0, 0, 0}},
		"optimizer.exp_avg.mean": numberedArray(7, 70, 1000).scaled(-1),
	} {
		if got[name] != want.String() {
			t.Errorf("%s is %s, want %s", name, got[name], want)
		}
	}
	for _, x := range c.Tensors {
		if x.Coords != nil {
			t.Errorf("%s at %q: %q", x.Name, x.Coords, x.WhyPart)
		}
	}
}

// TestAutoExpertsNot says of experts that AutoEP has placed what can be done with them, and writes
// them as universal checkpoints only.
func TestAutoExpertsNot(t *testing.T) {
	for key, want := range map[string]string{
		"ds_autoep_layers": "global_step7/mp_rank_00_model_states.pt is of experts that " +
			"DeepSpeed's AutoEP has placed",
		"others": "global_step7/layer_0_expert_0_mp_rank_00_model_states.pt is of experts that " +
			"DeepSpeed's AutoEP"} {
		s := &saver{t: t, out: &format.Output{}, from: &format.Checkpoint{}}
		s.writeFile("global_step7/mp_rank_00_model_states.pt", func(f *store) any {
			return newDict("module", newDict("up", f.addArray(numberedArray(1, 2, 2))), key,
				newList(newDict("moe_layer_id", int64(0))))
		})
		s.writeFile("global_step7/layer_0_expert_0_mp_rank_00_model_states.pt", func(f *store) any {
			return newDict("mlp.experts.w1.0", f.addArray(numberedArray(5, 2, 2)))
		})
		dir := formattest.WriteOutput(t, s.out, s.from,
			format.NewFiles(fstest.MapFS{"blob": {Data: s.blob}}))
		dir[deepspeed.LatestName] = &fstest.MapFile{Data: []byte("global_step7")}
		if _, err := deepspeed.Read(format.NewFiles(dir)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	dir, _ := formattest.Load(t, "testdata/universal1.zip")
	c, files := mustRead(t, dir)
	for i := range c.Tensors {
		c.Tensors[i].Name = strings.Replace(c.Tensors[i].Name, "2.weight", "2.experts.w1", 1)
	}
	c.Values = append(c.Values,
		format.Value{Path: "universal_checkpoint_info.expert_parameter_patterns",
			Data: []any{`.*\.experts\.w[123]$`}})
	const want = "it has experts that DeepSpeed's AutoEP has placed"
	if _, err := deepspeed.LayoutZero(deepspeed.Zero{Stage: 1, DP: 2}, c.Tensors, c.Values,
		files.Read); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
	written := writeUniversal(t, c, files)
	for _, x := range [][3]string{{"experts.w1", "is_expert_param", "true"},
		{"experts.w1", "ep_num_experts", "3"}, {"bias", "is_expert_param", "nothing"}} {
		if is := valueText(t, written, "global_step2_universal/zero/2."+x[0]+"/exp_avg.pt",
			x[1:2]); is != x[2] {
			t.Errorf("%s of %s is %s, want %s", x[1], x[0], is, x[2])
		}
	}
}
