package deepspeed_test

// This file tests optimizers without ZeRO, whose state has no names.
import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// TestExpertsWithoutZeRO reads experts whose optimizer has no names: its state stays in the parts
// of the expert parallel ranks, in each stage of a pipeline.
func TestExpertsWithoutZeRO(t *testing.T) {
	checkWithoutZeRO(t, "moe0", map[string]int{"ep=0/2": 27, "ep=1/2": 27})
	checkWithoutZeRO(t, "moepipe0",
		map[string]int{"ep=0/2,pp=0/2": 27, "ep=1/2,pp=0/2": 27, "ep=0/2,pp=1/2": 36,
			"ep=1/2,pp=1/2": 36})
}

// checkWithoutZeRO reads a sample, and demands as many parts of each tensor of the optimizer as due
// says. Keys of due are coordinates. It fails the test too if the model is not that of the sample,
// or if nobody misses a file of experts.
func checkWithoutZeRO(t *testing.T, name string, due map[string]int) {
	dir, want := formattest.Load(t, "testdata/"+name+".zip")
	c, files := mustRead(t, dir)
	var model []format.Tensor
	parts := map[string]int{}
	for _, x := range c.Tensors {
		if strings.HasPrefix(x.Name, "module.") {
			model = append(model, x)
			continue
		}
		if x.WhyPart == "" {
			t.Errorf("%s is whole", x.Name)
		}
		parts[x.Coords.String()]++
	}
	formattest.Compare(t, files, &format.Checkpoint{Tensors: model}, want)
	if diff := cmp.Diff(due, parts); diff != "" {
		t.Error(diff)
	}
	delete(dir, "global_step2/expp_rank_0_mp_rank_00_optim_states.pt")
	if _, err := deepspeed.Read(format.NewFiles(dir)); err == nil ||
		!strings.Contains(err.Error(), "there is no file expp_rank_0_mp_rank_00_optim_states.pt") {
		t.Error(err)
	}
}

// TestTensorParallelWithoutZeRO keeps the state of every tensor parallel rank, which has no names
// there.
func TestTensorParallelWithoutZeRO(t *testing.T) {
	blob := format.Tensor{Name: "w", DType: tensor.F32, Shape: tensor.Shape{2},
		Pieces: []format.Piece{{Box: tensor.Shape{2}.Box(), File: "blob"}}}
	from, out := &format.Checkpoint{}, &format.Output{}
	for _, name := range []string{"mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"} {
		var list []format.Tensor
		root := &pickle.Dict{}
		for i, key := range []string{"module.w", "optimizer.state.0.exp_avg"} {
			x := blob
			x.Name = name + key
			p, err := torchzip.Placeholder(i, x)
			if err == nil {
				err = root.Put(key, p)
			}
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, x)
		}
		at, err := torchzip.LayoutRoot(out, name, root, list)
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range list {
			from.Tensors = append(from.Tensors, x)
			x.Pieces = []format.Piece{{Box: x.Shape.Box(), File: name, Offset: at[i]}}
			out.Tensors = append(out.Tensors, x)
		}
	}
	c, _ := mustRead(t, formattest.WriteOutput(t, out, from,
		format.NewFiles(fstest.MapFS{"blob": {Data: make([]byte, 8)}})))
	var found []string
	for _, x := range c.Tensors {
		found = append(found, x.Name+" "+x.Coords.String())
		if x.WhyPart == "" {
			t.Errorf("%s is whole", x.Name)
		}
	}
	if want := []string{"module.w tp=0/2", "module.w tp=1/2", "optimizer.state.0.exp_avg tp=0/2",
		"optimizer.state.0.exp_avg tp=1/2"}; !slices.Equal(found, want) {
		t.Errorf("%v, want %v", found, want)
	}
}

// TestPipeWithoutZeRO says that nothing tells whether a layer is missing.
func TestPipeWithoutZeRO(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/pipe.zip")
	maps.DeleteFunc(dir, func(name string, _ *fstest.MapFile) bool {
		return strings.Contains(name, "optim_states")
	})
	c, _ := mustRead(t, dir)
	if !strings.Contains(c.Doubt, "there are no optimizer states files") {
		t.Errorf("%q", c.Doubt)
	}
	for name, f := range dir {
		dir[name] = f
		if strings.HasSuffix(name, "_model_states.pt") {
			dir[name] = &fstest.MapFile{
				Data: formattest.ReplaceInZip(t, f.Data, "param_shapes", "param_shapez")}
		}
	}
	if c, _ = mustRead(t, dir); !strings.Contains(c.Doubt,
		"whether a file of a layer is missing") {
		t.Errorf("%q", c.Doubt)
	}
}
