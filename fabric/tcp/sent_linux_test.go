package tcp

import (
	"testing"

	"github.com/shoal-ml/shoal/fabric"
)

// maxLooks is how often it is looked for an acknowledgement at most: for seconds.
const maxLooks = 1 << 20

// What pieces have carried to a peer shows once its kernel has acknowledged them, on the streams on
// which they went, and how long that took.
func TestSent(t *testing.T) {
	const n, pieces = 1 << 20, 8
	for _, plain := range []bool{false, true} {
		from, to, peer := linkedPair(t, plain, n)
		if got := from.Sent()[peer]; len(got) != fabric.MaxStreams || got[0].Bytes > n {
			t.Errorf("before anything was sent: %v", got)
		}
		payload := make([]byte, n)
		for i := range uint64(pieces) {
			from.SendPiece(peer, fabric.Piece{Transfer: i, Length: n}, payload)
		}
		for range pieces {
			<-to.arrived
		}
		first := from.Sent()[peer][0]
		for looks := 0; first.Bytes < pieces*n && looks < maxLooks; looks++ {
			first = from.Sent()[peer][0] // the last acknowledgement is on its way
		}
		if first.Bytes < pieces*n || first.Bytes > (pieces+1)*n || first.Busy < 0 {
			t.Errorf("%d bytes were sent: %+v", pieces*n, first)
		}
	}
}
