package cluster_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
)

// good is a cluster that is read.
const good = `{"shoal": "cluster/1", "kinds": [{"name": "cpu", "memory": 100, "reserve": 10}],
 "hosts": [{"name": "a", "kind": "cpu", "places": 2}, {"name": "b", "kind": "cpu", "places": 1}],
 "links": [{"inside": true, "latency": 0.5, "rate": 8}, {"between": ["b", "a"], "latency": 1, "rate": 4}]}`

// TestParse reads a cluster, and says of those that contradict themselves what is wrong.
func TestParse(t *testing.T) {
	c, err := cluster.Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	places := c.Places()
	if len(places) != 3 || c.Kind("cpu").Memory != 100 {
		t.Fatalf("%+v", places)
	}
	if inside, between := c.Link(places[0], places[1]).Seconds(8),
		c.Link(places[0], places[2]).Seconds(8); inside != 1.5 || between != 3 {
		t.Errorf("8 bytes take %v s inside a host and %v s between two", inside, between)
	}
	for _, x := range []struct{ old, new, err string }{
		{"cluster/1", "model/1", `the field shoal is "model/1"`},
		{`"reserve": 10`, `"reserve": 100`, "of which 100 are reserved"},
		{`"memory": 100`, `"memory": 0`, "0 bytes of memory"},
		{`"name": "b"`, `"name": "a"`, `a host "a" has no name, or comes twice`},
		{`"kind": "cpu"`, `"kind": "cpus"`, `there is no kind "cpus" (did you mean cpu?)`},
		{`"places": 2`, `"places": 0`, "host a has 0 places"},
		{`"places": 2`, `"places": 70000`, "host a has 70000 places"},
		{`"rate": 4`, `"rate": 0`, "link 1: a rate of 0"},
		{`"latency": 1`, `"latency": -1`, "link 1: a latency of -1"},
		{`"between": ["b", "a"]`, `"between": ["b", "c"]`, `there is no host "c"`},
		{`"between": ["b", "a"]`, `"between": ["b"]`, "between has 1 names"},
		{`"between": ["b", "a"]`, `"between": ["b", "b"]`, "names it twice, and is inside"},
		{`"inside": true, `, ``, "no link fits workers of a and a"},
		{`, {"between": ["b", "a"], "latency": 1, "rate": 4}`, ``, "no link fits workers of b and a"},
	} {
		_, err := cluster.Parse([]byte(strings.Replace(good, x.old, x.new, 1)))
		if err == nil || !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: error %v, want %q", x.new, err, x.err)
		}
	}
}

// FuzzParse feeds any text to the parser: it does not panic, and what it reads it reads again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := cluster.Parse(text)
		if err != nil {
			return
		}
		again, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cluster.Parse(again); err != nil {
			t.Errorf("%s: %v", again, err)
		}
	})
}
