package launcher

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
)

// TestDescribeCluster describes jobs in the form that planners read. A kind has the memory of the
// worker that may have least, and a link that nobody has measured says so.
func TestDescribeCluster(t *testing.T) {
	yes, no := true, false
	inside := cluster.Link{Inside: true, Measured: &no,
		Curve: cluster.Curve{Latency: insideLatency, Rate: insideRate}}
	// cable returns a link between hosts, all of which go over one cable of each host.
	cable := func(latency, rate float64, measured *bool, between ...string) cluster.Link {
		c := cluster.Curve{Latency: latency, Rate: rate}
		return cluster.Link{Between: between, Curve: c, Shared: &c, Measured: measured}
	}
	for _, c := range []struct {
		name string
		in   agent.Machines
		want cluster.Cluster
	}{
		{"one host, of which nothing is known", agent.Machines{
			Hosts:  []agent.Machine{{Name: "a", Places: 4}},
			Others: agent.Link{Latency: 250e-6, Rate: 1.25e9},
		}, cluster.Cluster{Kinds: []cluster.Kind{{Name: "cpu", Memory: 1000}},
			Hosts: []cluster.Host{{Name: "a", Kind: "cpu", Places: 4}},
			Links: []cluster.Link{inside, cable(250e-6, 1.25e9, &no)}}},
		{"three, of which two have shown what their link carries", agent.Machines{
			Hosts: []agent.Machine{{Name: "a", Places: 2, Memory: 3000},
				{Name: "b", Places: 1, Memory: 2500}, {Name: "c", Kind: "a100", Places: 1}},
			Links: []agent.Link{{From: "b", To: "a", Latency: 1e-4, Rate: 123456789,
				Measured: true}},
			Others: agent.Link{Latency: 1e-4, Rate: 1e8, Measured: true},
		}, cluster.Cluster{Kinds: []cluster.Kind{{Name: "cpu", Memory: 2500},
			{Name: "a100", Memory: 4000}},
			Hosts: []cluster.Host{{Name: "a", Kind: "cpu", Places: 2},
				{Name: "b", Kind: "cpu", Places: 1}, {Name: "c", Kind: "a100", Places: 1}},
			Links: []cluster.Link{inside, cable(1e-4, 1.23e8, &yes, "b", "a"),
				cable(1e-4, 1e8, &yes)}}},
		{"hosts that are called as kinds are", agent.Machines{
			Hosts: []agent.Machine{{Name: "cpu", Places: 2}, {Name: "host-cpu", Places: 2}},
			Links: []agent.Link{{From: "cpu", To: "host-cpu", Latency: 1e-4, Rate: 1e9,
				Measured: true}},
			Others: agent.Link{Latency: 1e-4, Rate: 1e8},
		}, cluster.Cluster{Kinds: []cluster.Kind{{Name: "cpu", Memory: 2000}},
			Hosts: []cluster.Host{{Name: "host-host-cpu", Kind: "cpu", Places: 2},
				{Name: "host-cpu", Kind: "cpu", Places: 2}},
			Links: []cluster.Link{inside, cable(1e-4, 1e9, &yes, "host-host-cpu", "host-cpu"),
				cable(1e-4, 1e8, &no)}}},
	} {
		c.want.Shoal = cluster.Version
		got := describeCluster(c.in, 4000)
		if diff := cmp.Diff(&c.want, got,
			cmpopts.IgnoreUnexported(cluster.Cluster{})); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cluster.Parse(text); err != nil {
			t.Errorf("%s: %v in %s", c.name, err, text)
		}
	}
}
