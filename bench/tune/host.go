package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/queue"
	"github.com/shoal-ml/shoal/tensor"
)

// tuneWord is what the hosts of a measurement say to each other. The first host asks for batches in
// three steps, so that only the exchange itself is timed: prepare, go for each, deliver; the others
// answer each with the same word.
type tuneWord struct {
	// wait comes first, then prepare, go, deliver for some batches; over ends everything
	Do      string           `json:"do"`
	Batch   uint64           `json:"batch,omitempty"` // prepare, deliver: the first of them
	Batches int              `json:"batches,omitempty"`
	Hosts   []fabric.Host    `json:"hosts,omitempty"` // all that take part, the first host first
	Route   collective.Route `json:"route,omitzero"`
	Bytes   int              `json:"bytes,omitempty"` // of all batches together
	Error   string           `json:"error,omitempty"` // of an answer: why it is not done
}

// What another host can ask for at most.
const (
	maxTuned   = 1 << 30 // bytes of all batches together
	maxBatches = 1 << 10
)

// errTuneEnded means that the context of the measurement has ended.
var errTuneEnded = errors.New("the measurement was ended")

// tuneHost is one host of a measurement: it makes the exchange of the batches of an agent, without
// workers. The network calls the methods of fabric.Handler, which wait for nothing but busy, from
// its own goroutines. One goroutine takes the news, and calls all others; sendPieces and callIfDone
// may run on either.
type tuneHost struct {
	network fabric.Network        // set before the first word; the caller closes it
	news    queue.Queue[tuneNews] // has a lock of its own
	scratch sync.Pool             // of *collective.Scratch
	in, out []byte                // memory of all batches; replaced when no batch is under way

	// busy guards first and batches: the network read-locks it while it uses a batch, and prepare
	// locks it to change them.
	busy    sync.RWMutex
	first   uint64       // number of batches[0]
	batches []*tuneBatch // the prepared ones
	spare   []*tuneBatch // whose memory can be used again; of the goroutine of the news
}

// tuneNews is what happened: a word, a link that came or went, or with all empty that time has
// passed.
type tuneNews struct {
	from fabric.Host // "" = nobody
	word tuneWord    // what the host has said
	up   bool        // whether the link came
	err  error       // why the link went, or the word was none
}

// tuneBatch is one all-reduce of f32 over all hosts; host i gives i+1 everywhere. It is used again
// for a later one.
type tuneBatch struct {
	id       uint64 // number of the batch, from 1
	hosts    []fabric.Host
	streams  uint8
	relay    collective.Relay
	schedule collective.Schedule
	told     atomic.Bool // whether done was called
	done     func()      // called once, when the exchange is complete, on any goroutine
}

// newTuneHost returns a host whose network its caller sets.
func newTuneHost() *tuneHost {
	return &tuneHost{scratch: sync.Pool{New: func() any { return collective.NewScratch() }}}
}

// Up implements fabric.Handler: it puts the new link into the news.
func (h *tuneHost) Up(peer fabric.Host) { h.news.Put(tuneNews{from: peer, up: true}) }

// Down implements fabric.Handler: it puts the lost link into the news.
func (h *tuneHost) Down(peer fabric.Host, err error) {
	h.news.Put(tuneNews{from: peer, err: fmt.Errorf("the link with %s is gone: %w", peer, err)})
}

// Message implements fabric.Handler: it puts the word of another host into the news, and keeps
// nothing of b.
func (h *tuneHost) Message(from fabric.Host, b []byte) {
	n := tuneNews{from: from}
	if err := json.Unmarshal(b, &n.word); err != nil {
		n.err = fmt.Errorf("%s says what is no word of a measurement: %w", from, err)
	}
	h.news.Put(n)
}

// findBatch returns the prepared batch with this number; nil if there is none. The caller holds
// busy, or is the goroutine of the news, which alone changes the batches.
func (h *tuneHost) findBatch(id uint64) *tuneBatch {
	if id < h.first || id-h.first >= uint64(len(h.batches)) {
		return nil
	}
	return h.batches[id-h.first]
}

// Place implements fabric.Handler: it returns where a piece belongs in the memory of its batch; nil
// for none of a prepared one.
func (h *tuneHost) Place(from fabric.Host, p fabric.Piece) []byte {
	h.busy.RLock()
	defer h.busy.RUnlock()
	f := h.findBatch(p.Transfer)
	if f == nil {
		return nil
	}
	return f.relay.Place(slices.Index(f.hosts, from), p.Part, p.Offset, p.Length)
}

// Arrived implements fabric.Handler: it adds a piece that has arrived, sends what follows from it,
// and may complete the batch. Several goroutines may be in it at once, as a Relay allows.
func (h *tuneHost) Arrived(from fabric.Host, p fabric.Piece) {
	h.busy.RLock()
	defer h.busy.RUnlock()
	f := h.findBatch(p.Transfer)
	if f == nil {
		return
	}
	s := h.scratch.Get().(*collective.Scratch)
	h.sendPieces(f, f.relay.Arrived(slices.Index(f.hosts, from), p.Part, p.Offset, p.Length, s,
		nil))
	h.scratch.Put(s)
	f.callIfDone()
}

// sendPieces sends pieces of a batch to the hosts that they are for. It does not wait until they
// have left.
func (h *tuneHost) sendPieces(f *tuneBatch, out []collective.Outgoing) {
	for _, o := range out {
		p := fabric.Piece{Transfer: f.id, Part: o.Part, Offset: o.Offset,
			Length: uint32(len(o.Payload)), Streams: f.streams}
		h.network.SendPiece(f.hosts[o.To], p, o.Payload)
	}
}

// callIfDone calls done, once, if the exchange of the batch is complete. Any goroutine may call it.
func (f *tuneBatch) callIfDone() {
	if f.relay.Done() && !f.told.Swap(true) {
		f.done()
	}
}

// sendWord sends a word to another host. It does not wait for an answer.
func (h *tuneHost) sendWord(to fabric.Host, w tuneWord) {
	b, err := json.Marshal(w)
	if err != nil {
		panic(err) // a tuneWord is always JSON
	}
	h.network.Send(to, b)
}

// runSteps waits for what the first host asks, and does it, until that says that the measurement is
// over. The first host is the one that says "wait"; when another one goes, that is not an error
// here.
func (h *tuneHost) runSteps() error {
	for first := fabric.Host(""); ; {
		n, ok := h.news.Take()
		switch {
		case !ok:
			return errTuneEnded
		case n.word.Do == "wait" && first == "":
			first = n.from
		case n.up || n.from != first:
		case n.err != nil:
			return n.err
		case n.word.Do == "over":
			return nil
		default:
			answer := func(w tuneWord) { h.sendWord(n.from, w) }
			if err := h.runStep(n.word, answer); err != nil {
				answer(tuneWord{Do: n.word.Do, Batch: n.word.Batch, Error: err.Error()})
			}
		}
	}
}

// runStep does one step of a batch. answer is called when the step is done, which for "go" can be
// later, on a goroutine of the network.
func (h *tuneHost) runStep(w tuneWord, answer func(tuneWord)) error {
	said := tuneWord{Do: w.Do, Batch: w.Batch}
	if w.Do == "prepare" {
		if err := h.prepare(w, func(batch uint64) {
			answer(tuneWord{Do: "go", Batch: batch})
		}); err != nil {
			return err
		}
		answer(said)
		return nil
	}
	f := h.findBatch(w.Batch)
	if f == nil {
		return fmt.Errorf("there is no batch %d", w.Batch)
	}
	s := h.scratch.Get().(*collective.Scratch)
	defer h.scratch.Put(s)
	switch w.Do {
	case "go":
		for i := range f.relay.Chunks() {
			h.sendPieces(f, f.relay.Chunk(i, s, nil))
		}
		f.callIfDone()
	case "deliver":
		for _, each := range h.batches {
			for i := range each.relay.Deliveries() {
				each.relay.Deliver(i, s)
			}
		}
		if err := h.checkResult(len(f.hosts)); err != nil {
			return err
		}
		answer(said)
	default:
		return fmt.Errorf("%q is no word of a measurement", w.Do)
	}
	return nil
}

// prepare replaces the prepared batches by those that w asks for, so that their pieces may come.
// done is called for each batch whose exchange is complete. Who asks must have had all answers to
// the batches before.
func (h *tuneHost) prepare(w tuneWord, done func(batch uint64)) error {
	self := slices.Index(w.Hosts, h.network.Self())
	if self < 0 || hasDuplicates(w.Hosts) || w.Bytes < 4 || w.Bytes > maxTuned || w.Bytes%4 != 0 ||
		w.Route.Strategy == nil {
		return fmt.Errorf("a batch that cannot be: %d bytes over %v", w.Bytes, w.Hosts)
	}
	if w.Batches < 1 || w.Batches > maxBatches || w.Batches > w.Bytes/4 ||
		w.Batch > math.MaxUint64-maxBatches {
		return fmt.Errorf("%d batches with %d bytes, numbered from %d: that cannot be", w.Batches,
			w.Bytes, w.Batch)
	}
	if len(h.in) != w.Bytes {
		h.in, h.out = make([]byte, w.Bytes), make([]byte, w.Bytes)
		for i := 0; i < w.Bytes; i += 4 {
			binary.LittleEndian.PutUint32(h.in[i:], math.Float32bits(float32(self+1)))
		}
	}
	clear(h.out)
	h.busy.Lock()
	defer h.busy.Unlock()
	h.first, h.batches, h.spare = w.Batch, nil, append(h.spare, h.batches...)
	for i := range w.Batches {
		from, to := w.Bytes/4*i/w.Batches, w.Bytes/4*(i+1)/w.Batches
		f, err := h.newBatch(w, self, h.in[4*from:4*to], h.out[4*from:4*to])
		if err != nil {
			return err
		}
		f.id = w.Batch + uint64(i)
		f.done = func() { done(f.id) }
		h.batches = append(h.batches, f)
	}
	return nil
}

// newBatch returns a batch with this input and output, made in the memory of an earlier one if
// there is one. self is the index of this host in w.Hosts. The caller holds busy.
func (h *tuneHost) newBatch(w tuneWord, self int, in, out []byte) (*tuneBatch, error) {
	f := &tuneBatch{}
	if n := len(h.spare); n > 0 {
		f, h.spare = h.spare[n-1], h.spare[:n-1]
	}
	f.hosts, f.streams = w.Hosts, uint8(w.Route.Streams)
	f.told.Store(false)
	calls, of := make([]*collective.Call, len(w.Hosts)), make([]int, len(w.Hosts))
	for i := range calls {
		far := &collective.Far{In: len(in) / 4, Out: len(in) / 4}
		calls[i] = &collective.Call{Kind: collective.AllReduce, DType: tensor.F32,
			Reduction: collective.Sum, Weight: 1, Far: far}
		of[i] = i
	}
	calls[self].Far, calls[self].In, calls[self].Out = nil, in, out
	if err := f.schedule.Build(calls); err != nil {
		return nil, err
	}
	f.relay.Prepare(&f.schedule, calls, collective.Sites{Of: of, N: len(w.Hosts), Self: self},
		w.Route)
	return f, nil
}

// hasDuplicates reports whether a host is in the list more than once. It is pure.
func hasDuplicates(hosts []fabric.Host) bool {
	return len(slices.Compact(slices.Sorted(slices.Values(hosts)))) < len(hosts)
}

// checkResult fails unless every element of the result is the sum over so many hosts.
func (h *tuneHost) checkResult(hosts int) error {
	want := math.Float32bits(float32(hosts * (hosts + 1) / 2))
	for i := 0; i < len(h.out); i += 4 {
		if got := binary.LittleEndian.Uint32(h.out[i:]); got != want {
			return fmt.Errorf("element %d of the result is %v instead of %v", i/4,
				math.Float32frombits(got), math.Float32frombits(want))
		}
	}
	return nil
}
