package layouttest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
	"pgregory.net/rapid"
)

// Random models and layouts. A function draws its choices from the test of rapid that it is given,
// on whose goroutine it runs, and does no I/O.

// A Model is a catalogue in the manner of a transformer with experts, and an optimizer, with the
// numbers that specs need.
type Model struct {
	Tensors []layout.Tensor
	layers  int
	experts int      // experts in each layer; 0 = none
	groups  int      // heads in k and v
	units   [3]int   // rows of q, k and v in a group
	inner   int      // rows of gate and of up
	states  []string // what stands before the names of the parameters, and of each optimizer state
}

// DrawModel draws a small model with sizes that often do not come out even.
func DrawModel(t *rapid.T) Model {
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
	whole := slices.DeleteFunc(tensor.StoredDTypes(), func(d tensor.DType) bool {
		return d.Bits()%8 != 0
	})
	dtype := func(name string) tensor.DType { return rapid.SampledFrom(whole).Draw(t, name) }
	m := Model{layers: n("layers", 1, 3), experts: n("experts", 0, 4), groups: n("groups", 1, 4),
		inner: n("inner", 1, 6)}
	head := n("head", 1, 2)
	m.units = [3]int{head * n("heads in a group", 1, 3), head, head}
	width := n("width", 1, 5)
	m.states = []string{"", "optimizer.exp_avg."}[:n("states", 1, 2)]
	for _, state := range m.states {
		d := dtype("dtype")
		add := func(name string, shape ...int) {
			m.Tensors = append(m.Tensors, layout.Tensor{Name: state + name, DType: d, Shape: shape})
		}
		add("embed", n("vocabulary", 1, 9), width)
		for l := range m.layers {
			p := fmt.Sprintf("layers.%d.", l)
			for i, part := range []string{"q", "k", "v"} {
				add(p+part, m.groups*m.units[i], width)
			}
			add(p+"norm", width)
			add(p+"gate", m.inner, width)
			add(p+"up", m.inner, width)
			add(p+"fused", 2*m.inner, width)
			add(p+"down", width, m.inner)
			for e := range m.experts {
				add(fmt.Sprintf("%sexperts.%d.w", p, e), width, 3)
			}
		}
	}
	m.Tensors = append(m.Tensors, layout.Tensor{Name: "step", DType: tensor.I64})
	return m
}

// DrawSpec draws a valid layout of the model: any mix of data, tensor, pipeline and expert
// parallelism, flat shards, uneven sharing, fused, stacked and padded tensors.
func DrawSpec(t *rapid.T, m Model) *layout.Spec {
	d := drawer{T: t, model: m, spec: &layout.Spec{Shoal: layout.Version}, size: map[string]int{}}
	d.drawMesh()
	fusedQKV, fusedMLP, stacked := d.drawStores()
	for _, state := range m.states {
		if state != "" && rapid.Bool().Draw(t, "optimizer is flat") {
			d.addFlatState(state)
		}
	}
	if fusedQKV {
		d.addRule("**layers.#.qkv", "layer",
			d.drawCut(0, m.groups, m.units[0]+m.units[1]+m.units[2], ""))
	}
	d.addRule("**layers.#.q", "layer", d.drawCut(0, m.groups, m.units[0], "repeat"))
	d.addRule("**layers.#.k", "layer", d.drawCut(0, m.groups, m.units[1], "repeat"))
	d.addRule("**layers.#.v", "layer", d.drawCut(0, m.groups, m.units[2], "repeat"))
	if fusedMLP {
		d.addRule("**layers.#.gate_up", "layer", d.drawBlockCut(0, m.inner))
	}
	d.addRule("**layers.#.fused", "layer", d.drawBlockCut(0, m.inner))
	d.addRule("**layers.#.down", "layer", d.drawCut(1, m.inner, 1, ""))
	if stacked {
		d.addRule("**layers.#.experts", "layer", d.expertStack())
	}
	d.addRule("**layers.#.experts.#.w", "layer expert", "")
	d.addRule("**embed", "ends", d.drawCut(0, 0, 1, "ceil balanced"))
	d.addRule("**layers.#.*", "layer", d.drawCut(0, 0, 1, "ceil balanced"))
	d.addRule("**", "", "")
	return d.spec
}

// A drawer draws a layout of a model. It does no I/O, and is for the goroutine of the test.
type drawer struct {
	*rapid.T
	model Model
	spec  *layout.Spec
	size  map[string]int // positions on each axis of the mesh
	cuts  string         // argument that cuts the stages, alike for all tensors; "" = none

	balanced bool // the stages are balanced
}

// drawMesh draws the mesh of the spec, and how stages are cut.
func (d *drawer) drawMesh() {
	var axes []string
	ranks := 1
	for _, axis := range rapid.Permutation([]string{"dp", "tp", "pp", "ep"}).Draw(d.T, "axes") {
		n := rapid.IntRange(0, 4).Draw(d.T, axis)
		if n == 0 || ranks*n > 12 {
			continue
		}
		ranks *= n
		d.size[axis] = n
		axes = append(axes, fmt.Sprintf("%s=%d", axis, n))
	}
	d.spec.Mesh = strings.Join(axes, ",")
	if n := d.size["pp"]; n > 1 && rapid.Bool().Draw(d.T, "uneven stages") {
		var at []string
		last := 0
		for range n - 1 {
			last = rapid.IntRange(last, d.model.layers).Draw(d.T, "cut")
			at = append(at, fmt.Sprint(last))
		}
		d.cuts = ",cuts=" + strings.Join(at, "/")
	} else if n > 1 {
		d.balanced = rapid.Bool().Draw(d.T, "balanced stages")
	}
}

// drawStores draws which tensors are stored joined, stacked or padded, adds the stores to the spec,
// and returns whether q, k and v, gate and up, and experts are.
func (d *drawer) drawStores() (qkv, mlp, stacked bool) {
	m := d.model
	if qkv = rapid.Bool().Draw(d.T, "fused qkv"); qkv {
		parts := []string{"**layers.#.q", "**layers.#.k", "**layers.#.v"}
		d.spec.Store = append(d.spec.Store,
			layout.Store{Name: "**layers.#.qkv", Parts: parts, Units: m.units[:]})
	}
	if mlp = rapid.Bool().Draw(d.T, "fused gate and up"); mlp {
		parts := []string{"**layers.#.gate", "**layers.#.up"}
		d.spec.Store = append(d.spec.Store, layout.Store{Name: "**layers.#.gate_up", Parts: parts})
	}
	if stacked = rapid.Bool().Draw(d.T, "stacked experts"); stacked {
		parts := []string{"**layers.#.experts.#.w"}
		d.spec.Store = append(d.spec.Store,
			layout.Store{Name: "**layers.#.experts", Parts: parts, Stack: 2})
	}
	if rapid.Bool().Draw(d.T, "padded vocabulary") {
		pad := &layout.Pad{Multiple: rapid.IntRange(1, 8).Draw(d.T, "multiple")}
		d.spec.Store = append(d.spec.Store,
			layout.Store{Name: "**padded.embed", Parts: []string{"**embed"}, Pad: pad})
	}
	return qkv, mlp, stacked
}

// addFlatState adds rules that place the state of the optimizer flat over the data parallel axes of
// the mesh, if it has some; state is what stands before the names of the parameters.
func (d *drawer) addFlatState(state string) {
	flat := "flat"
	if rapid.Bool().Draw(d.T, "bucket") {
		flat = "flat(bucket)"
	}
	if n := rapid.IntRange(1, 4).Draw(d.T, "align"); n > 1 {
		flat = strings.Replace(flat+fmt.Sprintf("(align=%d)", n), ")(", ",", 1)
	}
	axes := []string{}
	for _, axis := range []string{"dp", "ep"} {
		if d.size[axis] > 0 {
			axes = append(axes, axis)
		}
	}
	if len(axes) == 0 {
		return
	}
	tail := strings.Join(axes, "*") + "=" + flat
	tp := ""
	if d.size["tp"] > 0 && rapid.Bool().Draw(d.T, "tp and flat") {
		tp = "tp=shard(0,ceil)"
	}
	d.spec.Rules = append(d.spec.Rules,
		layout.Rule{Match: state + "layers.#.**",
			Place: joinPlaces(d.drawStage("layer"), tp, tail)},
		layout.Rule{Match: state + "**", Place: joinPlaces(d.drawStage("ends"), tail)})
}

// addRule adds a rule for the tensors of a pattern: where says in words of drawStage on which
// stages they are, cut is the placement over tp, and what dp does on top is drawn.
func (d *drawer) addRule(pattern, where, cut string) {
	dp := ""
	if d.size["dp"] > 0 && where != "" {
		dims := 1
		if !strings.HasSuffix(pattern, "*") && !strings.HasSuffix(pattern, "norm") {
			dims = 2
		}
		dim := rapid.IntRange(0, dims-1).Draw(d.T, "dp dimension")
		dp = rapid.SampledFrom(
			[]string{"", "", "dp=flat", fmt.Sprintf("dp=shard(%d,ceil)", dim),
				fmt.Sprintf("dp=shard(%d,balanced)", dim)}).Draw(d.T, "dp")
	}
	d.spec.Rules = append(d.spec.Rules,
		layout.Rule{Match: pattern, Place: joinPlaces(d.drawStage(where), cut, dp)})
}

// drawStage draws a placement over pp and ep for tensors that are on a layer ("layer"), in an
// expert ("layer expert") or at the ends of the model ("ends"); "" = anywhere.
func (d *drawer) drawStage(where string) string {
	var places []string
	if n := d.size["pp"]; n > 0 {
		switch {
		case where == "ends" && rapid.Bool().Draw(d.T, "tied"):
			places = append(places, "pp=at(0,-1)")
		case where == "ends":
			places = append(places, "pp=at(-1)")
		case where != "" && d.cuts != "":
			places = append(places, fmt.Sprintf("pp=spread(1,%d%s)", d.model.layers, d.cuts))
		case where != "" && d.balanced:
			places = append(places, fmt.Sprintf("pp=spread(1,%d,%s)", d.model.layers,
				rapid.SampledFrom([]string{"balanced", "contiguous"}).Draw(d.T, "division")))
		case where != "": // as many numbers as make it even, of which the last are not there
			chunks := n * rapid.IntRange(1, 2).Draw(d.T, "chunks")
			count := (d.model.layers + chunks - 1) / chunks * chunks
			places = append(places, fmt.Sprintf("pp=spread(1,%d,chunks=%d)", count, chunks))
		}
	}
	if n := d.size["ep"]; n > 0 && strings.Contains(where, "expert") {
		places = append(places, fmt.Sprintf("ep=spread(2,%d)", (max(d.model.experts, 1)+n-1)/n*n))
	}
	return joinPlaces(places...)
}

// drawCut draws a placement that shards a dimension of rows·unit elements over tp, in one of the
// divisions in ways, or ceil, that come out. Without tp, and at times, it is "".
func (d *drawer) drawCut(dim, rows, unit int, ways string) string {
	n := d.size["tp"]
	if n == 0 || rapid.IntRange(0, 4).Draw(d.T, "replicate") == 0 {
		return ""
	}
	share := rapid.SampledFrom(append(strings.Fields(ways), "ceil")).Draw(d.T, "share")
	if rows > 0 && rows%n == 0 {
		share = "even"
	} else if share == "repeat" && (rows == 0 || n%rows != 0) {
		share = "balanced"
	}
	if unit > 1 {
		return fmt.Sprintf("tp=shard(%d,%s,unit=%d)", dim, share, unit)
	}
	return fmt.Sprintf("tp=shard(%d,%s)", dim, share)
}

// drawBlockCut draws a placement that shards a dimension of two blocks of so many rows over tp.
func (d *drawer) drawBlockCut(dim, rows int) string {
	if d.size["tp"] == 0 {
		return ""
	}
	share := rapid.SampledFrom([]string{"ceil", "balanced"}).Draw(d.T, "share")
	blocks := rapid.SampledFrom([]string{"2", fmt.Sprintf("%d/%d", rows, rows)}).Draw(d.T, "blocks")
	return fmt.Sprintf("tp=shard(%d,%s,blocks=%s)", dim, share, blocks)
}

// expertStack returns the placement of stacked experts; "" where the mesh has no axis for them.
func (d *drawer) expertStack() string {
	if d.size["ep"] == 0 {
		return ""
	}
	return "ep=shard(0,balanced)"
}

// joinPlaces joins those placements that are not empty.
func joinPlaces(items ...string) string {
	var kept []string
	for _, item := range items {
		if item != "" {
			kept = append(kept, item)
		}
	}
	return strings.Join(kept, ", ")
}
