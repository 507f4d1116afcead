package agent

import (
	"fmt"
	"testing"

	"github.com/shoal-ml/shoal/state/reshape"
)

// Rank 0 says what is on one host alone, and what would help.
func TestWhatIsOnOneHostOnly(t *testing.T) {
	said := reshape.Statement{
		Layout: `{"shoal": "layout/1", "mesh": "pp=1,dp=1", "rules": [{"match": "layers.#", "place": "pp=spread(1,2)"}]}`, Mesh: "pp=2,dp=4"}
	for l := range 2 {
		said.Tensors = append(said.Tensors,
			reshape.Tensor{Name: fmt.Sprint("layers.", l), DType: "f32", Shape: []int{4}})
	}
	state, err := reshape.NewState(&said)
	if err != nil {
		t.Fatal(err)
	}
	l, err := state.OnMesh("pp=2,dp=2")
	if err != nil {
		t.Fatal(err)
	}
	there := placement{layout: l, domain: []int{0, 0, 1, 1}, domainKind: "host"}
	got, want := there.unreplicatedText(), "32 bytes of 2 tensors, layers.0 the first, are on one "+
		"host only (32 of them on several workers there: shoal run --redundant can have those "+
		"on two hosts)"
	if got != want {
		t.Errorf("a job says %q, not %q", got, want)
	}
}
