package megatron

import (
	"regexp"
	"slices"

	"github.com/shoal-ml/shoal/state/format"
	"github.com/shoal-ml/shoal/tensor"
)

// cut says how tensor parallel ranks share a tensor.
type cut uint8

const (
	replicated cut = iota
	byRows
	byColumns
	byHalves // the rows of gate and of up, each cut for itself
)

// cuts says how Megatron-LM cuts the tensors of its models, by the end of their names: those of Megatron Core, and of the models
// before. The first that fits counts; of a tensor that none fits nobody knows.
var cuts = []struct {
	name *regexp.Regexp
	cut  cut
}{
	{regexp.MustCompile(`(^|\.)(word_embeddings|output_layer|lm_head)\.weight$`), byRows},
	{regexp.MustCompile(`\.(linear_qkv|query_key_value|linear_q|linear_kv)\.(weight|bias)$`), byRows},
	{regexp.MustCompile(`\.(linear_fc1|dense_h_to_4h)\.(weight|bias)$`), byHalves}, // or by rows, without a gate
	{regexp.MustCompile(`\.(linear_proj|linear_fc2|attention\.dense|self_attention\.dense|dense_4h_to_h)\.weight$`), byColumns},
	{regexp.MustCompile(`\.(linear_proj|linear_fc2|attention\.dense|self_attention\.dense|dense_4h_to_h)\.bias$`), replicated},
	{regexp.MustCompile(`\.experts\.linear_fc1\.(weight|bias)\d+$`), byHalves},
	{regexp.MustCompile(`\.experts\.linear_fc2\.weight\d+$`), byColumns},
	{regexp.MustCompile(`\.experts\.linear_fc2\.bias\d+$`), replicated},
	{regexp.MustCompile(`(norm|layer_norm)\.(weight|bias)$`), replicated},
	{regexp.MustCompile(`\.layer_norm_(weight|bias)$`), replicated},
	{regexp.MustCompile(`(^|\.)(position_embeddings|tokentype_embeddings|router)\.(weight|bias)$`), replicated},
}

// Join puts the parts of the model's tensors together, as Megatron-LM cuts them, and makes replicas of what several ranks have
// alike; what the optimizer has for a parameter is cut like it. Parts of which it does not know how they fit together it leaves as they
// are, with their places: tensors of other models, experts without a number, or cut over other ranks than the rest, what has no name in an optimizer.
func Join(c *format.Checkpoint) error {
	gated, known := c.Value("args.swiglu")
	var joined []format.Tensor
	for from := 0; from < len(c.Tensors); {
		to := from + 1
		for to < len(c.Tensors) && c.Tensors[to].Name == c.Tensors[from].Name {
			to++
		}
		parts := c.Tensors[from:to]
		from = to
		how, ok := cutOf(parts[0].Name)
		if tp, its := c.Value("args.expert_tensor_parallel_size"); cutExperts.MatchString(parts[0].Name) && its && tp != nil {
			if tp == int64(1) {
				how = replicated
			} else if own, _ := c.Value("args.tensor_model_parallel_size"); tp != own {
				ok = false // other ranks share experts
			}
		}
		if ok && how == byHalves {
			if ok = known; gated == false {
				how = byRows
			}
		}
		if len(parts[0].Pieces) == 1 && parts[0].Pieces[0].Box.Empty() {
			how, ok = replicated, true // such as the state of modules that have none
		}
		if whole, fits := join(parts, how); ok && fits {
			joined = append(joined, whole)
		} else {
			joined = append(joined, parts...)
		}
	}
	c.Tensors = joined
	return c.Finish()
}

// prefix stands before the names of parameters, in the model and in the optimizer.
var prefix = regexp.MustCompile(`^(model|optimizer\.[^.]+)\.`)

func cutOf(name string) (cut, bool) {
	before := prefix.FindString(name)
	for _, c := range cuts {
		if before != "" && c.name.MatchString(name[len(before):]) {
			return c.cut, true
		}
	}
	return 0, false
}

// join puts the parts of one tensor together; false when they do not fit.
func join(parts []format.Tensor, how cut) (format.Tensor, bool) {
	first := parts[0]
	whole := format.Tensor{Name: first.Name, DType: first.DType, Shape: slices.Clone(first.Shape)}
	dim := 0
	if how == byColumns {
		dim = 1
	}
	if how != replicated && dim >= len(first.Shape) || how == byHalves && first.Shape[0]%2 != 0 || first.DType.Size() == 0 {
		return whole, false
	}
	degree, seen := 1, map[int]bool{}
	for _, c := range first.At {
		if c.Axis == "tp" {
			degree = c.Of
		}
	}
	if how != replicated {
		whole.Shape[dim] *= degree
	}
	for i := range parts {
		t := &parts[i]
		if t.At == nil || t.DType != first.DType || !t.Shape.Equal(first.Shape) {
			return whole, false
		}
		index := 0
		for _, c := range t.At {
			switch c.Axis {
			case "tp":
				index = c.Index
			case "ep":
				return whole, false
			}
		}
		key := index
		if how == replicated {
			key = 0
		}
		whole.Proofs = append(whole.Proofs, t.Proofs...)
		var pieces []format.Piece
		for k := range t.Pieces {
			pieces = append(pieces, shift(t, &t.Pieces[k], how, dim, index, degree)...)
		}
		if seen[key] {
			whole.Replicas = append(whole.Replicas, pieces...)
		} else {
			whole.Pieces = append(whole.Pieces, pieces...)
		}
		seen[key] = true
	}
	return whole, how == replicated || len(seen) == degree
}

// shift gives a piece of a part its place in the whole tensor; with halves it comes apart in two.
func shift(t *format.Tensor, p *format.Piece, how cut, dim, index, degree int) (list []format.Piece) {
	if how == replicated {
		return []format.Piece{*p}
	}
	blocks := 1
	if how == byHalves {
		blocks = 2
	}
	rows := t.Shape[dim] / blocks // of a block in the part
	view := p.View()
	for b := range blocks {
		box := slices.Clone(p.Box)
		box[dim] = box[dim].Intersect(tensor.Span{From: b * rows, To: (b + 1) * rows})
		if box.Empty() {
			continue
		}
		offset := p.Offset + format.Bytes(t.DType, view.At(box))
		by := (b*degree+index)*rows - b*rows
		box[dim].From += by
		box[dim].To += by
		list = append(list, format.Piece{Box: box, File: p.File, Offset: offset, Strides: view.Strides})
	}
	return list
}
