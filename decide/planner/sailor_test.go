package planner_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/importer"
)

// sailorFiles returns the files of Sailor in the folder of SHOAL_DATA. Without it the test is
// skipped.
func sailorFiles(t testing.TB) (folder string, f importer.SailorFiles) {
	t.Helper()
	data := os.Getenv("SHOAL_DATA")
	if data == "" {
		t.Skip("SHOAL_DATA names no folder with public profiles")
	}
	folder = filepath.Join(data, "sailor")
	for name, into := range map[string]*[]byte{"profiles_tmp.json": &f.Profiles,
		"llm_info.json": &f.Info, "bandwidth/network_coeffs_all_homo.json": &f.Network,
		"bandwidth/multizone_bandwidths_het.json": &f.Mixed,
		"configs/basic_cluster_config.json":       &f.Config} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		*into = text
	}
	return folder, f
}

// TestMeasuredPlans judges the plans of Sailor that somebody has run, with nothing fitted to them,
// and compares seconds and memory with what was measured.
func TestMeasuredPlans(t *testing.T) {
	folder, files := sailorFiles(t)
	var paths []string
	err := filepath.WalkDir(filepath.Join(folder, "plans"), func(path string, d os.DirEntry,
		err error) error {
		if err == nil && !d.IsDir() {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var times, memories []float64
	lowest := 0.0
	for _, path := range paths {
		name, _ := filepath.Rel(folder, path)
		model, layers := "OPT-350", 26
		if strings.Contains(path, "GPT-NEO") {
			model, layers = "GPT-Neo-2.7", 34
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := readSailorPlan(text, layers)
		if err != nil {
			t.Logf("%s is left out: %v", name, err)
			continue
		}
		in, err := importer.Sailor(files, model, plan.Hosts)
		if err != nil {
			t.Fatal(err)
		}
		r, err := planner.Judge(planner.Request{Model: in.Model, Cluster: in.Cluster,
			Batch: plan.Batch}, plan.Mesh)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		memory := int64(0)
		for _, s := range r.Best.Stages {
			memory = max(memory, s.Memory+in.Cluster.Kinds[0].Reserve)
		}
		seconds := r.Best.Predicted.Seconds/plan.Seconds - 1
		bytes := float64(memory)/float64(plan.Memory) - 1
		t.Logf("%-46s %8.3f s measured, predicted %8.3f: %+6.1f %%; memory %+5.1f %%", name,
			plan.Seconds, r.Best.Predicted.Seconds, 100*seconds, 100*bytes)
		times, memories = append(times, math.Abs(seconds)), append(memories, math.Abs(bytes))
		lowest = min(lowest, bytes)
	}
	t.Logf("time: median %.2f %%, mean %.2f %%; memory: median %.2f %%, at most %.2f %% too low",
		100*median(times), 100*mean(times), 100*median(memories), -100*lowest)
	if len(times) != 16 || median(times) > 0.04 || mean(times) > 0.07 || median(memories) > 0.06 ||
		lowest < -0.08 {
		t.Errorf("%d plans are not judged as well as they were", len(times))
	}
}

// median returns the middle of some numbers.
func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}

// mean returns the mean of some numbers.
func mean(list []float64) (sum float64) {
	for _, x := range list {
		sum += x / float64(len(list))
	}
	return sum
}
