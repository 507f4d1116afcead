package cluster_test

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
)

// good is a cluster that is read.
const good = `{"shoal": "cluster/1", "kinds": [{"name": "cpu", "memory": 100, "reserve": 10}],
 "hosts": [{"name": "a", "kind": "cpu", "places": 2}, {"name": "b", "kind": "cpu", "places": 1}],
 "links": [{"inside": true, "latency": 0.5, "rate": 8}, {"between": ["b", "a"], "latency": 1, "rate": 4}]}`

// TestRepeatedLinks reads very many links between the same kinds with many hosts, of which the
// first one counts.
func TestRepeatedLinks(t *testing.T) {
	var hosts, links []string
	for i := range 2000 { // each is a class of its own, since a link names it
		hosts = append(hosts, fmt.Sprintf(`{"name": "a%d", "kind": "a", "places": 1}`, i))
		links = append(links, fmt.Sprintf(`{"between": ["a%d", "b0"], "rate": 3}`, i))
	}
	hosts = append(hosts, `{"name": "b0", "kind": "b", "places": 1}`)
	for range 20_000 {
		links = append(links, `{"between": ["a", "a"], "rate": 5}`)
	}
	text := `{"shoal": "cluster/1", "kinds": [{"name": "a", "memory": 1},
 {"name": "b", "memory": 1}], "hosts": [` + strings.Join(hosts, ",") + `],
 "links": [` + strings.Join(links, ",") + `, {"rate": 7}]}`
	c, err := cluster.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	places := c.Places()
	if x, y := c.Link(places[0], places[1]).Rate, c.Link(places[0], places[2000]).Rate; x != 5 ||
		y != 3 {
		t.Errorf("rates of %v and %v", x, y)
	}
}

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
		{`"name": "b"`, `"name": "b\u001b"`, `host "b\x1b" has letters in its name that cannot be`},
		{`"name": "cpu"`, `"name": "cpu/2"`, `"cpu/2" names no kind of host`},
		{`"kind": "cpu"`, `"kind": "cpus"`, `there is no kind "cpus" (did you mean cpu?)`},
		{`"places": 2`, `"places": 0`, "host a has 0 places"},
		{`"places": 2`, `"places": 70000`, "host a has 70000 places"},
		{`"rate": 4`, `"rate": 0`, "link 1 (b and a): a rate of 0"},
		{`"latency": 1`, `"latency": -1`, "link 1 (b and a): a latency of -1"},
		{`"between": ["b", "a"]`, `"between": ["b", "c"]`, `there is no host, kind or zone "c"`},
		{`"between": ["b", "a"]`, `"between": ["b"]`, "between has 1 names"},
		{`"between": ["b", "a"]`, `"between": ["b", "b"]`, "b and itself: a link inside a host has"},
		{`"inside": true, `, ``, "no link fits two workers of host a"},
		{`, {"between": ["b", "a"], "latency": 1, "rate": 4}`, ``, "no link fits workers of a and b"},
		{`"shoal"`, `"transfer": "blocked", "shoal"`, `no transfer "blocked" (did you mean blocking?)`},
		{`"rate": 4`, `"rate": 4, "cap": 5`, "several of latency and rate, log2 and cap, and points"},
		{`"rate": 4`, `"rate": 4, "shared": {"rate": -1}`, "shared: a rate of -1"},
		{`"rate": 4`, `"rate": 4, "shared": {"latencies": 1}`, "unknown field"},
		{`"latency": 1, "rate": 4`, `"log2": [1, 2], "cap": 5`, "log2 has 2 numbers"},
		{`"latency": 1, "rate": 4`, `"log2": [0, -1, 4], "cap": 5`, "the rate falls to"},
		{`"latency": 1, "rate": 4`, `"log2": [-1, 0, -4], "cap": 5`, "the rate falls to"},
		{`"latency": 1, "rate": 4`, `"log2": [0, 1, 4]`, "a cap of 0 bytes"},
		{`"latency": 1, "rate": 4`, `"points": [[1, 2], [2, 1]]`, "point 1: 2 bytes in 1 seconds"},
		{`"latency": 1, "rate": 4`, `"points": [[0, 2]]`, "point 0: 0 bytes"},
		{`"latency": 1, "rate": 4`, `"points": []`, "0 points; a curve has from 1"},
		{`["b", "a"]`, `["cpu", "a"], "inside": true`, "names one host or kind twice"},
		{`"name": "b", "kind"`, `"name": "b", "zone": "a", "kind"`, `"a" is a host and also`},
	} {
		_, err := cluster.Parse([]byte(strings.Replace(good, x.old, x.new, 1)))
		if err == nil || !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: error %v, want %q", x.new, err, x.err)
		}
	}
}

// TestLinks finds links by hosts, kinds and zones: the first that fits.
func TestLinks(t *testing.T) {
	c, err := cluster.Parse([]byte(`{"shoal": "cluster/1",
 "kinds": [{"name": "old", "memory": 1}, {"name": "new", "memory": 1}],
 "hosts": [{"name": "a", "kind": "old", "places": 2, "zone": "east"},
  {"name": "b", "kind": "old", "places": 2, "zone": "west"},
  {"name": "c", "kind": "new", "places": 2, "zone": "west"},
  {"name": "d", "kind": "new", "places": 2, "zone": "west"}],
 "links": [{"between": ["c", "d"], "rate": 1}, {"between": ["west", "west"], "rate": 2},
  {"between": ["new", "new"], "inside": true, "rate": 3}, {"between": ["old", "new"], "rate": 4},
  {"inside": true, "rate": 5}, {"rate": 6}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := [][]float64{{5, 6, 4, 4}, {6, 5, 2, 2}, {4, 2, 3, 1}, {4, 2, 1, 3}}
	places := c.Places()
	for a := range want {
		for b := range want {
			if got := c.Link(places[2*a], places[2*b+1]).Rate; got != want[a][b] {
				t.Errorf("from %s to %s the rate is %v, want %v", places[2*a].Host,
					places[2*b].Host, got, want[a][b])
			}
		}
	}
}

// TestFirstFits compares the link between any two hosts with the first one in the file that fits,
// of clusters with links between hosts, kinds, zones and any two of them.
func TestFirstFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := cluster.Cluster{Shoal: cluster.Version}
		names := []string{"k0", "k1", "z0", "z1"}
		for i := range 2 {
			x.Kinds = append(x.Kinds, cluster.Kind{Name: names[i], Memory: 1})
			x.Hosts = append(x.Hosts, cluster.Host{Name: "first" + names[2+i], Kind: names[i],
				Zone: names[2+i], Places: 1})
		}
		for i := range rapid.IntRange(0, 6).Draw(t, "hosts") {
			h := cluster.Host{Name: fmt.Sprint("h", i), Places: 2,
				Kind: rapid.SampledFrom(names[:2]).Draw(t, "kind"),
				Zone: rapid.SampledFrom([]string{"", "z0", "z1"}).Draw(t, "zone")}
			names, x.Hosts = append(names, h.Name), append(x.Hosts, h)
		}
		for range rapid.IntRange(0, 12).Draw(t, "links") {
			l := cluster.Link{Inside: rapid.Bool().Draw(t, "inside")}
			a := rapid.SampledFrom(names).Draw(t, "from")
			b := rapid.SampledFrom(names).Draw(t, "to")
			if l.Inside {
				b = a
			}
			if l.Between = []string{a, b}; a == b && a[0] == 'h' {
				l.Inside = true
			}
			x.Links = append(x.Links, l)
		}
		x.Links = append(x.Links, cluster.Link{}, cluster.Link{Inside: true})
		for i := range x.Links {
			x.Links[i].Rate = float64(i + 1)
		}
		text, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		c, err := cluster.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		is := func(h cluster.Host, name string) bool {
			return h.Name == name || h.Kind == name || h.Zone == name
		}
		places, at := c.Places(), 0
		first := map[string]int{} // place of each host
		for _, h := range x.Hosts {
			first[h.Name] = at
			at += h.Places
		}
		for _, g := range x.Hosts {
			for _, h := range x.Hosts {
				a, b, inside := first[g.Name], first[h.Name], g.Name == h.Name
				if inside {
					b += h.Places - 1
				}
				for _, l := range x.Links {
					n := l.Between
					if l.Inside == inside && (n == nil || is(g, n[0]) && is(h, n[1]) ||
						is(g, n[1]) && is(h, n[0])) {
						if got := c.Link(places[a], places[b]); got.Rate != l.Rate {
							t.Fatalf("from %s to %s goes link %v, want %v: %s", g.Name, h.Name,
								got.Rate-1, l.Rate-1, text)
						}
						break
					}
				}
			}
		}
	})
}

// TestManyNamedHosts reads as many hosts as there may be, each of which has a link of its own. They
// take little memory.
func TestManyNamedHosts(t *testing.T) {
	const n = 1 << 12
	c := cluster.Cluster{Shoal: cluster.Version, Kinds: []cluster.Kind{{Name: "gpu", Memory: 1}}}
	for i := range n {
		c.Hosts = append(c.Hosts, cluster.Host{Name: fmt.Sprint("h", i), Kind: "gpu", Places: 1})
		c.Links = append(c.Links, cluster.Link{Curve: cluster.Curve{Rate: float64(i + 1)},
			Between: []string{fmt.Sprint("h", i), fmt.Sprint("h", (i+1)%n)}})
	}
	c.Links = append(c.Links, cluster.Link{Curve: cluster.Curve{Rate: 1}})
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	read, err := cluster.Parse(text)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 32<<20 {
		t.Errorf("it takes %d bytes to read", bytes)
	}
	places := read.Places()
	if rate := read.Link(places[7], places[6]).Rate; rate != 7 {
		t.Errorf("a rate of %v", rate)
	}
}

// TestCurves follows curves: no larger message takes less time, and none is faster than the cap.
func TestCurves(t *testing.T) {
	parabola := cluster.Curve{Log2: []float64{-0.16570216, 2.79431173, 11.74409677}, Cap: 22.9e9}
	points := cluster.Curve{Points: [][2]float64{{10, 1}, {20, 3}, {40, 3}}}
	for _, x := range []struct {
		curve   cluster.Curve
		bytes   int64
		seconds float64
	}{
		{cluster.Curve{Latency: 1, Rate: 4}, 8, 3},
		{parabola, 1e6, 1e6 / 11.74409677e9},
		{parabola, 8e6, 8e6 / (1e9 * (11.74409677 + 3*2.79431173 - 9*0.16570216))},
		{parabola, 1e9, 1e9 / 22.9e9},
		{points, 1, 1}, {points, 10, 1}, {points, 15, 2}, {points, 30, 3}, {points, 80, 6},
	} {
		if got := x.curve.Seconds(x.bytes); math.Abs(got-x.seconds) > 1e-9*x.seconds {
			t.Errorf("%d bytes over %+v: %v s, want %v", x.bytes, x.curve, got, x.seconds)
		}
	}
	together := cluster.Link{Curve: cluster.Curve{Rate: 2}, Shared: &cluster.Curve{Rate: 3}}
	if one, two := together.SecondsTogether(6, 1), together.SecondsTogether(6, 2); one != 3 ||
		two != 4 {
		t.Errorf("alone %v s, together %v", one, two)
	}
	rapid.Check(t, func(t *rapid.T) {
		c := cluster.Curve{Cap: 1e10}
		for _, what := range []string{"c2", "c1", "c0"} {
			c.Log2 = append(c.Log2, rapid.Float64Range(-3, 30).Draw(t, what))
		}
		if _, err := cluster.Parse([]byte(withCurve(t, c))); err != nil {
			t.Skip(err)
		}
		before := 0.0
		for b := 1.0; b < 1e13; b *= 1.7 {
			got := c.SecondsOf(b)
			if !(got >= before*(1-1e-9) && got >= b/c.Cap*(1-1e-9)) {
				t.Fatalf("%v bytes take %v s, and fewer took %v", b, got, before)
			}
			before = got
		}
	})
}

// withCurve returns a cluster of two hosts with such a link.
func withCurve(t *rapid.T, c cluster.Curve) string {
	curve, err := json.Marshal(cluster.Link{Curve: c})
	if err != nil {
		t.Fatal(err)
	}
	return `{"shoal": "cluster/1", "kinds": [{"name": "cpu", "memory": 1}], "hosts": [{"name": "a",
 "kind": "cpu", "places": 1}, {"name": "b", "kind": "cpu", "places": 1}], "links": [` +
		string(curve) + `]}`
}

// FuzzParse feeds any text to the parser: it does not panic, and what it reads it reads again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	for _, curve := range []string{`"log2": [-0.2, 2.8, 11.7], "cap": 2.3e10`,
		`"points": [[1, 1], [5, 2]], "shared": {"rate": 8}, "half_duplex": true`} {
		f.Add([]byte(strings.Replace(good, `"latency": 1, "rate": 4`, curve, 1)))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := cluster.Parse(text)
		if err != nil {
			return
		}
		places := c.Places()
		for _, bytes := range []int64{0, 1, 1 << 40} {
			link := c.Link(places[0], places[len(places)-1])
			if len(places) > 1 && !(link.Seconds(bytes) >= 0) {
				t.Errorf("%d bytes take %v s", bytes, link.Seconds(bytes))
			}
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
