package megatron_test

// This file tests optimizers that are joined and divided for other expert parallel ranks.
import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// TestChain writes what torch has saved for two expert parallel ranks for one, and the other way:
// the file of each rank is what torch has saved for these.
func TestChain(t *testing.T) {
	for from, to := range map[string]string{"chained": "together", "together": "chained"} {
		dir, _ := formattest.Load(t, "testdata/"+from+".zip")
		other, _ := formattest.Load(t, "testdata/"+to+".zip")
		mesh := map[string]string{"chained": "ep=2", "together": ""}[to]
		c, files := mustRead(t, dir)
		written := writeForMesh(t, c, files, mesh)
		for name := range other {
			if !strings.HasSuffix(name, ".pt") {
				continue
			}
			if diff := cmp.Diff(fileTensors(t, other, name),
				fileTensors(t, written, name)); diff != "" {
				t.Errorf("%s: %s\n%s", to, name, diff)
			}
		}
		theirs, _ := mustRead(t, other)
		ours, _ := mustRead(t, written)
		for _, v := range theirs.Values {
			if got, _ := ours.Value(v.Path); strings.Contains(v.Path, ".param_groups.") &&
				(strings.HasSuffix(v.Path, "_mult") || strings.Contains(v.Path, "param_names") ||
					strings.HasSuffix(v.Path, "parallel")) && !cmp.Equal(v.Data, got) {
				t.Errorf("%s: %s is %v, want %v", to, v.Path, got, v.Data)
			}
		}
	}
}

// chainCheckpoint returns what optimizers have beside the state of parameters: for each group a
// factor of weight decay, whether it is of experts, and one parameter. groups has the parameter by
// the path of the group.
func chainCheckpoint(groups map[string]string) *format.Checkpoint {
	c := &format.Checkpoint{Format: "test"}
	for at, param := range groups {
		setValue(c, at+"wd_mult", 1.0)
		setValue(c, at+"lr_mult", 1.0)
		setValue(c, at+"lr", 0.5)
		setValue(c, at+"is_expert_parallel", strings.HasPrefix(at, "optimizer.1."))
		setValue(c, at+"param_names", []any{param})
	}
	return c
}

const (
	routed    = "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight"
	router    = "decoder.layers.0.mlp.router.weight"
	oneGroup  = "optimizer.optimizer.param_groups.0."
	dense     = "optimizer.0.optimizer.param_groups.0."
	sparse    = "optimizer.1.optimizer.param_groups.0."
	scheduled = "optimizer.1.optimizer.x"
)

// TestChainOptimizersValues has ChainOptimizers join the values of Megatron's optimizers of dense
// and of expert parameters where the mesh has no expert parallelism, and divide them where it has:
// groups that differ, values of no group, and what cannot be joined.
func TestChainOptimizersValues(t *testing.T) {
	for _, x := range []struct {
		name, mesh string
		change     func(c *format.Checkpoint)
		want       map[string]any // nil: nothing changes
		err        string
	}{
		{"the same already", "ep=2", func(c *format.Checkpoint) {
			setValue(c, sparse+"lr", 0.7)
		}, nil, ""},
		{"one", "tp=2", func(*format.Checkpoint) {},
			map[string]any{oneGroup + "param_names": []any{router, routed},
				oneGroup + "is_expert_parallel": false, oneGroup + "lr": 0.5, sparse + "lr": nil},
			""},
		{"no experts, but groups for them", "", func(c *format.Checkpoint) {
			setValue(c, sparse+"param_names", nil)
		}, map[string]any{oneGroup + "param_names": []any{router}}, ""},
		{"other weight decay", "", func(c *format.Checkpoint) {
			setValue(c, sparse+"wd_mult", 0.0)
		}, map[string]any{
			oneGroup + "param_names":                                []any{router},
			"optimizer.optimizer.param_groups.1.param_names":        []any{routed},
			"optimizer.optimizer.param_groups.1.is_expert_parallel": false}, ""},
		{"another rate", "", func(c *format.Checkpoint) {
			setValue(c, sparse+"lr", 0.7)
		}, nil, "and their lr is not the same"},
		{"something more", "", func(c *format.Checkpoint) {
			setValue(c, sparse+"step", int64(3))
		}, nil, "and their step is not the same"},
		{"a scale", "", func(c *format.Checkpoint) {
			setValue(c, "optimizer.0.grad_scaler.growth_tracker", int64(3))
			setValue(c, "optimizer.1.grad_scaler.growth_tracker", int64(4))
		}, map[string]any{"optimizer.grad_scaler.growth_tracker": int64(3),
			"optimizer.1.grad_scaler.growth_tracker": nil}, ""},
		{"what both have", "", func(c *format.Checkpoint) {
			setValue(c, "optimizer.0.optimizer.x", int64(3))
			setValue(c, scheduled, int64(3))
		}, map[string]any{"optimizer.optimizer.x": int64(3), scheduled: nil}, ""},
		{"what one has otherwise", "", func(c *format.Checkpoint) {
			setValue(c, "optimizer.0.optimizer.x", int64(3))
			setValue(c, scheduled, int64(4))
		}, nil, `value "optimizer.1.optimizer.x" is 4, and the first optimizer has 3 there`},
		{"what one has", "", func(c *format.Checkpoint) {
			setValue(c, scheduled, int64(4))
		}, nil, "has <nil> there"},
		{"a hole", "", func(c *format.Checkpoint) {
			setValue(c, "optimizer.1.optimizer.param_groups.2.lr", 1.0)
		}, nil, "of the groups of optimizer.1 (param_groups), 1 of 2 is missing"},
		{"of two kinds", "", func(c *format.Checkpoint) {
			setValue(c, "optimizer.2.param_groups.0.lr", 1.0)
		}, nil, "one keeps copies of its parameters and another does not"},
		{"a tensor", "", func(c *format.Checkpoint) {
			c.Tensors = append(c.Tensors, format.Tensor{Name: "optimizer.1.x"})
		}, nil, `tensor "optimizer.1.x" is of one of several optimizers`},
	} {
		c := chainCheckpoint(map[string]string{dense: router, sparse: routed})
		x.change(c)
		before := groupValues(c)
		_, err := megatron.ChainOptimizers(c, &layout.Spec{Mesh: x.mesh})
		if x.err != "" {
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%s: %v, want %q", x.name, err, x.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
		}
		if x.want == nil && !cmp.Equal(before, groupValues(c)) {
			t.Errorf("%s: %v", x.name, groupValues(c))
		}
		for path, want := range x.want {
			if got, _ := c.Value(path); !cmp.Equal(got, want) {
				t.Errorf("%s: %s is %v, want %v", x.name, path, got, want)
			}
		}
	}
	// From one optimizer: experts leave it, and a group that had nothing else goes with them.
	c := chainCheckpoint(
		map[string]string{oneGroup: router, "optimizer.optimizer.param_groups.1.": routed})
	if _, err := megatron.ChainOptimizers(c, &layout.Spec{Mesh: "ep=2"}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]any{
		dense + "param_names": []any{router}, dense + "is_expert_parallel": false,
		"optimizer.0.optimizer.param_groups.1.lr": nil,
		sparse + "param_names":                    []any{routed},
		sparse + "is_expert_parallel":             true,
		sparse + "lr":                             0.5, oneGroup + "lr": nil,
	} {
		if got, _ := c.Value(path); !cmp.Equal(got, want) {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
}

// TestChainOfStages: older versions have one optimizer on stages without experts, and two on the
// others.
func TestChainOfStages(t *testing.T) {
	c := chainCheckpoint(map[string]string{oneGroup: router, sparse: routed})
	for _, name := range []string{"optimizer.grad_scaler.scale", "optimizer.0.grad_scaler.scale",
		"optimizer.1.grad_scaler.scale"} {
		c.Tensors = append(c.Tensors,
			format.Tensor{Name: name, DType: tensor.F32, Shape: tensor.Shape{1}})
	}
	if _, err := megatron.ChainOptimizers(c, &layout.Spec{Mesh: "pp=2,ep=2"}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]any{dense + "param_names": []any{router},
		sparse + "param_names": []any{routed}, oneGroup + "lr": nil} {
		if got, _ := c.Value(path); !cmp.Equal(got, want) {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	if len(c.Tensors) != 2 {
		t.Errorf("%v", c.Tensors)
	}
}

// TestChainOfChunks: with a virtual pipeline and overlapped steps Megatron has an optimizer for the
// first chunk and one for the others; without there is one.
func TestChainOfChunks(t *testing.T) {
	c := chainCheckpoint(
		map[string]string{dense: router, sparse: "decoder.layers.1.mlp.router.weight"})
	setValue(c, sparse+"is_expert_parallel", false)
	if _, err := megatron.ChainOptimizers(c, &layout.Spec{}); err != nil {
		t.Fatal(err)
	}
	if got, _ := c.Value(oneGroup +
		"param_names"); fmt.Sprint(got) != fmt.Sprint(
		[]string{router, "decoder.layers.1.mlp.router.weight"}) {
		t.Error(got)
	}
}
