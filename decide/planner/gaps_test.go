package planner_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/importer"
)

// TestProvedGaps plans the public profiles of PipeDream below the folder of SHOAL_DATA, as many
// stages as workers, without transfers: the gap that is proved is small. With SHOAL_PLAN_GAPS it
// plans all of them, and prints a table; else those for four workers.
func TestProvedGaps(t *testing.T) {
	data := os.Getenv("SHOAL_DATA")
	if data == "" {
		t.Skip("SHOAL_DATA names no folder with public profiles")
	}
	files, err := filepath.Glob(filepath.Join(data, "pipedream-profiles", "*", "*", "graph.txt"))
	if err != nil || len(files) != 10 {
		t.Fatalf("%d profiles, %v", len(files), err)
	}
	workers := []int{4}
	if os.Getenv("SHOAL_PLAN_GAPS") != "" {
		workers = []int{2, 4, 8}
	}
	for _, bar := range []struct {
		times     int // micro-batches by worker
		mean, max float64
	}{{1, 0.01, 0.05}, {4, 0.002, 0.015}} {
		mean, most, count := 0.0, 0.0, 0.0
		t.Logf("M = %d N, for each N: the gap, in brackets by the terms alone, and seconds",
			bar.times)
		for _, file := range files {
			row := fmt.Sprintf("| %s |", filepath.Base(filepath.Dir(file)))
			for _, n := range workers {
				r, took := planChain(t, file, n, bar.times*n, 0)
				quick, _ := planChain(t, file, n, bar.times*n, -1)
				gap := r.Best.Certificate.Gap
				terms := r.Best.Predicted.Seconds/quick.Best.Certificate.Bound - 1
				mean, most, count = mean+gap, max(most, gap), count+1
				row += fmt.Sprintf(" %.2f (%.2f), %.1f s |", 100*gap, 100*terms, took.Seconds())
			}
			t.Log(row)
		}
		mean /= count
		t.Logf("M = %d N: gap %.3f %% in the mean, %.3f %% at most", bar.times, 100*mean, 100*most)
		if mean > bar.mean || most > bar.max {
			t.Errorf("M = %d N: gap %.3f %% in the mean, %.3f %% at most", bar.times, 100*mean,
				100*most)
		}
	}
}

// planChain plans a profile on some workers, as many stages, for so many micro-batches, with so
// much work. Averaging takes for ever, so that nobody has replicas, and transfers take no time.
func planChain(t *testing.T, file string, workers, micro, work int) (*planner.Result,
	time.Duration) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := importer.PipeDream(text)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got.Model.Layers {
		got.Model.Layers[i].Out = 0
	}
	all := cluster.Cluster{Shoal: cluster.Version,
		Kinds: []cluster.Kind{{Name: "gpu", Memory: 1 << 45}},
		Hosts: []cluster.Host{{Name: "a", Kind: "gpu", Places: workers}},
		Links: []cluster.Link{{Inside: true, Curve: cluster.Curve{Rate: 1}}}}
	begin := time.Now()
	r, err := planner.Solve(planner.Request{Model: got.Model,
		Cluster: reread(t, all, cluster.Parse), Batch: micro, Work: work})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Best.Stages) != workers {
		t.Fatalf("%s: %d stages", r.Best.Mesh, len(r.Best.Stages))
	}
	return r, time.Since(begin)
}
