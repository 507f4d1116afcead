package megatron

// This file tests buffers of dp_reshardable that Megatron-Core has saved.
import (
	"encoding/hex"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/tensor"
)

// readSaved reads what Megatron-Core has saved in one of its formats for the distributed optimizer;
// change is called before buffers are taken apart. name is a zip of testdata, and form a folder in
// it; change is nil for no change. It stops the test if that cannot be read.
func readSaved(t *testing.T, name, form string,
	change func(*format.Checkpoint)) (*format.Checkpoint,
	*format.Files) {
	t.Helper()
	dir, _ := formattest.Load(t, "testdata/"+name+".zip")
	sub, err := fs.Sub(dir, form)
	if err != nil {
		t.Fatal(err)
	}
	files := format.NewFiles(sub)
	if change == nil {
		c, err := ReadDist(files)
		if err != nil {
			t.Fatal(err)
		}
		return c, files
	}
	c, err := dcp.Read(files, globals)
	if err != nil {
		t.Fatal(err)
	}
	c.Format, c.Tensors = distFormat, splitTensors(c.Tensors)
	if err := readCommon(files, c); err != nil {
		t.Fatal(err)
	}
	c.Values = splitValues(c)
	change(c)
	if err := c.Finish(); err != nil {
		t.Fatal(err)
	}
	if err := splitBuckets(files, c); err != nil {
		t.Fatal(err)
	}
	return c, files
}

// paramElements returns the elements of all tensors of parameters.
func paramElements(t *testing.T, files *format.Files, c *format.Checkpoint) map[string]string {
	t.Helper()
	all := map[string]string{}
	for i := range c.Tensors {
		if x := &c.Tensors[i]; knownTensor.MatchString(x.Name) {
			all[x.Name] = x.DType.String() + hex.EncodeToString(formattest.ReadTensor(t, files, x))
		}
	}
	return all
}

// TestReshardable reads what Megatron-Core 0.16.1 has saved, over ranks of every kind: buffers come
// apart, and the copies prove it. Of buffers of one bucket they are what the same training has in
// fully_reshardable; of several buckets Megatron saves something else there than the optimizer has.
func TestReshardable(t *testing.T) {
	for _, name := range []string{"reshardable", "sharded"} {
		c, files := readSaved(t, name, "dp_reshardable", nil)
		got := paramElements(t, files, c)
		if len(got) < 180 {
			t.Errorf("%s: there are %d tensors", name, len(got))
		}
		whole := &format.Checkpoint{}
		if name == "sharded" {
			var other *format.Files
			whole, other = readSaved(t, name, "fully_reshardable", nil)
			if diff := cmp.Diff(paramElements(t, other, whole), got); diff != "" {
				t.Errorf("%s: -fully_reshardable +dp_reshardable\n%s", name, diff)
			}
		}
		for i := range c.Tensors {
			if x := &c.Tensors[i]; x.WhyPart != "" || bufferKeys.MatchString(x.Name) {
				t.Errorf("%s: %s stays: %s", name, x.Name, x.WhyPart)
			}
		}
		faults, err := formattest.CheckProofs(files, c)
		if faults = append(faults, c.Check(files)...); err != nil || len(faults) > 0 {
			t.Errorf("%s: %v, %v", name, faults, err)
		}
		for _, v := range whole.Values {
			if got, ok := c.Value(v.Path); strings.Contains(v.Path, "param_groups") &&
				(!ok || !cmp.Equal(got, v.Data)) {
				t.Errorf("%s: %s is %v, want %v", name, v.Path, got, v.Data)
			}
		}
		for _, v := range c.Values {
			if bufferKeys.MatchString(v.Path) {
				t.Errorf("%s: %s is there", name, v.Path)
			}
		}
	}
}

// TestReshardableStays has checkpoints of which shoal cannot tell what is in the buffers: they
// stay, and say why.
func TestReshardableStays(t *testing.T) {
	set := func(path string, is any) func(*format.Checkpoint) {
		return func(c *format.Checkpoint) {
			c.Values = slices.DeleteFunc(c.Values, func(v format.Value) bool {
				return v.Path == path
			})
			if is != "" {
				c.Values = append(c.Values, format.Value{Path: path, Data: is})
			}
		}
	}
	// each the other's, or the first something else
	renamed := func(names ...string) func(*format.Checkpoint) {
		return func(c *format.Checkpoint) {
			for i := range c.Tensors {
				if k := slices.Index(names, c.Tensors[i].Name); k >= 0 {
					c.Tensors[i].Name = names[k^1]
				}
			}
		}
	}
	for name, x := range map[string]struct {
		change func(*format.Checkpoint)
		why    string
	}{
		"no arguments": {set("args.pipeline_model_parallel_size", ""),
			"there is no args.pipeline_model_parallel_size that says how many"},
		"other ranks": {set("args.expert_model_parallel_size", int64(2)),
			"by args.expert_model_parallel_size experts have an optimizer of their own"},
		"other chunks": {set("args.virtual_pipeline_model_parallel_size", nil),
			"has buckets that do not end where parameters do"},
		"stages": {set("args.decoder_first_pipeline_num_layers", int64(3)),
			"by args.decoder_first_pipeline_num_layers stages have unlike numbers of layers"},
		"experts": {set("args.expert_tensor_parallel_size", int64(4)),
			"experts are cut over other tensor parallel ranks"},
		"an unknown parameter": {
			renamed("model.decoder.layers.1.self_attention.linear_proj.weight",
				"model.decoder.layers.1.self_attention.linear_q.weight"),
			`of the parameter "decoder.layers.1.self_attention.linear_q.weight", of bf16, shoal does not know`},
		"one is not trained": {func(c *format.Checkpoint) {
			s := tensor.Shape{3}
			c.Tensors = append(c.Tensors,
				format.Tensor{Name: "model.decoder.layers.1.mlp.router.bias", DType: tensor.BF16,
					Shape: s, Pieces: []format.Piece{
						{Box: s.Box(), File: c.Tensors[0].Pieces[0].File}}})
		}, "has buckets that do not end where parameters do"},
		"other numbers": {
			renamed("model.decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight",
				"model.decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight"),
			"the copies in f32 are not those of the model's parameters"},
		"a missing bucket": {func(c *format.Checkpoint) {
			c.Tensors = slices.DeleteFunc(c.Tensors, func(x format.Tensor) bool {
				return strings.HasSuffix(x.Name, ".bucket_idx_0.param")
			})
		}, "has no copies of the parameters"},
		"a bucket of another type": {func(c *format.Checkpoint) {
			i := slices.IndexFunc(c.Tensors, func(x format.Tensor) bool {
				return strings.HasSuffix(x.Name, ".bucket_idx_0.param")
			})
			c.Tensors[i].DType = tensor.BF16
		}, "no flat buffer like the others"},
		"a gap": {func(c *format.Checkpoint) {
			for i := range c.Tensors {
				if x := &c.Tensors[i]; strings.HasSuffix(x.Name, ".bucket_idx_0.exp_avg") {
					x.Pieces = x.Pieces[1:]
				}
			}
		}, "has no elements where"},
	} {
		c, _ := readSaved(t, "reshardable", "dp_reshardable", x.change)
		n := 0
		for i := range c.Tensors {
			if bucketKey.MatchString(c.Tensors[i].Name) {
				n++
				if why := c.Tensors[i].WhyPart; !strings.Contains(why, x.why) {
					t.Errorf("%s: %s, want %q", name, why, x.why)
				}
			}
		}
		if n == 0 {
			t.Errorf("%s: no buffer stays", name)
		}
	}
}
