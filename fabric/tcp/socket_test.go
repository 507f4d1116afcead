package tcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
)

// socketPair returns the two ends of a connection on the loopback, of whose bytes the kernel takes
// few at a time from one, and holds few for other. Both are closed when the test ends. Without a
// connection it fails the test.
func socketPair(t *testing.T) (one, other *socket) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	dialled.SetWriteBuffer(16 << 10)
	accepted.SetReadBuffer(16 << 10)
	return newSocket(dialled), newSocket(accepted)
}

// What is written in one piece, in vectors and without waiting arrives whole and in order, however
// little the kernel takes at a time.
func TestSocketCarriesAllInOrder(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	draw := rand.New(rand.NewPCG(seed, 1))
	sent := make([]byte, 3<<20)
	for i := range sent {
		sent[i] = byte(draw.Uint32())
	}
	from, to := socketPair(t)
	g := group.New(context.Background())
	g.Go("writer", func(context.Context) error {
		rest := sent
		take := func(most int) []byte {
			part := rest[:min(draw.IntN(most+1), len(rest))]
			rest = rest[len(part):]
			return part
		}
		for len(rest) > 0 {
			var vectors [][]byte
			for range draw.IntN(2*maxVectors + 1) {
				vectors = append(vectors, take(30<<10))
			}
			if err := from.writeVectors(vectors); err != nil {
				return err
			}
			if _, err := from.Write(take(300 << 10)); err != nil {
				return err
			}
			rest = rest[from.writeNow(rest[:min(len(rest), 100<<10)]):]
		}
		return from.CloseWrite()
	})
	got, err := io.ReadAll(to)
	if err = errors.Join(err, g.Wait()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, sent) {
		t.Fatalf("%d bytes came of %d, or others", len(got), len(sent))
	}
}

// Reads and writes after a deadline, or to a closed end, return an error.
func TestSocketTellsWhatFails(t *testing.T) {
	one, other := socketPair(t)
	one.SetDeadline(time.Unix(1, 0))
	if _, err := one.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the deadline: %v", err)
	}
	if _, err := one.Write([]byte{1}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write after the deadline: %v", err)
	}
	if n := one.writeNow([]byte{1}); n != 0 {
		t.Errorf("%d bytes were written after the deadline", n)
	}
	one.Close()
	for range 2 { // the first one learns that nobody reads
		other.Write([]byte{1})
		other.Read(make([]byte, 1))
	}
	if err := other.writeVectors([][]byte{{1}}); err == nil {
		t.Error("nobody reads, and nothing is said")
	}
}

// A piece costs no memory.
func TestSocketDoesNotAllocate(t *testing.T) {
	one, other := socketPair(t)
	b, vectors := make([]byte, 3), [][]byte{{1}, {2}}
	if n := testing.AllocsPerRun(100, func() {
		one.Write(b[:1])
		one.writeVectors(vectors)
		io.ReadFull(other, b)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
