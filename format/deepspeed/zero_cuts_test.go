package deepspeed_test

// This file tests pipelines that are divided among other stages, and makes some for that.
import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/tensor"
)

// TestStagesAsDeepSpeed cuts layers as DeepSpeed did, which testdata/cuts.py asked.
func TestStagesAsDeepSpeed(t *testing.T) {
	text, err := os.ReadFile("testdata/cuts.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Weights, Balanced, Uniform []int
		Stages                     int
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) < 50 {
		t.Fatal(len(cases), err)
	}
	for _, c := range cases {
		if got := deepspeed.Balanced(c.Weights, c.Stages); !slices.Equal(got, c.Balanced) {
			t.Errorf("%v in %d: %v, want %v", c.Weights, c.Stages, got, c.Balanced)
		}
		if got := deepspeed.Uniform(len(c.Weights), c.Stages); !slices.Equal(got, c.Uniform) {
			t.Errorf("%d in %d: %v, want %v", len(c.Weights), c.Stages, got, c.Uniform)
		}
	}
}

// layered is a pipeline: what each layer has, in the order of the program; nil for a function. What
// is tied has the name that it has in a stage.
type layered struct {
	layers [][]evenParam    // parameters of each layer
	tied   map[string][]int // with files, by key
	hidden bool             // whether the last layer is tied, and has no file
}

// onRank returns what a rank has whose stages begin with some layers. stage is that of ZeRO, tp and
// dp are numbers of ranks.
func (l *layered) onRank(stage, tp, dp int, starts []int) *saved {
	s := savedProgram(nil, stage, tp, dp, len(starts), nil)
	s.tied = l.tied
	var all []evenParam
	for i, from := range starts {
		to := len(l.layers)
		if i+1 < len(starts) {
			to = starts[i+1]
		}
		var ties, own []evenParam
		for _, layer := range l.layers[from:to] {
			for _, p := range layer {
				switch {
				case !strings.HasPrefix(p.name, "tied"):
					own = append(own, p)
				case !slices.ContainsFunc(ties, func(q evenParam) bool {
					return q.name == p.name
				}):
					ties = append(ties, p)
				}
			}
		}
		for _, p := range append(ties, own...) {
			x := shared{name: p.name, stage: i}
			for rank := range tp {
				x.parts = append(x.parts, p.partOf(rank, tp))
			}
			s.params = append(s.params, x)
			if !slices.ContainsFunc(all, func(q evenParam) bool { return q.name == p.name }) {
				all = append(all, p)
			}
		}
	}
	slices.SortFunc(all, func(a, b evenParam) int { return strings.Compare(a.name, b.name) })
	s.info = savedProgram(all, stage, tp, dp, 0, nil).info
	return s
}

// drawLayered draws a pipeline in which a tied layer is the first, and another one, or the last
// that is a function of the program.
func drawLayered(r *rapid.T) *layered {
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(r, name) }
	l := &layered{tied: map[string][]int{}}
	first := 1
	add := func(layer int, name, rule string, rows int) {
		p := evenParam{name: name, rule: rule, whole: numberedArray(first, 12*rows, 12)}
		first += len(p.whole.data)
		for len(l.layers) <= layer {
			l.layers = append(l.layers, nil)
		}
		l.layers[layer] = append(l.layers[layer], p)
	}
	count := n("layers", 4, 8)
	tie := rapid.Bool().Draw(r, "tied")
	for i := range count {
		switch {
		case i == 0 && tie:
			add(0, "tied_modules.word.weight", "rest", 3)
			l.tied["word"] = []int{0}
		case i > 0 && n("a function", 0, 5) == 0:
		default:
			for k := range n("parameters", 1, 2) {
				add(i, fmt.Sprintf("%d.p%d", i, k),
					rapid.SampledFrom([]string{"rest", "columns", "alike"}).Draw(r, "rule"),
					n("rows", 1, 2))
			}
		}
	}
	if tie {
		l.hidden = rapid.Bool().Draw(r, "without a file")
		if !l.hidden {
			l.tied["word"] = append(l.tied["word"], len(l.layers))
		}
		l.layers = append(l.layers, l.layers[0])
	}
	return l
}

// drawStarts draws the layers with which stages begin, so that each has a parameter.
func (l *layered) drawStarts(r *rapid.T, name string) []int {
	var with []int
	for i, layer := range l.layers {
		if len(layer) > 0 {
			with = append(with, i)
		}
	}
	starts := []int{0}
	for _, i := range with[1:] {
		if rapid.Bool().Draw(r, name) {
			starts = append(starts, i)
		}
	}
	return starts
}

// TestOtherStages writes pipelines for other stages, and compares the model, the layers and the
// flat buffers of each with those that a program of so many has, which are cut here.
func TestOtherStages(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(r, name) }
		l := drawLayered(r)
		starts, others := l.drawStarts(r, "a stage of the source begins"),
			l.drawStarts(r, "a stage begins")
		last := len(l.layers) - 1
		if l.hidden && len(starts) == 1 {
			starts = append(starts, last) // else there is no trace of it
		}
		if l.hidden && len(starts) == 2 && starts[1] == 0 {
			r.Fatal("two stages begin with the first layer")
		}
		from := l.onRank(1, n("tp of the source", 1, 3), n("dp of the source", 1, 3), starts)
		z := deepspeed.Zero{Stage: 1, DP: n("dp", 1, 3), TP: n("tp", 1, 3), PP: len(others),
			Starts: others[1:]}
		c, files := mustRead(t, from.write(t))
		dir := writeZeroRanks(t, z, c, files)
		to := l.onRank(z.Stage, z.TP, z.DP, others)
		for mp := range z.TP * z.PP {
			to.compareFiles(r, dir, mp)
		}
		if len(from.write(t))-from.tp*len(starts)*(1+from.dp) != len(dir)-to.tp*len(others)*(1+
			to.dp)+(from.tp-to.tp)*l.fileCount() {
			r.Fatalf("there are the files %v", slices.Sorted(maps.Keys(dir)))
		}
		again, other := mustRead(t, dir)
		if diff := describeDifferences(formattest.Contents(t, files, c),
			formattest.Contents(t, other, again)); diff != "" {
			r.Fatal(diff)
		}
		if faults := again.Check(other); len(faults) > 0 {
			r.Fatal(faults)
		}
	})
}

// fileCount returns how many layers have files.
func (l *layered) fileCount() (n int) {
	for i, layer := range l.layers {
		if len(layer) > 0 && (i < len(l.layers)-1 || !l.hidden) {
			n++
		}
	}
	return n
}

// plainPipeline returns a pipeline of layers of some numbers of rows, without what is tied. A layer
// of 0 rows is a function, without parameters.
func plainPipeline(rows ...int) *layered {
	l := &layered{}
	first := 1
	for i, n := range rows {
		l.layers = append(l.layers, nil)
		if n > 0 {
			p := evenParam{name: fmt.Sprintf("%d.w", i), rule: "rest",
				whole: numberedArray(first, n, 1)}
			first += len(p.whole.data)
			l.layers[i] = []evenParam{p}
		}
	}
	return l
}

// TestStagesFound finds out how a program cuts its layers, by how it did; and says so where that is
// not known.
func TestStagesFound(t *testing.T) {
	embed := plainPipeline(8, 1, 1, 1, 1, 1, 1, 8)
	for _, x := range []struct {
		l      *layered
		starts []int
		pp     int
		want   []int
		err    string
	}{
		{embed, []int{0, 4}, 4, nil, "could be cut as 4 in several ways"},
		{plainPipeline(9, 2, 1, 1, 1, 1, 1, 1), []int{0, 1}, 3,
			deepspeed.Balanced([]int{9, 2, 1, 1, 1, 1, 1, 1}, 3), ""},
		{plainPipeline(9, 2, 1, 1, 1, 1, 1, 1), []int{0, 4}, 4, []int{0, 2, 4, 6}, ""},
		// by the type of most
		{plainPipeline(9, 9, 9, 9, 1, 1, 1, 1, 1, 1), []int{0, 7}, 3,
			deepspeed.Balanced([]int{0, 0, 0, 0, 1, 1, 1, 1, 1, 1}, 3), ""},
		{plainPipeline(9, 2, 1, 1, 1, 1, 1, 1), []int{0, 7}, 3, nil, "in none of DeepSpeed's ways"},
		{plainPipeline(9, 2, 1, 1, 1, 1, 1, 1), []int{0, 7}, 1, []int{0}, ""},
		{plainPipeline(3, 2, 1), []int{0, 1}, 4, nil, "cannot begin with the layers"},
	} {
		c, files := mustRead(t, x.l.onRank(1, 1, 1, x.starts).write(t))
		out, err := deepspeed.LayoutZero(deepspeed.Zero{Stage: 1, DP: 1, PP: x.pp}, c.Tensors,
			c.Values, files.Read)
		if x.err != "" {
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%v as %d: %v; want %q", x.starts, x.pp, err, x.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%v as %d: %v", x.starts, x.pp, err)
			continue
		}
		var got []int
		again, _ := mustRead(t, formattest.WritePaddedOutput(t, out, c, files))
		for _, v := range again.Values {
			if list, ok := v.Data.([]any); ok && strings.HasPrefix(v.Path, "pipeline_stages.") {
				var layer int
				fmt.Sscanf(list[0].(string), "%d.", &layer)
				got = append(got, layer)
			}
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%v as %d: %v, want %v", x.starts, x.pp, got, x.want)
		}
	}
}

// TestOtherStagesNot says why stages cannot be cut anew.
func TestOtherStagesNot(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/pipe.zip")
	c, files := mustRead(t, dir)
	flat, _ := formattest.Load(t, "testdata/zero2.zip")
	dense, _ := mustRead(t, flat)
	with := func(path string, is any) *format.Checkpoint {
		other := *c
		other.Values = append(slices.DeleteFunc(slices.Clone(c.Values), func(v format.Value) bool {
			return v.Path == path
		}), format.Value{Path: path, Data: is})
		return &other
	}
	first, _ := c.Value("pipeline_stages.0.0")
	names := slices.Clone(first.([]any))
	slices.Reverse(names)
	alone := &layered{
		layers: [][]evenParam{{{name: "tied_modules.word.w", whole: numberedArray(1, 2, 1)}},
			{{name: "1.w", whole: array{tensor.Shape{1, 1}, []float32{9}}}}},
		tied: map[string][]int{"word": {0}}}
	one, _ := mustRead(t, alone.onRank(1, 1, 1, []int{0}).write(t))
	for _, x := range []struct {
		z   deepspeed.Zero
		c   *format.Checkpoint
		err string
	}{
		{deepspeed.Zero{Stage: 1, DP: 1, PP: 2}, dense, "it is of no pipeline"},
		{deepspeed.Zero{Stage: 1, DP: 1, PP: 3}, with("pipeline_stages.0.0", names),
			"are not in the order of its layers"},
		{deepspeed.Zero{Stage: 1, DP: 1, PP: 3, Starts: []int{2, 3, 4}}, c,
			"3 stages of 6 layers cannot begin with the layers [0 2 3 4]"},
		{deepspeed.Zero{Stage: 1, DP: 1, PP: 3, Starts: []int{4, 3}}, c,
			"cannot begin with the layers [0 4 3]"},
		{deepspeed.Zero{Stage: 1, DP: 1, PP: 3, Starts: []int{2, 3}}, c,
			"stage 1 of 3 would have no parameter in group 0"},
		{deepspeed.Zero{Stage: 1, DP: 1, PP: 3}, with("pipeline_stages.70.0", []any{"900000.w"}),
			"which shoal does not cut anew"},
		{deepspeed.Zero{Stage: 1, DP: 1, PP: 2}, one,
			`which layers are tied as "word" is not known, as not all have files`},
	} {
		if _, err := deepspeed.LayoutZero(x.z, x.c.Tensors, x.c.Values, files.Read); err == nil ||
			!strings.Contains(err.Error(), x.err) {
			t.Errorf("%v; want %q", err, x.err)
		}
	}
}
