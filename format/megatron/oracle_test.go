package megatron_test

// This file slices random models for ranks row by row: an oracle for the layouts.
import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// rows is a matrix as a list of rows, of bytes.
type rows [][]byte

// dims are the sizes of a model and of a mesh.
type dims struct {
	TP, PP, EP                         int
	Groups, Each, Head                 int // of q, k and v
	Hidden, FFN, Vocab, Layers, Expert int
	Cuts                               []int // the first layer of each stage
	Tied                               bool
	Bias, Norms                        bool // of q, k and v; of q and k
	Mixtral                            bool // the names of experts
	// every second layer, beginning with the first, has no experts
	Dense bool
	Mesh  string       // as a spec writes it
	DType tensor.DType // element type of the weights
}

// model is one of random weights under Hugging Face's names; its norms are matrices of one row, its
// biases of one column.
type model struct {
	dims
	whole map[string]rows
}

// drawModel draws the sizes of a model and a mesh, and its weights.
func drawModel(r *rand.Rand) *model {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	d := dims{TP: pick(1, 2, 3, 4), PP: 1 + r.IntN(4), EP: 1, Each: 1 + r.IntN(3),
		Head: 1 + r.IntN(3), Hidden: 1 + r.IntN(6), Vocab: 1 + r.IntN(20), Tied: r.IntN(2) == 0}
	d.Groups, d.FFN = d.TP*(1+r.IntN(2)), d.TP*(1+r.IntN(3))
	d.Mixtral = r.IntN(2) == 0
	d.Bias, d.Norms = r.IntN(3) == 0, r.IntN(3) == 0
	d.DType = []tensor.DType{tensor.BF16, tensor.F32, tensor.U8}[r.IntN(3)]
	if r.IntN(3) == 0 {
		d.EP = 1 + r.IntN(3)
		d.Expert = d.EP * (1 + r.IntN(2))
		d.Dense = r.IntN(2) == 0 && !d.Mixtral
	}
	between := 1 + r.IntN(3)
	for pp := range d.PP {
		d.Cuts = append(d.Cuts, d.Layers)
		if d.Layers += between; pp == 0 || pp == d.PP-1 {
			d.Layers += r.IntN(3)
		}
	}
	axes := []string{fmt.Sprint("tp=", d.TP), fmt.Sprint("pp=", d.PP), fmt.Sprint("ep=", d.EP)}
	r.Shuffle(3, func(i, j int) { axes[i], axes[j] = axes[j], axes[i] })
	d.Mesh = strings.Join(axes, ",")
	return fillModel(r, d)
}

// fillModel draws the weights of a model of some sizes.
func fillModel(r *rand.Rand, d dims) *model {
	m := &model{d, map[string]rows{}}
	add := func(name string, n, columns int) {
		for range n {
			row := make([]byte, columns*d.DType.Size())
			for i := range row {
				row[i] = byte(r.Uint32())
			}
			m.whole[name] = append(m.whole[name], row)
		}
	}
	add("model.embed_tokens.weight", d.Vocab, d.Hidden)
	if !d.Tied {
		add("lm_head.weight", d.Vocab, d.Hidden)
	}
	add("model.norm.weight", 1, d.Hidden)
	for i := range d.Layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add(p+"self_attn.q_proj.weight", d.Groups*d.Each*d.Head, d.Hidden)
		add(p+"self_attn.k_proj.weight", d.Groups*d.Head, d.Hidden)
		add(p+"self_attn.v_proj.weight", d.Groups*d.Head, d.Hidden)
		if d.Bias {
			add(p+"self_attn.q_proj.bias", d.Groups*d.Each*d.Head, 1)
			add(p+"self_attn.k_proj.bias", d.Groups*d.Head, 1)
			add(p+"self_attn.v_proj.bias", d.Groups*d.Head, 1)
		}
		if d.Norms {
			add(p+"self_attn.q_norm.weight", 1, d.Head)
			add(p+"self_attn.k_norm.weight", 1, d.Head)
		}
		add(p+"self_attn.o_proj.weight", d.Hidden, d.Groups*d.Each*d.Head)
		add(p+"input_layernorm.weight", 1, d.Hidden)
		add(p+"post_attention_layernorm.weight", 1, d.Hidden)
		at, names := d.mlpNames()
		mlps := []string{at}
		if !d.isDense(i) {
			mlps = nil
			add(p+at+"gate.weight", d.Expert, d.Hidden)
			for e := range d.Expert {
				mlps = append(mlps, fmt.Sprintf("%sexperts.%d.", at, e))
			}
		}
		for _, mlp := range mlps {
			add(p+mlp+names[0], d.FFN, d.Hidden)
			add(p+mlp+names[1], d.FFN, d.Hidden)
			add(p+mlp+names[2], d.Hidden, d.FFN)
		}
	}
	return m
}

// isDense reports whether a layer has no experts.
func (d *dims) isDense(layer int) bool { return d.Expert == 0 || d.Dense && layer%2 == 0 }

// mlpNames returns where gate, up and down are in a layer, and what they are called.
func (d *dims) mlpNames() (string, [3]string) {
	if d.Mixtral && d.Expert > 0 {
		return "block_sparse_moe.", [3]string{"w1.weight", "w3.weight", "w2.weight"}
	}
	return "mlp.", [3]string{"gate_proj.weight", "up_proj.weight", "down_proj.weight"}
}

// shapeOf returns the shape of a tensor: norms are vectors. So are biases.
func (m *model) shapeOf(name string) tensor.Shape {
	x := m.whole[name]
	if strings.HasSuffix(name, ".bias") {
		return tensor.Shape{len(x)}
	}
	if strings.Contains(name, "norm.") {
		return tensor.Shape{len(x[0]) / m.DType.Size()}
	}
	return tensor.Shape{len(x), len(x[0]) / m.DType.Size()}
}

// asCheckpoint returns the model in one file. The file is in memory.
func (m *model) asCheckpoint() (*format.Checkpoint, *format.Files) {
	c, data := &format.Checkpoint{}, []byte{}
	for _, name := range slices.Sorted(maps.Keys(m.whole)) {
		s := m.shapeOf(name)
		c.Tensors = append(c.Tensors,
			format.Tensor{Name: name, DType: m.DType, Shape: s,
				Pieces: []format.Piece{{Box: s.Box(), File: "file", Offset: int64(len(data))}}})
		data = append(data, bytes.Join(m.whole[name], nil)...)
	}
	return c, format.NewFiles(fstest.MapFS{"file": {Data: data}})
}

// spec returns the preset megatron-core for the model's mesh, with the cuts of the stages. It stops
// the test where there is no such preset.
func (m *model) spec(t *testing.T, c *format.Checkpoint) *layout.Spec {
	mesh, err := layout.ParseMesh(m.Mesh)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := layout.Preset("megatron-core", mesh, catalogue(c), m.Groups)
	if err != nil {
		t.Fatal(err)
	}
	cuts := ""
	for _, n := range m.Cuts[1:] {
		cuts += fmt.Sprint("/", n)
	}
	for i := range spec.Rules {
		if cuts != "" {
			spec.Rules[i].Place = strings.Replace(spec.Rules[i].Place,
				fmt.Sprintf("pp=spread(1,%d)", m.Layers),
				fmt.Sprintf("pp=spread(1,%d,cuts=%s)", m.Layers, cuts[1:]), 1)
		}
	}
	return spec
}

// checkLayout writes the model for its mesh, and compares every rank's file with what slicing
// gives. It fails or stops the test where they differ.
func (m *model) checkLayout(t *testing.T) {
	c, files := m.asCheckpoint()
	out, err := megatron.Layout(m.spec(t, c), c.Tensors, c.Values)
	if err != nil {
		t.Fatal(err)
	}
	dir := formattest.WritePaddedOutput(t, out, c, files)
	for tp := range m.TP {
		for pp := range m.PP {
			for ep := range m.EP {
				name := fmt.Sprintf("release/mp_rank_%02d", tp)
				if m.PP > 1 {
					name += fmt.Sprintf("_%03d", pp)
				}
				if m.EP > 1 {
					name += fmt.Sprintf("_%03d", ep)
				}
				want := m.rankTensors(tp, pp, ep)
				if diff := cmp.Diff(want,
					fileTensors(t, dir, name+"/model_optim_rng.pt")); diff != "" {
					t.Fatalf("%s\n%s", name, diff)
				}
			}
		}
	}
	again, files := mustRead(t, dir)
	for _, x := range again.Tensors {
		if x.Coords != nil {
			t.Fatal(x)
		}
	}
	one := *m
	one.TP, one.PP, one.EP, one.Cuts = 1, 1, 1, []int{0}
	if diff := cmp.Diff(one.withPadding(m.TP).rankTensors(0, 0, 0),
		formattest.Contents(t, files, again)); diff != "" {
		t.Fatalf("as a whole\n%s", diff)
	}
	for path, want := range map[string]any{
		"args.num_layers": int64(m.Layers), "args.hidden_size": int64(m.Hidden),
		"args.ffn_hidden_size": int64(m.FFN), "args.num_attention_heads": int64(m.Groups * m.Each),
		"args.num_query_groups": int64(m.Groups), "args.kv_channels": int64(m.Head),
		"args.swiglu": true, "args.untie_embeddings_and_output_weights": !m.Tied,
		"args.vocab_size": int64(m.Vocab), "args.tensor_model_parallel_size": int64(m.TP),
		"args.padded_vocab_size": int64(128 * m.TP), "iteration": int64(0),
	} {
		if got, ok := again.Value(path); !ok || got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
}

// withPadding returns the model with rows of its vocabulary as for so many ranks. Each of tp ranks
// gets 128 rows.
func (m *model) withPadding(tp int) *model {
	p := &model{m.dims, maps.Clone(m.whole)}
	for _, name := range []string{"model.embed_tokens.weight", "lm_head.weight"} {
		if x := slices.Clone(p.whole[name]); x != nil {
			for len(x) < 128*tp {
				x = append(x, make([]byte, len(x[0])))
			}
			p.whole[name] = x
		}
	}
	return p
}

// rankTensors returns what the file of a rank has, by slicing. They are in the form of
// formattest.Contents.
func (m *model) rankTensors(tp, pp, ep int) map[string]string {
	all := map[string]string{}
	size := m.DType.Size()
	add := func(name string, x rows, vector bool) {
		s := tensor.Shape{len(x), len(x[0]) / size}
		if vector && s[0] == 1 {
			s = s[1:]
		} else if vector {
			s = s[:1]
		}
		all["model."+name] = fmt.Sprint(m.DType, s, bytes.Join(x, nil))
	}
	part := func(x rows) rows { return x[len(x)*tp/m.TP : len(x)*(tp+1)/m.TP] }
	columns := func(x rows) (y rows) {
		for _, row := range x {
			n := len(row) / m.TP
			y = append(y, row[n*tp:n*(tp+1)])
		}
		return y
	}
	whole := m.withPadding(m.TP).whole
	if pp == 0 {
		add("embedding.word_embeddings.weight", part(whole["model.embed_tokens.weight"]), false)
	}
	if pp == m.PP-1 {
		add("decoder.final_layernorm.weight", whole["model.norm.weight"], true)
		if !m.Tied {
			add("output_layer.weight", part(whole["lm_head.weight"]), false)
		} else if pp > 0 {
			add("output_layer.weight", part(whole["model.embed_tokens.weight"]), false)
		}
	}
	end := m.Layers
	if pp+1 < m.PP {
		end = m.Cuts[pp+1]
	}
	for i := m.Cuts[pp]; i < end; i++ {
		from, to := fmt.Sprintf("model.layers.%d.", i),
			fmt.Sprintf("decoder.layers.%d.", i-m.Cuts[pp])
		for _, kind := range []string{"weight", "bias"} {
			var qkv rows
			for g := range m.Groups {
				for i, x := range []string{"q", "k", "v"} {
					if n := []int{m.Each * m.Head, m.Head, m.Head}[i]; kind == "weight" || m.Bias {
						qkv = append(qkv, whole[from+"self_attn."+x+"_proj."+kind][g*n:(g+1)*n]...)
					}
				}
			}
			if qkv != nil {
				add(to+"self_attention.linear_qkv."+kind, part(qkv), kind == "bias")
			}
		}
		if m.Norms {
			add(to+"self_attention.q_layernorm.weight", whole[from+"self_attn.q_norm.weight"], true)
			add(to+"self_attention.k_layernorm.weight", whole[from+"self_attn.k_norm.weight"], true)
		}
		add(to+"self_attention.linear_proj.weight", columns(whole[from+"self_attn.o_proj.weight"]),
			false)
		add(to+"self_attention.linear_qkv.layer_norm_weight", whole[from+"input_layernorm.weight"],
			true)
		at, names := m.mlpNames()
		mlp := func(from, to string) {
			add(to+"linear_fc1.weight",
				slices.Concat(part(whole[from+names[0]]), part(whole[from+names[1]])), false)
			add(to+"linear_fc2.weight", columns(whole[from+names[2]]), false)
		}
		if m.isDense(i) {
			add(to+"mlp.linear_fc1.layer_norm_weight",
				whole[from+"post_attention_layernorm.weight"], true)
			mlp(from+"mlp.", to+"mlp.")
			continue
		}
		add(to+"pre_mlp_layernorm.weight", whole[from+"post_attention_layernorm.weight"], true)
		add(to+"mlp.router.weight", whole[from+at+"gate.weight"], false)
		for e := range m.Expert / m.EP {
			mlp(fmt.Sprintf("%s%sexperts.%d.", from, at, e+ep*m.Expert/m.EP),
				fmt.Sprintf("%smlp.experts.local_experts.%d.", to, e))
		}
	}
	return all
}
