package importer_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/importer"
	"github.com/shoal-ml/shoal/decide/planner/model"
)

// operators is a graph of MSR with its quirks: flags as numbers, a node that loads data, costs in
// seconds, a weight that is listed first and needed last, classes of which two take from each other
// in a circle, and a backward node of no class.
const operators = `{"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 1, "nodes": [
 {"id": 0, "name": "weight", "supportedOnFpga": true, "cpuLatency": 0, "fpgaLatency": 0, "isBackwardNode": false, "size": 100},
 {"id": 1, "name": "input", "supportedOnFpga": 1, "cpuLatency": 9, "fpgaLatency": 9, "isBackwardNode": 0, "size": 1},
 {"id": 2, "name": "a", "supportedOnFpga": 1, "cpuLatency": 9, "fpgaLatency": 2, "isBackwardNode": 0, "colorClass": 7, "size": 10},
 {"id": 3, "name": "b", "supportedOnFpga": 1, "cpuLatency": 9, "fpgaLatency": 3, "isBackwardNode": 0, "colorClass": 8, "size": 10},
 {"id": 4, "name": "c", "supportedOnFpga": 1, "cpuLatency": 9, "fpgaLatency": 4, "isBackwardNode": 0, "colorClass": 7, "size": 10},
 {"id": 5, "name": "head", "supportedOnFpga": 1, "cpuLatency": 9, "fpgaLatency": 5, "isBackwardNode": 0, "size": 10},
 {"id": 6, "name": "grad", "supportedOnFpga": 1, "cpuLatency": 9, "fpgaLatency": 6, "isBackwardNode": 1, "size": 10},
 {"id": 7, "name": "grad", "supportedOnFpga": 1, "cpuLatency": 9, "fpgaLatency": 7, "isBackwardNode": 1, "colorClass": 8, "size": 10}],
 "edges": [
 {"sourceId": 0, "destId": 5, "cost": 2e-9, "size": 4.294967296},
 {"sourceId": 1, "destId": 2, "cost": 1e-6, "size": 2147.483648},
 {"sourceId": 2, "destId": 3, "cost": 1e-6, "size": 2147.483648},
 {"sourceId": 3, "destId": 4, "cost": 1e-6, "size": 2147.483648},
 {"sourceId": 4, "destId": 5, "cost": 1e-6, "size": 2147.483648},
 {"sourceId": 1, "destId": 5, "cost": 1e-6, "size": 2147.483648},
 {"sourceId": 5, "destId": 6, "cost": 1e-6, "size": 5},
 {"sourceId": 6, "destId": 7, "cost": 1e-6, "size": 5}]}`

// layersOf returns the layers of a model with their milliseconds, in a form that tests compare.
func layersOf(m *model.Model) (list []map[string]any) {
	for _, l := range m.Layers {
		c := m.Points[0].Layers[l.ID]
		list = append(list, map[string]any{"id": l.ID, "out": l.Out, "params": l.Params,
			"state": l.State, "ms": []float64{math.Round(1e6*c.Forward) / 1e3,
				math.Round(1e6*c.Backward) / 1e3}})
	}
	return list
}

// told fails a test for each part that quirks do not tell.
func told(t *testing.T, quirks []string, parts ...string) {
	t.Helper()
	all := strings.Join(quirks, "\n")
	for _, part := range parts {
		if !strings.Contains(all, part) {
			t.Errorf("%q is not told:\n%s", part, all)
		}
	}
}

// TestMSR reads operators: layers that must be together are one, those that are needed late come
// late, and what a cut carries is what later layers need, once.
func TestMSR(t *testing.T) {
	got, err := importer.MSR([]byte(operators))
	if err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{
		{"id": "node1", "out": int64(2147), "params": int64(1), "state": int64(1),
			"ms": []float64{0, 0}},
		{"id": "node2", "out": int64(4294), "params": int64(30), "state": int64(40),
			"ms": []float64{9, 7}},
		{"id": "node0", "out": int64(4298), "params": int64(100), "state": int64(100),
			"ms": []float64{0, 0}},
		{"id": "node5", "out": int64(0), "params": int64(10), "state": int64(20),
			"ms": []float64{5, 6}},
	}
	if diff := cmp.Diff(want, layersOf(got.Model)); diff != "" {
		t.Error(diff)
	}
	edges := []model.Edge{{From: "node1", To: "node2", Bytes: 2147},
		{From: "node1", To: "node5", Bytes: 2147}, {From: "node2", To: "node5", Bytes: 2147},
		{From: "node0", To: "node5", Bytes: 4}}
	if diff := cmp.Diff(edges, got.Model.Edges); diff != "" {
		t.Error(diff)
	}
	told(t, got.Quirks, "costs of edges are seconds", "node 1, which takes from no other, takes 9 "+
		"ms", "1 backward nodes or classes", "1 classes of nodes take from each other in circles",
		"2 of 4 edges go past the next layer", "which bytes of a layer are parameters", "1 CPUs")
	if c := got.Cluster; c.Hosts[0].Places != 2 || c.Kinds[0].Memory != 1e9 {
		t.Errorf("machines %+v", c)
	}
	milliseconds := strings.NewReplacer(`"cost": 1e-6`, `"cost": 1e-3`, `"cost": 2e-9`,
		`"cost": 2e-6`).Replace(operators)
	again, err := importer.MSR([]byte(milliseconds))
	if err != nil {
		t.Fatal(err)
	}
	diff := cmp.Diff(got.Model, again.Model)
	if diff != "" || len(again.Quirks) != len(got.Quirks)-1 {
		t.Errorf("with costs in milliseconds: %s\n%q", diff, again.Quirks)
	}
}

// layers is an input of Piper: three layers of which the first gives to both others.
const layers = `{"maxDevices": 4, "maxMemoryPerDevice": 8e10, "bandwidth": 2.5e10, "mbsInBatch": 64, "nodes": [
 {"id": 2, "name": "head", "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 3, "parameterSize": 8, "memoryUsageA": 5, "memoryUsageB": 16, "syncTimeFw": {"0": 4}, "syncTimeBw": {}},
   {"id": "activation recomp", "timePerSample": 9, "parameterSize": 8, "memoryUsageA": 1, "memoryUsageB": 16, "syncTimeFw": {}, "syncTimeBw": {}}],
  "2": [{"id": "vanilla", "timePerSample": 1.8, "parameterSize": 4, "memoryUsageA": 3, "memoryUsageB": 8, "syncTimeFw": {}, "syncTimeBw": {}}]}},
 {"id": 0, "name": "first", "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 6, "parameterSize": 8, "memoryUsageA": 5, "memoryUsageB": 16, "syncTimeFw": {}, "syncTimeBw": {}}],
  "2": [{"id": "vanilla", "timePerSample": 3, "parameterSize": 4, "memoryUsageA": 3, "memoryUsageB": 8, "syncTimeFw": {}, "syncTimeBw": {}}]}},
 {"id": 1, "name": "b", "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 6, "parameterSize": 8, "memoryUsageA": 5, "memoryUsageB": 16, "syncTimeFw": {}, "syncTimeBw": {}}],
  "2": [{"id": "vanilla", "timePerSample": 3, "parameterSize": 4, "memoryUsageA": 3, "memoryUsageB": 8, "syncTimeFw": {}, "syncTimeBw": {}}]}}],
 "edges": [{"sourceId": 0, "destId": 1, "communicationCost": 64}, {"sourceId": 0, "destId": 2, "communicationCost": 64},
  {"sourceId": 1, "destId": 2, "communicationCost": 32}]}`

// TestPiper reads layers with two degrees of tensor parallelism.
func TestPiper(t *testing.T) {
	got, err := importer.Piper([]byte(layers))
	if err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{
		{"id": "node0", "out": int64(64), "params": int64(8), "state": int64(16),
			"ms": []float64{2000, 4000}},
		{"id": "node1", "out": int64(96), "params": int64(8), "state": int64(16),
			"ms": []float64{2000, 4000}},
		{"id": "node2", "out": int64(0), "params": int64(8), "state": int64(16),
			"ms": []float64{1000, 2000}},
	}
	if diff := cmp.Diff(want, layersOf(got.Model)); diff != "" {
		t.Error(diff)
	}
	if p := got.Model.Point("gpu", 2, 1); p == nil || p.Layers["node2"].Kept != 3 ||
		math.Abs(p.Layers["node2"].Forward-0.6) > 1e-9 {
		t.Errorf("with tensor parallelism of 2: %+v", p)
	}
	told(t, got.Quirks, "a third of it is forward", "64 micro-batches", "1 of 3 edges go past",
		"recomputation")
	slow := strings.ReplaceAll(layers, `"timePerSample": 6`, `"timePerSample": 6000`)
	if got, err = importer.Piper([]byte(slow)); err != nil {
		t.Fatal(err)
	}
	told(t, got.Quirks, "times are milliseconds, since a sample would take 1.2e+04 seconds else")
	if f := got.Model.Points[0].Layers["node0"].Forward; math.Abs(f-2) > 1e-9 {
		t.Errorf("node 0 takes %v s forward", f)
	}
}

// TestGraphErrors says of graphs that contradict themselves what is wrong.
func TestGraphErrors(t *testing.T) {
	physical := strings.ReplaceAll(operators, "2147.483648", "3e3")
	for _, x := range []struct {
		read          func([]byte) (*importer.Imported, error)
		text          string
		old, new, err string
	}{
		{importer.MSR, operators, `"isBackwardNode": 0`, `"isBackwardNode": 2`, "2 is neither"},
		{importer.MSR, operators, `"id": 7`, `"id": 6`, "two nodes have the id 6"},
		{importer.MSR, operators, `"destId": 7`, `"destId": 8`, "from node 6 to node 8"},
		{importer.MSR, operators, `"fpgaLatency": 5`, `"fpgaLatency": -5`, "node 5 takes -5 ms"},
		{importer.MSR, operators, `"supportedOnFpga": 1`, `"supportedOnFpga": 0`,
			"node 1 is not supported on an accelerator"},
		{importer.MSR, operators, `"maxFPGAs": 2`, `"maxFPGAs": 0`, "maxFPGAs is 0"},
		{importer.MSR, operators, `"maxFPGAs": 2`, `"maxGPUs": 0`, `unknown field "maxGPUs"`},
		{importer.MSR, physical, "", "", "forward edges have 3e+09 bytes"},
		{importer.MSR, `{"nodes": []}`, "", "", "it has no nodes"},
		{importer.Piper, layers, `"id": 2`, `"id": 0`, "two nodes have the id 0"},
		{importer.Piper, layers, `"destId": 1`, `"destId": 7`, "from node 0 to node 7"},
		{importer.Piper, layers, `"destId": 1`, `"destId": 0`, "in a circle: node0 → node0"},
		{importer.Piper, layers, `"timePerSample": 3,`, `"timePerSample": -3,`, "-3 is no time"},
		{importer.Piper, layers, `"2": [{`, `"02": [{`, `"02" is no degree`},
		{importer.Piper, layers, `"1": [{`, `"4": [{`, "node 2 has no variant for one device"},
		{importer.Piper, layers, `"vanilla"`, `"plain"`, `node 2 has no variant "vanilla"`},
		{importer.Piper, layers, `2.5e10`, `0`, "bandwidth is 0"},
		{importer.Piper, layers, `{"maxDevices": 4`, `{"maxDevices": 0`, "maxDevices is 0"},
		{importer.Piper, `{"nodes": []}`, "", "", "it has no nodes"},
	} {
		_, err := x.read([]byte(strings.Replace(x.text, x.old, x.new, 1)))
		if err == nil || !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: error %v, want %q", x.new, err, x.err)
		}
	}
}

// TestGraphs reads the public graphs below the folder of SHOAL_DATA: layers, and milliseconds
// forward and back.
func TestGraphs(t *testing.T) {
	data := os.Getenv("SHOAL_DATA")
	if data == "" {
		t.Skip("SHOAL_DATA names no folder with public graphs")
	}
	msr, piper := importer.MSR, importer.Piper
	for _, x := range []struct {
		name string
		read func([]byte) (*importer.Imported, error)
		want [3]float64
	}{
		{"dnn-partitioning/throughput-inputs/LayerGraphs/bert24_training", msr,
			[3]float64{32, 92.406, 125.407}},
		{"dnn-partitioning/throughput-inputs/LayerGraphs/gnmt_training", msr,
			[3]float64{96, 182.563, 337.89}},
		{"dnn-partitioning/throughput-inputs/LayerGraphs/inceptionv3_training", msr,
			[3]float64{326, 289.269, 399.769}},
		{"dnn-partitioning/throughput-inputs/OperatorGraphs/bert_l-3_training", msr,
			[3]float64{0, 49.353, 73.635}},
		{"dnn-partitioning/throughput-inputs/OperatorGraphs/resnet50_training", msr,
			[3]float64{0, 325.132, 359.758}},
		{"dnn-partitioning/throughput-inputs/OperatorGraphs/bert_L-12_training", msr,
			[3]float64{0, 0, 0}},
		{"dnn-partitioning/latency-inputs/LayerGraphs/bert24_inference", msr,
			[3]float64{32, 0, 0}},
		{"piper/inputs/bert32a100", piper, [3]float64{37, 324.288, 648.576}},
		{"piper/inputs/gnmt", piper, [3]float64{78, 173.484, 346.969}},
	} {
		text, err := os.ReadFile(filepath.Join(data, x.name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := x.read(text)
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		checkImported(t, got)
		sum, most := [3]float64{float64(len(got.Model.Layers))}, int64(0)
		for _, l := range got.Model.Layers {
			c := got.Model.Points[0].Layers[l.ID]
			sum[1], sum[2], most = sum[1]+1e3*c.Forward, sum[2]+1e3*c.Backward, max(most, l.Out)
		}
		t.Logf("%s: %.0f layers, %.3f ms and %.3f, at most %d bytes over a cut", x.name, sum[0],
			sum[1], sum[2], most)
		for i := range sum {
			if x.want[i] > 0 && math.Abs(sum[i]-x.want[i]) > 0.01 {
				t.Errorf("%s: %v, want %v", x.name, sum, x.want)
				break
			}
		}
	}
}

// TestExactSplit compares the best split of the chain of a graph with the exact optimum over all
// contiguous splits of the graph, which others have computed: it is not below it but for transfers,
// which are next to nothing there, and 1 % above at most.
func TestExactSplit(t *testing.T) {
	data := os.Getenv("SHOAL_DATA")
	if data == "" {
		t.Skip("SHOAL_DATA names no folder with public graphs")
	}
	for name, optimum := range map[string]float64{"bert24_training": 41.7458,
		"bert24_inference": 17.7899, "gnmt_training": 107.004, "gnmt_inference": 32.9107} {
		text, err := os.ReadFile(filepath.Join(data,
			"dnn-partitioning/throughput-inputs/LayerGraphs", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := importer.MSR(text)
		if err != nil {
			t.Fatal(err)
		}
		var took []float64 // milliseconds by layer
		for _, l := range got.Model.Layers {
			c := got.Model.Points[0].Layers[l.ID]
			took = append(took, 1e3*(c.Forward+c.Backward))
		}
		split := leastLargest(took, got.Cluster.Hosts[0].Places)
		t.Logf("%s: the chain's best split has %.4f ms, the graph's %.4f", name, split, optimum)
		if split < 0.999*optimum || split > 1.01*optimum {
			t.Errorf("%s: the chain's best split has %v ms, the graph's %v", name, split, optimum)
		}
	}
}

// leastLargest returns the largest sum of a part, where a list is cut into parts for that to be the
// least.
func leastLargest(list []float64, parts int) float64 {
	best := make([]float64, len(list)+1)
	for i, x := range list {
		best[i+1] = best[i] + x
	}
	sums := slices.Clone(best)
	for range parts - 1 {
		next := slices.Clone(best)
		for j := range best {
			for i := range j {
				next[j] = min(next[j], max(best[i], sums[j]-sums[i]))
			}
		}
		best = next
	}
	return best[len(list)]
}

// checkImported fails a test where what was imported is no model, or no cluster.
func checkImported(t *testing.T, got *importer.Imported) {
	t.Helper()
	text, err := json.Marshal(got.Model)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := model.Parse(text); err != nil {
		t.Error(err)
	}
	if text, err = json.Marshal(got.Cluster); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Parse(text); err != nil {
		t.Error(err)
	}
}

// TestLargeGraphs refuses graphs whose bytes are more than a model takes, in a sum or a product as
// well, and graphs of which very many nodes are joined one by one; and reads a long row of nodes
// soon.
func TestLargeGraphs(t *testing.T) {
	// msr returns a graph whose nodes from one on go back, each of which gives to the one before.
	msr := func(nodes, back int, size, cost float64) []byte {
		var list, edges []string
		for i := range nodes {
			list = append(list, fmt.Sprintf(`{"id": %d, "fpgaLatency": 0.1, "size": %v,
 "isBackwardNode": %v}`, i, size, i >= back))
			if i > 0 {
				from, to := i-1, i
				if i >= back {
					from, to = i, i-1
				}
				edges = append(edges, fmt.Sprintf(`{"sourceId": %d, "destId": %d, "cost": %v}`,
					from, to, cost))
			}
		}
		slices.Reverse(edges)
		return []byte(fmt.Sprintf(`{"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 0,
 "nodes": [%s], "edges": [%s]}`, strings.Join(list, ","), strings.Join(edges, ",")))
	}
	if _, err := importer.MSR(msr(30_000, 30_000, 1, 1e-3)); err != nil {
		t.Error(err)
	}
	for _, x := range []struct {
		text []byte
		want string
	}{
		{msr(2, 2, 1, 1<<49), "2251799813685248"},
		{msr(4, 1, 1<<50, 1), "2251799813685248"},
		{msr(1000, 1, 1, 1), "more than 256 backward nodes"},
		{msr(70_000, 70_000, 1, 1), "70000 nodes and 69999 edges"},
	} {
		if _, err := importer.MSR(x.text); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("error %v, want %s", err, x.want)
		}
	}
}

// FuzzMSR feeds any text to the importer: it does not panic, and what it makes of one is a model
// and a cluster.
func FuzzMSR(f *testing.F) {
	f.Add([]byte(operators))
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, err := importer.MSR(text); err == nil {
			checkImported(t, got)
		}
	})
}

// FuzzPiper feeds any text to the importer: it does not panic, and what it makes of one is a model
// and a cluster.
func FuzzPiper(f *testing.F) {
	f.Add([]byte(layers))
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, err := importer.Piper(text); err == nil {
			checkImported(t, got)
		}
	})
}
