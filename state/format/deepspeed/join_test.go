package deepspeed_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/state/format"
	"github.com/shoal-ml/shoal/state/format/deepspeed"
	"github.com/shoal-ml/shoal/state/format/formattest"
	"github.com/shoal-ml/shoal/state/format/pickle"
	"github.com/shoal-ml/shoal/state/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// cutting is how a drawn parameter is cut, and what it comes to.
type cutting struct {
	shared
	want    array // rows that fill up the vocabulary left out
	rule    string
	sizes   []any // of sub-parameters, int64
	widths  []any // lists of what the ranks have of each
	dim     int
	pattern string
}

// drawCutting draws a parameter, and cuts it by a rule.
func drawCutting(r *rapid.T, number, tp int, rule string, version any) *cutting {
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(r, name) }
	c := &cutting{shared: shared{name: fmt.Sprintf("p%d.w", number)}, rule: rule}
	shape := []int{n("rows", 1, 4), n("columns", 1, 4), n("depth", 1, 2)}
	switch rule {
	case "alike", "averaged":
		c.want = numbered(1000*number, shape[:n("dimensions", 1, 3)]...)
		for range tp {
			c.parts = append(c.parts, c.want)
		}
		return c
	case "columns":
		c.dim, shape = 1, shape[:n("dimensions", 2, 3)]
	case "vocabulary":
		shape = shape[:2]
	case "sub":
		shape = shape[:n("dimensions", 1, 3)]
		c.dim = n("dimension", 0, min(1, len(shape)-1))
	default:
		shape = shape[:n("dimensions", 1, 3)]
	}
	blocks := 1
	if rule == "halves" {
		blocks = 2
	} else if rule == "sub" {
		blocks = n("sub-parameters", 1, 3)
	}
	owner, at := make([][]int, tp), 0
	var halves []any
	for b := range blocks {
		var widths []any
		size, even := 0, n("width", 1, 3)
		for rank := range tp {
			width := n("own width", 0, 3)
			switch {
			case rule == "halves" && b > 0:
				width = int(halves[rank].(int64))
			case rule == "sub" && version != 0.4:
				width = even
			}
			widths = append(widths, int64(width))
			for range width {
				owner[rank] = append(owner[rank], at)
				at++
			}
			size += width
		}
		halves = widths
		c.sizes, c.widths = append(c.sizes, int64(size)), append(c.widths, list(widths...))
	}
	shape[c.dim] = at
	whole := numbered(1000*number, shape...)
	for rank := range tp {
		c.parts = append(c.parts, whole.take(c.dim, owner[rank]))
	}
	c.want = whole
	return c
}

// info makes universal_checkpoint_info of how parameters were cut.
func info(cuttings []*cutting, version any, padded, original int) *pickle.Dict {
	lists := map[string][]any{}
	subs, widths := list(), dict()
	for _, c := range cuttings {
		for key, rules := range map[string]string{
			"tp_replicated_parameter_patterns": "alike", "parameter_to_average_patterns": "averaged", "parameter_with_2_sub_params_cat_dim_0": "halves",
			"parameter_with_row_parallelism_patterns": "columns", "vocabulary_parameter_patterns": "vocabulary",
		} {
			if rules == c.rule {
				lists[key] = append(lists[key], c.pattern)
			}
		}
		if c.rule == "sub" {
			shape := pickle.Tuple{}
			for i, n := range c.want.shape {
				if shape = append(shape, int64(n)); i == c.dim {
					shape[i] = pickle.Tuple(c.sizes)
				}
			}
			subs.Items = append(subs.Items, dict("patterns", list(c.pattern), "shape", shape, "partition_dim", int64(c.dim)))
			widths.Add(c.pattern, list(c.widths...))
		}
	}
	d := dict("tp_replicated_parameter_patterns", list(lists["tp_replicated_parameter_patterns"]...))
	for key, patterns := range lists {
		d.Set(key, list(patterns...))
	}
	if len(subs.Items) > 0 {
		d.Add("parameter_with_sub_params", subs)
	}
	if version != nil {
		d.Add("universal_checkpoint_version", version)
	}
	if version == 0.4 {
		d.Add("sub_param_shard_widths", widths)
	}
	if original > 0 {
		d.Add("original_vocab_size", int64(original))
		d.Add("padded_vocab_size", int64(padded))
	}
	return d
}

// TestJoinRandom cuts random parameters by random rules into the parts of tensor parallel ranks, and their state into the flat buffers of ZeRO, and reads them
// whole; then it takes them on, to a universal checkpoint and to other stages.
func TestJoinRandom(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		tp := rapid.IntRange(2, 4).Draw(r, "tp")
		version := rapid.SampledFrom([]any{nil, 0.2, 0.4}).Draw(r, "version")
		rules := rapid.SliceOfN(rapid.SampledFrom([]string{"alike", "averaged", "halves", "columns", "sub", "rest"}), 1, 5).Draw(r, "rules")
		if rapid.Bool().Draw(r, "vocabulary") {
			rules = append(rules, "vocabulary")
		}
		exact := version != 0.2 && rapid.Bool().Draw(r, "exact")
		c := &saved{stage: rapid.IntRange(1, 3).Draw(r, "stage"), tp: tp, dp: rapid.IntRange(1, 3).Draw(r, "dp"), count: int64(tp)}
		var cuttings []*cutting
		padded, original := 0, 0
		for i, rule := range append([]string{"alike"}, rules...) {
			x := drawCutting(r, i, tp, rule, version)
			if x.pattern = fmt.Sprintf(`p%d\.`, i); exact {
				x.pattern = fmt.Sprintf(`^p%d\.w$`, i)
			}
			if rule == "vocabulary" {
				padded = x.want.shape[0]
				original = max(rapid.IntRange(0, padded).Draw(r, "original"), 1)
				keep := make([]int, min(original, padded))
				for k := range keep {
					keep[k] = k
				}
				x.want = x.want.take(0, keep)
			}
			cuttings = append(cuttings, x)
			c.params = append(c.params, x.shared)
		}
		c.info = info(cuttings, version, padded, original)
		got, files := read(t, c.write(t))
		want := map[string]string{}
		for _, x := range cuttings {
			if c.stage < 3 {
				want["module."+x.name] = x.want.String()
			}
			for scale, kind := range map[float32]string{1: "fp32", -1: "exp_avg", 0.5: "exp_avg_sq"} {
				want["optimizer."+kind+"."+x.name] = x.want.times(scale).String()
			}
			want["optimizer.step."+x.name] = array{tensor.Shape{}, []float32{5}}.String()
		}
		compare := func(where string, c *format.Checkpoint, files *format.Files) {
			for _, x := range c.Tensors {
				if x.At != nil {
					r.Fatalf("%s: %s is in parts: %s", where, x.Name, x.Apart)
				}
			}
			if faults := c.Check(files); len(faults) > 0 {
				r.Fatalf("%s: %v", where, faults)
			}
			if diff := cmp.Diff(want, formattest.Contents(t, files, c)); diff != "" {
				r.Fatalf("%s: -want +got:\n%s", where, diff)
			}
		}
		compare("read", got, files)
		for _, x := range got.Tensors {
			if i := slices.IndexFunc(cuttings, func(c *cutting) bool { return strings.HasSuffix(x.Name, "."+c.name) }); cuttings[i].rule == "alike" && len(x.Replicas) == 0 {
				r.Errorf("%s has no replicas to compare", x.Name)
			}
		}
		again, written := read(t, universal(t, got, files))
		compare("universal", again, written)
		stage, ranks := rapid.IntRange(1, c.stage).Draw(r, "other stage"), rapid.IntRange(1, 3).Draw(r, "other ranks")
		if c.stage == 3 {
			stage = 3 // which has no model of its own
		}
		last, written := read(t, zero(t, stage, ranks, again, written))
		compare("zero", last, written)
	})
}

// three is a checkpoint with a vector that ranks have alike, a matrix cut by rows, and one by columns.
func three() *saved {
	return &saved{stage: 2, tp: 2, dp: 2, count: int64(2),
		params: []shared{
			{name: "norm", parts: []array{numbered(1, 3), numbered(1, 3)}},
			{name: "up", parts: []array{numbered(10, 2, 3), numbered(20, 2, 3)}},
			{name: "down", parts: []array{numbered(30, 3, 2), numbered(40, 3, 1)}},
		},
		info: dict("tp_replicated_parameter_patterns", list("norm"), "parameter_with_row_parallelism_patterns", list(`down$`)),
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
		return set("parameter_with_sub_params", list(dict("patterns", list("qkv"), "shape", shape, "partition_dim", int64(dim))))
	}
	qkv := two("qkv", numbered(100, 6, 2), numbered(200, 6, 2))
	sized := pickle.Tuple{pickle.Tuple{int64(8), int64(2), int64(2)}, int64(2)}
	words := two("words", numbered(100, 4, 2), numbered(200, 4, 2))
	for name, c := range map[string]struct {
		change func(*saved)
		parts  string // the parameter of which parts stay; "" for all
		why    string
	}{
		"nothing is said":            {func(c *saved) { c.info = nil }, "", "do not say how tensor parallel parts fit together (universal_checkpoint_info"},
		"a version alone":            {func(c *saved) { c.info = dict("universal_checkpoint_version", 0.2) }, "", "do not say how tensor parallel parts fit together"},
		"rows of a vocabulary alone": {func(c *saved) { c.info = dict("vocabulary_parameter_patterns", list("up")) }, "", "do not say how tensor parallel parts fit together"},
		"lookahead":                  {set("tp_replicated_parameter_patterns", list("(?!up)norm")), "", `tp_replicated_parameter_patterns: the pattern "(?!up)norm": error parsing regexp: invalid or unsupported Perl syntax`},
		"a backreference":            {set("tp_replicated_parameter_patterns", list(`(n)orm\1`)), "", "invalid escape sequence"},
		"half a group":               {set("tp_replicated_parameter_patterns", list(`norm)|(x`)), "", "unexpected )"},
		"Python's repeats":           {set("tp_replicated_parameter_patterns", list(`nor{,2}m`)), "", "otherwise than Python"},
		"a long pattern":             {set("tp_replicated_parameter_patterns", list(strings.Repeat("n", 5000))), "", "it has 5000 bytes, the limit is 4096"},
		"no list":                    {set("tp_replicated_parameter_patterns", "norm"), "", "a list of patterns is due"},
		"no texts":                   {set("tp_replicated_parameter_patterns", list(int64(1))), "", "patterns are texts"},
		"a pattern of nothing":       {set("parameter_to_average_patterns", list("x.*")), "", `the pattern "x.*" of universal_checkpoint_info.parameter_to_average_patterns fits no parameter`},
		"early AutoTP": {func(c *saved) {
			c.info = dict("universal_checkpoint_version", 0.3, "tp_replicated_parameter_patterns", list(), "parameter_with_row_parallelism_patterns", list(`^down$`))
		}, "", "as AutoTP of DeepSpeed before 0.19.6 writes it"},
		"ranks that differ": {func(c *saved) {
			c.change = func(mp int, root *pickle.Dict) {
				if mp > 0 {
					root.Set("universal_checkpoint_info", dict("tp_replicated_parameter_patterns", list()))
				}
			}
		}, "", "do not say the same of how tensor parallel parts fit together"},
		"two patterns":    {set("tp_replicated_parameter_patterns", list("nor", "norm")), "norm", `two patterns of universal_checkpoint_info.tp_replicated_parameter_patterns fit it, "nor" and "norm"`},
		"other letters":   {also(two("é", numbered(100, 2), numbered(200, 2))), "é", "other letters than ASCII's"},
		"different means": {also(two("mean", numbered(100, 2), numbered(200, 2)), set("parameter_to_average_patterns", list("mean"))), "mean", "DeepSpeed takes the mean of what the ranks have of it"},
		"means that differ at the end": {also(two("mean", numbered(100, 70, 1000), array{tensor.Shape{70, 1000}, append(numbered(100, 69999).data, 0)}),
			set("parameter_to_average_patterns", list("mean"))), "mean", "DeepSpeed takes the mean of what the ranks have of it"},
		"alike, of two shapes": {func(c *saved) { c.params[0].parts[1] = numbered(1, 4) }, "norm", "one rank has it as f32 [3], another as f32 [4]"},
		"a forgotten vector":   {also(two("q_norm", numbered(100, 3), numbered(100, 3))), "q_norm", "all ranks have the same of it, and no pattern says so"},
		"a forgotten matrix":   {also(two("router", numbered(100, 3, 2), numbered(100, 3, 2))), "router", "all ranks have the same of it, and no pattern says so"},
		"columns of a vector":  {also(two("bias", numbered(100, 3), numbered(200, 3)), set("parameter_with_row_parallelism_patterns", list("down", "bias"))), "bias", "a part has shape [3], which cannot be cut along dimension 1"},
		"odd halves":           {also(two("gate", numbered(100, 3, 1), numbered(200, 3, 1)), set("parameter_with_2_sub_params_cat_dim_0", list("gate"))), "gate", "does not come apart in 2 equal blocks"},
		"other columns":        {func(c *saved) { c.params[1].parts[1] = numbered(20, 2, 4) }, "up", "rank 1 has a part of shape [2,4], and [2,3] is due"},
		"sizes of another":     {also(qkv, sub(pickle.Tuple{pickle.Tuple{int64(8), int64(2), int64(4)}, int64(2)}, 0)), "qkv", "says that its sub-parameters are [8 2 4] along dimension 0, and its parts come to [12,2]"},
		"another shape":        {also(qkv, sub(pickle.Tuple{pickle.Tuple{int64(8), int64(2), int64(2)}, int64(3)}, 0)), "qkv", "and its parts come to [12,2]"},
		"another rank":         {also(qkv, sub(pickle.Tuple{pickle.Tuple{int64(8), int64(2), int64(2)}}, 0)), "qkv", "and its parts come to [12,2]"},
		"odd sub-parameters":   {also(qkv, sub(pickle.Tuple{pickle.Tuple{int64(9), int64(1), int64(2)}, int64(-1)}, 0)), "qkv", "one of its sub-parameters is 9 long, which 2 ranks cannot have shared evenly"},
		"an odd count":         {also(qkv, sub(pickle.Tuple{int64(5), int64(-1)}, 0)), "qkv", "says that its sub-parameters are 5 along dimension 0, and its parts come to [12,2]"},
		"no dimension":         {also(qkv, sub(sized, 2)), "", "parameter_with_sub_params, number 0: partition_dim is 2, and the shape [[8 2 2] 2]"},
		"no sizes":             {also(qkv, sub(pickle.Tuple{int64(-1), int64(2)}, 0)), "", "has no sizes of sub-parameters"},
		"other fields":         {also(qkv, set("parameter_with_sub_params", list(dict("patterns", list("qkv"), "shape", sized, "partition_dim", int64(0), "x", true)))), "", "is no list of dicts with patterns, shape and partition_dim alone"},
		"no dicts":             {also(qkv, set("parameter_with_sub_params", list("qkv"))), "", "is no list of dicts"},
		"no widths":            {also(qkv, sub(sized, 0), set("universal_checkpoint_version", 0.4)), "qkv", `sub_param_shard_widths of the pattern "qkv": widths of 3 sub-parameters are due, and there is <nil>`},
		"widths of three ranks": {also(qkv, sub(sized, 0), set("universal_checkpoint_version", 0.4),
			set("sub_param_shard_widths", dict("qkv", list(list(int64(4), int64(4)), list(int64(1), int64(1), int64(0)), list(int64(1), int64(1)))))), "qkv", "[1 1 0] are not the widths of 2 ranks"},
		"widths of others": {also(qkv, sub(sized, 0), set("universal_checkpoint_version", 0.4),
			set("sub_param_shard_widths", dict("qkv", list(list(int64(4), int64(3)), list(int64(1), int64(1)), list(int64(1), int64(1)))))), "qkv", "[4 3] do not come to the 8 of the sub-parameter"},
		"widths of another cut": {also(qkv, sub(sized, 0), set("universal_checkpoint_version", 0.4),
			set("sub_param_shard_widths", dict("qkv", list(list(int64(5), int64(3)), list(int64(1), int64(1)), list(int64(1), int64(1)))))), "qkv", "rank 0 has a part of shape [6,2], and [7,2] is due"},
		"no size of the vocabulary": {also(words, set("vocabulary_parameter_patterns", list("words"))), "words", "does not say how large the vocabulary is (original_vocab_size)"},
		"rows that nobody filled":   {also(words, set("vocabulary_parameter_patterns", list("words")), set("original_vocab_size", int64(6))), "words", "its parts come to 8 rows, more than universal_checkpoint_info.original_vocab_size says, 6, and no padded_vocab_size"},
		"rows that are missing":     {also(words, set("vocabulary_parameter_patterns", list("words")), set("original_vocab_size", int64(6)), set("padded_vocab_size", int64(12))), "words", "its parts come to 8 rows, and universal_checkpoint_info.padded_vocab_size says that there are 12"},
		"a vector of words":         {also(two("words", numbered(100, 4), numbered(200, 4)), set("vocabulary_parameter_patterns", list("words")), set("original_vocab_size", int64(6))), "words", "DeepSpeed fills up matrices only"},
		"not to be described":       {set("autotp_unsupported_parameter_patterns", dict(`^up$`, "it is interleaved")), "up", "DeepSpeed says of it that it is interleaved"},
		"experts":                   {also(two("a.deepspeed_moe.experts.deepspeed_experts.0.w", numbered(100, 2, 2), numbered(200, 2, 2))), "a.deepspeed_moe.experts.deepspeed_experts.0.w", "name experts by their numbers on a rank"},
		"experts of AutoEP":         {also(two("a.experts.w1", numbered(100, 2, 2), numbered(200, 2, 2)), set("expert_parameter_patterns", list(`.*\.experts\.w[123]$`))), "a.experts.w1", "name experts by their numbers on a rank"},
		"a buffer":                  {also(shared{name: "seen", parts: []array{numbered(100, 2), numbered(200, 2)}, buffer: true}), "seen", "the model states name it neither as trained nor as frozen"},
		"a buffer of zeros":         {also(shared{name: "zeros", parts: []array{{tensor.Shape{2}, []float32{0, 0}}, {tensor.Shape{2}, []float32{0, 0}}}, buffer: true}), "zeros", "or it is all one number"},
	} {
		t.Run(name, func(t *testing.T) {
			s := three()
			c.change(s)
			got, files := read(t, s.write(t))
			if faults := got.Check(files); len(faults) > 0 {
				t.Error(faults)
			}
			n := 0
			for _, x := range got.Tensors {
				of := c.parts == "" || strings.HasSuffix(x.Name, "."+c.parts) && !strings.HasPrefix(x.Name, "optimizer.step.")
				if of != (x.At != nil) || of && !strings.Contains(x.Apart, c.why) {
					t.Errorf("%s at %q: %q", x.Name, x.At, x.Apart)
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

// TestJoinMany has more patterns than are tried.
func TestJoinMany(t *testing.T) {
	s := three()
	var many []any
	for i := range 3000 {
		many = append(many, fmt.Sprintf("x%d(a{1000}|b)", i))
	}
	s.info.(*pickle.Dict).Set("tp_replicated_parameter_patterns", list(many...))
	c, _ := read(t, s.write(t))
	for _, x := range c.Tensors {
		if x.At == nil || !strings.Contains(x.Apart, "more patterns, or longer ones") {
			t.Errorf("%s at %q: %q", x.Name, x.At, x.Apart)
		}
	}
}

// TestJoinRest joins what is beside the parameters: weights that have a second name are as the first, buffers that all ranks have are one, and vectors of one
// number, of which nobody knows it, are as no pattern says.
func TestJoinRest(t *testing.T) {
	s := three()
	zeros := array{tensor.Shape{2}, []float32{0, 0}}
	s.params = append(s.params,
		shared{name: "bias", parts: []array{zeros, zeros}},
		shared{name: "head", parts: []array{numbered(30, 3, 2), numbered(40, 3, 1)}, buffer: true}, // as the tensor of a second name is, in no param_shapes
		shared{name: "mask", parts: []array{numbered(5, 2, 2), numbered(5, 2, 2)}, buffer: true},
		shared{name: "count", parts: []array{numbered(5), numbered(5)}, buffer: true},
		shared{name: "mean", parts: []array{numbered(7, 70, 1000), numbered(7, 70, 1000)}})
	s.aliases = dict("head", "down")
	s.info.(*pickle.Dict).Set("parameter_to_average_patterns", list("mean"))
	s.info.(*pickle.Dict).Set("parameter_with_row_parallelism_patterns", list(`down$|norm|mean`)) // what stands before it counts
	c, files := read(t, s.write(t))
	got := formattest.Contents(t, files, c)
	down := array{tensor.Shape{3, 3}, []float32{30, 31, 40, 32, 33, 41, 34, 35, 42}}
	for name, want := range map[string]array{
		"module.norm": numbered(1, 3), "module.down": down, "module.head": down, "module.mask": numbered(5, 2, 2), "module.count": numbered(5), "module.mean": numbered(7, 70, 1000),
		"module.bias": {tensor.Shape{4}, []float32{0, 0, 0, 0}}, "optimizer.exp_avg.mean": numbered(7, 70, 1000).times(-1),
	} {
		if got[name] != want.String() {
			t.Errorf("%s is %s, want %s", name, got[name], want)
		}
	}
	for _, x := range c.Tensors {
		if x.At != nil {
			t.Errorf("%s at %q: %q", x.Name, x.At, x.Apart)
		}
	}
}

// TestJoinKeys writes beside whole parameters how DeepSpeed is to cut them, and once more of what it has read.
func TestJoinKeys(t *testing.T) {
	s := three()
	s.params = append(s.params,
		shared{name: "gate", parts: []array{numbered(100, 4, 1), numbered(200, 2, 1)}},
		shared{name: "qkv", parts: []array{numbered(300, 4, 1), numbered(400, 2, 1)}},
		shared{name: "words", parts: []array{numbered(500, 3, 1), numbered(600, 3, 1)}})
	s.info = dict("tp_replicated_parameter_patterns", list("norm"), "parameter_with_row_parallelism_patterns", list(`down$`), "parameter_with_2_sub_params_cat_dim_0", list("gate"),
		"parameter_with_sub_params", list(dict("patterns", list(`qkv`), "shape", list(pickle.Tuple{int64(2), int64(4)}, int64(-1)), "partition_dim", int64(0))),
		"sub_param_shard_widths", dict("qkv", list(list(int64(1), int64(1)), list(int64(3), int64(1)))), "vocabulary_parameter_patterns", list(`w.rds`),
		"original_vocab_size", int64(5), "padded_vocab_size", int64(6), "universal_checkpoint_version", 0.4)
	c, files := read(t, s.write(t))
	for range 2 {
		dir := universal(t, c, files)
		c, files = read(t, dir)
		keys := map[string]string{}
		for _, name := range []string{"norm", "up", "down", "gate", "qkv", "words"} {
			f, err := torchzip.Open(files, "global_step7_universal/zero/"+name+"/exp_avg.pt", deepspeed.Globals)
			if err != nil {
				t.Fatal(err)
			}
			for _, item := range f.Root.(*pickle.Dict).Items {
				if o, ok := item.Value.(*pickle.Object); ok {
					keys[name] += fmt.Sprint(item.Key, " ", o.Class)
					for _, x := range o.State.(*pickle.Dict).Items {
						keys[name] += fmt.Sprint(" ", x.Key, " ", x.Value)
					}
				} else if item.Key != "param" {
					keys[name] += fmt.Sprint(item.Key, " ", item.Value, " ")
				}
			}
		}
		patterns := keys["qkv"]
		keys["qkv"] = strings.Join(append(strings.Fields(patterns)[:2], strings.Fields(patterns)[4:]...), " ")
		want := map[string]string{"up": "cat_dim 0 ", "down": "cat_dim 1 ", "gate": "cat_dim 0 param_n_sub_params 2 ", "words": "cat_dim 0 vocab_tensor true ",
			"qkv": "sub_param_shape deepspeed.checkpoint.universal_checkpoint.SubparamShape shape [[2 4] -1] partition_dim 0"}
		if diff := cmp.Diff(want, keys); diff != "" {
			t.Error(diff)
		}
		f, err := torchzip.Open(files, "global_step7_universal/mp_rank_00_model_states.pt", deepspeed.Globals)
		if err != nil {
			t.Fatal(err)
		}
		widths, err := pickle.Get[*pickle.List](f.Root, "universal_checkpoint_info", "sub_param_shard_widths", "qkv")
		if err != nil || len(widths.Items) != 2 || widths.Items[1].(*pickle.List).Items[0] != int64(4) {
			t.Errorf("of one rank the widths are %v: %v", widths, err)
		}
		subs, err := pickle.Get[*pickle.List](f.Root, "universal_checkpoint_info", "parameter_with_sub_params")
		if err != nil || len(subs.Items) != 1 {
			t.Fatalf("%v: %v", subs, err)
		}
		if shape, err := pickle.Get[pickle.Tuple](subs.Items[0], "shape"); err != nil || fmt.Sprint(shape) != "[[2 4] -1]" {
			t.Errorf("the shape is %v: %v", shape, err)
		}
	}
}

// TestUniversalOrder knows the order of parameters in their groups where all ranks have parts of all, and not of a pipeline, whose stages have each their own.
func TestUniversalOrder(t *testing.T) {
	for name, want := range map[string]bool{"universaltensor": true, "universalpipe": false} {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		c, _ := read(t, dir)
		if names, ok := c.Value("optimizer_state.param_groups.0.param_names"); ok != want {
			t.Errorf("%s: %v", name, names)
		}
	}
}

// TestRanksLack says which model parallel rank is missing, or left over, where the model states say how many there are.
func TestRanksLack(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*saved)
		err    string
	}{
		"the last": {func(c *saved) { c.count = int64(3) }, "says that there are 3 model parallel ranks, and of rank 2 there is no file (mp_rank_02_model_states.pt)"},
		"several":  {func(c *saved) { c.count = int64(5) }, "of the ranks 2 to 4 there is no file"},
		"by degrees": {func(c *saved) {
			c.count, c.more = nil, []any{"checkpoint_parallel_dimensions", dict("pp_degree", int64(1), "tp_degree", int64(4))}
		}, "of the ranks 2 to 3 there is no file"},
		"too many":        {func(c *saved) { c.count = int64(1) }, "says that there are 1 model parallel ranks, and there are files of 2; move away what another save has left (those of mp_rank_01, and more)"},
		"steps that vary": {func(c *saved) { c.steps = []float32{5, 6} }, ""}, // replicas, which are compared when they are moved
		"numbers of them": {func(c *saved) { c.steps, c.numbers = []float32{5, 6}, true }, `says that "optimizer.step.norm" is 6, and another tensor parallel rank 5`},
		"the same number": {func(c *saved) { c.numbers = true }, ""},
		"not said":        {func(c *saved) { c.count = nil }, ""},
	} {
		s := three()
		c.change(s)
		_, err := deepspeed.Read(format.NewFiles(s.write(t)))
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v; want %q", name, err, c.err)
		}
	}
}

// TestJoinPipeline joins the parts of tensor parallel ranks in each of two stages.
func TestJoinPipeline(t *testing.T) {
	s := three()
	s.pp, s.count = 2, int64(4)
	for i, name := range []string{"0.norm", "1.up", "2.down"} {
		s.params[i].name, s.params[i].stage = name, i/2
	}
	s.info = dict("tp_replicated_parameter_patterns", list(`\d+\.norm`), "parameter_with_row_parallelism_patterns", list(`\d+\.down`))
	c, files := read(t, s.write(t))
	up, down := array{tensor.Shape{4, 3}, append(numbered(10, 6).data, numbered(20, 6).data...)}, array{tensor.Shape{3, 3}, []float32{30, 31, 40, 32, 33, 41, 34, 35, 42}}
	want := map[string]string{}
	for name, a := range map[string]array{"0.norm": numbered(1, 3), "1.up": up, "2.down": down} {
		want["module."+name], want["optimizer.step."+name] = a.String(), array{tensor.Shape{}, []float32{5}}.String()
		for scale, kind := range map[float32]string{1: "fp32", -1: "exp_avg", 0.5: "exp_avg_sq"} {
			want["optimizer."+kind+"."+name] = a.times(scale).String()
		}
	}
	if diff := cmp.Diff(want, formattest.Contents(t, files, c)); diff != "" || len(c.Tensors) != len(want) {
		t.Errorf("%d tensors: %s", len(c.Tensors), diff)
	}
}

// TestJoinAnything has anything stand where patterns and sizes are due: nothing panics, and what is read is sound.
func TestJoinAnything(t *testing.T) {
	var anything func(depth int) *rapid.Generator[any]
	anything = func(depth int) *rapid.Generator[any] {
		return rapid.Custom(func(r *rapid.T) any {
			switch n := rapid.IntRange(0, 8).Draw(r, "sort"); {
			case n < 2:
				return int64(rapid.IntRange(-2, 7).Draw(r, "number"))
			case n < 5:
				return rapid.SampledFrom([]string{"norm", "up", "down", "^down$", "n|u", "(", ".*", "", "x"}).Draw(r, "pattern")
			case n < 7 && depth > 0:
				items := rapid.SliceOfN(anything(depth-1), 0, 3).Draw(r, "items")
				if n == 5 {
					return pickle.Tuple(items)
				}
				return list(items...)
			case n == 7 && depth > 0:
				return dict("patterns", anything(depth-1).Draw(r, "patterns"), "shape", anything(depth-1).Draw(r, "shape"), "partition_dim", anything(0).Draw(r, "dimension"))
			}
			return rapid.SampledFrom([]any{nil, true, 0.2, 0.4, int64(math.MaxInt64)}).Draw(r, "other")
		})
	}
	rapid.Check(t, func(r *rapid.T) {
		s := three()
		for _, key := range []string{"tp_replicated_parameter_patterns", "parameter_to_average_patterns", "parameter_with_2_sub_params_cat_dim_0", "parameter_with_row_parallelism_patterns",
			"vocabulary_parameter_patterns", "parameter_with_sub_params", "autotp_unsupported_parameter_patterns", "sub_param_shard_widths", "universal_checkpoint_version", "original_vocab_size",
			"padded_vocab_size", "expert_parameter_patterns"} {
			if rapid.IntRange(0, 2).Draw(r, key) == 0 {
				s.info.(*pickle.Dict).Set(key, anything(3).Draw(r, "is"))
			}
		}
		c, files := read(t, s.write(t))
		if faults := c.Check(files); len(faults) > 0 {
			r.Fatal(faults)
		}
		for i := range c.Tensors {
			formattest.Bytes(t, files, &c.Tensors[i])
		}
		if !slices.ContainsFunc(c.Tensors, func(x format.Tensor) bool { return x.At != nil }) {
			if out, err := deepspeed.Layout(c.Tensors, c.Values); err == nil {
				read(t, formattest.Write(t, out, c, files))
			}
		}
	})
}

// FuzzJoin changes what the model states of a rank say.
func FuzzJoin(f *testing.F) {
	const first, second = "tag/mp_rank_00_model_states.pt", "tag/mp_rank_01_model_states.pt"
	dir := three().write(f)
	f.Add(dir[first].Data, dir[second].Data)
	f.Fuzz(func(t *testing.T, a, b []byte) {
		changed := fstest.MapFS{}
		for name, file := range dir {
			changed[name] = file
		}
		changed[first], changed[second] = &fstest.MapFile{Data: slices.Clone(a)}, &fstest.MapFile{Data: slices.Clone(b)}
		formattest.Sound(changed, deepspeed.Read)
	})
}

// FuzzPatterns has any text as a pattern, which is refused, or fits some names.
func FuzzPatterns(f *testing.F) {
	for _, x := range []string{"norm", `^up$`, `(a|b)*\d+`, "(?i)NORM", "(?!x)", "[[:alpha:]]", "a{,2}", "(", `\Z`, "é"} {
		f.Add(x)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fits, err := deepspeed.Fits(text, "norm")
		exact, again := deepspeed.Fits(`^`+text+`$`, "norm")
		if err == nil && again == nil && exact && !fits {
			t.Errorf("%q fits the whole name only", text)
		}
	})
}
