package megatron_test

// This file tests the joining of what tensor parallel ranks have.
import (
	"fmt"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/tensor"
)

// addPart adds a file to dir with the part that a tensor parallel rank has of a tensor, and returns
// the part.
func addPart(name string, tp int, dir fstest.MapFS, shape tensor.Shape,
	data ...byte) format.Tensor {
	file := fmt.Sprint(name, tp)
	dir[file] = &fstest.MapFile{Data: append([]byte{99}, data...)}
	p := format.Piece{Box: shape.Box(), File: file, Offset: 1}
	return format.Tensor{Name: name, DType: tensor.U8, Shape: shape,
		Coords: format.Coords{{Axis: "tp", Index: tp, Of: 2}}, Pieces: []format.Piece{p}}
}

// TestJoin joins two parts each way.
func TestJoin(t *testing.T) {
	const layer = "model.decoder.layers.0."
	for _, c := range []struct {
		name   string
		swiglu any
		shape  tensor.Shape // nil when the parts stay as they are
		want   []byte
	}{
		{layer + "self_attention.linear_qkv.weight", true, tensor.Shape{4, 2},
			[]byte{1, 2, 3, 4, 5, 6, 7, 8}},
		{layer + "self_attention.linear_proj.weight", true, tensor.Shape{2, 4},
			[]byte{1, 2, 5, 6, 3, 4, 7, 8}},
		{layer + "mlp.linear_fc1.weight", true, tensor.Shape{4, 2}, []byte{1, 2, 5, 6, 3, 4, 7, 8}},
		{layer + "mlp.linear_fc1.weight", false, tensor.Shape{4, 2},
			[]byte{1, 2, 3, 4, 5, 6, 7, 8}},
		{layer + "mlp.linear_fc1.weight", nil, nil, nil},
		{layer + "mlp.linear_fc2.bias", true, tensor.Shape{2, 2}, []byte{1, 2, 3, 4}},
		{layer + "input_layernorm.weight", true, tensor.Shape{2, 2}, []byte{1, 2, 3, 4}},
		{layer + "mixer.norm.weight", true, tensor.Shape{4, 2}, []byte{1, 2, 3, 4, 5, 6, 7, 8}},
		{layer + "mixer.in_proj.layer_norm_weight", true, tensor.Shape{2, 2}, []byte{1, 2, 3, 4}},
		{"model.embedding.word_embeddings.weight", true, tensor.Shape{4, 2},
			[]byte{1, 2, 3, 4, 5, 6, 7, 8}},
		{layer + "mlp.experts.local_experts.0.linear_fc1.weight", true, tensor.Shape{4, 2},
			[]byte{1, 2, 5, 6, 3, 4, 7, 8}},
		{layer + "something.else", true, nil, nil},
		{"optimizer.linear_qkv.weight", true, nil, nil},
	} {
		dir := fstest.MapFS{}
		s := tensor.Shape{2, 2}
		f := &format.Checkpoint{
			Tensors: []format.Tensor{addPart(c.name, 0, dir, s, 1, 2, 3, 4),
				addPart(c.name, 1, dir, s, 5, 6, 7, 8)}}
		if c.swiglu != nil {
			f.Values = []format.Value{{Path: "args.swiglu", Data: c.swiglu}}
		}
		if err := megatron.JoinRanks(f); err != nil {
			t.Fatal(err)
		}
		if c.shape == nil {
			if len(f.Tensors) != 2 || f.Tensors[0].Coords == nil {
				t.Errorf("%s is joined: %+v", c.name, f.Tensors)
			}
			continue
		}
		files := format.NewFiles(dir)
		got := make([]byte, len(c.want))
		if len(f.Tensors) != 1 || !f.Tensors[0].Shape.Equal(c.shape) || f.Tensors[0].Coords != nil {
			t.Errorf("%s: %+v", c.name, f.Tensors)
		} else if err := files.Read(&f.Tensors[0], got); err != nil || !cmp.Equal(got, c.want) {
			t.Errorf("%s holds %v, want %v: %v", c.name, got, c.want, err)
		} else if faults := f.Check(files); len(faults) > 0 {
			t.Errorf("%s: %v", c.name, faults)
		}
	}
}

// TestJoinGated: the rows of gate and of up are cut each for itself, whatever activation there is
// between.
func TestJoinGated(t *testing.T) {
	const layer = "model.decoder.layers.0.mlp."
	gated, plain := []byte{1, 2, 5, 6, 3, 4, 7, 8}, []byte{1, 2, 3, 4, 5, 6, 7, 8}
	args := func(swiglu, quick any) []format.Value {
		return []format.Value{{Path: "args.quick_geglu", Data: quick},
			{Path: "args.swiglu", Data: swiglu}}
	}
	for _, c := range []struct {
		name    string
		values  []format.Value
		second  string // name of the second product, and its columns on a rank; "" = none
		columns int
		want    []byte
	}{
		{layer + "linear_fc1.weight", args(false, true), "", 0, gated},
		{layer + "linear_fc1.weight", args(false, false), "", 0, plain},
		{layer + "linear_fc1.weight", args(false, false), layer + "linear_fc2.weight", 1, gated},
		{layer + "linear_fc1.weight", args(false, nil), layer + "linear_fc2.weight", 2, plain},
		{"model.vision_model.decoder.layers.0.mlp.linear_fc1.weight", args(true, nil),
			"model.vision_model.decoder.layers.0.mlp.linear_fc2.weight", 2, plain},
		{layer + "linear_fc1.weight", nil, layer + "linear_fc2.weight", 1, gated},
		{layer + "linear_fc1.weight", nil, layer + "linear_fc2.weight", 2, plain},
		{layer + "dense_h_to_4h.weight", nil, layer + "dense_4h_to_h.weight", 1, gated},
		{layer + "experts.linear_fc1.weight7", nil, layer + "experts.linear_fc2.weight7", 1, gated},
		{layer + "experts.local_experts.1.linear_fc1.weight", nil,
			layer + "experts.local_experts.1.linear_fc2.weight", 1, gated},
	} {
		dir, s := fstest.MapFS{}, tensor.Shape{2, 2}
		f := &format.Checkpoint{Values: c.values,
			Tensors: []format.Tensor{addPart(c.name, 0, dir, s, 1, 2, 3, 4),
				addPart(c.name, 1, dir, s, 5, 6, 7, 8)}}
		if c.second != "" {
			down := tensor.Shape{2, c.columns}
			f.Tensors = append(f.Tensors, addPart(c.second, 0, dir, down, 1, 2, 3, 4),
				addPart(c.second, 1, dir, down, 5, 6, 7, 8))
		}
		if err := f.Finish(); err != nil {
			t.Fatal(err)
		}
		if err := megatron.JoinRanks(f); err != nil {
			t.Fatal(err)
		}
		i, got := slices.IndexFunc(f.Tensors, func(t format.Tensor) bool {
			return t.Name == c.name
		}), make([]byte, 8)
		if x := &f.Tensors[i]; x.Coords != nil {
			t.Errorf("%s stays in parts", c.name)
		} else if err := format.NewFiles(dir).Read(x, got); err != nil || !cmp.Equal(got, c.want) {
			t.Errorf("%s with %v and %d columns holds %v, want %v: %v", c.name, c.values,
				c.columns, got, c.want, err)
		}
	}
}

// TestJoinExperts: experts can be cut over other tensor parallel ranks than the rest, or be alike
// on all.
func TestJoinExperts(t *testing.T) {
	for etp, want := range map[any]tensor.Shape{nil: {2, 4}, int64(2): {2, 4}, int64(1): {2, 2},
		int64(4): nil} {
		dir := fstest.MapFS{}
		const name = "model.decoder.layers.0.mlp.experts.local_experts.0.linear_fc2.weight"
		s := tensor.Shape{2, 2}
		c := &format.Checkpoint{
			Tensors: []format.Tensor{addPart(name, 0, dir, s, 1, 2, 3, 4),
				addPart(name, 1, dir, s, 1, 2, 3, 4)},
			Values: []format.Value{{Path: "args.expert_tensor_parallel_size", Data: etp},
				{Path: "args.tensor_model_parallel_size", Data: int64(2)}}}
		if err := megatron.JoinRanks(c); err != nil {
			t.Fatal(err)
		}
		if x := c.Tensors[0]; want == nil && x.Coords == nil ||
			want != nil && (x.Coords != nil || !x.Shape.Equal(want) ||
				len(x.Replicas) != 4/want[1]-1) {
			t.Errorf("over %v: %+v", etp, x)
		}
	}
	dir, want := formattest.Load(t, "testdata/chained.zip")
	c, files := mustRead(t, dir)
	setValue(c, "args.expert_tensor_parallel_size", int64(1))
	again, files := mustRead(t, writeForMesh(t, c, files, "ep=2,tp=2"))
	formattest.Compare(t, files, again, want)
	if is, _ := again.Value("args.expert_tensor_parallel_size"); is != int64(2) {
		t.Errorf("experts are cut over %v ranks", is)
	}
}

// TestJoinSample joins what a reader has found.
func TestJoinSample(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/tp2pp2.zip")
	files := format.NewFiles(dir)
	c, err := megatron.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	if err := megatron.JoinRanks(c); err != nil {
		t.Fatal(err)
	}
	for _, f := range c.Check(files) {
		t.Error(f)
	}
	for i := range c.Tensors {
		s := &c.Tensors[i]
		if s.Name == "model.embedding.word_embeddings.weight" &&
			(!s.Shape.Equal(tensor.Shape{10, 4}) || len(s.Pieces) != 2 || len(s.Replicas) != 2) {
			t.Errorf("tied embeddings: %+v", s)
		}
		if len(s.Name) > 6 && s.Name[:6] == "model." && s.Coords != nil {
			t.Errorf("%s is in parts", s.Name)
		}
	}
}
