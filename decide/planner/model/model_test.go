package model_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/decide/planner/model"
)

// good is a model that is read.
const good = `{"shoal": "model/1", "name": "pair",
 "layers": [{"id": "a", "params": 4, "state": 16, "out": 2}, {"id": "b", "params": 4, "state": 16, "out": 2}],
 "points": [{"device": "cpu", "micro": 2, "layers": {
  "a": {"forward": 1, "backward": 2, "update": 0.5, "kept": 8},
  "b": {"forward": 3, "backward": 4, "update": 0.5, "kept": 8}}}]}`

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
		{"model/1", "model/2", `the field shoal is "model/2"`},
		{`"name"`, `"title"`, "unknown field"},
		{`"id": "b"`, `"id": "a"`, `layers 0 and 1 are both called "a"`},
		{`"id": "b"`, `"id": ""`, "layer 1 has no id"},
		{`"b": {`, `"c": {`, `the model has no layer "c"`},
		{`"params": 4`, `"params": -4`, "layer a: params is -4 bytes"},
		{`"forward": 3`, `"forward": -3`, "layer b: forward takes -3 seconds"},
		{`"forward": 3`, `"forward": 1e400`, "1e400"},
		{`"kept": 8`, `"kept": -8`, "keeps -8 bytes"},
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
