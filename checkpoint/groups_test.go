package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/optim"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// fsdp is what a program trains with FSDP: parameters in the order of its optimizer, and a
// checkpoint of it.
type fsdp struct {
	groups  [][]string              // names of the parameters of each group
	shapes  map[string]tensor.Shape // by name of the parameter
	tensors []layout.Tensor         // in the order in which the program saves them
	values  []format.Value          // what the checkpoint has beside tensors
}

// drawFSDP draws a small model, without groups yet.
func drawFSDP(r *rapid.T) *fsdp {
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(r, name) }
	p := &fsdp{shapes: map[string]tensor.Shape{}}
	names := rapid.Permutation(
		[]string{"embed.weight", "layers.0.w", "layers.0.b", "layers.10.w", "layers.2.w",
			"0.weight", "norm"}).Draw(r, "order")
	names = names[:n("parameters", 2, len(names))]
	if slices.IsSorted(names) { // of which nobody could tell that they are in an order of their own
		slices.Reverse(names)
	}
	p.groups = make([][]string, n("groups", 1, 2))
	for i, name := range names {
		g := i * len(p.groups) / len(names)
		p.groups[g] = append(p.groups[g], name)
		p.shapes[name] = []int{n("rows", 1, 7), n("columns", 1, 5)}[:n("dimensions", 1, 2)]
		p.tensors = append(p.tensors,
			layout.Tensor{Name: "model." + name, DType: tensor.F32, Shape: p.shapes[name]})
	}
	for _, name := range names {
		for _, kind := range []string{"exp_avg", "exp_avg_sq"} {
			p.tensors = append(p.tensors,
				layout.Tensor{Name: "optim.state." + name + "." + kind, DType: tensor.F32,
					Shape: p.shapes[name]})
		}
	}
	return p
}

// addGroups adds the groups to the values: flat by parameter, or as lists.
func (p *fsdp) addGroups(flat bool) {
	for i, names := range p.groups {
		values := []format.Value{{Path: "lr", Data: 0.5},
			{Path: "betas", Data: []any{0.25, 0.75}, Python: pickle.Tuple{0.25, 0.75}},
			{Path: "weight_decay", Data: float64(i)}}
		var list []any
		for _, name := range names {
			list = append(list, name)
			for _, v := range values {
				if v.Path = "optim.param_groups." + name + "." + v.Path; flat {
					p.values = append(p.values, v)
				}
			}
		}
		if flat {
			continue
		}
		at := fmt.Sprintf("optim.param_groups.%d.", i)
		for _, v := range append(values, format.Value{Path: "params", Data: list}) {
			v.Path = at + v.Path
			p.values = append(p.values, v)
		}
	}
}

// makeFiles returns, by name, the files of a distributed checkpoint as torch writes it over some
// ranks: rows of each tensor are dealt out, and each rank lists what it has in the order of the
// program.
func (p *fsdp) makeFiles(r *rapid.T, ranks int) map[string][]byte {
	content := dcp.Content{Ranks: make([][]format.Shard, ranks), Values: p.values}
	for _, x := range p.tensors {
		rows := (x.Shape[0] + ranks - 1) / ranks
		for rank := range ranks {
			s := format.Shard{Name: x.Name, DType: x.DType, Shape: x.Shape, Box: x.Shape.Box()}
			s.Box[0] = tensor.Span{From: min(rank*rows, x.Shape[0]),
				To: min((rank+1)*rows, x.Shape[0])}
			if !s.Box.Empty() {
				content.Ranks[rank] = append(content.Ranks[rank], s)
			}
		}
	}
	out, err := content.Layout()
	if err != nil {
		r.Fatal(err)
	}
	return scatterFiles(out, p.tensors)
}

// elementsOf returns the bytes of the tensor of a name, as scatterFiles has put them into the
// files.
func (p *fsdp) elementsOf(name string) []byte { return wholeBytes(p.tensors)[name] }

// TestAdoptFSDP writes what FSDP has saved, over any number of ranks, as ZeRO over any other, and
// compares the flat buffers with those that DeepSpeed has of parameters in the order of the
// program; and by way of universal checkpoints and other stages.
func TestAdoptFSDP(t *testing.T) {
	runRandomCases(t, 60, func(r *rapid.T, at func(string) string) {
		p := drawFSDP(r)
		p.addGroups(rapid.Bool().Draw(r, "flattened"))
		writeFiles(r, at("from"), p.makeFiles(r, rapid.IntRange(1, 4).Draw(r, "ranks")))
		stage, ranks := rapid.IntRange(1, 3).Draw(r, "stage"),
			rapid.IntRange(1, 4).Draw(r, "data parallel ranks")
		last := at("from")
		if rapid.Bool().Draw(r, "by another") {
			by := rapid.SampledFrom([]string{"universal", "zero1", "zero3"}).Draw(r, "by")
			convertWithGroups(r, last, at("by"), by, 3, nil)
			last = at("by")
		}
		convertWithGroups(r, last, at("to"), fmt.Sprintf("zero%d", stage), ranks, nil)
		c, err := Open(at("to"))
		if err != nil {
			r.Fatal(err)
		}
		defer c.Close()
		for _, name := range slices.Concat(p.groups...) {
			for kind, was := range map[string]string{"fp32": "model." + name,
				"exp_avg":    "optim.state." + name + ".exp_avg",
				"exp_avg_sq": "optim.state." + name + ".exp_avg_sq"} {
				i := slices.IndexFunc(c.Tensors, func(x format.Tensor) bool {
					return x.Name == "optimizer."+kind+"."+name
				})
				if i < 0 {
					r.Fatalf("there is no %s of %s", kind, name)
				}
				b := make([]byte, c.Tensors[i].Bytes())
				if err := c.Files.Read(&c.Tensors[i], b); err != nil ||
					!bytes.Equal(b, p.elementsOf(was)) {
					r.Fatalf("%s of %s is another: %v", kind, name, err)
				}
			}
		}
		for i := range p.groups {
			if is, _ := c.Value(
				fmt.Sprintf("optimizer_state.param_groups.%d.weight_decay", i)); is != float64(i) {
				r.Fatalf("group %d has the weight decay %v", i, is)
			}
		}
		if stage < 3 {
			p.compareFlat(r, at("to"), ranks)
		}
	})
}

// deepSpeeds are the classes in files of DeepSpeed.
var deepSpeeds = pickle.InertGlobals("deepspeed.runtime.zero.config.ZeroStageEnum",
	"deepspeed.utils.tensor_fragment.fragment_address",
	"deepspeed.runtime.fp16.loss_scaler.LossScaler")

// compareFlat fails the test unless the flat buffers of each group, in a checkpoint of ZeRO over so
// many ranks in dir, are its parameters side by side in the order of the program.
func (p *fsdp) compareFlat(r *rapid.T, dir string, ranks int) {
	files := format.NewFiles(os.DirFS(dir))
	defer files.Close()
	tag, err := files.ReadAll(deepspeed.LatestName, 100)
	if err != nil {
		r.Fatal(err)
	}
	for g, names := range p.groups {
		var want, got []byte
		for _, name := range names {
			want = append(want, p.elementsOf("model."+name)...)
		}
		for rank := range ranks {
			f, err := torchzip.Open(files,
				fmt.Sprintf("%s/zero_pp_rank_%d_mp_rank_00_optim_states.pt", tag, rank), deepSpeeds)
			if err != nil {
				r.Fatal(err)
			}
			list, err := pickle.Get[*pickle.List](f.Root, "optimizer_state_dict",
				"single_partition_of_fp32_groups")
			if err != nil || len(list.Items) != len(p.groups) {
				r.Fatal(list, err)
			}
			x := list.Items[g].(*torchzip.Tensor).AsTensor("x")
			b := make([]byte, x.Bytes())
			if err := files.Read(&x, b); err != nil {
				r.Fatal(err)
			}
			got = append(got, b...)
		}
		if !bytes.Equal(want, got) {
			r.Fatalf("the buffer of group %d (%v) has other elements, or another order", g, names)
		}
	}
}

// convertWithGroups converts a checkpoint for the format name, which goes by groups; given are the
// groups that a user states, nil = none. ranks counts for ZeRO alone. If it cannot the test fails.
func convertWithGroups(r rapid.TB, from, to, name string, ranks int, given []optim.Group) {
	c, err := Open(from)
	if err != nil {
		r.Fatal(err)
	}
	defer c.Close()
	if _, err := c.PrepareOptimizer(name, given); err != nil {
		r.Fatal(err)
	}
	f := TargetFormat{Format: name}
	if strings.HasPrefix(name, "zero") {
		if f.Spec, err = layout.Preset(name, layout.Mesh{{Name: "dp", Size: ranks}},
			Catalogue(c.Checkpoint), 0); err != nil {
			r.Fatal(err)
		}
	}
	out, _, err := c.Output(f)
	if err != nil {
		r.Fatal(err)
	}
	if _, err := Move(context.Background(), c, out, to,
		Options{Workers: 2, blockBytes: 64}); err != nil {
		r.Fatal(err)
	}
}

// TestAdoptRefuses leaves out in which group a parameter is, or in which order parameters are: both
// are refused.
func TestAdoptRefuses(t *testing.T) {
	open := func(sorted bool) *Checkpoint {
		c := &Checkpoint{path: "src", renamed: map[string]string{},
			Checkpoint: &format.Checkpoint{}}
		for i, name := range []string{"b", "a"} {
			c.Tensors = append(c.Tensors,
				format.Tensor{Name: "model." + name, DType: tensor.F32, Shape: tensor.Shape{2}},
				format.Tensor{Name: "optim.state." + name + ".exp_avg", DType: tensor.F32,
					Shape: tensor.Shape{2}})
			c.Values = append(c.Values,
				format.Value{Path: "optim.param_groups." + name + ".lr", Data: float64(i)})
			c.SavedOrder = append(c.SavedOrder,
				format.SavedItem{Name: "optim.state." + name + ".exp_avg"})
		}
		if sorted {
			slices.Reverse(c.SavedOrder)
		}
		return c
	}
	for _, to := range []string{"zero1", "zero2", "zero3"} {
		if notes, err := open(false).PrepareOptimizer(to, nil); err != nil || len(notes) != 1 ||
			!strings.Contains(notes[0],
				"2 groups of 1 and 1 parameters, as optim.param_groups says") {
			t.Errorf("%v, %v", notes, err)
		}
		if _, err := open(true).PrepareOptimizer(to, nil); err == nil ||
			!strings.Contains(err.Error(), "not the order of parameters, by which DeepSpeed "+
				"goes: they stand in the order of their names") {
			t.Error(err)
		}
		given := []optim.Group{{Params: []string{"b"}}, {Params: []string{"a"}}}
		c := open(true)
		c.Tensors[0].DType = tensor.BF16 // of which there are no copies
		if _, err := c.PrepareOptimizer(to, given); err != nil {
			t.Error(err)
		}
		for _, x := range []struct {
			name string
			is   bool
		}{{"module.a", true}, {"module.b", true}, {"optimizer.fp32.a", true},
			{"optimizer.fp32.b", false}, {"optimizer.exp_avg.b", true}} {
			if there := slices.ContainsFunc(c.Tensors, func(t format.Tensor) bool {
				return t.Name == x.name
			}); there != x.is {
				t.Errorf("%s: %v", x.name, there)
			}
		}
		if is, _ := c.Value("optimizer_state.param_groups.1.lr"); is != 1.0 {
			t.Errorf("the learning rate is %v", is)
		}
	}
	c := open(true)
	if _, err := c.PrepareOptimizer("universal", nil); err != nil { // which has names
		t.Error(err)
	}
	if slices.ContainsFunc(c.Values, func(v format.Value) bool {
		return strings.Contains(v.Path, "param_groups")
	}) {
		t.Error("groups are said of which nobody knows which is the first")
	}
	if notes, err := open(true).PrepareOptimizer("dcp", nil); err != nil || notes != nil {
		t.Error(notes, err)
	}
}
