package megatron

// This file finds out for a splitter (logical.go) what its model is like: one goroutine, no I/O.
import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/state/layout"
)

// checkSupported fails when Megatron computes with other numbers than Hugging Face's libraries, or
// in another order: shoal only moves bits.
func (u *splitter) checkSupported() error {
	for _, x := range []struct{ name, why string }{
		{"apply_layernorm_1p", "norms have the difference of their weights to 1"},
		{"rotary_interleaved", "q and k have their rows in another order"},
		{"attention_output_gate", "linear_qkv has a gate too"},
		{"quick_geglu", "the gate is not that of SwiGLU"},
		{"moe_mlp_glu_interleave_size", "gate and up lie in turns in linear_fc1 of experts"},
	} {
		if v, _ := u.c.Value("args." + x.name); v != nil && v != false {
			return fmt.Errorf("args.%s is %v: %s, which Hugging Face's decoders do not have; "+
				"shoal changes no numbers", x.name, v, x.why)
		}
	}
	if v, _ := u.c.Value("checkpoint_version"); v != nil {
		if n, ok := v.(float64); ok && n < 2 {
			return fmt.Errorf("checkpoint_version is %v: q, k and v lie in another order than "+
				"from version 2 on; have Megatron load it and save it again", n)
		}
	}
	return nil
}

// headUnits returns the rows of q, k and v in a group of heads, nil for a model without such a
// tensor. q has as many rows as linear_proj has columns.
func (u *splitter) headUnits() ([]int, error) {
	var fused *joinedTensor
	for _, f := range u.params {
		if is := strings.HasSuffix(f.param, ".linear_qkv.weight") ||
			strings.HasSuffix(f.param, ".linear_qkv.bias"); !is || f.isScalar() {
			continue
		}
		if fused == nil {
			fused = f
		}
		if f.Shape[0] != fused.Shape[0] {
			return nil, fmt.Errorf("%s has %d rows, and %s has %d: the layers have unlike "+
				"heads, for which shoal has no rule", fused.location(), fused.Shape[0],
				f.location(), f.Shape[0])
		}
	}
	if fused == nil {
		return nil, nil
	}
	m, rows := &u.model, fused.Shape[0]
	wrong := func(what string, args ...any) error {
		return fmt.Errorf("%s has %d rows for q, k and v: %s", fused.location(), rows,
			fmt.Sprintf(what, args...))
	}
	if m.KVHeads.N == 0 {
		return nil, wrong("nobody says of how many heads; give the model's config.json " +
			"(--config), or the number of heads of k and v in a layer (--kv-heads)")
	}
	attention := u.findMatrix(".linear_proj.weight")
	each := m.HeadSize.N // rows of a head
	if each == 0 && m.Heads.N > 0 {
		each = rows / (m.Heads.N + 2*m.KVHeads.N)
	} else if each == 0 && attention != nil {
		each = (rows - attention.Shape[1]) / 2 / m.KVHeads.N
	}
	if each < 1 {
		return nil, wrong("they are not enough for %v, or nobody says how many rows a head has; "+
			"give the model's config.json (--config)", m.KVHeads.headsText("k and v"))
	}
	q := rows - 2*m.KVHeads.N*each
	switch {
	case q <= 0 || q%(m.KVHeads.N*each) != 0:
		return nil, wrong("they are not for %v with %v", m.KVHeads.headsText("k and v"),
			m.HeadSize.rowsText(each))
	case m.Heads.N > 0 && q != m.Heads.N*each:
		return nil, wrong("they are not for %v and %v with %v", m.Heads.headsText("q"),
			m.KVHeads.headsText("k and v"), m.HeadSize.rowsText(each))
	case attention != nil && q != attention.Shape[1]:
		return nil, wrong("with %v and %v, q has %d of them, and %s has %d columns for it",
			m.KVHeads.headsText("k and v"), m.HeadSize.rowsText(each), q, attention.location(),
			attention.Shape[1])
	}
	for _, f := range u.params {
		if norm := strings.HasSuffix(f.param, "self_attention.q_layernorm.weight") ||
			strings.HasSuffix(f.param, "self_attention.k_layernorm.weight"); norm &&
			!f.isScalar() &&
			f.Shape[0] != each {
			return nil, fmt.Errorf("%s is for heads of %d rows, and by %s they have %d",
				f.location(), f.Shape[0], fused.location(), each)
		}
	}
	return []int{q / m.KVHeads.N, each, each}, nil
}

// expertNaming returns how a model names its experts, "" if it has none.
func (u *splitter) expertNaming() (layout.ExpertNaming, error) {
	i := slices.IndexFunc(u.params, func(f *joinedTensor) bool {
		return cutExperts.MatchString(f.param) || strings.HasSuffix(f.param, ".router.weight")
	})
	switch known := layout.ExpertNaming(u.model.Type); {
	case i < 0:
		return "", nil
	case known.IsKnown():
		return known, nil
	case u.model.Type == "":
		return "", fmt.Errorf("%s is of experts, which models name in ways of their own; give "+
			"the model's config.json (--config)", u.params[i].location())
	}
	return "", fmt.Errorf("%s is of experts, and by its config.json the model is a %s, of whose "+
		"experts shoal knows no names", u.params[i].location(), u.model.Type)
}

// headsText says in words that there are so many heads of something, and who states it.
func (f Fact) headsText(of string) string {
	if f.By == "" {
		return fmt.Sprintf("%d heads of %s", f.N, of)
	}
	return fmt.Sprintf("%d heads of %s (%s)", f.N, of, f.By)
}

// rowsText says in words that each head has n rows, and who states it.
func (f Fact) rowsText(n int) string {
	if f.N == 0 {
		return fmt.Sprintf("%d rows each", n)
	}
	return fmt.Sprintf("%d rows each (%s)", n, f.By)
}

// isScalar reports whether the optimizer's state of a parameter is one number.
func (f *joinedTensor) isScalar() bool { return len(f.Shape) == 0 || f.kind == "step" }

// findMatrix returns the first matrix, or state of one, whose name has an end; nil if none has it.
func (u *splitter) findMatrix(end string) *joinedTensor {
	for _, f := range u.params {
		if strings.HasSuffix(f.param, end) && len(f.Shape) == 2 {
			return f
		}
	}
	return nil
}

// checkGates fails if linear_fc1 is not gate and up: its rows are then twice linear_fc2's columns.
func (u *splitter) checkGates() error {
	const up, down = "linear_fc1.", "linear_fc2.weight"
	columns := map[string]*joinedTensor{} // by what stands before the name
	for _, f := range u.params {
		if before, ok := strings.CutSuffix(f.param, down); ok && len(f.Shape) == 2 &&
			columns[before] == nil {
			columns[before] = f
		}
	}
	gated, _ := u.c.Value("args.swiglu")
	for _, f := range u.params {
		before, kind, ok := strings.Cut(f.param, up)
		if !ok || kind != "weight" && kind != "bias" || f.isScalar() {
			continue
		}
		switch other := columns[before]; {
		case gated == false:
			return fmt.Errorf("args.swiglu is false: %s has no gate, and Hugging Face's "+
				"decoders that shoal knows have one", f.location())
		case other == nil && gated == nil:
			return fmt.Errorf("nobody says whether %s has a gate: there is no %s%s", f.location(),
				before, down)
		case other != nil && f.Shape[0] != 2*other.Shape[1]:
			return fmt.Errorf("%s has %d rows, and %s %d columns: with a gate it would be twice "+
				"as many, and Hugging Face's decoders that shoal knows have one", f.location(),
				f.Shape[0], other.location(), other.Shape[1])
		}
	}
	return nil
}

// vocabularyRows returns the rows of an embedding, or of an output layer, without padding.
func (u *splitter) vocabularyRows(f *joinedTensor) (int, error) {
	v := u.model.Vocabulary
	if len(f.Shape) == 0 {
		return 0, fmt.Errorf("%s has no rows", f.location())
	}
	if v.N == 0 {
		return 0, fmt.Errorf("%s has %d rows, and nobody says how many of them are of the "+
			"vocabulary and do not only fill it up; give the model's config.json (--config), or "+
			"the number (--vocab-size)", f.location(), f.Shape[0])
	}
	if v.N > f.Shape[0] {
		return 0, fmt.Errorf("%s has %d rows, fewer than the vocabulary: %d (%s)", f.location(),
			f.Shape[0], v.N, v.By)
	}
	return v.N, nil
}
