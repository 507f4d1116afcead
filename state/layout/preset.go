package layout

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/tensor"
)

// Presets lists the names that Preset knows.
func Presets() []string {
	return []string{"hf", "megatron-core", "fsdp2", "zero1", "zero2", "zero3"}
}

// Preset writes the spec of a well-known layout of a decoder whose logical tensors have the names
// of Hugging Face (model.layers.0.self_attn.q_proj.weight), with the state of the optimizer under
// optimizer.<kind>. before the name of the parameter. Names are joined by +, the base first:
// megatron-core+zero1.
//
//   - hf: every tensor whole, on every rank
//   - megatron-core: joined and named as Megatron does, cut over those of the axes tp, pp and ep
//     that the mesh has; a catalogue with Megatron's names
//     (decoder.layers.0.self_attention.linear_qkv.weight) is only cut
//   - fsdp2: each tensor, on top of the base, cut by rows over dp, as torch.chunk does
//   - zero1, zero2: the optimizer's tensors of each kind as one buffer, flat over dp; the two are
//     alike, because gradients are not state
//   - zero3: every tensor flat over dp, one by one
//
// A mesh may also have dp and cp, whose ranks then hold the same state. Another axis of several
// positions is an error.
//
// kvHeads is the number of heads of k and v; megatron-core interleaves q, k and v by it, and cuts
// between them.
func Preset(name string, m Mesh, tensors []Tensor, kvHeads int) (*Spec, error) {
	if err := CheckPreset(name, m); err != nil {
		return nil, err
	}
	p := preset{mesh: m, tensors: tensors, kvHeads: kvHeads,
		spec: &Spec{Shoal: Version, Mesh: m.String(), Rules: []Rule{{Match: "**"}}}}
	for _, part := range strings.Split(name, "+") {
		switch part {
		case "megatron-core":
			if err := p.setMegatron(); err != nil {
				return nil, fmt.Errorf("layout: preset %s: %w", name, err)
			}
		case "fsdp2":
			p.cutAllRules("dp=shard(0,ceil)")
		case "zero1", "zero2":
			p.flattenOptimizer()
		case "zero3":
			p.cutAllRules("dp=flat")
		}
	}
	return p.spec, p.spec.Validate()
}

// CheckPreset fails where Preset would fail for any tensors: for an unknown name, and for a mesh
// that the preset does not support.
func CheckPreset(name string, m Mesh) error {
	known := []string{"dp", "cp"}
	parts := strings.Split(name, "+")
	for i, part := range parts {
		base := part == "hf" || part == "megatron-core"
		switch {
		case slices.Contains(parts[:i], part):
			return fmt.Errorf("layout: preset %s: %s comes twice", name, part)
		case !slices.Contains(Presets(), part), base && i > 0:
			return fmt.Errorf("layout: preset %s: no preset %q here; known are %s, hf and "+
				"megatron-core only as the first", name, part, strings.Join(Presets(), ", "))
		case part == "megatron-core":
			known = append(known, "tp", "pp", "ep")
		case !base && m.axisIndex("dp") < 0:
			return fmt.Errorf("layout: preset %s: the mesh %q has no axis dp, such as dp=8", name,
				m)
		}
	}
	if err := m.CheckAxes(known...); err != nil {
		return fmt.Errorf("layout: preset %s: mesh %s: %w", name, m, err)
	}
	return nil
}

// A preset is the spec of a preset being made. It does no I/O, and is for the goroutine of one
// call of Preset.
type preset struct {
	mesh    Mesh
	tensors []Tensor
	kvHeads int
	spec    *Spec
}

// ifAxis returns the placement, such as "tp=shard(0)", if the mesh has its axis, else "".
func (p *preset) ifAxis(place string) string {
	axis, _, _ := strings.Cut(place, "=")
	if p.mesh.axisIndex(axis) < 0 {
		return ""
	}
	return place
}

// joinPlaces joins placements of different axes, of which some can be empty.
func joinPlaces(places ...string) string {
	return strings.Join(slices.DeleteFunc(places, func(s string) bool { return s == "" }), ", ")
}

// cutAllRules adds a placement of the axis dp to every rule of the spec; tensors without a
// dimension stay whole.
func (p *preset) cutAllRules(place string) {
	rules := p.scalarRules()
	for _, r := range p.spec.Rules {
		rules = append(rules, Rule{Match: r.Match, Place: joinPlaces(r.Place, place)})
	}
	p.spec.Rules = rules
}

// scalarRules returns rules for tensors without a dimension that could be cut, such as the count of
// steps that an optimizer keeps for each parameter: every rank has them. A kind of optimizer state
// that has only such tensors has one rule.
func (p *preset) scalarRules() (rules []Rule) {
	cut := map[string]bool{} // kinds of state with a tensor that can be cut
	for _, t := range p.tensors {
		if len(t.Shape) > 0 {
			cut[optimizerKind.FindString(t.Name)] = true
		}
	}
	seen := map[string]bool{}
	for _, t := range p.tensors {
		match := t.Name
		if kind := optimizerKind.FindString(t.Name); kind != "" && !cut[kind] {
			match = kind + "**"
		}
		if len(t.Shape) == 0 && !seen[match] {
			seen[match] = true
			rules = append(rules, Rule{Match: match})
		}
	}
	return rules
}

// optimizerKind matches what stands before the name of a parameter in that of optimizer state, and
// the kind of state.
var optimizerKind = regexp.MustCompile(`^optimizer\.([^.]+)\.`)

// flattenOptimizer puts rules that place each kind of optimizer state flat over dp, in a bucket of
// its own, before the other rules of the spec.
func (p *preset) flattenOptimizer() {
	var kinds []string
	for _, t := range p.tensors {
		if m := optimizerKind.FindStringSubmatch(t.Name); m != nil && len(t.Shape) > 0 &&
			!slices.Contains(kinds, m[1]) {
			kinds = append(kinds, m[1])
		}
	}
	base := p.spec.Rules
	p.spec.Rules = nil
	for _, kind := range kinds {
		for _, r := range base {
			bucket := "dp=flat(optimizer." + kind + ")"
			p.spec.Rules = append(p.spec.Rules,
				Rule{Match: "optimizer." + kind + "." + r.Match,
					Place: joinPlaces(r.Place, bucket)})
		}
	}
	p.spec.Rules = append(p.spec.Rules, base...)
}

// countCaptured returns one more than the largest number that the first # of a pattern captures in
// the catalogue, 0 for none. Tensors without dimensions do not count.
func (p *preset) countCaptured(text string) (int, error) {
	pattern, err := parsePattern(text)
	if err != nil {
		return 0, err
	}
	most := 0
	for _, t := range p.tensors {
		if caught, ok := pattern.match(t.Name); ok && len(t.Shape) > 0 {
			numbers, err := pattern.capturedNumbers(caught)
			if err != nil {
				return 0, err
			}
			most = max(most, numbers[0]+1)
		}
	}
	return most, nil
}

// setMegatron sets the names, joins and cuts of Megatron Core in the spec; for a catalogue under
// Megatron's names only the cuts.
func (p *preset) setMegatron() error {
	own, err := p.countCaptured("**decoder.layers.#.self_attention.linear_qkv.weight")
	if err != nil {
		return err
	}
	if own > 0 {
		return p.cutMegatronNames()
	}
	layers, err := p.countCaptured("**model.layers.#.**")
	if err != nil {
		return err
	}
	experts, err := p.countCaptured("**.experts.#.**")
	if err != nil {
		return err
	}
	if layers == 0 {
		return errors.New("no tensor is called **model.layers.#.**, as Hugging Face names a " +
			"decoder, or **decoder.layers.#.self_attention.linear_qkv.weight, as Megatron Core " +
			"does; rename the tensors, or choose another preset or a layout of your own")
	}
	if err := p.joinMegatronNames(); err != nil {
		return err
	}
	p.setMegatronRules(layers, experts, "experts.#", "lm_head.weight",
		p.ifAxis("tp=shard(0,blocks=2)"))
	var whole []Store
	for _, r := range p.scalarRules() { // before names whose tensors are joined
		whole = append(whole, Store{Name: r.Match, Parts: []string{r.Match}})
	}
	p.spec.Store = append(whole, p.spec.Store...)
	return nil
}

// cutMegatronNames sets the rules of the spec for tensors that have Megatron's names already. With
// a gate, linear_fc1 has twice the rows that linear_fc2 has columns.
func (p *preset) cutMegatronNames() error {
	layers, err := p.countCaptured("**decoder.layers.#.**")
	if err != nil {
		return err
	}
	experts, err := p.countCaptured("**.local_experts.#.**")
	if err != nil {
		return err
	}
	grouped, err := p.countCaptured("**.experts.linear_fc1.weight#")
	if err != nil {
		return err
	}
	if i := p.mesh.axisIndex("tp"); i >= 0 && p.mesh[i].Size > 1 &&
		(p.kvHeads < 1 || p.kvHeads%p.mesh[i].Size != 0) {
		return fmt.Errorf("%d heads of k and v do not come out even over tp=%d", p.kvHeads,
			p.mesh[i].Size)
	}
	shapes := map[string]tensor.Shape{}
	for _, t := range p.tensors {
		shapes[t.Name] = t.Shape
	}
	up := ""
	for _, t := range p.tensors {
		m := firstProduct.FindStringSubmatch(t.Name)
		if m == nil || m[2] != "linear_fc1" || m[3] != "weight" || len(t.Shape) == 0 {
			continue
		}
		cut := "tp=shard(0)"
		if gated, known := HasGate(t.Name, shapes); !known {
			return fmt.Errorf(
				"%s has %d rows, and there is no %slinear_fc2.weight%s with as many columns, or "+
					"half as many", t.Name, t.Shape[0], m[1], m[4])
		} else if gated {
			cut = "tp=shard(0,blocks=2)"
		}
		if up != "" && up != cut {
			return fmt.Errorf("%s has a gate or none, unlike other layers", t.Name)
		}
		up = cut
	}
	p.setMegatronRules(layers, experts, "experts.local_experts.#", "output_layer.weight",
		p.ifAxis(up))
	if grouped > 0 {
		stage, place := p.ifAxis("pp=spread(1,"+strconv.Itoa(layers)+")"),
			p.ifAxis("ep=spread(2,"+strconv.Itoa(grouped)+")")
		p.spec.Rules = slices.Insert(p.spec.Rules, len(p.scalarRules()),
			Rule{"**decoder.layers.#.mlp.experts.linear_fc1.*#",
				joinPlaces(stage, place, p.ifAxis(up))},
			Rule{"**decoder.layers.#.mlp.experts.linear_fc2.weight#",
				joinPlaces(stage, place, p.ifAxis("tp=shard(1)"))},
			Rule{"**decoder.layers.#.mlp.experts.*.*#", joinPlaces(stage, place)})
	}
	return nil
}

// firstProduct matches the first product of a feed-forward module of Megatron, or of one expert of
// a grouped product, which has its number at the end.
var firstProduct = regexp.MustCompile(`^(.*)(linear_fc1|dense_h_to_4h)\.(weight|bias)(\d*)$`)

// HasGate reports whether the first product of a feed-forward module of Megatron, of which the
// tensor of a name is, has the rows of gate and of up: then they are twice as many as the columns
// of the second product. It is not known if shapes, by name, lacks one of the two.
func HasGate(name string, shapes map[string]tensor.Shape) (gated, known bool) {
	m := firstProduct.FindStringSubmatch(name)
	if m == nil {
		return false, false
	}
	second := map[string]string{"linear_fc1": "linear_fc2", "dense_h_to_4h": "dense_4h_to_h"}[m[2]]
	up, down := shapes[m[1]+m[2]+".weight"+m[4]], shapes[m[1]+second+".weight"+m[4]]
	if len(up) == 0 || len(down) != 2 {
		return false, false
	}
	return up[0] == 2*down[1], up[0] == down[1] || up[0] == 2*down[1]
}

// setMegatronRules sets the rules of the spec to how Megatron Core cuts so many layers and experts:
// the names of experts have their number where expert captures it, the output layer is called
// output if the embedding is not tied, and up is the placement that cuts linear_fc1.
func (p *preset) setMegatronRules(layers, experts int, expert, output, up string) {
	stage := p.ifAxis("pp=spread(1," + strconv.Itoa(layers) + ")")
	rows, columns := p.ifAxis("tp=shard(0)"), p.ifAxis("tp=shard(1)")
	ends := p.ifAxis("pp=at(0)")
	if !slices.ContainsFunc(p.tensors, func(t Tensor) bool {
		return strings.HasSuffix(t.Name, output)
	}) {
		ends = p.ifAxis("pp=at(0,-1)") // the output layer shares the embedding
	}
	rules := p.scalarRules()
	if experts > 0 {
		place := p.ifAxis("ep=spread(2," + strconv.Itoa(experts) + ")")
		rules = append(rules,
			Rule{"**decoder.layers.#.mlp." + expert + ".linear_fc1.*",
				joinPlaces(stage, place, up)},
			Rule{"**decoder.layers.#.mlp." + expert + ".linear_fc2.weight",
				joinPlaces(stage, place, columns)},
			Rule{"**decoder.layers.#.mlp." + expert + ".**", joinPlaces(stage, place)})
	}
	if slices.ContainsFunc(p.tensors, func(t Tensor) bool {
		return strings.Contains(t.Name, ".mlp.shared_experts.")
	}) {
		rules = append(rules,
			Rule{"**decoder.layers.#.mlp.shared_experts.linear_fc1.*", joinPlaces(stage, up)},
			Rule{"**decoder.layers.#.mlp.shared_experts.linear_fc2.weight",
				joinPlaces(stage, columns)})
	}
	p.spec.Rules = append(rules,
		Rule{"**embedding.word_embeddings.weight", joinPlaces(ends, rows)},
		Rule{"**decoder.layers.#.self_attention.linear_qkv.weight", joinPlaces(stage, rows)},
		Rule{"**decoder.layers.#.self_attention.linear_qkv.bias", joinPlaces(stage, rows)},
		Rule{"**decoder.layers.#.self_attention.linear_proj.weight", joinPlaces(stage, columns)},
		Rule{"**decoder.layers.#.mlp.linear_fc1.weight", joinPlaces(stage, up)},
		Rule{"**decoder.layers.#.mlp.linear_fc1.bias", joinPlaces(stage, up)},
		Rule{"**decoder.layers.#.mlp.linear_fc2.weight", joinPlaces(stage, columns)},
		Rule{"**decoder.layers.#.**", stage},
		Rule{"**decoder.final_layernorm.weight", p.ifAxis("pp=at(-1)")},
		Rule{"**output_layer.weight", joinPlaces(p.ifAxis("pp=at(-1)"), rows)},
		Rule{Match: "**"})
}

// joinMegatronNames sets in the spec what is joined, and what is renamed.
func (p *preset) joinMegatronNames() error {
	units, err := p.headRows()
	if err != nil {
		return err
	}
	pad := 128
	if i := p.mesh.axisIndex("tp"); i >= 0 {
		pad *= p.mesh[i].Size
	}
	var names []string
	for _, t := range p.tensors {
		names = append(names, t.Name)
	}
	p.spec.Store = MegatronCoreStores(units, ExpertNamingOf(names), DenseLayers(names), pad)
	return nil
}

// headRows returns the rows of q, k and v in a group of heads, from the shapes of the first layer
// that has them.
func (p *preset) headRows() ([]int, error) {
	units := make([]int, 3)
	for i, part := range []string{"q", "k", "v"} {
		n := slices.IndexFunc(p.tensors, func(t Tensor) bool {
			return strings.HasSuffix(t.Name, ".self_attn."+part+"_proj.weight") && len(t.Shape) > 0
		})
		if n < 0 {
			return nil, fmt.Errorf("no tensor is called **.self_attn.%s_proj.weight; the preset "+
				"is for decoders that keep q, k and v apart: choose another, or a layout of your "+
				"own", part)
		}
		t := p.tensors[n]
		if kv := p.kvHeads; kv < 1 || t.Shape[0]%kv != 0 || t.Shape[0] == 0 {
			return nil, fmt.Errorf("%s has %d rows, which are not for %d heads in k and v", t.Name,
				t.Shape[0], kv)
		}
		units[i] = t.Shape[0] / p.kvHeads
	}
	return units, nil
}
