package megatron

// This file derives Megatron's arguments for a writer (layout.go): its goroutine, no I/O.
import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// arguments returns the arguments of the run that wrote the checkpoint, with the new degrees.
func (w *writer) arguments(spec *layout.Spec) (any, error) {
	args, err := w.givenArguments(spec)
	if err != nil {
		return nil, err
	}
	args.Set("tensor_model_parallel_size", int64(w.size.tp))
	args.Set("pipeline_model_parallel_size", int64(w.size.pp))
	args.Set("expert_model_parallel_size", int64(w.size.ep))
	for key, is := range map[string]any{"moe_extended_tp": false,
		"expert_tensor_parallel_size": int64(w.size.tp)} {
		if _, ok := args.Get(key); ok {
			args.Set(key, is)
		}
	}
	args.Set("ckpt_format", "torch")
	args.Set("use_distributed_optimizer", w.flat)
	args.Set("untie_embeddings_and_output_weights", !w.tied)
	if rows := w.totalRows(wordEmbeddings); rows > 0 {
		args.Set("padded_vocab_size", int64(rows))
	}
	if err := w.setPipelineArguments(args); err != nil {
		return nil, err
	}
	return namespace(args), nil
}

// namespace returns arguments as a pickle has the object of Python's argparse with them.
func namespace(args *pickle.Dict) any {
	return pickle.New{Class: pickle.Global{Module: "argparse", Name: "Namespace"}, State: args}
}

// givenArguments returns the arguments of the run that wrote the checkpoint. If there are none,
// they are derived from the tensors: Megatron compares sizes when it loads.
func (w *writer) givenArguments(spec *layout.Spec) (*pickle.Dict, error) {
	var given []format.Value
	for _, v := range w.values {
		if name, ok := strings.CutPrefix(v.Path, "args."); ok {
			given = append(given, format.Value{Path: name, Data: v.Data})
		}
	}
	args := &pickle.Dict{}
	if err := torchzip.NestValues(args, given, torchzip.ObjectsToPickle(globals)); err != nil {
		return nil, err
	}
	if len(given) == 0 {
		w.deriveArguments(args, spec)
	}
	return args, nil
}

// deriveArguments adds to args what Megatron needs, as far as the tensors of a model tell it.
func (w *writer) deriveArguments(args *pickle.Dict, spec *layout.Spec) {
	args.Add("num_layers", int64(w.layers))
	args.Add("untie_embeddings_and_output_weights", !w.tied)
	if s := w.paramShape(wordEmbeddings); len(s) == 2 {
		args.Add("hidden_size", int64(s[1]))
	}
	for _, t := range w.layout.Tensors { // under Megatron's own name it can have been filled up
		if strings.HasSuffix(t.Name, "model.embed_tokens.weight") &&
			!strings.HasPrefix(t.Name, optimizerKey+".") && len(t.Shape) == 2 {
			args.Add("vocab_size", int64(t.Shape[0]))
		}
	}
	const layer = "decoder.layers.0."
	up, down := w.paramShape(layer+"mlp.linear_fc1.weight"),
		w.paramShape(layer+"mlp.linear_fc2.weight")
	if len(up) == 0 {
		const expert = layer + "mlp.experts.local_experts.0."
		up, down = w.paramShape(expert+"linear_fc1.weight"),
			w.paramShape(expert+"linear_fc2.weight")
	}
	if len(up) == 2 && len(down) == 2 {
		args.Add("ffn_hidden_size", int64(down[1]*w.size.tp))
		args.Add("swiglu", up[0] == 2*down[1])
	}
	qkv := w.paramShape(layer + "self_attention.linear_qkv.weight")
	for _, s := range spec.Store { // heads of q, k and v, in groups
		if strings.HasSuffix(s.Name, "self_attention.linear_qkv.weight") && len(s.Units) == 3 &&
			len(qkv) == 2 {
			groups, each := qkv[0]*w.size.tp/(s.Units[0]+s.Units[1]+s.Units[2]),
				s.Units[0]/s.Units[1]
			args.Add("num_attention_heads", int64(groups*each))
			args.Add("group_query_attention", each > 1)
			args.Add("num_query_groups", int64(groups))
			args.Add("kv_channels", int64(s.Units[1]))
		}
	}
}

// paramShape returns the shape of a parameter on the ranks that have it, nil when none has.
func (w *writer) paramShape(param string) tensor.Shape {
	for _, s := range w.ranks {
		for _, l := range s.model {
			if l.param == param {
				return l.Shape
			}
		}
	}
	return nil
}

// totalRows returns the number of rows that a parameter has over all tensor parallel ranks, among
// which they are divided; 0 if no rank has it.
func (w *writer) totalRows(param string) int {
	if s := w.paramShape(param); len(s) > 0 {
		return s[0] * w.size.tp
	}
	return 0
}

// setPipelineArguments sets in args how layers are divided among stages: how many chunks stages
// have, and how many layers the first and the last stage have, when these are not as many as the
// others have. Megatron gives all others as many.
func (w *writer) setPipelineArguments(args *pickle.Dict) error {
	var count []int
	for _, s := range w.stages {
		count = append(count, w.chunks*s.each)
	}
	for key, none := range map[string]any{
		"decoder_first_pipeline_num_layers": nil, "decoder_last_pipeline_num_layers": nil,
		"pipeline_model_parallel_layout": nil, "num_virtual_stages_per_pipeline_rank": nil,
		"account_for_embedding_in_pipeline_split": false,
		"account_for_loss_in_pipeline_split":      false,
	} {
		if _, ok := args.Get(key); ok {
			args.Set(key, none)
		}
	}
	args.Set("virtual_pipeline_model_parallel_size", nil)
	args.Set("num_layers_per_virtual_pipeline_stage", nil)
	even := len(slices.Compact(slices.Clone(count))) == 1
	if w.chunks > 1 {
		args.Set("virtual_pipeline_model_parallel_size", int64(w.chunks))
		// of the two ways to ask for it, Megatron's own reading of a checkpoint knows this one
		if even {
			args.Set("num_layers_per_virtual_pipeline_stage", int64(w.stages[0].each))
		} else {
			args.Set("num_virtual_stages_per_pipeline_rank", int64(w.chunks))
		}
	}
	if even {
		return nil
	}
	if middle := count[1 : len(count)-1]; len(middle) > 0 &&
		slices.Min(middle) != slices.Max(middle) {
		return fmt.Errorf("the stages have %v layers; Megatron gives all stages between the "+
			"first and the last as many: choose other cuts", count)
	}
	args.Set("decoder_first_pipeline_num_layers", int64(count[0]))
	args.Set("decoder_last_pipeline_num_layers", int64(count[len(count)-1]))
	return nil
}
