package layout_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// small is a catalogue with one tensor of each number of dimensions.
var small = []layout.Tensor{
	{Name: "step", DType: tensor.I64},
	{Name: "layers.0.norm", DType: tensor.F32, Shape: tensor.Shape{6}},
	{Name: "layers.1.norm", DType: tensor.F32, Shape: tensor.Shape{6}},
	{Name: "layers.0.w", DType: tensor.BF16, Shape: tensor.Shape{6, 4}},
	{Name: "layers.1.w", DType: tensor.BF16, Shape: tensor.Shape{6, 4}},
	{Name: "layers.1.cube", DType: tensor.U8, Shape: tensor.Shape{2, 3, 4}},
}

// TestRefusedSpecs says of specs that contradict themselves what is wrong.
func TestRefusedSpecs(t *testing.T) {
	const head = "shoal: layout/1\n"
	all := `rules: [{match: "**"}]`
	place := func(mesh, place string) string {
		return head + "mesh: " + mesh + "\n" + `rules: [{match: "**w", place: "` + place +
			`"}, {match: "**"}]`
	}
	store := func(store string) string { return head + all + "\nstore: [{" + store + "}]" }
	for _, c := range []struct{ name, spec, err string }{
		{"no version", all, "this is no layout"},
		{"another version", "shoal: layout/2\n" + all, `"layout/2", not "layout/1"`},
		{"unknown field", head + all + "\ncolour: red", `layout: unknown field "colour"`},
		{"a field twice", head + all + "\n" + all, `layout: line 3: key "rules" already set in map`},
		{"no YAML", head + "rules: [", "layout: line 2: did not find expected node content"},
		{"an object", head + "rules: {}", "layout: field rules has an object, and takes a list"},
		{"no text", head + "rules: [{match: [w]}]", "field rules.match has an array, and takes a"},
		{"no rules", head, "no rules"},
		{"no rule matches", head + `rules: [{match: "**w"}]`, "tensor step: no rule matches"},
		{"empty pattern", head + `rules: [{match: ""}]`, "matches nothing"},
		{"too many wildcards", head + `rules: [{match: "*a*a*a*a*a*a*a*a*a"}]`, "9 wildcards"},
		{"mesh without a size", place("tp", ""), "not of the form axis=size"},
		{"mesh of nothing", place("tp=0", ""), "size 0"},
		{"mesh too large", place("tp=262144,dp=2", ""), "more than 262144 ranks"},
		{"axis twice", place("tp=2,tp=2", ""), "axis tp comes twice"},
		{"axis name", place("T=2", ""), `axis "T"`},
		{"unknown axis", place("tp=2", "dp=shard(0)"), "has no axis dp"},
		{"axis placed twice", place("tp=2", "tp=shard(0), tp=shard(1)"), "comes twice"},
		{"unknown placement", place("tp=2", "tp=mirror"), `no placement "mirror"`},
		{"no placement", place("tp=2", "tp"), "not of the form"},
		{"open bracket", place("tp=2", "tp=shard(0"), "closing bracket"},
		{"shard of nothing", place("tp=2", "tp=shard"), "needs a dimension"},
		{"shard of a missing dimension", place("tp=2", "tp=shard(2)"), "shape is [6,4]"},
		{"negative dimension", place("tp=2", "tp=shard(-1)"), "whole number"},
		{"uneven and silent", place("tp=5", "tp=shard(0)"),
			"6 rows do not come out even over 5 ranks"},
		{"repeat that does not come out", place("tp=9", "tp=shard(0,repeat)"),
			"do not come out even"},
		{"unknown share", place("tp=2", "tp=shard(0,fair)"), `no way of sharing "fair"`},
		{"unit", place("tp=2", "tp=shard(0,unit=4)"), "not a multiple of the unit 4"},
		{"blocks", place("tp=2", "tp=shard(0,blocks=4/1)"), "have 5 rows"},
		{"equal blocks", place("tp=2", "tp=shard(0,blocks=4)"), "not 4 equal blocks"},
		{"many blocks", place("tp=2", "tp=shard(0,blocks=100000000000)"), "pieces"},
		{"unknown argument", place("tp=2", "tp=shard(0,size=3)"), `no argument "size"`},
		{"flat is last", place("tp=2,dp=2", "dp=flat, tp=shard(0)"), "flat comes last"},
		{"at outside", place("pp=2", "pp=at(2)"), "the axis has 2 places"},
		{"at before the first", place("pp=2", "pp=at(-3)"), "at(-3): the axis has 2 places"},
		{"at needs a place", place("pp=2", "pp=at"), "at needs a place"},
		{"spread without a number", place("pp=2", "pp=spread(1,2)"), "the pattern has 0 #"},
		{"spread needs a count", place("pp=2", "pp=spread(1)"), "how many numbers"},
		{"cuts and chunks", place("pp=2", "pp=spread(1,2,cuts=1,chunks=2)"), "not both"},
		{"balanced cuts", place("pp=2", "pp=spread(1,2,balanced,cuts=1)"), "not balanced then"},
		{"contiguous cuts", place("pp=2", "pp=spread(1,2,contiguous,cuts=1)"),
			"not contiguous then"},
		{"contiguous shards", place("pp=2", "pp=shard(0,contiguous)"), "shard has balanced"},
		{"spread with ceil", place("pp=2", "pp=spread(1,2,ceil)"),
			"comes out even, or is balanced"},
		{"cuts ascend", place("pp=3", "pp=spread(1,4,cuts=2/1)"), "ascend"},
		{"too few cuts", head + "mesh: pp=3\n" +
			`rules: [{match: "layers.#.**", place: "pp=spread(1,2,cuts=1)"}, {match: "**"}]`,
			"1 cuts up to 1 do not make 3 parts of 2 numbers"},
		{"a cut too high", head + "mesh: pp=2\n" +
			`rules: [{match: "layers.#.**", place: "pp=spread(1,2,cuts=3)"}, {match: "**"}]`,
			"1 cuts up to 3 do not make 2 parts of 2 numbers"},
		{"joint at", place("pp=2,dp=2", "pp*dp=at(0)"), "for one axis"},
		{"store without parts", store(`name: a, parts: []`), "no parts"},
		{"store wildcards", store(`name: "layers.w", parts: ["layers.#.w"]`),
			"does not have the wildcards"},
		{"store parts differ", store(`name: "a.#", parts: ["layers.#.w", "layers.*.norm"]`),
			"differ in their wildcards"},
		{"store stack", store(`name: "a", parts: ["layers.#.w"], stack: 2`), "no # number 2"},
		{"store units", store(`name: "a.#", parts: ["layers.#.w"], units: [1, 2]`),
			"2 units for 1 parts"},
		{"store unit of nothing", store(`name: "a.#", parts: ["layers.#.w"], units: [0]`),
			"unit of 0 rows"},
		{"store rows", store(`name: "a.#", parts: ["layers.#.w"], units: [4]`), "6 rows"},
		{"store dimension", store(`name: "a.#", parts: ["layers.#.w"], dim: 2`), "dimension 2"},
		{"store negative dimension", store(`name: "a.#", parts: ["layers.#.w"], dim: -1`),
			"dimension -1"},
		{"store incomplete", store(`name: "a.#", parts: ["layers.#.w", "layers.#.cube2"]`),
			"is missing in the catalogue"},
		{"store types", store(
			`name: "a", parts: ["layers.#.w"], stack: 1}, {name: "b.#", parts: ["layers.#.norm", "layers.#.cube"]`), "missing"},
		{"store dtypes", store(`name: "a.#.", parts: ["layers.#.w", "layers.#.norm"]`),
			"one element type"},
		{"store names", store(`name: "step", parts: ["layers.1.w"]`),
			"two stored tensors are called step"},
		{"store pad", store(`name: "a.#", parts: ["layers.#.w"], pad: {dim: 7, multiple: 2}`),
			"pad in dimension 7"},
		{"store pad after the last",
			store(`name: "a.#", parts: ["layers.#.w"], pad: {dim: 2, multiple: 2}`),
			"pad in dimension 2"},
		{"store pad to nothing",
			store(`name: "a.#", parts: ["layers.#.w"], pad: {dim: 0, multiple: 0}`),
			"multiple from 1"},
		{"bucket types", head + "mesh: dp=2\n" + `rules: [{match: "**", place: "dp=flat(b)"}]`,
			"one element type"},
		{"bucket name", head + "mesh: dp=2\n" +
			`rules: [{match: "**w", place: "dp=flat(step)"}, {match: "**"}]`, "both called step"},
		{"bucket axes", head + "mesh: dp=2,tp=2\n" +
			`rules: [{match: "**0.w", place: "dp=flat(b)"}, {match: "**w", place: "tp=flat(b)"}, {match: "**"}]`, "is flat over"},
		{"bucket mixed", head + "mesh: dp=2,tp=2\n" +
			`rules: [{match: "**0.w", place: "tp=shard(0), dp=flat(b)"}, {match: "**1.w", place: "dp=flat(b,align=2)"}, {match: "**"}]`, "aligned to"},
		{"absent experts", head + "mesh: ep=2\n" +
			`rules: [{match: "layers.#.**", place: "ep=spread(1,1)"}, {match: "**"}]`,
			"do not come out even"},
		{"number too high", head + "mesh: ep=2\n" +
			`rules: [{match: "layers.#.**", place: "ep=spread(1,1,cuts=1)"}, {match: "**"}]`,
			"number 1, which is not below 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec, err := layout.Parse([]byte(c.spec))
			if err == nil {
				_, err = spec.Resolve(small)
			}
			if err == nil || !strings.Contains(err.Error(), c.err) ||
				!strings.HasPrefix(err.Error(), "layout: ") {
				t.Errorf("error %v, want one with %q", err, c.err)
			}
		})
	}
}

// TestRefusedBombs asks for more memory than any machine has, in small files.
func TestRefusedBombs(t *testing.T) {
	var tensors []layout.Tensor
	flat, buckets := `{match: "**", place: "x*y=flat"}`, ""
	for i := range 1000 {
		tensors = append(tensors,
			layout.Tensor{Name: fmt.Sprintf("t%d", i), DType: tensor.F32,
				Shape: tensor.Shape{1<<20 + i}})
		buckets += fmt.Sprintf(`{match: "t%d", place: "x=shard(0,balanced), y=flat(b%d)"},`, i, i)
	}
	for _, rules := range []string{flat, buckets} {
		spec, err := layout.Parse(
			[]byte("shoal: layout/1\nmesh: x=2,y=131072\nrules: [" + rules + "]"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := spec.Resolve(tensors); err == nil ||
			!strings.Contains(err.Error(), "the layout has more than 8388608 pieces") {
			t.Errorf("%.60s…: %v", rules, err)
		}
	}
}

// TestRefusedCatalogues says which catalogues a spec cannot place.
func TestRefusedCatalogues(t *testing.T) {
	spec, err := layout.Parse([]byte("{\"shoal\": \"layout/1\", \"rules\": [{\"match\": \"**\"}]}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tensors []layout.Tensor
		err     string
	}{
		{[]layout.Tensor{{Name: "a", DType: 99}}, "unknown element type dtype(99)"},
		{[]layout.Tensor{{Name: "a", DType: tensor.F4}}, "elements of f4 share bytes"},
		{[]layout.Tensor{{Name: "a", DType: tensor.F32}, {Name: "a", DType: tensor.F32}},
			"two tensors"},
		{[]layout.Tensor{{DType: tensor.F32}}, "no name"},
		{[]layout.Tensor{{Name: "a", DType: tensor.F32, Shape: tensor.Shape{1 << 40, 1 << 40}}},
			"more elements"},
		{[]layout.Tensor{{Name: "a", DType: tensor.F32, Shape: tensor.Shape{-1}}},
			"less than none"},
	} {
		if _, err := spec.Resolve(c.tensors); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v: error %v, want one with %q", c.tensors, err, c.err)
		}
	}
}

// TestPatterns says which names the wildcards of rules match.
func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		matches       bool
	}{
		{"a.*.w", "a.b.w", true}, {"a.*.w", "a..w", true}, {"a.*.w", "a.b.c.w", false},
		{"a.**.w", "a.b.c.w", true}, {"a.*", "a.b.w", false}, {"a.*.*", "a.b.w", true},
		{"a.#.w", "a.12.w", true}, {"a.#.w", "a..w", false}, {"a.#2.w", "a.12.w", false},
		{"a.w", "a.w", true}, {"a.w", "a.w2", false}, {"a.w", "2a.w", false},
	} {
		match, err := layout.NewMatcher(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if match(c.name) != c.matches {
			t.Errorf("%q matches %q: %v", c.pattern, c.name, !c.matches)
		}
	}
}

// TestReplicate has a placement that says in words what an axis does that none names.
func TestReplicate(t *testing.T) {
	var got []*layout.Layout
	for _, place := range []string{"tp=shard(0)", "dp=replicate, tp=shard(0)"} {
		spec := &layout.Spec{Shoal: layout.Version, Mesh: "dp=2,tp=2",
			Rules: []layout.Rule{{Match: "**w", Place: place}, {Match: "**"}}}
		l, err := spec.Resolve(small)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, l)
	}
	if diff := cmp.Diff(got[0], got[1]); diff != "" {
		t.Error(diff)
	}
}

// TestJoinsOfOneShape joins parts of the same shapes to tensors of one shape: whole, and row by
// row. Each is cut between its own parts.
func TestJoinsOfOneShape(t *testing.T) {
	spec := &layout.Spec{Shoal: layout.Version, Mesh: "tp=2",
		Store: []layout.Store{{Name: "ab", Parts: []string{"a", "b"}},
			{Name: "cd", Parts: []string{"c", "d"}, Units: []int{1, 1}}},
		Rules: []layout.Rule{{Match: "**", Place: "tp=shard(0)"}}}
	var tensors []layout.Tensor
	for _, name := range []string{"a", "b", "c", "d"} {
		tensors = append(tensors,
			layout.Tensor{Name: name, DType: tensor.F32, Shape: tensor.Shape{2}})
	}
	l, err := spec.Resolve(tensors)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, local := range l.RankLocals(1) {
		for _, p := range local.Pieces {
			got = append(got, fmt.Sprint(local.Name, " ", tensors[p.Tensor].Name, p.Box))
		}
	}
	want := []string{"ab b[0:2]", "cd c[1:2]", "cd d[1:2]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rank 1 (-want +got):\n%s", diff)
	}
}

// TestSamePart has two tensors with one number, written otherwise, which stack on one another.
func TestSamePart(t *testing.T) {
	spec := &layout.Spec{Shoal: layout.Version, Rules: []layout.Rule{{Match: "**"}},
		Store: []layout.Store{{Name: "s", Parts: []string{"t#"}, Stack: 1}}}
	w := layout.Tensor{Name: "t0", DType: tensor.F32, Shape: tensor.Shape{2}}
	other := w
	other.Name = "t00"
	if _, err := spec.Resolve([]layout.Tensor{w, other}); err == nil ||
		!strings.Contains(err.Error(), `tensors t0 and t00 are both part "t#" of s`) {
		t.Error(err)
	}
}

// TestSymmetry pins the compression: 126 layers on 16,384 ranks are a few families, and replicas
// are one set.
func TestSymmetry(t *testing.T) {
	spec := &layout.Spec{Shoal: layout.Version, Mesh: "pp=2,dp=64,tp=8", Rules: []layout.Rule{
		{Match: "layers.#.w", Place: "pp=spread(1,8), tp=shard(0)"}, {Match: "**"}}}
	var tensors []layout.Tensor
	for l := range 8 {
		tensors = append(tensors,
			layout.Tensor{Name: "layers." + string(rune('0'+l)) + ".w", DType: tensor.F32,
				Shape: tensor.Shape{16, 2}})
	}
	l, err := spec.Resolve(tensors)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Families) != 2 || len(l.Slots) != 16 || len(l.Sets) != 16 ||
		l.Families[0].Grid != l.Families[1].Grid {
		t.Errorf("%d families, %d slots, %d sets; want 2, 16, 16 and one grid", len(l.Families),
			len(l.Slots), len(l.Sets))
	}
	if set := l.Sets[l.Slots[1].Set]; len(set) != 64 || set[0] != 1 || set[1] != 9 {
		t.Errorf("the second shard lies on %d ranks, first %v", len(set), set[:2])
	}
}

// TestExplicit gives the pieces one by one, as a reader of files does: halves on ranks 0 and 1, and
// a replica in other pieces on rank 2.
func TestExplicit(t *testing.T) {
	w := []layout.Tensor{{Name: "w", DType: tensor.F32, Shape: tensor.Shape{4, 2}}}
	piece := func(from, to int) layout.Piece {
		b := tensor.Box{{From: from, To: to}, {From: 0, To: 2}}
		return layout.Piece{Box: b, View: b.Packed(0)}
	}
	local := func(rank int32, p layout.Piece) layout.Placed {
		return layout.Placed{Ranks: layout.Set{rank},
			Local: layout.Local{Name: "w", DType: tensor.F32, Shape: p.Box.Shape(),
				Pieces: []layout.Piece{p}}}
	}
	l, err := layout.New(3, w,
		[]layout.Placed{local(0, piece(0, 2)), local(1, piece(2, 4)), local(2, piece(1, 3))})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range l.Families[0].Grid.Cells {
		line := c.Box.String()
		for _, h := range c.Held {
			line += " " + string(rune('0'+l.Sets[l.Slots[l.Families[0].Slots[h.Slot]].Set][0]))
		}
		got = append(got, line)
	}
	want := []string{"[0:1,0:2] 0", "[1:2,0:2] 0 2", "[2:3,0:2] 1 2", "[3:4,0:2] 1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cells (-want +got):\n%s", diff)
	}

	high := piece(0, 2)
	high.View.Base = 1
	wrong := piece(0, 2)
	wrong.Box = tensor.Box{{From: 3, To: 5}, {From: 0, To: 2}}
	other := local(0, piece(0, 4))
	other.DType = tensor.F16
	for _, c := range []struct {
		placed []layout.Placed
		err    string
	}{
		{[]layout.Placed{local(0, piece(0, 3))}, "tensor w: no rank holds the elements [3:4,0:2]"},
		{[]layout.Placed{local(3, piece(0, 4))}, "must ascend and be below 3"},
		{[]layout.Placed{local(0, piece(0, 2)), local(0, piece(2, 4))},
			"rank 0 has two of this name"},
		{[]layout.Placed{local(0, high)}, "takes the places 1 to 4"},
		{[]layout.Placed{local(0, wrong)}, "does not lie in the shape"},
		{[]layout.Placed{other}, "it is f16 in memory and f32 in the catalogue"},
	} {
		if _, err := layout.New(3, w, c.placed); err == nil ||
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("error %v, want one with %q", err, c.err)
		}
	}
}

// TestDocumentedExample reads the example of docs/formats/layout.md.
func TestDocumentedExample(t *testing.T) {
	page, err := os.ReadFile("../../docs/formats/layout.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	spec, err := layout.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var tensors []layout.Tensor
	for _, state := range []string{"", "optimizer.exp_avg."} {
		for i, part := range []string{"q", "k", "v"} {
			name := state + "model.layers.17.self_attn." + part + "_proj.weight"
			tensors = append(tensors,
				layout.Tensor{Name: name, DType: tensor.F32,
					Shape: tensor.Shape{[]int{4096, 1024, 1024}[i], 8}})
		}
	}
	l, err := spec.Resolve(tensors)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, local := range l.RankLocals(9) { // pp 1, dp 0, tp 1
		got = append(got, local.Name+" "+local.Shape.String())
	}
	want := []string{"decoder.layers.17.self_attention.linear_qkv.weight [3072,8]",
		"exp_avg [6144]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rank 9 (-want +got):\n%s", diff)
	}
}

// FuzzParse feeds any text to the parser, and what passes to Resolve: neither panics nor grows
// without bound.
func FuzzParse(f *testing.F) {
	f.Add([]byte("shoal: layout/1\nmesh: pp=2,dp=2,tp=2\nrules:\n- {match: \"layers.#.w\", " +
		"place: \"pp=spread(1,2), tp=shard(0,ceil,unit=2), dp=flat(b,align=4)\"}\n- {match: " +
		"\"**\"}\n"))
	f.Add([]byte(
		`{"shoal":"layout/1","mesh":"dp=2,ep=3","store":[{"name":"s","parts":["layers.#.w"],"units":[2],"dim":1,"stack":1,"pad":{"dim":0,"multiple":5}}],"rules":[{"match":"s","place":"dp*ep=shard(0,balanced)"},{"match":"**","place":"dp=at(0,-1)"}]}`))
	f.Add([]byte("shoal: layout/1\nmesh: tp=3\nrules: [{match: \"*.*.cube\", place: " +
		"\"tp=shard(2,repeat,blocks=2)\"}, {match: \"**\"}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		spec, err := layout.Parse(text)
		if err != nil {
			return
		}
		l, err := spec.Resolve(small)
		if err != nil {
			return
		}
		for rank := range min(l.Ranks, 4) {
			l.RankLocals(rank)
		}
	})
}

// TestRefusedTogether has tensors each of which could be, and all together could not: an int would
// come back to 0 elements.
func TestRefusedTogether(t *testing.T) {
	const flat = `rules: [{match: "**", place: "x=flat(all)"}]}`
	for _, c := range []struct {
		spec  string
		shape tensor.Shape
		err   string
	}{
		{flat, tensor.Shape{1 << 56}, "have more elements together"},
		{`store: [{name: "s", parts: ["t#"], stack: 1}], ` + flat, tensor.Shape{1 << 56},
			"have more elements together"},
		{`store: [{name: "s#", parts: ["t#"], pad: {dim: 0, multiple: 1073741824}}], ` + flat,
			tensor.Shape{1, 1 << 26}, "there are more dimensions or elements"},
	} {
		spec, err := layout.Parse([]byte(`{shoal: layout/1, mesh: "x=2", ` + c.spec))
		if err != nil {
			t.Fatal(err)
		}
		var tensors []layout.Tensor
		for i := range 256 {
			tensors = append(tensors, layout.Tensor{Name: fmt.Sprintf("t%d", i),
				DType: tensor.U8, Shape: c.shape})
		}
		if _, err := spec.Resolve(tensors); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: error %v, want one with %q", c.spec, err, c.err)
		}
	}
}
