package checkpoint

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
)

// allNotes has every kind of value that a job's notes can have.
const allNotes = `{"none":null,"text":"a","lr":1e-3,"whole":7,"large":1180591620717411303424,
 "betas":{"tuple":[0.9,0.95]},"seed":{"bytes":"AQI="},"inf":{"float":"-inf"},"empty":{"dict":[]},
 "list":[1,[true,{"tuple":[]}]],
 "optimizer":{"dict":[["state",{"dict":[[0,{"dict":[["step",{"item":0,"kind":"torch","dtype":"float32","shape":[]}]]}]]}],
  ["param_groups",[{"dict":[["lr",0.5],["params",[0]]]}]],["mixed",{"tuple":[{"item":1},"b"]}],[{"tuple":[1,2]},3]]}}`

// TestJobValues has every kind of value that a job's notes can have.
func TestJobValues(t *testing.T) {
	large, _ := new(big.Int).SetString("1180591620717411303424", 10)
	want := []format.Value{
		{Path: "job/step", Data: int64(12)},
		{Path: "none"}, {Path: "text", Data: "a"}, {Path: "lr", Data: 1e-3},
		{Path: "whole", Data: int64(7)}, {Path: "large", Data: large},
		{Path: "betas", Data: []any{0.9, 0.95}, Python: pickle.Tuple{0.9, 0.95}},
		{Path: "seed", Data: []byte{1, 2}}, {Path: "inf", Data: math.Inf(-1)},
		{Path: "empty", Data: map[string]any{}},
		{Path: "list", Data: []any{int64(1), []any{true, []any{}}},
			Python: &pickle.List{Items: []any{int64(1),
				&pickle.List{Items: []any{true, pickle.Tuple{}}}}}},
		{Path: "optimizer/param_groups/0/lr", Data: 0.5},
		{Path: "optimizer/param_groups/0/params", Data: []any{int64(0)}},
		{Path: "optimizer/mixed/1", Data: "b"},
		{Path: "optimizer/[1,2]", Data: int64(3)},
	}
	got, err := jobValues(&snapshot.State{Step: 12, Notes: json.RawMessage(allNotes)})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b *big.Int) bool {
		return a.Cmp(b) == 0
	})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	// On a mesh arrays are no tensors.
	mesh := "tp=2"
	got, err = jobValues(&snapshot.State{Notes: json.RawMessage(allNotes), Mesh: &mesh,
		Items: [][]byte{{1}, {2}}})
	if err != nil || len(got) != len(want)+2 {
		t.Errorf("%v, %v", got, err)
	}
	for _, notes := range []string{`{"a":{"item":2}}`, `{"a":{"dict":[[1]]}}`, `{"a":{"what":1}}`,
		`{"a":{"bytes":"*"}}`, `{"a":{"float":"1"}}`, `{"a":{}}`, `{"a":{"tuple":1}}`,
		`{"a":[{"x":1,"y":2}]}`} {
		if _, err := jobValues(&snapshot.State{Notes: json.RawMessage(notes), Mesh: &mesh,
			Items: [][]byte{{1}, {2}}}); err == nil {
			t.Errorf("%s passes", notes)
		}
	}
}

// TestNotesAreBroken demands that a job's checkpoint whose notes cannot be read is opened, for its
// tensors, and called faulty.
func TestNotesAreBroken(t *testing.T) {
	dir := copyReleaseBefore(t, jobs[0])
	path := filepath.Join(dir, snapshot.StateName)
	changeFile(t, path, func(text []byte) []byte {
		return bytes.Replace(text, []byte(`{"tuple": [`), []byte(`{"tupel": [`), 1)
	})
	c := openCheckpoint(t, dir)
	if faults := c.Faults(); len(faults) != 1 || len(c.Tensors) != 4 ||
		!strings.Contains(faults[0].What, `its notes: "weights/half"`) {
		t.Errorf("%v", faults)
	}
}

// FuzzNotes has any text as the notes of a job: it is refused, or gives values.
func FuzzNotes(f *testing.F) {
	f.Add([]byte(allNotes), false)
	f.Add([]byte(`{"table":{"item":0,"kind":"numpy","dtype":"<f8","shape":[5]}}`), true)
	mesh := "tp=2"
	f.Fuzz(func(t *testing.T, notes []byte, meshed bool) {
		s := &snapshot.State{Notes: notes}
		if meshed {
			s.Mesh, s.Items = &mesh, [][]byte{{1, 2}}
		}
		values, err := jobValues(s)
		if err == nil && len(values) == 0 {
			t.Error("no values, and no error")
		}
	})
}
