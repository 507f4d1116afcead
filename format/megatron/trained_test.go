package megatron_test

// This file makes random models with optimizers, and tells what each rank has: an oracle.
import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// axes are the ranks of a checkpoint, and how many chunks of layers each stage has.
type axes struct{ tp, pp, ep, chunks int }

// mesh returns the mesh in the form that a spec has.
func (a axes) mesh() string { return fmt.Sprintf("pp=%d,ep=%d,tp=%d", a.pp, a.ep, a.tp) }

// trained is a model of random weights in bf16 with the mixed-precision optimizer's state, under
// Megatron's names: what each rank's file has of it is told here without the package.
type trained struct {
	layers, experts, hidden, ffn, vocab int
	tied, shared, grouped, bias, scaler bool
	// norms are modules of their own, of q and k too, and positions have an embedding
	alone bool
	// in the order in which a model of one rank registers them
	params []string
	// parameters, and their states as KIND NAME
	whole map[string]matrix
}

// matrix has rows of f32 or bf16.
type matrix struct {
	dtype tensor.DType
	shape tensor.Shape
	rows  [][]byte
}

// String writes the type, the shape and the elements.
func (m matrix) String() string { return fmt.Sprint(m.dtype, m.shape, slices.Concat(m.rows...)) }

// drawTrained draws a model with the state of its optimizer. hidden is its width.
func drawTrained(r *rand.Rand, hidden int) *trained {
	m := &trained{layers: 4, experts: 4, hidden: hidden, ffn: 4 * (1 + r.IntN(2)), vocab: 8,
		whole: map[string]matrix{}}
	m.tied, m.shared, m.grouped, m.bias, m.scaler = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0,
		r.IntN(2) == 0, r.IntN(2) == 0
	m.alone = r.IntN(2) == 0
	add := func(name string, shape ...int) {
		m.params = append(m.params, name)
		size := tensor.Shape(shape)
		for _, kind := range []string{"fp32", "exp_avg", "exp_avg_sq"} {
			m.whole[kind+" "+name] = randomMatrix(r, size)
		}
		model := matrix{tensor.BF16, size, nil}
		for _, row := range m.whole["fp32 "+name].rows { // rounded, as no copy is near the middle
			var short []byte
			for i := 0; i < len(row); i += 4 {
				short = append(short, row[i+2:i+4]...)
			}
			model.rows = append(model.rows, short)
		}
		m.whole[name] = model
		// 12
		m.whole["step "+name] = matrix{tensor.F32, tensor.Shape{}, [][]byte{{0, 0, 0x40, 0x41}}}
	}
	add("embedding.word_embeddings.weight", m.vocab, m.hidden)
	if m.alone {
		add("embedding.position_embeddings.weight", 5, m.hidden)
	}
	for layer := range m.layers {
		m.addLayer(fmt.Sprintf("decoder.layers.%d.", layer), add)
	}
	add("decoder.final_layernorm.weight", m.hidden)
	if !m.tied {
		add("output_layer.weight", m.vocab, m.hidden)
	}
	return m
}

// addLayer adds the parameters of a layer by add.
func (m *trained) addLayer(at string, add func(name string, shape ...int)) {
	vector := func(name string, n int) {
		if m.bias {
			add(at+name, n)
		}
	}
	if m.alone {
		add(at+"input_layernorm.weight", m.hidden)
		vector("input_layernorm.bias", m.hidden)
	}
	add(at+"self_attention.linear_proj.weight", m.hidden, m.hidden)
	vector("self_attention.linear_proj.bias", m.hidden)
	if !m.alone {
		add(at+"self_attention.linear_qkv.layer_norm_weight", m.hidden)
	}
	add(at+"self_attention.linear_qkv.weight", 3*m.hidden, m.hidden)
	vector("self_attention.linear_qkv.bias", 3*m.hidden)
	if m.alone {
		add(at+"self_attention.q_layernorm.weight", m.hidden/4)
		add(at+"self_attention.k_layernorm.weight", m.hidden/4)
	}
	add(at+"pre_mlp_layernorm.weight", m.hidden)
	add(at+"mlp.router.weight", m.experts, m.hidden)
	vector("mlp.router.bias", m.experts)
	up := func(weight, bias string) { add(at+weight, 2*m.ffn, m.hidden); vector(bias, 2*m.ffn) }
	down := func(weight, bias string) { add(at+weight, m.hidden, m.ffn); vector(bias, m.hidden) }
	// Transformer Engine registers the weight and the bias of an expert, and then those of the next
	for i, kind := range []func(weight, bias string){up, down} {
		for e := range m.experts {
			if m.grouped {
				name := fmt.Sprintf("mlp.experts.linear_fc%d.", i+1)
				kind(fmt.Sprint(name, "weight", e), fmt.Sprint(name, "bias", e))
			} else if i == 0 { // one expert after the other
				name := fmt.Sprintf("mlp.experts.local_experts.%d.linear_fc", e)
				up(name+"1.weight", name+"1.bias")
				down(name+"2.weight", name+"2.bias")
			}
		}
	}
	if m.shared {
		add(at+"mlp.shared_experts.gate_weight", 1, m.hidden)
		add(at+"mlp.shared_experts.linear_fc1.weight", 2*m.ffn, m.hidden)
		add(at+"mlp.shared_experts.linear_fc2.weight", m.hidden, m.ffn)
	}
}

// randomMatrix returns a matrix of random elements in f32.
func randomMatrix(r *rand.Rand, shape tensor.Shape) matrix {
	m := matrix{tensor.F32, shape, nil}
	n, columns := 1, shape[0]
	if len(shape) == 2 {
		n, columns = shape[0], shape[1]
	}
	for range n {
		var row []byte
		for range columns {
			row = binary.LittleEndian.AppendUint32(row,
				0x3f000000|r.Uint32N(1<<15)|r.Uint32N(1<<7)<<16)
		}
		m.rows = append(m.rows, row)
	}
	return m
}

// kindsOf are the states of a parameter.
var kindsOf = []string{"exp_avg", "exp_avg_sq", "fp32", "step"}

// asCheckpoint returns the model in one file, with its optimizer as one rank has it.
func (m *trained) asCheckpoint() (*format.Checkpoint, *format.Files) {
	c, data := &format.Checkpoint{}, []byte{}
	add := func(name string, x matrix) {
		c.Tensors = append(c.Tensors,
			format.Tensor{Name: name, DType: x.dtype, Shape: x.shape,
				Pieces: []format.Piece{
					{Box: x.shape.Box(), File: "file", Offset: int64(len(data))}}})
		data = append(data, slices.Concat(x.rows...)...)
	}
	var groups [2][]any
	for _, name := range m.params {
		add("model."+name, m.whole[name])
		for _, kind := range kindsOf {
			add("optimizer."+kind+"."+name, m.whole[kind+" "+name])
		}
		g := m.groupOf(name)
		groups[g] = append(groups[g], name)
	}
	if m.scaler {
		add("optimizer.grad_scaler.scale", scale)
		setValue(c, "optimizer.grad_scaler.growth_tracker", int64(7))
	}
	for g, names := range groups {
		at := fmt.Sprintf("optimizer.optimizer.param_groups.%d.", g)
		for key, is := range map[string]any{"wd_mult": 1 - float64(g), "lr_mult": 1.0,
			"is_expert_parallel": false, "is_decoupled_lr": false, "lr": 0.5,
			"param_names": names} {
			setValue(c, at+key, is)
		}
	}
	for path, is := range map[string]any{"iteration": int64(12), "args.swiglu": true,
		"args.accumulate_allreduce_grads_in_fp32": true, "args.num_attention_heads": int64(4),
		"args.untie_embeddings_and_output_weights": !m.tied,
		"args.tensor_model_parallel_size":          int64(1)} {
		setValue(c, path, is)
	}
	if err := c.Finish(); err != nil {
		panic(err)
	}
	return c, format.NewFiles(fstest.MapFS{"file": {Data: data}})
}

var scale = matrix{tensor.F32, tensor.Shape{1}, [][]byte{{0, 0, 0x80, 0x45}}} // 4096

// groupOf returns the group of a parameter: vectors have no weight decay. It is 0 for matrices, and
// 1 for vectors.
func (m *trained) groupOf(name string) int { return 2 - len(m.whole[name].shape) }

var (
	inLayer  = regexp.MustCompile(`layers\.(\d+)\.`)
	inExpert = regexp.MustCompile(`(local_experts\.|experts\.linear_fc\d\.[a-z]+)(\d+)`)
)

// localName returns the chunk and the name of a parameter in the file of a rank; false when the
// rank has it not.
func (m *trained) localName(name string, a axes, tp, pp, ep int) (chunk int, local string,
	has bool) {
	if x := inExpert.FindStringSubmatch(name); x != nil && strings.Contains(name, ".mlp.experts.") {
		n, _ := strconv.Atoi(x[2])
		if each := m.experts / a.ep; n/each != ep {
			return 0, "", false
		} else {
			name = strings.Replace(name, x[0], x[1]+strconv.Itoa(n%each), 1)
		}
	}
	if x := inLayer.FindStringSubmatch(name); x != nil {
		n, _ := strconv.Atoi(x[1])
		each := m.layers / a.pp / a.chunks
		return n / each / a.pp, strings.Replace(name, x[0], fmt.Sprintf("layers.%d.", n%each), 1),
			n/each%a.pp == pp
	}
	if strings.HasPrefix(name, "embedding.") {
		return 0, name, pp == 0
	}
	return a.chunks - 1, name, pp == a.pp-1
}

// partOf returns what a tensor parallel rank has of a parameter's tensor.
func (m *trained) partOf(name string, x matrix, tp, of int) matrix {
	rows := func(y [][]byte) [][]byte { return y[len(y)*tp/of : len(y)*(tp+1)/of] }
	y := matrix{x.dtype, slices.Clone(x.shape), x.rows}
	switch bias := len(x.shape) == 1; {
	case bias && strings.Contains(name, "linear_fc1.") ||
		bias && strings.Contains(name, "linear_qkv.bias"):
		elements := slices.Collect(slices.Chunk(x.rows[0], x.dtype.Size()))
		if strings.Contains(name, "qkv") {
			elements = rows(elements)
		} else {
			elements = slices.Concat(rows(elements[:m.ffn]), rows(elements[m.ffn:]))
		}
		y.rows = [][]byte{slices.Concat(elements...)}
	case len(x.shape) != 2 || strings.Contains(name, "router") ||
		strings.Contains(name, "position") || strings.Contains(name, "gate_weight"):
		return y
	case strings.Contains(name, "linear_fc1"):
		y.rows = slices.Concat(rows(x.rows[:m.ffn]), rows(x.rows[m.ffn:]))
	case strings.Contains(name, "linear_fc2") || strings.Contains(name, "linear_proj"):
		y.rows = nil
		for _, row := range x.rows {
			y.rows = append(y.rows, row[len(row)*tp/of:len(row)*(tp+1)/of])
		}
		y.shape[1] /= of
		return y
	default:
		y.rows = rows(x.rows)
	}
	y.shape[0] /= of
	return y
}

// one is a parameter in a rank's file, and in the whole model.
type one struct{ name, whole string }

// rankChunks returns the parameters of a rank, in the order in which its models register them.
func (m *trained) rankChunks(a axes, tp, pp, ep int) [][]one {
	chunks := make([][]one, a.chunks)
	for _, name := range m.params {
		if chunk, local, has := m.localName(name, a, tp, pp, ep); has {
			chunks[chunk] = append(chunks[chunk], one{local, name})
		}
	}
	if last := &chunks[a.chunks-1]; m.tied && pp == a.pp-1 && a.pp > 1 {
		*last = append(*last, one{"output_layer.weight", m.params[0]})
	}
	return chunks
}

// rankTensors returns what a rank's file has: its models, and its optimizers by position.
func (m *trained) rankTensors(a axes, tp, pp, ep int) map[string]string {
	all := map[string]string{}
	// optimizers names the tensors of the optimizers of all ranks after their parameters. If it
	// cannot, for one rank or several, it says why, and adds nothing.
	var optimizers [2][2][]string
	for i, chunk := range m.rankChunks(a, tp, pp, ep) {
		model := "model."
		if a.chunks > 1 {
			model = fmt.Sprintf("model%d.", i)
		}
		for _, x := range chunk {
			all[model+x.name] = m.partOf(x.whole, m.whole[x.whole], tp, a.tp).String()
			o := 0
			if a.ep > 1 && strings.Contains(x.whole, ".mlp.experts.") {
				o = 1
			}
			g := m.groupOf(x.whole)
			optimizers[o][g] = append(optimizers[o][g], x.whole)
		}
	}
	for o, groups := range optimizers {
		at := "optimizer."
		if a.ep > 1 {
			at = fmt.Sprintf("optimizer.%d.", o)
		}
		n := 0
		for g, names := range groups {
			for i, name := range names {
				for _, kind := range kindsOf {
					x, key := m.partOf(name, m.whole[kind+" "+name], tp, a.tp),
						fmt.Sprintf("optimizer.state.%d.%s", n, kind)
					if kind == "fp32" {
						key = fmt.Sprintf("fp32_from_fp16_params.%d.%d", g, i)
					}
					all[at+key] = x.String()
				}
				n++
			}
		}
		if m.scaler && (o == 0 || a.ep > 1) {
			all[at+"grad_scaler.scale"] = scale.String()
		}
	}
	return all
}

// spec returns how Megatron shares a checkpoint out to ranks. It gives the checkpoint the
// optimizers for them. It stops the test where there is no such spec.
func (a axes) spec(t *testing.T, c *format.Checkpoint) *layout.Spec {
	t.Helper()
	mesh, err := layout.ParseMesh(a.mesh())
	if err != nil {
		t.Fatal(err)
	}
	spec, err := layout.Preset("megatron-core", mesh, catalogue(c), 4)
	if err == nil {
		err = layout.Interleave(spec, a.chunks)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := megatron.ChainOptimizers(c, spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

// forEachRank calls a function for each rank, with its folder.
func (a axes) forEachRank(f func(folder string, tp, pp, ep int)) {
	for tp := range a.tp {
		for pp := range a.pp {
			for ep := range a.ep {
				name := fmt.Sprintf("iter_0000012/mp_rank_%02d", tp)
				if a.pp > 1 {
					name += fmt.Sprintf("_%03d", pp)
				}
				if a.ep > 1 {
					name += fmt.Sprintf("_%03d", ep)
				}
				f(name, tp, pp, ep)
			}
		}
	}
}

// writeChecked writes a checkpoint for some ranks, compares each rank's file with what it must
// have, and reads it again. It stops the test at the first difference, gives c the optimizers for
// these ranks, and does nothing on the disk.
func (m *trained) writeChecked(t *testing.T, c *format.Checkpoint, files *format.Files,
	a axes) (*format.Checkpoint, *format.Files) {
	t.Helper()
	out, err := megatron.Layout(a.spec(t, c), c.Tensors, c.Values)
	if err != nil {
		t.Fatal(err)
	}
	dir := formattest.WritePaddedOutput(t, out, c, files)
	a.forEachRank(func(folder string, tp, pp, ep int) {
		if diff := cmp.Diff(m.rankTensors(a, tp, pp, ep),
			fileTensors(t, dir, folder+"/model_optim_rng.pt")); diff != "" {
			t.Fatalf("%+v, %s:\n%s", a, folder, diff)
		}
	})
	again, files := mustRead(t, dir)
	want := map[string]any{"args.virtual_pipeline_model_parallel_size": nil,
		"args.num_layers_per_virtual_pipeline_stage": nil,
		"args.pipeline_model_parallel_size":          int64(a.pp),
		"args.expert_model_parallel_size":            int64(a.ep)}
	if a.chunks > 1 {
		want["args.virtual_pipeline_model_parallel_size"],
			want["args.num_layers_per_virtual_pipeline_stage"] = int64(a.chunks),
			int64(m.layers/a.pp/a.chunks)
	}
	for path, x := range want {
		if got, ok := again.Value(path); !ok || got != x {
			t.Fatalf("%+v: %s is %v, want %v", a, path, got, x)
		}
	}
	return again, files
}

// tensorSums returns the fingerprints of the tensors but the scale of gradients, which each
// optimizer has. They are by name.
func tensorSums(t *testing.T, c *format.Checkpoint, files *format.Files) map[string]digest.Sum {
	t.Helper()
	key, all := digest.NewKey(1), map[string]digest.Sum{}
	for i := range c.Tensors {
		if x := &c.Tensors[i]; !strings.Contains(x.Name, "grad_scaler") {
			all[x.Name] = key.TensorSum(x.Name, x.DType, x.Shape,
				key.RunSum(0, formattest.ReadTensor(t, files, x)))
		}
	}
	return all
}
