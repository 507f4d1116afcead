package tcp

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/fabric"
)

// countWrites returns how many system calls that write this thread has made: the caller has locked
// its goroutine to the thread. It skips the test where the kernel does not count them.
func countWrites(t *testing.T) (n int) {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/io")
	if err != nil {
		t.Skipf("this kernel counts no system calls: %v", err)
	}
	_, rest, _ := strings.Cut(string(b), "syscw: ")
	if n, err = strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0])); err != nil {
		t.Fatalf("%v in %q", err, b)
	}
	return n
}

// Pieces that wait together go to the kernel by one system call: in the clear as vectors, their
// payloads from where they lie, and under TLS as records that were gathered.
func TestPiecesShareASystemCall(t *testing.T) {
	const n = 1 << 10
	for name, send := range map[string]func(w *wire) error{
		"in the clear": func(w *wire) error {
			plain := plainWriter{to: w}
			for i := range maxVectors {
				if err := plain.write(
					outgoing{fabric.Piece{Transfer: uint64(i), Length: n},
						make([]byte, n)}); err != nil {
					return err
				}
			}
			return plain.flush()
		},
		"gathered": func(w *wire) error {
			w.setGatherLimit(gatherPieces)
			for range gatherPieces / n {
				if _, err := w.Write(make([]byte, n)); err != nil {
					return err
				}
			}
			return w.Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			from, to := socketPair(t)
			from.SetWriteBuffer(1 << 20)
			to.SetReadBuffer(1 << 20)
			before := countWrites(t)
			if err := send(newWire(from.TCPConn)); err != nil {
				t.Fatal(err)
			}
			if made := countWrites(t) - before; made != 1 {
				t.Errorf("%d system calls, want 1", made)
			}
		})
	}
}
