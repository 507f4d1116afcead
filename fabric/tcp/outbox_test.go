package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/shoal-ml/shoal/internal/group"
)

// Nobody writes past what waits, is being written, or was left in the stream's buffer.
func TestOneAtATimeWrites(t *testing.T) {
	o := &outbox{}
	o.init()
	// claims fails the test unless the stream can be claimed just now, or cannot, as want says.
	claims := func(want bool, when string) {
		t.Helper()
		if got := o.tryClaim(); got != want {
			t.Fatalf("%s: claimed %v, want %v", when, got, want)
		}
	}
	o.put(kindMessage, []byte("a"))
	claims(false, "while the link is being made")
	chunk := o.takeChunk(nil)
	claims(false, "while a chunk is being written")
	o.put(kindMessage, []byte("b"))
	chunk = o.takeChunk(chunk)
	finishChunk(t, o, chunk)
	claims(true, "when all is written")
	claims(false, "while somebody writes")
	o.releaseClaim(true)
	claims(false, "when something is left in the buffer")
	if rest := o.takeChunk(nil); rest == nil || len(rest) > 0 {
		t.Fatalf("took %q, want word of the rest", rest)
	}
	claims(false, "while the rest is being written")
	finishChunk(t, o, nil)
	o.finish("")
	claims(false, "at the end")
}

// finishChunk ends the writing of a chunk, as the next takeChunk does, which would wait: a beat is
// queued for it to take, and counts as written. The test fails where there is nothing to take.
func finishChunk(t *testing.T, o *outbox, chunk []byte) {
	t.Helper()
	o.put(kindBeat, nil)
	if o.takeChunk(chunk) == nil {
		t.Fatal("nothing to take")
	}
	o.releaseClaim(false)
}

// What the kernel does not take at once is written by the next Flush, in its order.
func TestFlushNowLeavesTheRest(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	w := newWire(near.(*net.TCPConn))
	w.setGatherLimit(gatherWords)
	var want []byte
	for all := true; all; all = w.flushNow() { // nobody reads: the kernel has enough at some time
		b := bytes.Repeat(binary.LittleEndian.AppendUint64(nil, uint64(len(want))), 1000)
		want = append(want, b...)
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.out) == 0 {
		t.Error("nothing is left")
	}
	g := group.New(context.Background())
	g.Go("writes", func(context.Context) error {
		if err := w.Flush(); err != nil {
			return err
		}
		return w.CloseWrite()
	})
	if got, err := io.ReadAll(far); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes come (%v), want the %d that were written", len(got), err, len(want))
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	near.Close()
}
