package tcp

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/fabrictest"
	"github.com/shoal-ml/shoal/internal/group"
)

// TestSendQueueOrder compares the sendQueue with a slice: whichever stream asks gets the first
// piece if it may carry it, and nothing else.
func TestSendQueueOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p sendQueue
		p.init()
		var want []outgoing
		for i := range rapid.IntRange(0, 200).Draw(t, "operations") {
			if rapid.Bool().Draw(t, "put") {
				o := outgoing{Piece: fabric.Piece{Transfer: uint64(i),
					Streams: uint8(rapid.IntRange(0, fabric.MaxStreams+1).Draw(t, "streams"))}}
				want = append(want, o)
				p.put(o)
				continue
			}
			stream := rapid.IntRange(0, fabric.MaxStreams-1).Draw(t, "stream")
			may := len(want) > 0 && (stream == 0 || stream < int(want[0].Streams))
			got, ok := p.tryTake(stream)
			if ok != may || ok && got.Piece != want[0].Piece {
				t.Fatalf("stream %d takes %+v (%v) of %+v", stream, got, ok, want)
			}
			if ok {
				want = want[1:]
			}
		}
	})
}

// TestSendQueueWakes: streams that wait get all pieces between them, those of one stream in their
// order, and leave when the sendQueue is closed.
func TestSendQueueWakes(t *testing.T) {
	const n = 4000
	var p sendQueue
	p.init()
	g := group.New(context.Background())
	var taken atomic.Int64
	next := uint64(0) // of those that only stream 0 may carry
	for i := range fabric.MaxStreams {
		g.Go("stream", func(context.Context) error {
			for {
				o, ok := p.take(i)
				if !ok {
					return nil
				}
				if o.Streams == 1 {
					if i != 0 || o.Transfer < next {
						return fmt.Errorf("stream %d takes %+v behind %d", i, o.Piece, next)
					}
					next = o.Transfer
				}
				if taken.Add(1) == n {
					p.close()
				}
			}
		})
	}
	for i := range uint64(n) {
		p.put(outgoing{Piece: fabric.Piece{Transfer: i, Streams: uint8(1 + i%fabric.MaxStreams)}})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	p.put(outgoing{})
	if _, ok := p.tryTake(0); ok {
		t.Error("a closed sendQueue has pieces")
	}
}

// TestPiecesBesideEachOther: pieces that may go on all streams are on their way on all of them at
// the same time, and those that may not are on one.
func TestPiecesBesideEachOther(t *testing.T) {
	for _, plain := range []bool{false, true} {
		for _, streams := range []uint8{1, fabric.MaxStreams} {
			t.Run(fmt.Sprintf("plain=%v/streams=%d", plain, streams), func(t *testing.T) {
				const pieces = 16
				at := fabrictest.NewRecorder(t)
				var mu sync.Mutex // guards under and most
				var once sync.Once
				under, most := 0, 0           // calls of Place under way now, and at most so far
				enough := make(chan struct{}) // is closed when all streams are in Place
				at.OnPlace = func(_ fabric.Host, p fabric.Piece) []byte {
					mu.Lock()
					under++
					if most = max(most, under); most == int(streams) {
						once.Do(func() { close(enough) })
					}
					mu.Unlock()
					<-enough
					mu.Lock()
					under--
					mu.Unlock()
					return make([]byte, p.Length)
				}
				config := Config{Listen: "127.0.0.1:0", PlainData: plain, Name: "a"}
				from := fabrictest.NewRecorder(t)
				a, err := Create(config, from)
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				c := &cluster{config: config, alive: []*Network{a}}
				b := c.Add(t, "b", at)
				defer b.Close()
				from.WaitUp("b")
				payload := make([]byte, fabric.MaxPiece)
				for i := range uint64(pieces) {
					a.SendPiece("b", fabric.Piece{Transfer: i, Length: fabric.MaxPiece,
						Streams: streams}, payload)
				}
				at.WaitArrived("a", pieces)
				if most > int(streams) {
					t.Errorf("%d pieces are on their way at the same time, want up to %d", most,
						streams)
				}
			})
		}
	}
}
