package planner_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/decide/planner/importer"
)

// Plans of Sailor that somebody has run, with which TestMeasuredPlans compares. The functions are
// pure.

// A measured is a plan that somebody has run, and what it took.
type measured struct {
	Mesh    string // as layout.ParseMesh reads it
	Batch   int
	Hosts   []importer.SailorHosts // that it was on, in the order of its stages and replicas
	Seconds float64                // of a step
	Memory  int64                  // bytes of the fullest device
	Quirks  []string
}

// readSailorPlan reads a plan of Sailor with what was measured, of a model of so many layers.
func readSailorPlan(text []byte, layers int) (*measured, error) {
	var plan struct {
		Pipelines []struct {
			Stages int        `json:"num_stages"`
			Layers [][]int    `json:"layers_per_stage"`
			Ranks  [][][2]any `json:"tmp_per_stage"`
			DP     []int      `json:"dp"`
		} `json:"pipeline_list"`
		Sample  int     `json:"mbs"`
		Batch   int     `json:"gbs"`
		Seconds float64 `json:"real"`
		Average float64 `json:"red_grads"`
		Memory  int64   `json:"max_mem"`
	}
	if err := json.Unmarshal(text, &plan); err != nil {
		return nil, err
	}
	if len(plan.Pipelines) != 1 || !(plan.Seconds > 0 && plan.Seconds < math.Inf(1)) {
		return nil, fmt.Errorf("%d pipelines, %v s a step: a plan has one, and was measured",
			len(plan.Pipelines), plan.Seconds)
	}
	p := plan.Pipelines[0]
	m := &measured{Batch: plan.Batch, Seconds: plan.Seconds, Memory: plan.Memory}
	if len(p.Layers) == 0 || len(p.Layers) != p.Stages || len(p.Ranks) != p.Stages ||
		len(p.DP) != p.Stages {
		return nil, fmt.Errorf("it says %d stages, and has layers of %d, ranks of %d and degrees "+
			"of %d", p.Stages, len(p.Layers), len(p.Ranks), len(p.DP))
	}
	var shares []int
	next := 0
	for _, list := range p.Layers {
		for _, l := range list {
			if l == 29 && next == 19 {
				m.Quirks = append(m.Quirks, "layer 29 in the place of layer 19 is read as that")
			} else if l != next {
				return nil, fmt.Errorf("layer %d stands where %d would follow", l, next)
			}
			next++
		}
		shares = append(shares, len(list))
	}
	switch {
	case next != layers:
		return nil, fmt.Errorf("it has %d layers, and the model has %d: it is one of another model",
			next, layers)
	case p.DP[0] == 1 && plan.Average > 0.1:
		return nil, fmt.Errorf("it says that a single replica averages gradients for %v s, which "+
			"is the measurement of another plan", plan.Average)
	}
	mesh, hosts, err := sailorMesh(p.Ranks, shares, plan.Sample)
	m.Mesh, m.Hosts = mesh, hosts
	return m, err
}

// sailorMesh returns the mesh of a plan whose ranks are given by stage and replica, each as a list
// of a kind of device with how many of them, and a degree of tensor parallelism; and its hosts.
func sailorMesh(ranks [][][2]any, shares []int, sample int) (string, []importer.SailorHosts,
	error) {
	stages, replicas, tp := len(ranks), len(ranks[0]), 0
	var kinds []string // by stage and replica
	for _, list := range ranks {
		if len(list) != replicas || replicas == 0 {
			return "", nil, fmt.Errorf("stages have %d and %d replicas; a mesh has as many of "+
				"each", replicas, len(list))
		}
		for _, r := range list {
			kind, degree, err := sailorRank(r)
			if err != nil {
				return "", nil, err
			}
			if tp == 0 {
				tp = degree
			}
			if degree != tp {
				return "", nil, fmt.Errorf("degrees of tensor parallelism are %d and %d; a mesh "+
					"has one", tp, degree)
			}
			kinds = append(kinds, kind)
		}
	}
	var hosts []importer.SailorHosts
	for _, kind := range kinds {
		i := slices.IndexFunc(hosts, func(h importer.SailorHosts) bool { return h.Kind == kind })
		if i < 0 {
			i, hosts = len(hosts), append(hosts, importer.SailorHosts{Kind: kind})
		}
		hosts[i].Count++
	}
	byStage, byReplica := make([]string, stages), make([]string, replicas)
	same := [2]bool{true, true}
	for i, kind := range kinds {
		for j, list := range [][]string{byStage, byReplica} {
			at := &list[[2]int{i / replicas, i % replicas}[j]]
			if *at != "" && *at != kind {
				same[j] = false
			}
			*at = kind
		}
	}
	dp, pp := "", "micro="+strconv.Itoa(sample)
	switch {
	case len(hosts) == 1:
	case same[0]:
		pp += ";on=" + strings.Join(byStage, "/")
	case same[1]:
		dp = "(on=" + strings.Join(byReplica, "/") + ")"
	default:
		return "", nil, fmt.Errorf("kinds of devices differ among replicas and among stages")
	}
	parts := make([]string, stages)
	for i, n := range shares {
		parts[i] = strconv.Itoa(n)
	}
	return fmt.Sprintf("pp=%d(%s;%s),dp=%d%s,tp=%d", stages, strings.Join(parts, "/"), pp, replicas,
		dp, tp), hosts, nil
}

// sailorRank reads [[["A100-40", 4, "zone"]], 4].
func sailorRank(rank [2]any) (kind string, degree int, err error) {
	text, err := json.Marshal(rank)
	if err != nil {
		return "", 0, err
	}
	var devices [][]json.RawMessage
	if err := json.Unmarshal(text, &[]any{&devices, &degree}); err != nil {
		return "", 0, fmt.Errorf("ranks %s: %w", text, err)
	}
	if len(devices) != 1 || len(devices[0]) < 1 || degree < 1 {
		return "", 0, fmt.Errorf("ranks %s: they are on one kind of device", text)
	}
	if err := json.Unmarshal(devices[0][0], &kind); err != nil || kind == "" {
		return "", 0, fmt.Errorf("ranks %s: the kind of device has no name", text)
	}
	return kind, degree, nil
}

// sailorPlan is a plan of two stages on two kinds of devices.
const sailorPlan = `{"pipeline_list": [{"num_stages": 2, "layers_per_stage": [[0, 1], [2]],
 "tmp_per_stage": [[[[["a", 4, "z"]], 4], [[["a", 4, "z"]], 4]],` +
	` [[[["b", 4, "z"]], 4], [[["b", 4, "z"]], 4]]],
 "dp": [2, 2]}], "mbs": 2, "gbs": 8, "real": 3.5, "red_grads": 0.2, "max_mem": 99}`

// TestSailorPlan reads plans, and refuses those that are of another model, or have the measurement
// of another plan.
func TestSailorPlan(t *testing.T) {
	got, err := readSailorPlan([]byte(sailorPlan), 3)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&measured{Mesh: "pp=2(2/1;micro=2;on=a/b),dp=2,tp=4", Batch: 8,
		Hosts:   []importer.SailorHosts{{Kind: "a", Count: 2}, {Kind: "b", Count: 2}},
		Seconds: 3.5, Memory: 99}, got); d != "" {
		t.Error(d)
	}
	replicas := strings.NewReplacer(`["a", 4, "z"]], 4]], [`, `["b", 4, "z"]], 4]], [`,
		`[[[[["b", 4, "z"]], 4], [`, `[[[[["a", 4, "z"]], 4], [`).Replace(sailorPlan)
	replicas = strings.Replace(replicas, `[[[["b", 4, "z"]], 4], [[["b"`,
		`[[[["a", 4, "z"]], 4], [[["b"`, 1)
	if got, err := readSailorPlan([]byte(replicas), 3); err != nil ||
		got.Mesh != "pp=2(2/1;micro=2),dp=2(on=a/b),tp=4" {
		t.Errorf("%+v, error %v", got, err)
	}
	layers := make([]int, 34)
	for i := range layers {
		layers[i] = i
	}
	layers[19] = 29
	list, err := json.Marshal(layers)
	if err != nil {
		t.Fatal(err)
	}
	got, err = readSailorPlan([]byte(strings.Replace(sailorPlan, "[[0, 1], [2]]",
		"["+strings.Replace(string(list), "18,", "18],[", 1)+"]", 1)), 34)
	if err != nil || len(got.Quirks) != 1 || !strings.HasPrefix(got.Mesh, "pp=2(19/15;") {
		t.Errorf("%+v, error %v", got, err)
	}
	for _, x := range []struct{ old, new, err string }{
		{"[2]", "[2, 3]", "it has 4 layers, and the model has 3"},
		{"[2]", "[3]", "layer 3 stands where 2 would follow"},
		{`"dp": [2, 2]`, `"dp": [1, 1]`, "which is the measurement of another plan"},
		{`"dp": [2, 2]`, `"dp": [2]`, "degrees of 1"},
		{`"real": 3.5`, `"real": 0`, "0 s a step"},
		{`["a", 4, "z"]], 4]`, `["a", 4, "z"]], 8]`, "a mesh has one"},
		{`["a", 4, "z"]], 4]`, `["b", 4, "z"]], 4]`, "differ among replicas and among stages"},
	} {
		_, err := readSailorPlan([]byte(strings.Replace(sailorPlan, x.old, x.new, 1)), 3)
		if err == nil || !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: error %v, want %q", x.new, err, x.err)
		}
	}
}
