package model_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/decide/planner/model"
)

// good is a model that is read.
const good = `{"shoal": "model/1", "name": "pair",
 "layers": [{"id": "a", "params": 4, "state": 16, "out": 2}, {"id": "b", "params": 4, "state": 16, "out": 2}],
 "points": [{"device": "cpu", "micro": 2, "layers": {
  "a": {"forward": 1, "backward": 2, "update": 0.5, "kept": 8},
  "b": {"forward": 3, "backward": 4, "by_weights": 1, "update": 0.5, "kept": 8}}}]}`

// TestParse reads a model, and says of those that contradict themselves what is wrong.
func TestParse(t *testing.T) {
	m, err := model.Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Micros("cpu", 1); !cmp.Equal(got, []int{2}) ||
		m.Point("cpu", 1, 4) != nil {
		t.Errorf("micro-batches %v", got)
	}
	for _, x := range []struct{ old, new, err string }{
		{`"points": [`, `"points": [` + strings.Repeat(`{"layers": {}}, `, 1<<12), "4097 points"},
		{"model/1", "model/2", `the field shoal is "model/2"`},
		{`"name"`, `"title"`, "unknown field"},
		{`"id": "b"`, `"id": "a"`, `layers 0 and 1 are both called "a"`},
		{`"id": "b"`, `"id": ""`, "layer 1 has no id"},
		{`"id": "b"`, `"id": "b\n"`, `layer 1: its id "b\n" has letters that cannot be shown`},
		{`"micro": 2`, `"micro": 2, "formula": "\u001b[31m"`, "cannot be shown"},
		{`"b": {`, `"c": {`, `the model has no layer "c"`},
		{`"params": 4`, `"params": -4`, "layer a: params is -4 bytes"},
		{`"forward": 3`, `"forward": -3`, "layer b: forward takes -3 seconds"},
		{`"by_weights": 1`, `"by_weights": 5`, "layer b: by_weights is 5 of the 4 seconds"},
		{`"by_weights": 1`, `"by_weights": -1`, "layer b: by_weights is -1 of the 4 seconds"},
		{`"forward": 3`, `"forward": 1e400`, "1e400"},
		{`"kept": 8`, `"kept": -8`, "keeps -8 bytes"},
		{`"kept": 8`, `"kept": 1125899906842624`, "layer b keeps 8 bytes; it is from 0 to 2^50"},
		{`"state": 16`, `"state": 1125899906842624`, "layer b: state is 16 bytes; it is from 0"},
		{`"micro": 2`, `"micro": 0`, "from 1 to 2^30 samples"},
		{`"micro": 2`, `"micro": 2, "spread": -1`, "a spread of -1"},
		{`"device": "cpu"`, `"device": ""`, "of which device"},
		{`"micro": 2`, `"micro": 2, "tp": 2`, "layer a has no split over 2 ranks"},
		{`"micro": 2`, `"micro": 2, "tp": -1`, "-1 ranks share its layers"},
		{`"out": 2`, `"out": 2, "split": [{"tp": 1, "params": 1, "state": 1}]`, "a degree of 1"},
		{`"out": 2`, `"out": 2, "split": [{"tp": 2, "params": 5, "state": 1}]`,
			"layer a: split over 2 ranks: 5 bytes of parameters"},
		{`"out": 2`, `"out": 2, "split": [{"tp": 2, "params": 4, "state": 1}, {"tp": 2, "params": 4, "state": 1}]`,
			"split over 2 ranks comes twice"},
		{`"points": [`, `"points": [], "source": "", "points": [`, ""},
		{`"points"`, `"edges": [{"from": "a", "to": "b", "bytes": 2}], "points"`, ""},
		{`"points"`, `"edges": [{"from": "a", "to": "c", "bytes": 2}], "points"`,
			`from "a" to "c": the model has no layer "c"`},
		{`"points"`, `"edges": [{"from": "b", "to": "a", "bytes": 2}], "points"`,
			"layer a takes from b, which stands behind it"},
		{`"points"`, `"edges": [{"from": "a", "to": "b", "bytes": 0}, {"from": "b", "to": "a",
			"bytes": 0}], "points"`, "in a circle: a → b → a"},
		{`"points"`, `"edges": [{"from": "a", "to": "a", "bytes": 0}], "points"`, "a → a"},
		{`"points"`, `"edges": [{"from": "a", "to": "b", "bytes": -1}], "points"`, "has -1 bytes"},
		{`"points"`, `"edges": [{"from": "a", "to": "b", "bytes": 3}], "points"`,
			"layer a: out is 2 bytes, and the edge from a to b over the cut behind it has 3"},
		{`}]}`, `}]} x`, "stands after it"},
	} {
		_, err := model.Parse([]byte(strings.Replace(good, x.old, x.new, 1)))
		if x.err != "" && (err == nil || !strings.Contains(err.Error(), x.err)) {
			t.Errorf("%s: error %v, want %q", x.new, err, x.err)
		}
	}
}

// TestDegrees reads a model whose layers were measured on one device, and shared by two.
func TestDegrees(t *testing.T) {
	shared := strings.ReplaceAll(good, `"out": 2`,
		`"out": 2, "split": [{"tp": 2, "params": 3, "state": 9}]`)
	head, points, _ := strings.Cut(shared, `"points": [`)
	point := strings.TrimSuffix(points, "]}")
	m, err := model.Parse([]byte(head + `"points": [` + point + ", " +
		strings.Replace(point, `"micro": 2`, `"micro": 4, "tp": 2`, 1) + "]}"))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Degrees("cpu"); !cmp.Equal(got, []int{1, 2}) {
		t.Errorf("degrees %v", got)
	}
	if got := m.Micros("cpu", 2); !cmp.Equal(got, []int{4}) || m.Point("cpu", 2, 2) != nil ||
		m.Point("cpu", 2, 4).Degree() != 2 {
		t.Errorf("micro-batches %v", got)
	}
	if params, state := m.Layers[0].Rank(2); params != 3 || state != 9 {
		t.Errorf("%d bytes of parameters and %d of state", params, state)
	}
	if params, state := m.Layers[0].Rank(1); params != 4 || state != 16 {
		t.Errorf("%d bytes of parameters and %d of state", params, state)
	}
}

// FuzzParse feeds any text to the parser: it does not panic, and what it reads it reads again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(strings.Replace(good, `"points"`, `"edges": [{"from": "a", "to": "b",
 "bytes": 2}], "points"`, 1)))
	f.Add([]byte(strings.ReplaceAll(strings.Replace(good, `"micro": 2`, `"micro": 2, "tp": 2`, 1),
		`"out": 2`, `"out": 2, "split": [{"tp": 2, "params": 3, "state": 9}]`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := model.Parse(text)
		if err != nil {
			return
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := model.Parse(again); err != nil {
			t.Errorf("%s: %v", again, err)
		}
	})
}

// TestOrder orders random graphs: each layer comes once, and after those that it takes from. A
// circle is named.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "layers")
		names, from := make([]string, n), make([][]int, n)
		for i := range n {
			names[i] = string(rune('a' + i))
		}
		place := rapid.Permutation(seq(n)).Draw(t, "place")
		for range rapid.IntRange(0, 2*n).Draw(t, "edges") {
			a := rapid.IntRange(0, n-1).Draw(t, "from")
			b := rapid.IntRange(0, n-1).Draw(t, "to")
			if place[a] < place[b] {
				from[b] = append(from[b], a)
			}
		}
		order, err := model.Order(names, from)
		if err != nil {
			t.Fatal(err)
		}
		when := map[int]int{}
		for i, l := range order {
			when[l] = i
		}
		if len(when) != n || len(order) != n {
			t.Fatalf("%v has not each of %d layers", order, n)
		}
		for b, list := range from {
			for _, a := range list {
				if when[a] >= when[b] {
					t.Errorf("%v: %d takes from %d", order, b, a)
				}
			}
		}
		// An edge back from the last layer of a path to its first makes a circle.
		for b, list := range from {
			for _, a := range list {
				from[a] = append(from[a], b)
				if _, err := model.Order(names, from); err == nil ||
					!strings.Contains(err.Error(), names[a]+" → ") {
					t.Fatalf("%v: error %v", from, err)
				}
				return
			}
		}
	})
}

// seq returns the numbers below n.
func seq(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}
