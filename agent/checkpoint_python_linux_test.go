package agent_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/tensor"
)

// TestCheckpointOfPython has a program go on from what another one wrote, whose arrays are of
// several dimensions and in a dict.
func TestCheckpointOfPython(t *testing.T) {
	place, err := cursor.New(300, 16, 3, true)
	if err != nil {
		t.Fatal(err)
	}
	place = place.Commit(2, []bool{true, true})
	const message = `{"rest":{"dict":[["w",{"item":0,"kind":"numpy","dtype":"<f8","shape":[2,3]}]%s]},"half":{"item":1,"kind":"torch","dtype":"bfloat16","shape":[4]}}`
	for name, c := range map[string]struct{ more, state, err string }{
		"the same arrays":     {"", "rest/w", ""},
		"a number among them": {`,["rate",0.1]`, "rest/w", "values in rest that are no arrays"},
		"an array of no memory": {"", "other",
			"it has rest/w, f64 [2,3], for which this program has no memory"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &snapshot.State{Step: 1, Workers: 1,
				Notes: json.RawMessage(strings.ReplaceAll(message, "%s", c.more)),
				Tensors: []snapshot.Tensor{
					{Name: "rest/w", DType: tensor.F64, Shape: tensor.Shape{2, 3}},
					{Name: "half", DType: tensor.BF16, Shape: tensor.Shape{4}}}}
			if s.Cursor, err = place.AppendBinary(nil); err != nil {
				t.Fatal(err)
			}
			text, err := s.AppendJSON(nil)
			if err != nil {
				t.Fatal(err)
			}
			body := slices.Concat(bytes.Repeat([]byte{0, 0, 0, 0, 0, 0, 0xF0, 0x3F}, 6),
				make([]byte, 8))
			p := &snapshot.Part{
				Folder: snapshot.Folder{Root: t.TempDir(), Keep: 1, Log: func(line string) {
					t.Log(line)
				}}, State: text, Own: json.RawMessage("{}"), Body: body}
			if err := p.Check(); err != nil {
				t.Fatal(err)
			}
			p.Write()
			half, w := []tensor.BFloat16{1, 2, 3, 4}, make([]float64, 6)
			trainer, err := client.Train(joinAs(t, startAgent(t, 1), 0),
				client.Data{Samples: 300, Batch: 16, Seed: 3}, client.StateOf("half", half),
				client.StateOf(c.state, w))
			if err != nil {
				t.Fatal(err)
			}
			if err := trainer.Checkpoint(
				client.Checkpoint{Folder: p.Folder.Root, Say: func(line string) {
					t.Log(line)
				}}); err != nil {
				t.Fatal(err)
			}
			more, err := trainer.Next(t.Context()), trainer.Err()
			switch {
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("%v; want %q", err, c.err)
			case c.err == "" &&
				(!more || err != nil || trainer.Step() != 1 || w[5] != 1 || half[3] != 0):
				t.Errorf("%v, step %d, %v %v", err, trainer.Step(), w, half)
			}
		})
	}
}

// TestCheckpointForPython compares the description with what a Python program goes on from.
func TestCheckpointForPython(t *testing.T) {
	folder := t.TempDir()
	trainer, err := client.Train(joinAs(t, startAgent(t, 1), 0),
		client.Data{Samples: 4, Batch: 2, Steps: 1, Plain: true},
		client.StateOf("w", make([]float64, 6)), client.StateOf("½", make([]tensor.BFloat16, 2)))
	if err != nil {
		t.Fatal(err)
	}
	if err := trainer.Checkpoint(
		client.Checkpoint{Folder: folder, Say: func(string) {}}); err != nil {
		t.Fatal(err)
	}
	for trainer.Next(t.Context()) {
		if err := client.Commit(t.Context(), trainer, make([]float32, 1)); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(folder, "latest", "shoal-checkpoint.json"))
	if err != nil || trainer.Err() != nil {
		t.Fatal(err, trainer.Err())
	}
	want := `{"shoal":"job/1","step":1,"cursor":"` + strings.Repeat("0", 16) + "0200000000000000" +
		"0100000000000000" + "0400000000000000" + "0200000000000000" + strings.Repeat("0", 16) +
		`0100000000000000","workers":1,"notes":{"w":{"item":0,"kind":"numpy","dtype":"\u003cf8","shape":[6]},"½":{"item":1,"kind":"torch","dtype":"bfloat16","shape":[2]}},` +
		`"tensors":[{"name":"w","dtype":"F64","shape":[6],"bytes":48},{"name":"_","dtype":"BF16","shape":[2],"bytes":4}]}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}
