package megatron_test

// This file tests the names of torch_dist.
import (
	"fmt"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/tensor"
)

// metadataNames writes a checkpoint as torch_dist, and returns the names in the metadata. Tensors
// have their shapes beside. It fails or stops the test where what is written is not sound.
func metadataNames(t *testing.T, c *format.Checkpoint, files *format.Files) []string {
	t.Helper()
	out, err := megatron.LayoutDist(whole, c.Tensors, c.Values, files.Read)
	if err != nil {
		t.Fatal(err)
	}
	dir := innerFolder(t, formattest.WriteOutput(t, out, c, files))
	read, err := dcp.Read(format.NewFiles(dir), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range read.Tensors {
		names = append(names, fmt.Sprint(x.Name, x.Shape))
	}
	for _, v := range read.Values {
		names = append(names, v.Path)
	}
	again, files := readDist(t, dir)
	for _, f := range again.Check(files) {
		t.Error(f)
	}
	return names
}

// TestDistKeys: layers and experts stand in one tensor where Megatron has them in one, modules have
// what they keep beside, and norms the name that they have everywhere.
func TestDistKeys(t *testing.T) {
	const one, two = "model.decoder.layers.0.", "model.decoder.layers.1."
	for name, x := range map[string]struct {
		tensors []string
		values  []format.Value
		want    []string
	}{
		"alike": {[]string{one + "self_attention.linear_proj.weight",
			two + "self_attention.linear_proj.weight"}, nil, []string{
			"decoder.layers.self_attention.linear_proj.weight[2,2,2]",
			"decoder.layers.self_attention.core_attention._extra_state/shard_0_2",
			"decoder.layers.self_attention.core_attention._extra_state/shard_1_2",
			"decoder.layers.self_attention.linear_proj._extra_state/shard_0_2",
			"decoder.layers.self_attention.linear_proj._extra_state/shard_1_2"}},
		"unlike": {[]string{one + "mlp.linear_fc2.weight", two + "mlp.linear_fc1.weight"}, nil,
			[]string{
				"decoder.layers.0.mlp.linear_fc2.weight[2,2]",
				"decoder.layers.1.mlp.linear_fc1.weight[2,2]",
				"decoder.layers.0.mlp.linear_fc2._extra_state/shard_0_1",
				"decoder.layers.1.mlp.linear_fc1._extra_state/shard_0_1"}},
		"said to be unlike": {
			[]string{one + "mlp.experts.local_experts.0.linear_fc2.weight",
				one + "mlp.experts.local_experts.1.linear_fc2.weight"},
			[]format.Value{{Path: "args.moe_layer_freq", Data: []any{int64(1)}}}, []string{
				"decoder.layers.0.mlp.experts.experts.linear_fc2.weight[2,2,2]",
				"decoder.layers.0.mlp.experts.experts.linear_fc2._extra_state/shard_0_2",
				"decoder.layers.0.mlp.experts.experts.linear_fc2._extra_state/shard_1_2"}},
		"experts": {[]string{one + "mlp.experts.linear_fc1.weight0",
			one + "mlp.experts.linear_fc1.weight1"},
			[]format.Value{{Path: "args.moe_layer_freq", Data: int64(1)}}, []string{
				"decoder.layers.mlp.experts.experts.linear_fc1.weight[1,2,2,2]",
				"decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_0.0_1.2",
				"decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_0.1_1.2"}},
		"norms": {[]string{one + "self_attention.linear_qkv.weight", one + "input_layernorm.weight",
			one + "pre_mlp_layernorm.bias", "model.decoder.final_layernorm.weight"}, nil, []string{
			"decoder.final_layernorm.weight[2]",
			"decoder.layers.mlp.linear_fc1.layer_norm_bias[1,2]",
			"decoder.layers.self_attention.linear_qkv.layer_norm_weight[1,2]",
			"decoder.layers.self_attention.linear_qkv.weight[1,2,2]",
			"decoder.final_layernorm._extra_state/shard_0_1",
			"decoder.layers.mlp.linear_fc1._extra_state/shard_0_1",
			"decoder.layers.self_attention.linear_qkv._extra_state/shard_0_1"}},
		"norms of their own": {
			[]string{one + "self_attention.linear_q_proj.weight", one + "input_layernorm.weight"},
			nil, []string{
				"decoder.layers.input_layernorm.weight[1,2]",
				"decoder.layers.self_attention.linear_q_proj.weight[1,2,2]",
				"decoder.layers.input_layernorm._extra_state/shard_0_1",
				"decoder.layers.self_attention.linear_q_proj._extra_state/shard_0_1"}},
		"state of a module": {
			[]string{one + "mlp.linear_fc2.weight", one + "mlp.linear_fc2._extra_state"},
			[]format.Value{{Path: "model.decoder.layers.0.x._extra_state", Data: nil}}, []string{
				"decoder.layers.mlp.linear_fc2._extra_state/shard_0_1.0[2,2]",
				"decoder.layers.mlp.linear_fc2.weight[1,2,2]"}},
	} {
		c, files := tinyCheckpoint(x.tensors...)
		c.Values = x.values
		if diff := cmp.Diff(x.want, metadataNames(t, c, files)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// TestDistNames: of two names for the same, one counts; what lacks a layer, or lies otherwise,
// stays as it is.
func TestDistNames(t *testing.T) {
	one := func(from, to int) format.Shard {
		s := tensor.Shape{2, 3}
		b := s.Box()
		b[0] = tensor.Span{From: from, To: to}
		return format.Shard{DType: tensor.U8, Shape: s, Box: b}
	}
	named := func(name string, shards ...format.Shard) []format.Shard {
		for i := range shards {
			shards[i].Name = name
		}
		return shards
	}
	common := &pickle.Dict{}
	common.Add("iteration", int64(7))
	ours, optimizer, state := &pickle.Dict{}, &pickle.Dict{}, &pickle.Dict{}
	ours.Add("kept", int64(1))
	state.Add("common_step", int64(7))
	optimizer.Add("state", state)
	common.Add("shoal", ours)
	common.Add("optimizer", optimizer)
	content := dcp.Content{Ranks: [][]format.Shard{slices.Concat(
		named("decoder.layers.a", one(0, 1), one(1, 2)), named("decoder.layers.b", one(0, 1)),
		named("decoder.layers.c", one(0, 2)),
		named("optimizer.state.exp_avg.decoder.layers.a", one(1, 2)),
		named("optimizer.state.fp32_param.decoder.layers.a", one(0, 1), one(1, 2)),
		named("chained_0.optimizer.state.param.decoder.layers.b", one(0, 1)),
		named("optimizer.distributed.x", one(0, 2)),
		named("optimizer.state.step.decoder.layers.a", one(0, 1), one(1, 2)))},
		Values: []format.Value{{Path: "rng_state/shard_0.0_1.2", Data: []any{"r"}},
			{Path: "decoder.layers.a._extra_state/shard_1_2", Data: []any{"kept"}}},
		Objects: []dcp.Object{
			{Name: "common_state/shard_0_1", Root: &pickle.List{Items: []any{common}}}},
		Aliases: map[string][]string{
			"optimizer.state.fp32_param.decoder.layers.a": {
				"optimizer.state.param.decoder.layers.a"},
			"decoder.layers.a": {"optimizer.state.param.decoder.layers.d"}},
	}
	out, err := content.Layout()
	if err != nil {
		t.Fatal(err)
	}
	dir := fstest.MapFS{megatron.ConfigName: {Data: []byte(`{"sharded_backend": "torch_dist"}`)}}
	for _, f := range out.Files {
		dir[f.Name] = &fstest.MapFile{Data: make([]byte, f.Size)}
	}
	for _, f := range out.Frames {
		copy(dir[f.File].Data[f.Offset:], f.Bytes)
	}
	c, _ := readDist(t, dir)
	var names []string
	for _, x := range c.Tensors {
		names = append(names, fmt.Sprint(x.Name, x.Shape))
	}
	for _, v := range c.Values {
		names = append(names, fmt.Sprint(v.Path, "=", v.Data))
	}
	if diff := cmp.Diff([]string{
		"decoder.layers.b[2,3]", "decoder.layers.c[2,3]", "model.decoder.layers.0.a[3]",
		"model.decoder.layers.1.a[3]", "optimizer.distributed.x[2,3]",
		"optimizer.exp_avg.decoder.layers.1.a[3]", "optimizer.fp32.decoder.layers.0.a[3]",
		"optimizer.fp32.decoder.layers.0.b[3]", "optimizer.fp32.decoder.layers.1.a[3]",
		"optimizer.step.decoder.layers.0.a[3]", "optimizer.step.decoder.layers.1.a[3]",
		"iteration=7", "kept=1", "model.decoder.layers.1.a._extra_state=kept",
		"rng_state/shard_0.0_1.2=[r]",
	}, names); diff != "" {
		t.Error(diff)
	}
	dir[megatron.ConfigName].Data = []byte(`{"sharded_backend": "zarr"}`)
	if c, _ = readDist(t, dir); c.Format != "torch DCP" ||
		c.Tensors[0].Name != "chained_0.optimizer.state.param.decoder.layers.b" {
		t.Errorf("%s, %s", c.Format, c.Tensors[0].Name)
	}
}
