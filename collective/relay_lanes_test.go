package collective_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/tensor"
)

// Several lanes and several links of every host at once give the same bytes as one lane.
func TestRelayLanes(t *testing.T) {
	const hosts, lanes = 3, 2
	for i, strategy := range strategies {
		for _, d := range []tensor.DType{tensor.F32, tensor.F16} {
			rng := rand.New(rand.NewPCG(uint64(i), 9))
			calls := sampleCalls(rng, collective.AllReduce, d, collective.Sum, 2*hosts, 200_000)
			want := sampleCalls(rand.New(rand.NewPCG(uint64(i), 9)), collective.AllReduce, d,
				collective.Sum, 2*hosts, 200_000)
			of := []int{0, 0, 0, 1, 2, 2}
			one := spread(t, want, of, hosts)
			one.prepare(strategy)
			one.exchange(rng)
			one.deliver(rng)
			c := spread(t, calls, of, hosts)
			c.prepare(strategy)
			c.runLanes(lanes)
			for r := range calls {
				if string(calls[r].Out) != string(want[r].Out) {
					t.Fatalf("%v of %v: rank %d has other bytes than in one lane", strategy, d, r)
				}
			}
		}
	}
}

// runLanes runs all relays, prepared before, with n lanes each, on goroutines, from inputs to
// outputs, and waits until they are done. It is for at most 8 hosts, and fails c.t if a goroutine
// does.
func (c *cluster) runLanes(n int) {
	way := make(chan piece, 1<<12)
	var next, handed [8]atomic.Int64 // by host: the next chunk; 1 once it counts as done
	var done atomic.Int64            // hosts that are done
	finished := make(chan struct{})  // is closed when all are
	g := group.New(context.Background())
	for range n {
		for h := range c.relays {
			g.Go(fmt.Sprintf("host %d", h), func(context.Context) error {
				r, s := c.relays[h], collective.NewScratch()
				for i := next[h].Add(1) - 1; i < int64(r.Chunks()); i = next[h].Add(1) - 1 {
					sendPieces(way, h, r.Chunk(int(i), s, nil))
				}
				return nil
			})
		}
		g.Go("links", func(context.Context) error {
			s := collective.NewScratch()
			for {
				select {
				case p := <-way:
					r := c.relays[p.to]
					copy(r.Place(p.from, p.part, p.off, uint32(len(p.payload))), p.payload)
					sendPieces(way, p.to,
						r.Arrived(p.from, p.part, p.off, uint32(len(p.payload)), s,
							nil))
					if r.Done() && handed[p.to].CompareAndSwap(0, 1) &&
						done.Add(1) == int64(len(c.relays)) {
						close(finished)
					}
				case <-finished:
					return nil
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		c.t.Fatal(err)
	}
	for h, r := range c.relays {
		var next atomic.Int64
		for range n {
			g.Go(fmt.Sprintf("host %d", h), func(context.Context) error {
				s := collective.NewScratch()
				for i := next.Add(1) - 1; i < int64(r.Deliveries()); i = next.Add(1) - 1 {
					r.Deliver(int(i), s)
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		c.t.Fatal(err)
	}
}

// sendPieces puts what the Relay of a host has to send into a channel; it blocks while that is
// full.
func sendPieces(way chan<- piece, from int, out []collective.Outgoing) {
	for _, o := range out {
		way <- piece{from: from, to: o.To, part: o.Part, off: o.Offset, payload: o.Payload}
	}
}

// wire joins the relays of a cluster by function calls, on one goroutine. Its memory is used again,
// so that from its second use on it allocates nothing.
type wire struct {
	relays    []*collective.Relay   // by host
	schedules []collective.Schedule // by host
	sites     []collective.Sites    // by host
	scratch   *collective.Scratch
	way       []piece               // pieces that were sent and have not arrived
	out       []collective.Outgoing // memory for what a Relay returns
}

// runOnce makes the collective of c, the cluster of the wire, once, from inputs to outputs. It
// fails c.t where a relay is not done in the end.
func (w *wire) runOnce(c *cluster, strategy collective.Strategy) {
	for h, r := range w.relays {
		if err := w.schedules[h].Build(c.calls[h]); err != nil {
			c.t.Fatal(err)
		}
		r.Prepare(&w.schedules[h], c.calls[h], w.sites[h], defaultRoute(strategy))
	}
	for i, more := 0, true; more; i++ {
		more = false
		for h, r := range w.relays {
			if i < r.Chunks() {
				w.send(h, r.Chunk(i, w.scratch, w.out[:0]))
				more = true
			}
		}
		for len(w.way) > 0 {
			p := w.way[len(w.way)-1]
			w.way = w.way[:len(w.way)-1]
			r := w.relays[p.to]
			copy(r.Place(p.from, p.part, p.off, uint32(len(p.payload))), p.payload)
			w.send(p.to, r.Arrived(p.from, p.part, p.off, uint32(len(p.payload)), w.scratch,
				w.out[:0]))
		}
	}
	for h, r := range w.relays {
		if !r.Done() {
			c.t.Fatalf("host %d is not done", h)
		}
		for i := range r.Deliveries() {
			r.Deliver(i, w.scratch)
		}
	}
}

// send keeps pieces in w.way, and the memory of out for the next call of a Relay.
func (w *wire) send(from int, out []collective.Outgoing) {
	w.out = out
	for _, o := range out {
		w.way = append(w.way,
			piece{from: from, to: o.To, part: o.Part, off: o.Offset, payload: o.Payload})
	}
}

// newWire returns a wire between the relays of a cluster.
func newWire(c *cluster) *wire {
	w := &wire{relays: c.relays, schedules: make([]collective.Schedule, len(c.relays)),
		scratch: collective.NewScratch()}
	for h := range c.relays {
		w.sites = append(w.sites, collective.Sites{Of: c.of, N: len(c.relays), Self: h})
	}
	return w
}

// The steady state allocates nothing, the trees included.
func TestRelayAllocatesNothing(t *testing.T) {
	for _, strategy := range strategies {
		for _, kind := range []collective.Kind{collective.AllReduce, collective.AllToAll,
			collective.ReduceScatter} {
			c := evenCluster(t, kind, tensor.F32, 3, 2, 100_000)
			w := newWire(c)
			if allocs := testing.AllocsPerRun(5, func() { w.runOnce(c, strategy) }); allocs != 0 {
				t.Errorf("%v of %v: %v allocations a collective", strategy, kind, allocs)
			}
		}
	}
}

// BenchmarkRelay measures two hosts with two members each, joined by one memory copy, against the
// four on one host.
func BenchmarkRelay(b *testing.B) {
	const n = 4 << 20
	c := evenCluster(b, collective.AllReduce, tensor.F32, 2, 2, n)
	b.Run("hosts=2", func(b *testing.B) {
		w := newWire(c)
		b.SetBytes(4 * n)
		for b.Loop() {
			w.runOnce(c, collective.Ring{})
		}
	})
	b.Run("hosts=1", func(b *testing.B) {
		calls := sampleCalls(rand.New(rand.NewPCG(1, 2)), collective.AllReduce, tensor.F32,
			collective.Sum, 4, n)
		var s collective.Schedule
		var r collective.Executor
		scratch := collective.NewScratch()
		b.SetBytes(4 * n)
		for b.Loop() {
			if err := s.Build(calls); err != nil {
				b.Fatal(err)
			}
			r.Prepare(&s, calls)
			for i := range r.Chunks() {
				r.Chunk(i, scratch)
			}
		}
	})
}

// A relay says how much there is to share out over lanes: nothing where an input is sent as it is,
// and only what is on its host.
func TestWorkOfRelay(t *testing.T) {
	const n = 3 << 16 // elements: each host of a ring is the end of one chain of a third
	for _, want := range []struct {
		kind                    collective.Kind
		summed, placed, written []int // by host, in elements
	}{
		{collective.AllReduce, []int{0, 2 * n / 3, 0}, []int{n, n, n}, []int{0, n, 0}},
		// the root, host 2, has an output too
		{collective.Broadcast, []int{0, 0, 0}, []int{n, n, 0}, []int{0, n, n}},
	} {
		calls := sampleCalls(rand.New(rand.NewPCG(1, 9)), want.kind, tensor.F32, collective.Sum, 4,
			n)
		c := spread(t, calls, []int{0, 1, 1, 2}, 3)
		c.prepare(collective.Ring{})
		for h, r := range c.relays {
			have := [...]int{r.BytesSummed() / 4, r.BytesPlaced() / 4, r.BytesDelivered() / 4}
			if expected := [...]int{want.summed[h], want.placed[h],
				want.written[h]}; have != expected {
				t.Errorf("%v, host %d: %v elements are summed, placed and written, want %v",
					want.kind, h, have, expected)
			}
		}
	}
}
