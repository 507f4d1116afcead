package planner_test

import (
	"testing"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/importer"
)

// sailorRequest returns a request for GPT-Neo on so many hosts of each kind, as Sailor has them.
func sailorRequest(t testing.TB, hosts ...importer.SailorHosts) planner.Request {
	t.Helper()
	_, files := sailorFiles(t)
	in, err := importer.Sailor(files, "GPT-Neo-2.7", hosts)
	if err != nil {
		t.Fatal(err)
	}
	return planner.Request{Model: in.Model, Cluster: in.Cluster, Batch: 2048}
}

// on says that there are so many hosts of a kind of device.
func on(kind string, count int) importer.SailorHosts {
	return importer.SailorHosts{Kind: kind, Count: count}
}

// BenchmarkMixed plans GPT-Neo on devices of two and of three kinds, network included.
func BenchmarkMixed(b *testing.B) {
	for _, x := range []struct {
		name  string
		hosts []importer.SailorHosts
	}{
		{"A100=32,V100=32", []importer.SailorHosts{on("A100-40", 8), on("V100-16", 8)}},
		{"A100=32,V100=96", []importer.SailorHosts{on("A100-40", 8), on("V100-16", 24)}},
		{"A100=128,V100=384", []importer.SailorHosts{on("A100-40", 32), on("V100-16", 96)}},
		{"A100=256,V100=256", []importer.SailorHosts{on("A100-40", 64), on("V100-16", 64)}},
		{"A100=256,V100=256,GH=256", []importer.SailorHosts{on("A100-40", 64), on("V100-16", 64),
			on("GH-96", 64)}},
	} {
		r := sailorRequest(b, x.hosts...)
		b.Run(x.name, func(b *testing.B) {
			for b.Loop() {
				got, err := planner.Solve(r)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(got.Best.Predicted.Seconds, "step-s")
			}
		})
	}
}

// TestNeverSlower plans GPT-Neo on both mixes of kinds of Sailor, and on fewer devices: no plan is
// slower than the best on one kind alone, or than even stages, or than the best plan that is known.
func TestNeverSlower(t *testing.T) {
	for _, x := range []struct {
		hosts []importer.SailorHosts
		known float64 // what the best plan that was found so far takes, in seconds, rounded up
	}{
		{[]importer.SailorHosts{on("A100-40", 32), on("V100-16", 96)}, 10.36},
		{[]importer.SailorHosts{on("A100-40", 64), on("V100-16", 64)}, 7.38},
		{[]importer.SailorHosts{on("A100-40", 8), on("V100-16", 7)}, 41.06},
		{[]importer.SailorHosts{on("A100-40", 4), on("V100-16", 4)}, 79.06},
	} {
		hosts := x.hosts
		got, err := planner.Solve(sailorRequest(t, hosts...))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%v: %s, %.3f s, gap %.1f %%", hosts, got.Best.Mesh, got.Best.Predicted.Seconds,
			100*got.Best.Certificate.Gap)
		others := map[string]float64{"the best plan so far": x.known}
		for _, one := range hosts {
			alone, err := planner.SolveMixed(sailorRequest(t, one))
			if err != nil {
				t.Fatal(err)
			}
			others[alone.Best.Mesh+" on "+one.Kind] = alone.Best.Predicted.Seconds
		}
		for _, x := range got.Rejected {
			others[x.Mesh] = x.Seconds
		}
		for mesh, seconds := range others {
			t.Logf("  %.3f s: %s", seconds, mesh)
			if seconds < got.Best.Predicted.Seconds {
				t.Errorf("%v: %s takes %v s, and %s %v", hosts, got.Best.Mesh,
					got.Best.Predicted.Seconds, mesh, seconds)
			}
		}
	}
}
