package importer_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/decide/planner/importer"
	"github.com/shoal-ml/shoal/decide/planner/model"
)

// graph is a profile as PipeDream writes it, with its quirks: time of loading data, a list of
// outputs, a backward pass that was lost, and no end of the last line.
const graph = `node3 -- Linear(4, 4) -- forward_compute_time=1.500, backward_compute_time=3.000, activation_size=64.0, parameter_size=80.000
node1 -- Input0 -- forward_compute_time=600.000, backward_compute_time=0.000, activation_size=16.0, parameter_size=0.000
node2 -- LSTM(4, 4) -- forward_compute_time=2.000, backward_compute_time=5.000, activation_size=[64.0; 8.0; 8.0], parameter_size=400.000
node5 -- EmuBidirLSTM(  (bidir): LSTM(4, 4)) -- forward_compute_time=4.000, backward_compute_time=0.001, activation_size=32.0, parameter_size=40.000
node4 -- ReLU() -- forward_compute_time=1.000, backward_compute_time=0.010, activation_size=64.0, parameter_size=0.000
	node1 -- node2
	node2 -- node3
    node2 -- node5
	node3 -- node4
	node4 -- node5`

// TestPipeDream reads a profile: its chain in topological order, what goes over each cut, and what
// is in the place of its quirks.
func TestPipeDream(t *testing.T) {
	got, err := importer.PipeDream([]byte(graph))
	if err != nil {
		t.Fatal(err)
	}
	want := []model.Layer{
		{ID: "node1", Kind: "Input0", Out: 16},
		{ID: "node2", Kind: "LSTM(4, 4)", Params: 400, State: 1200, Out: 80},
		// node5 still needs what node2 gives.
		{ID: "node3", Kind: "Linear(4, 4)", Params: 80, State: 240, Out: 80 + 64},
		{ID: "node4", Kind: "ReLU()", Out: 80 + 64},
		{ID: "node5", Kind: "EmuBidirLSTM(  (bidir): LSTM(4, 4))", Params: 40, State: 120},
	}
	if d := cmp.Diff(want, got.Model.Layers); d != "" {
		t.Error(d)
	}
	costs := got.Model.Point("gpu", 1, 1).Layers
	if c := costs["node1"]; c.Forward != 0 {
		t.Errorf("loading data takes %v s of the device", c.Forward)
	}
	if c := costs["node5"]; math.Abs(c.Backward-0.010) > 1e-12 { // 4 ms × 5/2
		t.Errorf("a backward pass that was lost takes %v s", c.Backward)
	}
	if c := costs["node4"]; c.Backward != 1e-5 {
		t.Errorf("the backward pass of ReLU takes %v s", c.Backward)
	}
	told := strings.Join(got.Quirks, "\n")
	for _, part := range []string{"600.0 ms of loading data", "node5 goes back in 0.001 ms",
		"1 other nodes", "whole minibatch", "steps of the optimizer take no time"} {
		if !strings.Contains(told, part) {
			t.Errorf("%q is not told:\n%s", part, told)
		}
	}
}

// TestPipeDreamErrors says of profiles that contradict themselves what is wrong.
func TestPipeDreamErrors(t *testing.T) {
	for _, x := range []struct{ old, new, err string }{
		{"node4 -- node5", "node4 -- node7", "line 10: an edge from node4 to node7"},
		{"node4 -- node5", "node4 -> node5", "line 10: "},
		{"\tnode4 -- node5", "\tnode4 -- node2\n\tnode4 -- node5",
			"in a circle: node3 -- node4 -- node2 -- node3"},
		{"\tnode4 -- node5", "\tnode4 -- node4", "in a circle: node4 -- node4"},
		{"node5 -- Emu", "node4 -- Emu", "node4 comes twice"},
		{"node5 -- Emu", "nod5 -- Emu", `line 4: "nod5" is no name of a node`},
		{"backward_compute_time=5.000", "backward_compute_time=-5.000", `"-5.000" is no number`},
		{"backward_compute_time=5.000", "backward_compute_time=NaN", `"NaN" is no number`},
		{"backward_compute_time=5.000", "took=5.000", `the field "took" stands where`},
		{", parameter_size=40.000", "", "3 fields"},
		{"[64.0; 8.0; 8.0]", "[64.0; 8.0; ]", `line 3: activation_size: "" is no number`},
		{"parameter_size=40.000", "parameter_size=[40.0; 1.0]", "line 4: parameter_size: "},
		{graph, "", "it has no nodes"},
		{graph, `{"nodes": {}}`, "line 1: 1 parts"},
	} {
		_, err := importer.PipeDream([]byte(strings.Replace(graph, x.old, x.new, 1)))
		if err == nil || !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: error %v, want %q", x.new, err, x.err)
		}
	}
}

// TestProfiles reads the public profiles below the folder of SHOAL_DATA: nodes, and milliseconds
// forward and back without loading data.
func TestProfiles(t *testing.T) {
	data := os.Getenv("SHOAL_DATA")
	if data == "" {
		t.Skip("SHOAL_DATA names no folder with public profiles")
	}
	for name, want := range map[string][3]float64{
		"image_classification/alexnet":       {23, 44.8, 40.5},
		"image_classification/squeezenet1_0": {68, 113.3, 172.1},
		"image_classification/vgg16":         {41, 233.9, 438.6},
		"image_classification/nasnetalarge":  {1251, 409.1, 249.2},
		"translation/gnmt_large":             {96, 182.6, 369.2},
	} {
		text, err := os.ReadFile(filepath.Join(data, "pipedream-profiles", name, "graph.txt"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := importer.PipeDream(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		sum := [3]float64{float64(len(got.Model.Layers))}
		for _, c := range got.Model.Points[0].Layers {
			sum[1], sum[2] = sum[1]+1e3*c.Forward, sum[2]+1e3*c.Backward
		}
		for i := range sum {
			if math.Abs(sum[i]-want[i]) > 0.1 {
				t.Errorf("%s: %v, want %v", name, sum, want)
				break
			}
		}
	}
}

// FuzzPipeDream feeds any text to the importer: it does not panic, and what it makes of one is a
// model.
func FuzzPipeDream(f *testing.F) {
	f.Add([]byte(graph))
	f.Add([]byte("node1 -- A -- forward_compute_time=1e9, backward_compute_time=0, " +
		"activation_size=1, parameter_size=1\n\tnode1 -- node1"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := importer.PipeDream(text)
		if err != nil {
			return
		}
		again, err := json.Marshal(got.Model)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := model.Parse(again); err != nil {
			t.Error(err)
		}
	})
}
