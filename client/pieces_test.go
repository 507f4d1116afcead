package client

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// The parts of a piece in the items are, one after the other, the bytes of the state where it
// lies.
func TestPiecesOfItems(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var trainer Trainer
		var whole []byte
		for _, item := range rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 9), 1, 9).Draw(t,
			"items") {
			trainer.state = append(trainer.state, StateOf("item", item))
			whole = append(whole, item...)
		}
		from := rapid.IntRange(0, len(whole)).Draw(t, "from")
		to := rapid.IntRange(from, len(whole)).Draw(t, "to")
		var got []byte
		trainer.forEachItem(&piece{at: from, staged: make([]byte, to-from)}, func(memory []byte) {
			got = append(got, memory...)
		})
		if !bytes.Equal(got, whole[from:to]) {
			t.Fatalf("%d to %d are %v, want %v", from, to, got, whole[from:to])
		}
	})
}
