package megatron

// This file joins what tensor parallel ranks have, after Read. It moves no bytes, and does no I/O.
import (
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// A cut says how tensor parallel ranks share a tensor.
type cut uint8

const (
	replicated cut = iota
	byRows
	byColumns
	byHalves // the rows of gate and of up, each cut separately
)

// cuts says how Megatron-LM cuts the tensors of its models, Megatron Core's and earlier ones, by
// the end of their names. The first match counts; for other tensors the cut is unknown.
var cuts = []struct {
	name *pattern.Pattern
	cut  cut
}{
	{pattern.New(`(^|\.)(word_embeddings|output_layer|lm_head)\.weight$`), byRows},
	{pattern.New(`\.(linear_qkv|query_key_value|linear_q|linear_kv)\.(weight|bias)$`), byRows},
	// or by rows, without a gate
	{pattern.New(`\.(linear_fc1|dense_h_to_4h)\.(weight|bias)$`), byHalves},
	{pattern.New(
		`\.(linear_proj|linear_fc2|attention\.dense|self_attention\.dense|dense_4h_to_h)\.weight$`),
		byColumns},
	{pattern.New(
		`\.(linear_proj|linear_fc2|attention\.dense|self_attention\.dense|dense_4h_to_h)\.bias$`),
		replicated},
	{pattern.New(`\.experts\.linear_fc1\.(weight|bias)\d+$`), byHalves},
	{pattern.New(`\.experts\.linear_fc2\.weight\d+$`), byColumns},
	{pattern.New(`\.experts\.linear_fc2\.bias\d+$`), replicated},
	{pattern.New(`\.mixer\.norm\.weight$`), byRows}, // of Mamba
	{pattern.New(`(norm\.|\.layer_norm_)(weight|bias)$`), replicated},
	{pattern.New(`(^|\.)(position_embeddings|tokentype_embeddings|router)\.(weight|bias)$`),
		replicated},
	{pattern.New(`\.shared_experts\.gate_weight$`), replicated},
}

// JoinRanks joins the parts of the model's tensors in a checkpoint as Megatron-LM cuts them, and
// makes replicas of what several ranks have alike; optimizer state is cut like its parameter. Parts
// that it cannot join stay, with their coordinates: tensors of other models, experts without a
// number or cut over other ranks than the rest, and unnamed state of an optimizer.
func JoinRanks(c *format.Checkpoint) error {
	swiglu, known := c.Value("args.swiglu")
	quick, _ := c.Value("args.quick_geglu") // another gate
	shapes := map[string]tensor.Shape{}     // of the parts of the first rank
	for _, t := range slices.Backward(c.Tensors) {
		shapes[t.Name] = t.Shape
	}
	var joined []format.Tensor
	for from := 0; from < len(c.Tensors); {
		to := from + 1
		for to < len(c.Tensors) && c.Tensors[to].Name == c.Tensors[from].Name {
			to++
		}
		parts := c.Tensors[from:to]
		from = to
		how, ok := cutOf(parts[0].Name)
		if tp, its := c.Value("args.expert_tensor_parallel_size"); cutExperts.MatchString(
			parts[0].Name) && its && tp != nil {
			if tp == int64(1) {
				how = replicated
			} else if own, _ := c.Value("args.tensor_model_parallel_size"); tp != own {
				ok = false // other ranks share experts
			}
		}
		if ok && how == byHalves {
			gated, told := layout.HasGate(prefix.ReplaceAllString(parts[0].Name, "model."), shapes)
			if !told {
				gated, told = swiglu != false || quick == true, known
			}
			if ok = told; !gated {
				how = byRows
			}
		}
		if len(parts[0].Pieces) == 1 && parts[0].Pieces[0].Box.Empty() {
			how, ok = replicated, true // such as the state of modules that have none
		}
		if whole, fits := joinParts(parts, how); ok && fits {
			joined = append(joined, whole)
		} else {
			joined = append(joined, parts...)
		}
	}
	c.Tensors = joined
	return c.Finish()
}

// prefix matches what stands before the names of parameters, in the model and in the optimizer.
var prefix = pattern.New(`^(model|optimizer\.[^.]+)\.`)

// cutOf returns how tensor parallel ranks share the tensor of a name; false where it is not known.
func cutOf(name string) (cut, bool) {
	before := prefix.FindString(name)
	for _, c := range cuts {
		if before != "" && c.name.MatchString(name[len(before):]) {
			return c.cut, true
		}
	}
	return 0, false
}

// joinParts joins the parts of one tensor; false when they do not fit.
func joinParts(parts []format.Tensor, how cut) (format.Tensor, bool) {
	degree := 1
	var list []format.Part
	for i := range parts {
		p := format.Part{Tensor: &parts[i]}
		if p.Coords == nil || !p.Shape.Equal(parts[0].Shape) {
			return format.Tensor{}, false
		}
		for _, c := range p.Coords {
			switch c.Axis {
			case "tp":
				p.Rank, degree = c.Index, c.Of
			case "ep":
				return format.Tensor{}, false
			}
		}
		list = append(list, p)
	}
	if how == replicated {
		whole, err := format.JoinReplicas(list)
		return whole, err == nil
	}
	dim, blocks := 0, 1
	switch how {
	case byColumns:
		dim = 1
	case byHalves:
		blocks = 2
	}
	c, err := format.CutBlocks(list, degree, dim, blocks)
	if err != nil {
		return format.Tensor{}, false
	}
	whole, err := format.JoinParts(list, c)
	return whole, err == nil
}
