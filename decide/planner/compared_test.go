package planner_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/importer"
	"github.com/shoal-ml/shoal/decide/planner/model"
)

// published are the profiles of PipeDream that plans are compared on.
var published = []string{"image_classification/alexnet", "image_classification/densenet121",
	"image_classification/inception_v3", "image_classification/nasnetalarge",
	"image_classification/nasnetamobile", "image_classification/resnext101",
	"image_classification/resnext50", "image_classification/squeezenet1_0",
	"image_classification/vgg16", "translation/gnmt_large"}

// compared is what plans of one model on one cluster take.
type compared struct {
	Network   string             `json:"network"`
	Model     string             `json:"model"`
	Devices   int                `json:"devices"`
	Micro     int                `json:"micro"` // micro-batches, each a minibatch of the profile
	Bound     float64            `json:"bound"` // of all plans, in seconds
	Guarantee float64            `json:"guarantee"`
	Seconds   map[string]float64 `json:"seconds"` // by who plans
	Own       bool               `json:"own"`     // whether the best of all is no mesh
	WhyNot    string             `json:"why_not"`
}

// TestCompared prints a line of JSON for each of the public profiles, numbers of devices and of
// micro-batches, and networks, where PLAN_COMPARE is set: what plans of several kinds take.
// bench/plan/spp.py makes a table of them. SHOAL_DATA names the folder with the profiles.
func TestCompared(t *testing.T) {
	data := os.Getenv("SHOAL_DATA")
	if data == "" || os.Getenv("PLAN_COMPARE") == "" {
		t.Skip("SHOAL_DATA and PLAN_COMPARE are not set: make bench-plan compares")
	}
	for _, name := range published {
		text, err := os.ReadFile(filepath.Join(data, "pipedream-profiles", name, "graph.txt"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := importer.PipeDream(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, network := range []string{"hosts of 4", "hosts of 1"} {
			for _, devices := range []int{2, 4, 8} {
				for _, micro := range []int{devices, 4 * devices} {
					x := compare(t, network, got.Model, devices, micro)
					x.Model = filepath.Base(name)
					line, err := json.Marshal(x)
					if err != nil {
						t.Fatal(err)
					}
					fmt.Println("compared", string(line))
				}
			}
		}
	}
}

// compare plans a model in several ways.
func compare(t *testing.T, network string, m *model.Model, devices, micro int) compared {
	t.Helper()
	const inside, between = 12e9, 1.25e9 // bytes a second: PCI Express 3, and 10 Gbit/s
	each := 1
	if network == "hosts of 4" {
		each = min(4, devices)
	}
	c := cluster.Cluster{Shoal: cluster.Version,
		Kinds: []cluster.Kind{{Name: "gpu", Memory: 1 << 40}},
		Links: []cluster.Link{{Inside: true, Curve: cluster.Curve{Latency: 1e-5, Rate: inside}},
			{Curve: cluster.Curve{Latency: 5e-5, Rate: between}}}}
	for i := range devices / each {
		c.Hosts = append(c.Hosts, cluster.Host{Name: fmt.Sprint("h", i), Kind: "gpu", Places: each})
	}
	r := planner.Request{Model: m, Cluster: reread(t, c, cluster.Parse), Batch: micro}
	x := compared{Network: network, Devices: devices, Micro: micro, Seconds: map[string]float64{}}
	judge := func(who, mesh string) {
		got, err := planner.Judge(r, mesh)
		if err != nil {
			t.Fatal(err)
		}
		x.Seconds[who] = got.Best.Predicted.Seconds
	}
	judge("data parallel", fmt.Sprintf("dp=%d,pp=1(micro=1)", devices))
	judge("even", fmt.Sprintf("pp=%d(micro=1)", devices))
	starts, places := leastMaximum(m, devices)
	judgeStages := func(who string, starts, places []int) {
		seconds, err := planner.JudgeStages(r, 1, starts, places)
		if err != nil {
			t.Fatal(err)
		}
		x.Seconds[who] = seconds
	}
	judgeStages("least maximum", starts, places)
	slowest := between
	if each == devices {
		slowest = inside
	}
	starts, places = pipeDream(m, devices, slowest)
	judgeStages("PipeDream", starts, places)
	mesh, err := planner.Solve(r)
	if err != nil {
		t.Fatal(err)
	}
	x.Seconds["mesh"] = mesh.Best.Predicted.Seconds
	r.Space = planner.SpaceAny
	own, err := planner.Solve(r)
	if err != nil {
		t.Fatal(err)
	}
	x.Seconds["any"], x.Bound = own.Best.Predicted.Seconds, own.Best.Certificate.Bound
	x.WhyNot = own.Best.Runs.WhyNot
	x.Own = x.WhyNot != ""
	if own.Guarantee != nil {
		x.Guarantee = own.Guarantee.Seconds
	}
	return x
}

// totals returns the seconds of the first 0, 1, … layers for a minibatch, and their bytes of
// parameters.
func totals(m *model.Model) (seconds []float64, params []float64) {
	seconds, params = []float64{0}, []float64{0}
	for i, l := range m.Layers {
		c := m.Points[0].Layers[l.ID]
		seconds = append(seconds, seconds[i]+c.Forward+c.Backward)
		params = append(params, params[i]+float64(l.Params))
	}
	return seconds, params
}

// leastMaximum cuts layers into so many stages of one device, for the slowest to be as fast as it
// can be.
func leastMaximum(m *model.Model, stages int) (starts, places []int) {
	seconds, _ := totals(m)
	n := len(m.Layers)
	best, from := slices.Clone(seconds), make([][]int, stages)
	for s := 1; s < stages; s++ {
		next := make([]float64, n+1)
		from[s] = make([]int, n+1)
		for j := range next {
			next[j] = math.Inf(1)
			for i := s; i < j; i++ {
				if v := max(best[i], seconds[j]-seconds[i]); v < next[j] {
					next[j], from[s][j] = v, i
				}
			}
		}
		best = next
	}
	starts, places = make([]int, stages), make([]int, stages)
	for s, j := stages-1, n; s > 0; s-- {
		starts[s], places[s] = from[s][j], s
		j = from[s][j]
	}
	return starts, places
}

// pipeDream cuts layers as the planner of PipeDream does on one level of links: stages have own
// numbers of replicas, each time that a micro-batch takes is divided among them with that of
// averaging parameters after each, and the slowest stage or transfer is as fast as it can be.
func pipeDream(m *model.Model, devices int, rate float64) (starts, places []int) {
	seconds, params := totals(m)
	n := len(m.Layers)
	type cell struct {
		slowest        float64
		from, replicas int
	}
	table := make([][]cell, n+1)
	table[0] = make([]cell, devices+1)
	for j := 1; j <= n; j++ {
		table[j] = make([]cell, devices+1)
		for d := 1; d <= devices; d++ {
			best := cell{slowest: math.Inf(1)}
			for r := 1; r <= d; r++ {
				for i := range j {
					if (i == 0) != (r == d) {
						continue
					}
					k := float64(r)
					v := (seconds[j] - seconds[i] + 4*(k-1)*(params[j]-params[i])/(rate*k)) / k
					if i > 0 {
						v = max(v, table[i][d-r].slowest, 2*float64(m.Layers[i-1].Out)/(rate*k))
					}
					if v < best.slowest {
						best = cell{v, i, r}
					}
				}
			}
			table[j][d] = best
		}
	}
	for j, d := n, devices; j > 0; {
		x := table[j][d]
		j, d = x.from, d-x.replicas
		starts, places = append(starts, j), append(places, d)
	}
	slices.Reverse(starts)
	slices.Reverse(places)
	return starts, places
}

// TestPipeDreamSplit compares the split with that of the original for VGG-16 on four devices.
func TestPipeDreamSplit(t *testing.T) {
	data := os.Getenv("SHOAL_DATA")
	if data == "" {
		t.Skip("SHOAL_DATA names no folder with public profiles")
	}
	text, err := os.ReadFile(filepath.Join(data,
		"pipedream-profiles/image_classification/vgg16/graph.txt"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := importer.PipeDream(text)
	if err != nil {
		t.Fatal(err)
	}
	starts, places := pipeDream(got.Model, 4, 1.25e9)
	if !slices.Equal(starts, []int{0, 18}) || !slices.Equal(places, []int{0, 3}) {
		t.Errorf("stages begin at layers %v and at devices %v", starts, places)
	}
}

// TestPiper judges data parallelism on Piper's input, which is its optimum on devices of 80 GiB: it
// takes what Piper's programme says, but for averaging, whose bytes that counts twice.
func TestPiper(t *testing.T) {
	data := os.Getenv("SHOAL_DATA")
	if data == "" {
		t.Skip("SHOAL_DATA names no folder with public graphs")
	}
	text, err := os.ReadFile(filepath.Join(data, "piper/inputs/bert32a100.json"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := importer.Piper(text)
	if err != nil {
		t.Fatal(err)
	}
	const batch, rate = 1920, 25 << 30
	_, params := totals(got.Model)
	for devices, want := range map[int]float64{8: 0.122007269, 32: 0.030844048, 64: 0.015650178,
		128: 0.008053243} {
		c := cluster.Cluster{Shoal: cluster.Version,
			Kinds: []cluster.Kind{{Name: "gpu", Memory: 80 << 30}},
			Hosts: []cluster.Host{{Name: "host", Kind: "gpu", Places: devices}},
			Links: []cluster.Link{{Inside: true, Curve: cluster.Curve{Rate: rate}}}}
		r, err := planner.Judge(planner.Request{Model: got.Model, Batch: batch,
			Cluster: reread(t, c, cluster.Parse)}, fmt.Sprintf("dp=%d,pp=1(micro=1)", devices))
		if err != nil {
			t.Fatal(err)
		}
		once := 2 * float64(devices-1) / float64(devices) * params[len(params)-1] / rate
		if is := (r.Best.Predicted.Seconds + once) / batch; math.Abs(is/want-1) > 1e-5 {
			t.Errorf("%d devices: %v s a sample, and Piper's optimum has %v", devices, is, want)
		}
	}
}
