package deepspeed_test

// This file tests the joining of what tensor parallel ranks have, cut here at random.
import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// cutting is how a drawn parameter is cut, and what it comes to.
type cutting struct {
	shared
	want    array  // rows that fill up the vocabulary left out
	rule    string // how it is cut, as drawCutting takes it
	sizes   []any  // of sub-parameters, int64
	widths  []any  // lists of what the ranks have of each
	dim     int    // dimension that is cut
	pattern string // regular expression that matches its name
}

// drawCutting draws a parameter, and cuts it by a rule. number makes its name and its elements
// differ from those of others, tp is how many ranks there are, and version is
// universal_checkpoint_version, nil for none.
func drawCutting(r *rapid.T, number, tp int, rule string, version any) *cutting {
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(r, name) }
	c := &cutting{shared: shared{name: fmt.Sprintf("p%d.w", number)}, rule: rule}
	shape := []int{n("rows", 1, 4), n("columns", 1, 4), n("depth", 1, 2)}
	switch rule {
	case "alike", "averaged":
		c.want = numberedArray(1000*number, shape[:n("dimensions", 1, 3)]...)
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
		c.sizes, c.widths = append(c.sizes, int64(size)), append(c.widths, newList(widths...))
	}
	shape[c.dim] = at
	whole := numberedArray(1000*number, shape...)
	for rank := range tp {
		c.parts = append(c.parts, whole.atIndices(c.dim, owner[rank]))
	}
	c.want = whole
	return c
}

// makeInfo returns universal_checkpoint_info of how parameters were cut. padded and original are
// the rows of the vocabulary, with padding and without; original is 0 where there is none.
func makeInfo(cuttings []*cutting, version any, padded, original int) *pickle.Dict {
	lists := map[string][]any{}
	subs, widths := newList(), newDict()
	for _, c := range cuttings {
		for key, rules := range map[string]string{
			"tp_replicated_parameter_patterns":        "alike",
			"parameter_to_average_patterns":           "averaged",
			"parameter_with_2_sub_params_cat_dim_0":   "halves",
			"parameter_with_row_parallelism_patterns": "columns",
			"vocabulary_parameter_patterns":           "vocabulary",
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
			subs.Items = append(subs.Items,
				newDict("patterns", newList(c.pattern), "shape", shape, "partition_dim",
					int64(c.dim)))
			widths.Add(c.pattern, newList(c.widths...))
		}
	}
	d := newDict("tp_replicated_parameter_patterns",
		newList(lists["tp_replicated_parameter_patterns"]...))
	for key, patterns := range lists {
		d.Set(key, newList(patterns...))
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

// TestJoinRandom cuts random parameters by random rules into the parts of tensor parallel ranks,
// and their state into the flat buffers of ZeRO, and reads them whole; then it takes them on, to a
// universal checkpoint and to other stages.
func TestJoinRandom(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		tp := rapid.IntRange(2, 4).Draw(r, "tp")
		version := rapid.SampledFrom([]any{nil, 0.2, 0.4}).Draw(r, "version")
		rules := rapid.SliceOfN(
			rapid.SampledFrom([]string{"alike", "averaged", "halves", "columns", "sub", "rest"}), 1,
			5).Draw(r, "rules")
		if rapid.Bool().Draw(r, "vocabulary") {
			rules = append(rules, "vocabulary")
		}
		exact := version != 0.2 && rapid.Bool().Draw(r, "exact")
		c := &saved{stage: rapid.IntRange(1, 3).Draw(r, "stage"), tp: tp,
			dp: rapid.IntRange(1, 3).Draw(r, "dp"), count: int64(tp)}
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
				x.want = x.want.atIndices(0, keep)
			}
			cuttings = append(cuttings, x)
			c.params = append(c.params, x.shared)
		}
		c.info = makeInfo(cuttings, version, padded, original)
		got, files := mustRead(t, c.write(t))
		want := map[string]string{}
		for _, x := range cuttings {
			if c.stage < 3 {
				want["module."+x.name] = x.want.String()
			}
			for scale, kind := range map[float32]string{1: "fp32", -1: "exp_avg",
				0.5: "exp_avg_sq"} {
				want["optimizer."+kind+"."+x.name] = x.want.scaled(scale).String()
			}
			want["optimizer.step."+x.name] = array{tensor.Shape{}, []float32{5}}.String()
		}
		compare := func(where string, c *format.Checkpoint, files *format.Files) {
			for _, x := range c.Tensors {
				if x.Coords != nil {
					r.Fatalf("%s: %s is in parts: %s", where, x.Name, x.WhyPart)
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
			if i := slices.IndexFunc(cuttings, func(c *cutting) bool {
				return strings.HasSuffix(x.Name, "."+c.name)
			}); cuttings[i].rule == "alike" && len(x.Replicas) == 0 {
				r.Errorf("%s has no replicas to compare", x.Name)
			}
		}
		again, written := mustRead(t, writeUniversal(t, got, files))
		compare("universal", again, written)
		stage, ranks := rapid.IntRange(1, c.stage).Draw(r, "other stage"),
			rapid.IntRange(1, 3).Draw(r, "other ranks")
		if c.stage == 3 {
			stage = 3 // which has no model of its own
		}
		last, written := mustRead(t, writeZero(t, stage, ranks, again, written))
		compare("zero", last, written)
	})
}

// TestJoinKeys writes beside whole parameters how DeepSpeed is to cut them, and once more of what
// it has read.
func TestJoinKeys(t *testing.T) {
	s := threeParams()
	s.params = append(s.params,
		shared{name: "gate", parts: []array{numberedArray(100, 4, 1), numberedArray(200, 2, 1)}},
		shared{name: "qkv", parts: []array{numberedArray(300, 4, 1), numberedArray(400, 2, 1)}},
		shared{name: "words", parts: []array{numberedArray(500, 3, 1), numberedArray(600, 3, 1)}})
	s.info = newDict("tp_replicated_parameter_patterns", newList("norm"),
		"parameter_with_row_parallelism_patterns", newList(`down$`),
		"parameter_with_2_sub_params_cat_dim_0", newList("gate"),
		"parameter_with_sub_params",
		newList(newDict("patterns", newList(`qkv`), "shape",
			newList(pickle.Tuple{int64(2), int64(4)}, int64(-1)), "partition_dim", int64(0))),
		"sub_param_shard_widths",
		newDict("qkv", newList(newList(int64(1), int64(1)), newList(int64(3), int64(1)))),
		"vocabulary_parameter_patterns", newList(`w.rds`),
		"original_vocab_size", int64(5), "padded_vocab_size", int64(6),
		"universal_checkpoint_version", 0.4)
	c, files := mustRead(t, s.write(t))
	for range 2 {
		dir := writeUniversal(t, c, files)
		c, files = mustRead(t, dir)
		keys := map[string]string{}
		for _, name := range []string{"norm", "up", "down", "gate", "qkv", "words"} {
			f, err := torchzip.Open(files, "global_step7_universal/zero/"+name+"/exp_avg.pt",
				deepspeed.Globals)
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
		keys["qkv"] = strings.Join(
			append(strings.Fields(patterns)[:2], strings.Fields(patterns)[4:]...), " ")
		want := map[string]string{"up": "cat_dim 0 ", "down": "cat_dim 1 ",
			"gate": "cat_dim 0 param_n_sub_params 2 ", "words": "cat_dim 0 vocab_tensor true ",
			"qkv": "sub_param_shape deepspeed.checkpoint.universal_checkpoint.SubparamShape " +
				"shape [[2 4] -1] partition_dim 0"}
		if diff := cmp.Diff(want, keys); diff != "" {
			t.Error(diff)
		}
		f, err := torchzip.Open(files, "global_step7_universal/mp_rank_00_model_states.pt",
			deepspeed.Globals)
		if err != nil {
			t.Fatal(err)
		}
		widths, err := pickle.Get[*pickle.List](f.Root, "universal_checkpoint_info",
			"sub_param_shard_widths", "qkv")
		if err != nil || len(widths.Items) != 2 ||
			widths.Items[1].(*pickle.List).Items[0] != int64(4) {
			t.Errorf("of one rank the widths are %v: %v", widths, err)
		}
		subs, err := pickle.Get[*pickle.List](f.Root, "universal_checkpoint_info",
			"parameter_with_sub_params")
		if err != nil || len(subs.Items) != 1 {
			t.Fatalf("%v: %v", subs, err)
		}
		if shape, err := pickle.Get[pickle.Tuple](subs.Items[0], "shape"); err != nil ||
			fmt.Sprint(shape) != "[[2 4] -1]" {
			t.Errorf("the shape is %v: %v", shape, err)
		}
	}
}

// TestUniversalOrder knows the order of parameters in their groups where all ranks have parts of
// all, and not of a pipeline, whose stages have each their own.
func TestUniversalOrder(t *testing.T) {
	for name, want := range map[string]bool{"universaltensor": true, "universalpipe": false} {
		dir, _ := formattest.Load(t, "testdata/"+name+".zip")
		c, _ := mustRead(t, dir)
		if names, ok := c.Value("optimizer_state.param_groups.0.param_names"); ok != want {
			t.Errorf("%s: %v", name, names)
		}
	}
}

// TestRanksLack says which model parallel rank is missing, or left over, where the model states say
// how many there are.
func TestRanksLack(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*saved)
		err    string
	}{
		"the last": {func(c *saved) {
			c.count = int64(3)
		}, "says that there are 3 model parallel ranks, and of rank 2 there is no file " +
			"(mp_rank_02_model_states.pt)"},
		"several": {func(c *saved) { c.count = int64(5) }, "of the ranks 2 to 4 there is no file"},
		"by degrees": {func(c *saved) {
			c.count, c.more = nil,
				[]any{"checkpoint_parallel_dimensions",
					newDict("pp_degree", int64(1), "tp_degree", int64(4))}
		}, "of the ranks 2 to 3 there is no file"},
		"too many": {func(c *saved) {
			c.count = int64(1)
		}, "says that there are 1 model parallel ranks, and there are files of 2; move away " +
			"what another save has left (those of mp_rank_01, and more)"},
		// replicas, which are compared when they are moved
		"steps that vary": {func(c *saved) { c.steps = []float32{5, 6} }, ""},
		"numbers of them": {func(c *saved) {
			c.steps, c.numbers = []float32{5, 6}, true
		}, `says that "optimizer.step.norm" is 6, and another tensor parallel rank 5`},
		"the same number": {func(c *saved) { c.numbers = true }, ""},
		"not said":        {func(c *saved) { c.count = nil }, ""},
	} {
		s := threeParams()
		c.change(s)
		_, err := deepspeed.Read(format.NewFiles(s.write(t)))
		if c.err == "" && err != nil || c.err != "" &&
			(err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v; want %q", name, err, c.err)
		}
	}
}

// TestJoinPipeline joins the parts of tensor parallel ranks in each of two stages.
func TestJoinPipeline(t *testing.T) {
	s := threeParams()
	s.pp, s.count = 2, int64(4)
	for i, name := range []string{"0.norm", "1.up", "2.down"} {
		s.params[i].name, s.params[i].stage = name, i/2
	}
	s.info = newDict("tp_replicated_parameter_patterns", newList(`\d+\.norm`),
		"parameter_with_row_parallelism_patterns", newList(`\d+\.down`))
	c, files := mustRead(t, s.write(t))
	up, down := array{tensor.Shape{4, 3},
		append(numberedArray(10, 6).data, numberedArray(20, 6).data...)},
		array{tensor.Shape{3, 3}, []float32{30, 31, 40, 32, 33, 41, 34, 35, 42}}
	want := map[string]string{}
	for name, a := range map[string]array{"0.norm": numberedArray(1, 3), "1.up": up,
		"2.down": down} {
		want["module."+name], want["optimizer.step."+name] = a.String(),
			array{tensor.Shape{}, []float32{5}}.String()
		for scale, kind := range map[float32]string{1: "fp32", -1: "exp_avg", 0.5: "exp_avg_sq"} {
			want["optimizer."+kind+"."+name] = a.scaled(scale).String()
		}
	}
	if diff := cmp.Diff(want, formattest.Contents(t, files, c)); diff != "" ||
		len(c.Tensors) != len(want) {
		t.Errorf("%d tensors: %s", len(c.Tensors), diff)
	}
}
