package optim_test

// This file tests groups of optimizers, of samples and made here.
import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/optim"
	"github.com/shoal-ml/shoal/tensor"
)

// llamaGroups returns the groups of the program that has written the samples, in its order:
// matrices and vectors.
func llamaGroups() (matrices, vectors []string) {
	matrices = []string{"model.embed_tokens.weight"}
	for i := range 2 {
		at := fmt.Sprintf("model.layers.%d.", i)
		for _, name := range []string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
			"self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"} {
			matrices = append(matrices, at+name+".weight")
		}
		vectors = append(vectors, at+"input_layernorm.weight", at+"post_attention_layernorm.weight")
	}
	return append(matrices, "lm_head.weight"), append(vectors, "model.norm.weight")
}

// readSample reads a sample, and returns what is in it too. It stops the test if it cannot be read.
func readSample(t *testing.T, name string) (*format.Checkpoint, *format.Files, formattest.What) {
	t.Helper()
	dir, want := formattest.Load(t, "../dcp/testdata/"+name+".zip")
	files := format.NewFiles(dir)
	c, err := dcp.Read(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, files, want
}

// TestFindTorch finds the groups of FSDP, flattened and as lists, in the order of the program, and
// takes the state under the names that other formats have.
func TestFindTorch(t *testing.T) {
	matrices, vectors := llamaGroups()
	for _, name := range []string{"flat", "listed"} {
		c, files, want := readSample(t, name)
		o, renamed, err := optim.FindGroups(c, nil, files.Read)
		if err != nil {
			t.Fatal(name, err)
		}
		if len(o.Groups) != 2 || !slices.Equal(o.Groups[0].Params, matrices) ||
			!slices.Equal(o.Groups[1].Params, vectors) || !o.Ordered || o.Source != optim.Torch {
			t.Errorf("%s: %+v", name, o)
		}
		for i, decay := range []float64{0.1, 0} {
			said := map[string]any{}
			for _, v := range o.Groups[i].Values {
				said[v.Path] = v.Data
			}
			if said["weight_decay"] != decay || said["lr"] != 1e-2 ||
				!cmp.Equal(said["betas"], any([]any{0.9, 0.95})) || len(said) != 11 {
				t.Errorf("%s: group %d has %v", name, i, said)
			}
		}
		due := formattest.What{}
		for path, x := range want {
			if rest, ok := strings.CutPrefix(path, "optim.state."); ok {
				i := strings.LastIndex(rest, ".")
				path = "optimizer." + rest[i+1:] + "." + rest[:i]
				if renamed[path] != "optim.state."+rest {
					t.Errorf("%s was %q", path, renamed[path])
				}
			}
			due[path] = x
		}
		formattest.Compare(t, files, c, due)
		if slices.ContainsFunc(c.Values, func(v format.Value) bool {
			return strings.HasPrefix(v.Path, "optim.")
		}) {
			t.Errorf("%s: values of groups are left", name)
		}
	}
}

// TestOrder finds the order of flattened groups where one rank has listed something of each
// parameter, and in no other case.
func TestOrder(t *testing.T) {
	const b, a = "optim.param_groups.b.w.lr", "optim.param_groups.a.w.lr"
	for name, x := range map[string]struct {
		listed []format.SavedItem
		order  []string // nil where it is not known
	}{
		"one rank":  {[]format.SavedItem{{Name: b}, {Name: a}}, []string{"b.w", "a.w"}},
		"two ranks": {[]format.SavedItem{{Name: b}, {Name: a, Rank: 1}}, nil},
		"one of two ranks": {
			[]format.SavedItem{{Name: a}, {Name: b, Rank: 1},
				{Name: "optim.param_groups.a.w.eps", Rank: 1}}, []string{"b.w", "a.w"}},
		"by state": {
			[]format.SavedItem{{Name: b}, {Name: a, Rank: 1}, {Name: "optim.state.b.w.m"},
				{Name: "optim.state.a.w.m"}}, []string{"b.w", "a.w"}},
		"names of what is other": {[]format.SavedItem{{Name: "model.b.w"}, {Name: "model.a.w"}},
			nil},
		"sorted":  {[]format.SavedItem{{Name: a}, {Name: b}}, nil},
		"nothing": {nil, nil},
	} {
		c := &format.Checkpoint{SavedOrder: x.listed,
			Tensors: []format.Tensor{{Name: "optim.state.a.w.m", DType: tensor.F32},
				{Name: "optim.state.b.w.m", DType: tensor.F32}},
			Values: []format.Value{{Path: a, Data: 0.5},
				{Path: "optim.param_groups.a.w.eps", Data: 1.0}, {Path: b, Data: 0.5},
				{Path: "optim.param_groups.b.w.eps", Data: 1.0}}}
		o, _, err := optim.FindGroups(c, nil, nil)
		if err != nil {
			t.Fatal(name, err)
		}
		if o.Ordered != (x.order != nil) ||
			o.Ordered && !slices.Equal(o.Groups[0].Params, x.order) ||
			o.Ordered == (o.WhyUnordered != "") ||
			len(o.Groups) != 1 {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// TestOrderContradicted believes no order of state that what a rank has listed of groups
// contradicts: state has the order in which parameters first got some.
func TestOrderContradicted(t *testing.T) {
	for first, ordered := range map[string]bool{"c": false, "b": true} {
		c := &format.Checkpoint{}
		for _, name := range []string{"b", "c", "a"} {
			c.Tensors = append(c.Tensors,
				format.Tensor{Name: "optim.state." + name + ".m", DType: tensor.F32})
			c.SavedOrder = append(c.SavedOrder,
				format.SavedItem{Name: "optim.state." + name + ".m"})
			c.Values = append(c.Values,
				format.Value{Path: "optim.param_groups." + name + ".lr", Data: 0.5})
		}
		second := map[string]string{"c": "b", "b": "c"}[first]
		c.SavedOrder = append(c.SavedOrder,
			format.SavedItem{Name: "optim.param_groups." + first + ".lr", Rank: 1},
			format.SavedItem{Name: "optim.param_groups." + second + ".lr", Rank: 1})
		o, _, err := optim.FindGroups(c, nil, nil)
		if err != nil || o.Ordered != ordered ||
			ordered && !slices.Equal(o.Groups[0].Params, []string{"b", "c", "a"}) {
			t.Errorf("%s first: %+v, %v", first, o, err)
		}
	}
}

// numberedCheckpoint returns a checkpoint of torch.save with an optimizer that numbers its
// parameters. names are those that it gives the parameters of the first group; nil = it names none.
func numberedCheckpoint(names ...any) *format.Checkpoint {
	c := &format.Checkpoint{}
	for _, name := range []string{"optimizer.state.0.exp_avg", "optimizer.state.1.exp_avg",
		"optimizer.state.2.exp_avg", "model.a.w", "model.b.w", "model.c.w"} {
		c.Tensors = append(c.Tensors,
			format.Tensor{Name: name, DType: tensor.F32, Shape: tensor.Shape{2}})
	}
	c.Values = []format.Value{{Path: "optimizer.param_groups.0.lr", Data: 0.5},
		{Path: "optimizer.param_groups.0.params", Data: []any{int64(0), int64(1)}},
		{Path: "optimizer.param_groups.1.lr", Data: 0.25},
		{Path: "optimizer.param_groups.1.params", Data: []any{int64(2)}}}
	if names != nil {
		c.Values = append(c.Values,
			format.Value{Path: "optimizer.param_groups.0.param_names", Data: names},
			format.Value{Path: "optimizer.param_groups.1.param_names", Data: []any{"b.w"}})
	}
	return c
}

// TestNumbers names what an optimizer numbers: as it says itself, or as somebody says.
func TestNumbers(t *testing.T) {
	given := []optim.Group{{Params: []string{"c.w", "a.w"}},
		{Params: []string{"b.w"}, Values: []format.Value{{Path: "lr", Data: 2.0}}}}
	for name, x := range map[string]struct {
		c     *format.Checkpoint
		given []optim.Group
		rate  float64
		err   string
	}{
		"named":         {numberedCheckpoint("c.w", "a.w"), nil, 0.25, ""},
		"given":         {numberedCheckpoint(), given, 2, ""},
		"named by none": {numberedCheckpoint(), nil, 0, "it numbers its parameters and names none"},
		"too few given": {numberedCheckpoint(),
			[]optim.Group{{Params: []string{"c.w"}}, {Params: []string{"b.w"}}}, 0,
			"group 0 has 1 parameters, and the checkpoint's has 2"},
		"too few groups": {numberedCheckpoint(), []optim.Group{{Params: []string{"c.w", "a.w"}}}, 0,
			"group 1 has 0 parameters, and the checkpoint's has 1"},
	} {
		o, _, err := optim.FindGroups(x.c, x.given, nil)
		if x.err != "" {
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%s: %v; want %q", name, err, x.err)
			}
			continue
		}
		if err != nil {
			t.Fatal(name, err)
		}
		if !slices.Equal(o.Groups[0].Params, []string{"c.w", "a.w"}) ||
			o.ValuesByParam()["b.w"][0].Data != x.rate || o.ValuesByParam()["a.w"][0].Data != 0.5 {
			t.Errorf("%s: %+v", name, o)
		}
		var names []string
		for _, y := range x.c.Tensors {
			names = append(names, y.Name)
		}
		if want := []string{"model.a.w", "model.b.w", "model.c.w", "optimizer.exp_avg.a.w",
			"optimizer.exp_avg.b.w", "optimizer.exp_avg.c.w"}; !slices.Equal(names, want) {
			t.Errorf("%s: %v", name, names)
		}
		if err := o.ReplaceIn(x.c); err != nil {
			t.Fatal(err)
		}
		if is, _ := x.c.Value("optimizer_state.param_groups.0.param_names"); !cmp.Equal(is,
			any([]any{"c.w", "a.w"})) {
			t.Errorf("%s: %v", name, is)
		}
	}
}

// TestGiven takes the groups that somebody gives for those of a checkpoint, if they are of its
// parameters and say what it does not.
func TestGiven(t *testing.T) {
	state := func() *format.Checkpoint {
		c := &format.Checkpoint{}
		for _, name := range []string{"a.w", "b.w", "c.w"} {
			c.Tensors = append(c.Tensors,
				format.Tensor{Name: "optimizer.exp_avg." + name, DType: tensor.F32})
			c.Values = append(c.Values,
				format.Value{Path: "optimizer.step." + name, Data: int64(3)})
		}
		return c
	}
	with := func(values ...format.Value) *format.Checkpoint {
		c := state()
		c.Values = append(c.Values, values...)
		return c
	}
	two := with(format.Value{Path: "optimizer_state.param_groups.0.lr", Data: 1.0},
		format.Value{Path: "optimizer_state.param_groups.1.lr", Data: 2.0})
	named := with(format.Value{Path: "optimizer.param_groups.0.lr", Data: 1.0},
		format.Value{Path: "optimizer.param_groups.0.param_names", Data: []any{"a.w", "c.w"}},
		format.Value{Path: "optimizer.param_groups.1.lr", Data: 2.0},
		format.Value{Path: "optimizer.param_groups.1.param_names", Data: []any{"b.w"}})
	for name, x := range map[string]struct {
		c     *format.Checkpoint
		given string
		rates []any // nil for none
		err   string
	}{
		"nothing but names": {state(), `[{"params": ["c.w", "a.w", "b.w"]}]`, []any{nil}, ""},
		"with values": {state(),
			`[{"params": ["c.w", "a.w"], "lr": 0.5}, {"params": ["b.w"]}]`, []any{0.5, nil}, ""},
		"of the same number": {two, `[{"params": ["c.w", "a.w"]}, {"params": ["b.w"], "lr": 5}]`,
			[]any{1.0, int64(5)}, ""},
		"another number": {two, `[{"params": ["c.w", "a.w", "b.w"]}]`, []any{nil}, ""},
		"of these parameters": {named, `[{"params": ["b.w"]}, {"params": ["c.w", "a.w"]}]`,
			[]any{2.0, 1.0}, ""},
		"that disagree": {named, `[{"params": ["b.w", "c.w", "a.w"]}]`, nil,
			`group 0 has "b.w" and "c.w", of which the checkpoint says another lr each`},
		"that are made agree": {named, `[{"params": ["b.w", "c.w", "a.w"], "lr": 0.125}]`,
			[]any{0.125}, ""},
		"too few": {state(), `[{"params": ["c.w", "a.w"]}]`, nil,
			`there is state of 1 parameters that are in none of its groups, such as "b.w"`},
		"of others": {state(), `[{"params": ["c.w", "a.w", "b.w", "d.w"]}]`, nil,
			`group 0 has the parameter "d.w", of which there is no state`},
	} {
		given, err := optim.ParseGroups([]byte(x.given))
		if err != nil {
			t.Fatal(name, err)
		}
		o, _, err := optim.FindGroups(x.c, given, nil)
		if x.err != "" {
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%s: %v; want %q", name, err, x.err)
			}
			continue
		}
		if err != nil {
			t.Fatal(name, err)
		}
		var rates []any
		for i, g := range o.Groups {
			if !slices.Equal(g.Params, given[i].Params) {
				t.Errorf("%s: group %d has %v", name, i, g.Params)
			}
			rate := any(nil)
			for _, v := range g.Values {
				if v.Path == "lr" {
					rate = v.Data
				}
			}
			rates = append(rates, rate)
		}
		if !cmp.Equal(rates, x.rates) || !o.Ordered || o.Source != optim.Given {
			t.Errorf("%s: %v, want %v", name, rates, x.rates)
		}
	}
}

// TestFindNot finds no groups where nobody names what is in them, and refuses what does not fit
// together.
func TestFindNot(t *testing.T) {
	t32 := func(name string, shape ...int) format.Tensor {
		return format.Tensor{Name: name, DType: tensor.F32, Shape: shape}
	}
	value := func(path string, is any) format.Value { return format.Value{Path: path, Data: is} }
	list := func(names ...any) format.Value { return value("optim.param_groups.0.params", names) }
	state := t32("optim.state.a.w.exp_avg")
	for name, x := range map[string]struct {
		c   format.Checkpoint
		err string // "" for nothing found
	}{
		"no optimizer": {format.Checkpoint{Tensors: []format.Tensor{t32("model.a")}}, ""},
		"no names": {
			format.Checkpoint{Tensors: []format.Tensor{t32("optimizer.exp_avg.a")},
				Values: []format.Value{value("optimizer_state.param_groups.0.lr", 0.5)}}, ""},
		"one of two names none": {
			format.Checkpoint{
				Values: []format.Value{
					value("optimizer_state.param_groups.0.param_names", []any{"a"}),
					value("optimizer_state.param_groups.1.lr", 0.5)}}, ""},
		"no state": {
			format.Checkpoint{
				Values: []format.Value{
					value("optimizer_state.param_groups.0.param_names", []any{"a"})}}, ""},
		"two of Megatron": {
			format.Checkpoint{
				Values: []format.Value{value("optimizer.0.param_groups.0.param_names", []any{"a"}),
					value("optimizer.1.param_groups.0.param_names", []any{"b"})}}, ""},
		"parts": {format.Checkpoint{
			Tensors: []format.Tensor{
				{Name: "optimizer.state.0.exp_avg", Coords: format.Coords{{Axis: "tp", Of: 2}}}},
			Values: []format.Value{value("optimizer.param_groups.0.params", []any{int64(0)})}},
			""},
		"two of torch": {format.Checkpoint{
			Tensors: []format.Tensor{state, t32("d.state.a.w.exp_avg")},
			Values:  []format.Value{list("a.w"), value("d.param_groups.0.params", []any{"a.w"})}},
			"there are 2 optimizers (d.state.…, optim.state.…)"},
		"in no group": {
			format.Checkpoint{Tensors: []format.Tensor{state}, Values: []format.Value{list("b.w")}},
			`there is state of parameter "a.w", which is in no group`},
		"in two groups": {
			format.Checkpoint{Tensors: []format.Tensor{state},
				Values: []format.Value{list("a.w"),
					value("optim.param_groups.1.params", []any{"a.w"})}},
			`parameter "a.w" is in two groups`},
		"a group lacks": {
			format.Checkpoint{Tensors: []format.Tensor{state},
				Values: []format.Value{list("a.w"),
					value("optim.param_groups.2.params", []any{"b.w"})}}, "number 1 is missing"},
		"empty": {
			format.Checkpoint{Tensors: []format.Tensor{state}, Values: []format.Value{list()}},
			"param_groups.0 has no parameters"},
		"mixed": {
			format.Checkpoint{Tensors: []format.Tensor{state},
				Values: []format.Value{list("a.w", int64(1))}}, "by names and by other things"},
		"state of none": {
			format.Checkpoint{Tensors: []format.Tensor{t32("optim.state.x")},
				Values: []format.Value{list("a.w")}}, `"x" is no state of a parameter`},
		"not a number": {
			format.Checkpoint{Tensors: []format.Tensor{state, t32("optim.param_groups.a.w.lr", 2)}},
			`tensor "optim.param_groups.a.w.lr" of f32 [2] is no number`},
	} {
		o, _, err := optim.FindGroups(&x.c, nil, nil)
		if x.err == "" && (err != nil || o != nil) ||
			x.err != "" && (err == nil || !strings.Contains(err.Error(), x.err)) {
			t.Errorf("%s: %+v, %v; want %q", name, o, err, x.err)
		}
	}
}

// TestRatesInTensors reads a learning rate that a program keeps in a tensor.
func TestRatesInTensors(t *testing.T) {
	c := &format.Checkpoint{}
	for _, name := range []string{"a", "b"} {
		c.Tensors = append(c.Tensors,
			format.Tensor{Name: "optim.state." + name + ".m", DType: tensor.F32},
			format.Tensor{Name: "optim.param_groups." + name + ".lr", DType: tensor.F32})
	}
	o, _, err := optim.FindGroups(c, nil, func(x *format.Tensor, b []byte) error {
		copy(b, []byte{0, 0, 0, 63})
		return nil
	})
	if err != nil || len(o.Groups) != 1 || o.Groups[0].Values[0].Data != 0.5 ||
		len(c.Tensors) != 2 {
		t.Errorf("%+v, %v, %v", o, c.Tensors, err)
	}
}

// TestParseNot says of texts that are no groups what is wrong.
func TestParseNot(t *testing.T) {
	for text, want := range map[string]string{
		``:                                       "groups are a list of objects",
		`{"params": ["a"]}`:                      "groups are a list of objects",
		`[]`:                                     "there are no groups",
		`[{"params": ["a"]}] x`:                  "something stands after",
		`[{"lr": 1}]`:                            `group 0 has no list of names under "params"`,
		`[{"params": []}]`:                       `group 0 has no list of names under "params"`,
		`[{"params": ["a", 1]}]`:                 `group 0 has no list of names under "params"`,
		`[{"params": ["a"]}, {"params": ["a"]}]`: `parameter "a" is in group 0 and in group 1`,
		`[{"params": ["a"], "x.y": 1}]`:          "which is no name of a value",
		`[{"params": ["a"], "lr": {}}]`:          "an object, where a number",
		`[{"params": ["a"], "lr": 1e999}]`:       "lr",
	} {
		if _, err := optim.ParseGroups([]byte(text)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}

// FuzzParse has any text as groups, which is refused, or can be applied without a panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`[{"params": ["a", "b"], "lr": 0.5, "betas": [0.9, 0.95]}, {"params": ["c"]}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		groups, err := optim.ParseGroups(text)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, g := range groups {
			if len(g.Params) == 0 {
				t.Error("a group without parameters")
			}
			for _, name := range g.Params {
				if seen[name] {
					t.Errorf("%q twice", name)
				}
				seen[name] = true
			}
		}
	})
}
