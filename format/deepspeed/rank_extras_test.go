package deepspeed_test

// This file tests what optimizers keep beside flat buffers.
import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/tensor"
)

// TestNothingIsDropped has optimizers that keep more than DeepSpeed cuts: matrices in lists,
// a matrix alone, tensors beside all parameters, of which each rank has its own, and a learning
// rate that is a tensor. All of it is read.
func TestNothingIsDropped(t *testing.T) {
	for _, stage := range []int{1, 2, 3} {
		c := threeParams()
		c.stage = stage
		number := func(mp, dp, n int) array { return numberedArray(1000*(1+mp)+100*dp+n, 2) }
		c.keeps = func(f *store, mp, dp int, k kept) {
			k.outer.Add("seen", f.addArray(number(mp, dp, 0)))
			k.inner.Add("basis", f.addArray(number(mp, dp, 10)))
			k.group.Set("lr", f.addArray(array{tensor.Shape{}, []float32{0.125}}))
			k.group.Add("ema", f.addArray(number(mp, dp, 20)))
			k.state.Add("factors",
				newList(f.addArray(number(mp, dp, 30)), f.addArray(number(mp, dp, 40))))
			k.state.Add("matrix", f.addArray(numberedArray(1000*(1+mp)+100*dp+50, 2, 3)))
			k.state.Add("fused", true)
		}
		files := format.NewFiles(c.write(t))
		got, err := deepspeed.Read(files)
		if err != nil {
			t.Fatal(err)
		}
		inner := map[bool]string{false: "base_optimizer_state",
			true: "optimizer_state_dict"}[stage == 3]
		want, found := map[string]string{}, map[string]string{}
		for mp := range 2 {
			for dp := range 2 {
				at := fmt.Sprintf(" tp=%d/2,dp=%d/2", mp, dp)
				want["optimizer_state."+inner+".state.0.matrix"+at] =
					numberedArray(1000*(1+mp)+100*dp+50, 2, 3).String()
				for i, name := range []string{"seen", inner + ".basis", "param_groups.0.ema",
					inner + ".state.0.factors.0", inner + ".state.0.factors.1"} {
					want["optimizer_state."+name+at] = number(mp, dp, 10*i).String()
				}
			}
		}
		for i := range got.Tensors {
			x := &got.Tensors[i]
			if strings.HasPrefix(x.Name, "optimizer_state.") {
				found[x.Name+" "+x.Coords.String()] = fmt.Sprint(x.DType, x.Shape,
					formattest.ReadTensor(t, files, x))
			}
		}
		if diff := cmp.Diff(want, found); diff != "" {
			t.Errorf("stage %d: %s", stage, diff)
		}
		for path, want := range map[string]any{"optimizer_state.param_groups.0.lr": 0.125,
			"optimizer_state." + inner + ".state.0.fused": true} {
			if is, _ := got.Value(path); is != want {
				t.Errorf("stage %d: %s is %v, want %v", stage, path, is, want)
			}
		}
	}
}

// TestNumbersOfUniversal has a learning rate in a tensor in a universal checkpoint, and a tensor
// beside that is no number. The one becomes a value, and the other stays a tensor.
func TestNumbersOfUniversal(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/universal1.zip")
	s := &saver{t: t, out: &format.Output{}, from: &format.Checkpoint{}}
	const name = "global_step2_universal/zero/optimizer_state.pt"
	if dir[name] == nil {
		t.Fatal("there is no ", name)
	}
	s.writeFile(name, func(f *store) any {
		return newDict("param_groups",
			newList(newDict("lr", f.addArray(array{tensor.Shape{}, []float32{0.125}}))), "seen",
			f.addArray(numberedArray(1, 3)))
	})
	dir[name] = formattest.WriteOutput(t, s.out, s.from,
		format.NewFiles(fstest.MapFS{"blob": {Data: s.blob}}))[name]
	got, err := deepspeed.Read(format.NewFiles(dir))
	if err != nil {
		t.Fatal(err)
	}
	if lr, _ := got.Value("optimizer_state.param_groups.0.lr"); lr != 0.125 {
		t.Errorf("the learning rate is %v", lr)
	}
	if !slices.ContainsFunc(got.Tensors, func(x format.Tensor) bool {
		return x.Name == "optimizer_state.seen" && x.Coords == nil
	}) {
		t.Error("optimizer_state.seen is dropped")
	}
}
