package deepspeed_test

// This file tests ZeRO written for random ranks, against flat buffers that are cut here.
import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// drawn is a small model with its optimizer, in one file.
type drawn struct {
	*format.Checkpoint
	blob   []byte     // elements of all tensors: the file
	groups [][]string // parameters of each group
}

// addTensor adds to the checkpoint a tensor whose bytes count up. It draws nothing from r.
func (d *drawn) addTensor(r *rapid.T, name string, shape ...int) {
	t := format.Tensor{Name: name, DType: tensor.F32, Shape: shape}
	t.Pieces = []format.Piece{{Box: t.Shape.Box(), File: "blob", Offset: int64(len(d.blob))}}
	for range t.Bytes() {
		d.blob = append(d.blob, byte(len(d.blob)*7+len(d.blob)>>8))
	}
	d.Tensors = append(d.Tensors, t)
}

// drawCheckpoint draws the parameters and the optimizer of a checkpoint.
func drawCheckpoint(r *rapid.T) *drawn {
	d := &drawn{Checkpoint: &format.Checkpoint{}}
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(r, name) }
	names := rapid.Permutation([]string{"a", "b.w", "b.b", "c", "d.0", "d.1"}).Draw(r, "order")
	d.groups = make([][]string, n("groups", 1, 3))
	for i, name := range names[:n("parameters", len(d.groups), len(names))] {
		g := i
		if i >= len(d.groups) {
			g = n("group", 0, len(d.groups)-1)
		}
		d.groups[g] = append(d.groups[g], name)
		shape := []int{n("rows", 1, 9), n("columns", 1, 9)}[:n("dimensions", 0, 2)]
		for _, kind := range []string{"fp32", "exp_avg"} {
			d.addTensor(r, "optimizer."+kind+"."+name, shape...)
		}
	}
	for g, list := range d.groups {
		var all []any
		for _, name := range list {
			all = append(all, name)
			d.Values = append(d.Values,
				format.Value{Path: "optimizer.step." + name, Data: int64(g)})
		}
		d.Values = append(d.Values,
			format.Value{Path: fmt.Sprintf("optimizer_state.param_groups.%d.param_names", g),
				Data: all},
			format.Value{Path: fmt.Sprintf("optimizer_state.param_groups.%d.lr", g),
				Data: float64(g)})
	}
	if rapid.Bool().Draw(r, "small groups") {
		d.Values = append(d.Values,
			format.Value{Path: "ds_config.zero_optimization.sub_group_size",
				Data: int64(n("of a group", 1, 30))})
	}
	d.addTensor(r, "module.buffer", 3)
	d.addTensor(r, "module.frozen", n("frozen", 1, 7), 2)
	d.Values = append(d.Values, format.Value{Path: "buffer_names", Data: []any{"buffer"}},
		format.Value{Path: "shared_params.head.w", Data: d.groups[0][0]})
	if err := d.Finish(); err != nil {
		r.Fatal(err)
	}
	return d
}

// TestZeroRandom takes state through several stages, numbers of ranks and universal checkpoints,
// and compares with what was drawn; and the flat buffers of the last with those that DeepSpeed
// would have cut.
func TestZeroRandom(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		d := drawCheckpoint(r)
		c, files := d.Checkpoint, format.NewFiles(fstest.MapFS{"blob": {Data: d.blob}})
		all := formattest.Contents(t, files, c)
		var dir fstest.MapFS
		stage, ranks := 0, 0
		for range rapid.IntRange(1, 4).Draw(r, "moves") {
			if rapid.IntRange(0, 4).Draw(r, "universal") == 0 {
				dir = writeUniversal(t, c, files)
			}
			stage, ranks = rapid.IntRange(1, 3).Draw(r, "stage"),
				rapid.IntRange(1, 5).Draw(r, "ranks")
			dir = writeZero(t, stage, ranks, c, files)
			c, files = mustRead(t, dir)
		}
		if faults := c.Check(files); len(faults) > 0 {
			r.Fatal(faults)
		}
		got := formattest.Contents(t, files, c)
		if diff := cmp.Diff(all, got); diff != "" {
			r.Errorf("stage %d over %d: %s", stage, ranks, diff)
		}
		for _, v := range d.Values {
			if is, _ := c.Value(v.Path); !cmp.Equal(is, v.Data) {
				r.Errorf("stage %d over %d: %s is %v, was %v", stage, ranks, v.Path, is, v.Data)
			}
		}
		for _, kind := range []string{"fp32", "exp_avg"} {
			if want, got := d.cutBuffers(t, kind, stage, ranks),
				readBuffers(t, dir, "", kind, stage, ranks); !cmp.Equal(want, got) {
				r.Errorf("stage %d over %d, %s: %v, want %v", stage, ranks, kind, got, want)
			}
		}
	})
}

// cutBuffers returns the flat buffers of each rank as DeepSpeed cuts them. They are by rank and
// group, in bytes.
func (d *drawn) cutBuffers(t *testing.T, kind string, stage, ranks int) (all [][][]byte) {
	files := format.NewFiles(fstest.MapFS{"blob": {Data: d.blob}})
	elements := func(name string) []byte {
		i := slices.IndexFunc(d.Tensors, func(x format.Tensor) bool {
			return x.Name == "optimizer."+kind+"."+name
		})
		return formattest.ReadTensor(t, files, &d.Tensors[i])
	}
	all = make([][][]byte, ranks)
	most := 1 << 30
	for _, v := range d.Values {
		if strings.HasSuffix(v.Path, "sub_group_size") {
			most = int(v.Data.(int64))
		}
	}
	for _, names := range d.groups {
		flat := make([][]byte, ranks)
		var whole []byte
		for i, name := range names {
			b := elements(name)
			whole = append(whole, b...)
			if stage < 3 {
				continue
			}
			for len(b)%(4*ranks) != 0 {
				b = append(b, 0)
			}
			for rank := range ranks {
				n := len(b) / ranks
				flat[rank] = append(flat[rank], b[rank*n:(rank+1)*n]...)
			}
			if i == len(names)-1 || len(flat[0])/4 >= most {
				for rank := range ranks {
					all[rank] = append(all[rank], flat[rank])
					flat[rank] = nil
				}
			}
		}
		if stage == 3 {
			continue
		}
		lean := len(whole)
		for len(whole)%(8*ranks) != 0 {
			whole = append(whole, 0)
		}
		n := len(whole) / ranks
		for rank := range ranks {
			end := (rank + 1) * n
			if kind == "fp32" {
				end = max(min(end, lean), min(rank*n, lean))
			}
			all[rank] = append(all[rank], bytes.Clone(whole[min(rank*n, end):end]))
		}
	}
	return all
}

// readBuffers returns the flat buffers in the files of each rank. They are by rank and group, in
// bytes. prefix begins the names of the files. It stops the test if one cannot be read.
func readBuffers(t *testing.T, dir fstest.MapFS, prefix, kind string, stage,
	ranks int) (all [][][]byte) {
	weights, inner := "single_partition_of_fp32_groups", "base_optimizer_state"
	if stage == 3 {
		weights, inner = "fp32_flat_groups", "optimizer_state_dict"
	}
	get := func(files *format.Files, v any) []byte {
		x := v.(*torchzip.Tensor).AsTensor("x")
		return formattest.ReadTensor(t, files, &x)
	}
	for rank := range ranks {
		files := format.NewFiles(dir)
		f, err := torchzip.Open(files,
			fmt.Sprintf("%s/%szero_pp_rank_%d_mp_rank_00_optim_states.pt",
				dir[deepspeed.LatestName].Data, prefix, rank), deepspeed.Globals)
		if err != nil {
			t.Fatal(err)
		}
		state, err := pickle.Get[*pickle.Dict](f.Root, "optimizer_state_dict")
		if err != nil {
			t.Fatal(err)
		}
		list, _ := pickle.Get[*pickle.List](state, weights)
		kinds, err := pickle.Get[*pickle.Dict](state, inner, "state")
		if err != nil {
			t.Fatal(err)
		}
		var own [][]byte
		for i, v := range list.Items {
			if kind != "fp32" {
				v, _ = kinds.Items[i].Value.(*pickle.Dict).Get(kind)
			}
			own = append(own, get(files, v))
		}
		all = append(all, own)
	}
	return all
}

// TestRoundRobin deals parameters out to ranks in turn: over as many as have trained the buffers
// are DeepSpeed's own.
func TestRoundRobin(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/robin.zip")
	c, files := mustRead(t, dir)
	want := formattest.Contents(t, files, c)
	for ranks := 1; ranks <= 5; ranks++ {
		written := writeZero(t, 2, ranks, c, files)
		again, other := mustRead(t, written)
		if diff := cmp.Diff(want, formattest.Contents(t, other, again)); diff != "" {
			t.Errorf("over %d: %s", ranks, diff)
		}
		order, _ := again.Value("optimizer_state.param_groups.0.param_names")
		if !cmp.Equal(order,
			any([]any{"0.weight", "0.bias", "1.weight", "2.weight", "2.bias", "3.weight"})) {
			t.Errorf("over %d: the order is %v", ranks, order)
		}
		for _, kind := range []string{"fp32", "exp_avg"} {
			same := cmp.Equal(readBuffers(t, dir, "bf16_", kind, 2, 4),
				readBuffers(t, written, "bf16_", kind, 2, ranks))
			if same != (ranks == 4) {
				t.Errorf("over %d ranks %s is as over 4: %v", ranks, kind, same)
			}
		}
	}
}

// TestRoundRobinWhere has round_robin_gradients count where DeepSpeed has it count: not in stage 3,
// nor in 1 before version 0.13; and finds it where the files do not have the configuration.
func TestRoundRobinWhere(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/robin.zip")
	c, files := mustRead(t, dir)
	want := formattest.Contents(t, files, c)
	model := any([]any{"0.weight", "0.bias", "1.weight", "2.weight", "2.bias", "3.weight"})
	const names, version = "optimizer_state.param_groups.0.param_names", "ds_version"
	for _, x := range []struct {
		stage   int
		version string
		dealt   bool
	}{{1, "0.12.6", false}, {1, "0.13.0", true}, {1, "1.0", true}, {1, "unknown", true},
		{2, "0.12.6", true}, {3, "0.19.0", false}} {
		c.Values = append(slices.DeleteFunc(c.Values, func(v format.Value) bool {
			return v.Path == version
		}), format.Value{Path: version, Data: x.version})
		written := writeZero(t, x.stage, 4, c, files)
		again, _ := mustRead(t, written)
		if order, _ := again.Value(names); !cmp.Equal(order, model) {
			t.Errorf("stage %d of %s: the order is %v", x.stage, x.version, order)
		}
		if x.stage == 3 {
			continue
		}
		if same := cmp.Equal(readBuffers(t, dir, "bf16_", "exp_avg", 2, 4),
			readBuffers(t, written, "bf16_", "exp_avg", x.stage, 4)); same != x.dealt {
			t.Errorf("stage %d of %s: dealt out is %v", x.stage, x.version, same)
		}
	}
	for name, f := range dir {
		if strings.HasSuffix(name, "_states.pt") {
			dir[name] = &fstest.MapFile{
				Data: formattest.ReplaceInZip(t, f.Data, "round_robin_gradients",
					"round_robin_gradientz")}
		}
	}
	silent, files := mustRead(t, dir)
	if diff := cmp.Diff(want, formattest.Contents(t, files, silent)); diff != "" {
		t.Error(diff)
	}
	if order, ok := silent.Value(names); ok { // nobody knows that it is to be dealt out again
		t.Errorf("the order is %v", order)
	}
}

// TestZeroRefuses says why a checkpoint cannot be written as one of ZeRO.
func TestZeroRefuses(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/zero2.zip")
	c, files := mustRead(t, dir)
	without := func(path string) []format.Value {
		return slices.DeleteFunc(slices.Clone(c.Values), func(v format.Value) bool {
			return strings.HasPrefix(v.Path, path)
		})
	}
	with := func(path string, is any) []format.Value {
		return append(without(path), format.Value{Path: path, Data: is})
	}
	less := func(name string) []format.Tensor {
		return slices.DeleteFunc(slices.Clone(c.Tensors), func(x format.Tensor) bool {
			return x.Name == name
		})
	}
	other := slices.Clone(c.Tensors)
	i := slices.IndexFunc(other, func(x format.Tensor) bool {
		return x.Name == "optimizer.step.2.weight"
	})
	other[i].Pieces = []format.Piece{
		{Box: tensor.Shape{}.Box(), File: c.Tensors[0].Pieces[0].File,
			Offset: c.Tensors[0].Pieces[0].Offset}}
	const names = "optimizer_state.param_groups.0.param_names"
	for _, x := range []struct {
		stage   int
		tensors []format.Tensor
		values  []format.Value
		err     string
	}{
		{2, less("none"), without(names),
			"nothing says which parameters are in which group of the optimizer"},
		{2, less("none"), with(names, []any{"0.weight"}), `there is state of parameter "2.weight"`},
		{2, less("none"), with(names, []any{"0.weight", "2.weight", "0.bias"}),
			"which it names twice"},
		{2, less("none"), with(names, []any{"0.weight", "2.weight", "x"}),
			"names the parameter x, of which there is no state"},
		{2, less("optimizer.fp32.0.weight"), c.Values,
			`parameter "0.weight" has no weights in f32`},
		{1, less("optimizer.exp_avg.0.weight"), c.Values,
			`and "0.weight" [exp_avg_sq step]; DeepSpeed has the same for all in a group`},
		{1, less("optimizer.step.0.weight"), c.Values, "DeepSpeed has the same for all in a group"},
		{1, other, c.Values,
			"optimizer.step.2.weight and optimizer.step.0.weight are not the same number"},
		{2, less("optimizer.step.0.weight"), with("optimizer.step.0.weight", []any{int64(1)}),
			`value "optimizer.step.0.weight": [1] is no number of steps`},
		{3, less("none"), without("buffer_names"),
			`tensor "module.1.weight" is of no parameter that is trained`},
	} {
		if _, err := deepspeed.LayoutZero(deepspeed.Zero{Stage: x.stage, DP: 2}, x.tensors,
			x.values, files.Read); err == nil || !strings.Contains(err.Error(), x.err) {
			t.Errorf("%v; want %q", err, x.err)
		}
	}
}

// TestZeroImplies names what stage 3 leaves out, with what proves that it can be made again.
func TestZeroImplies(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/zero2.zip")
	c, files := mustRead(t, dir)
	out, err := deepspeed.LayoutZero(deepspeed.Zero{Stage: 3, DP: 2}, c.Tensors, c.Values,
		files.Read)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, p := range out.Implied {
		left = append(left, p.Model.Name)
		main, model := formattest.ReadTensor(t, files, &p.Main),
			formattest.ReadTensor(t, files, &p.Model)
		if n := p.FirstDifference(main, model); n >= 0 {
			t.Errorf("%s: element %d is not that of the master weights", p.Model.Name, n)
		}
		binary.LittleEndian.PutUint16(model, binary.LittleEndian.Uint16(model)+1)
		if n := p.FirstDifference(main, model); n != 0 {
			t.Errorf("%s is another, and nobody notices", p.Model.Name)
		}
	}
	slices.Sort(left)
	if want := []string{"module.0.bias", "module.0.weight", "module.2.bias",
		"module.2.weight"}; !slices.Equal(left, want) {
		t.Errorf("left out are %v, want %v", left, want)
	}
}
