package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"testing"
)

// TestLongHash hashes numbers and texts of more bytes than the encoder keeps: all of them count,
// once and in order.
func TestLongHash(t *testing.T) {
	e := encoder{hash: sha256.New()}
	var all bytes.Buffer
	for n := range 60_000 {
		e.addInt(n)
		all.Write(binary.AppendVarint(nil, int64(n)))
	}
	e.addText("end")
	all.Write(append(binary.AppendVarint(nil, 3), "end"...))
	e.flush()
	if got, want := [sha256.Size]byte(e.hash.Sum(nil)), sha256.Sum256(all.Bytes()); got != want {
		t.Errorf("the hash of %d bytes is %x, want %x", all.Len(), got, want)
	}
}
