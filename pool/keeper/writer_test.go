package keeper

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/mem"
)

// many is a store in memory that takes batches; lost says what becomes of the next one.
type many struct {
	store.Store
	batches int
	lost    fate
}

// fate is what becomes of a batch.
type fate int

// The fates.
const (
	works   fate = iota
	dropped      // it never arrives
	unheard      // it is done, and its answer is lost
)

// Batch implements store.Batcher.
func (s *many) Batch(ctx context.Context, puts []store.Put) (list []store.Revision, err error) {
	lost := s.lost
	s.batches++
	if s.lost = works; lost == dropped {
		return nil, store.ErrUnavailable
	}
	for _, p := range puts {
		e, err := s.Get(ctx, p.Key)
		if err == nil && e.Revision != p.Was || err != nil && p.Was != 0 {
			return nil, store.ErrConflict
		}
	}
	for _, p := range puts {
		var r store.Revision
		if r = p.Was; r == 0 {
			r, err = s.Create(ctx, p.Key, p.Value)
		} else {
			r, err = s.Update(ctx, p.Key, p.Value, r)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	if lost == unheard {
		return nil, store.ErrUnavailable
	}
	return list, nil
}

// writes returns so many writes, of a text each.
func writes(n int, text string) (list []pool.Write) {
	for i := range n {
		list = append(list, pool.Write{Key: fmt.Sprintf("k.%03d", i), Value: []byte(text)})
	}
	return list
}

// Many writes are done at once, few are not, and an answer that is lost changes nothing of what is
// there at last: also where another value was written since, of which nobody knows either.
func TestWritesAtOnce(t *testing.T) {
	for _, c := range []struct {
		n       int
		lost    fate
		batches int
	}{
		{leastAtOnce - 1, works, 0}, {leastAtOnce, works, 1}, {mostAtOnce + leastAtOnce, works, 2},
		{40, dropped, 1}, {40, unheard, 1},
	} {
		s := &many{Store: mem.New().Open(), lost: c.lost}
		w := newWriter(s)
		b := w.writeAll(context.Background(), writes(c.n, "one"))
		if b.err != nil || len(b.written) != c.n || len(b.rest) != 0 {
			t.Errorf("%+v: %d written, %d left, %v", c, len(b.written), len(b.rest), b.err)
		}
		if s.batches < c.batches || c.lost == works && s.batches > c.batches {
			t.Errorf("%+v: %d batches", c, s.batches)
		}
		s.lost = c.lost
		if b = w.writeAll(context.Background(), writes(c.n, "two")); b.err != nil {
			t.Errorf("%+v: %v", c, b.err)
		}
		for _, v := range b.written {
			e, err := s.Get(context.Background(), v.Key)
			if err != nil || string(e.Value) != "two" {
				t.Errorf("%+v: %s holds %q (%v)", c, v.Key, e.Value, err)
			}
		}
	}
}

// Of many writes of which one is to a key of somebody else, those before it are done, and the rest
// is not, as one after the other.
func TestOneOfManyIsForeign(t *testing.T) {
	s := &many{Store: mem.New().Open()}
	w := newWriter(s)
	if _, err := s.Create(context.Background(), "k.007", []byte("foreign")); err != nil {
		t.Fatal(err)
	}
	b := w.writeAll(context.Background(), writes(40, "one"))
	if !errors.Is(b.err, store.ErrConflict) || len(b.written) != 7 || len(b.rest) != 33 {
		t.Errorf("%d written, %d left, %v", len(b.written), len(b.rest), b.err)
	}
}

// A value of which nobody knows whether the store has it is known as this keeper's own, also when
// another one was tried since.
func TestTriedTwice(t *testing.T) {
	server := mem.New()
	w := newWriter(server.Open())
	fates := []mem.Fate{mem.Unheard, mem.Lost}
	server.SetFaults(func(op mem.Op, _ string) mem.Fate {
		if op == mem.Get || len(fates) == 0 {
			return mem.Works
		}
		f := fates[0]
		fates = slices.Delete(fates, 0, 1)
		return f
	})
	var errs []error
	for _, text := range []string{"one", "two", "three"} {
		errs = append(errs, w.write(context.Background(), pool.Write{Key: "k",
			Value: []byte(text)}))
	}
	if !errors.Is(errs[0], store.ErrUnavailable) || !errors.Is(errs[1], store.ErrUnavailable) ||
		errs[2] != nil {
		t.Error(errs)
	}
}

// What the store does not take is remembered once, however often it is tried.
func TestTriedAgainAndAgain(t *testing.T) {
	server := mem.New()
	w := newWriter(server.Open())
	server.SetFaults(func(mem.Op, string) mem.Fate { return mem.Lost })
	for range 5 {
		w.writeAll(context.Background(), writes(40, "one"))
	}
	for key, tried := range w.tried {
		if len(tried) > 1 {
			t.Fatalf("%d values of %s", len(tried), key)
		}
	}
}

// Of values that the store does not take little is kept, however many there are: a disk may be full
// for days, and a job that trains has another value each second.
func TestTriedValuesAreNotKept(t *testing.T) {
	server := mem.New()
	w := newWriter(server.Open())
	server.SetFaults(func(mem.Op, string) mem.Fate { return mem.Lost })
	const size, most = 64 << 10, 2 << 20
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 200 {
		value := fmt.Appendf(make([]byte, size), "%d", i)
		if err := w.write(t.Context(), pool.Write{Key: "k", Value: value}); err == nil {
			t.Fatal("it is written")
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > most {
		t.Errorf("%d bytes are kept of 200 values of %d", kept, size)
	}
	runtime.KeepAlive(w)
}

// What a tool was told that it is done is in the record, also where the keeper ends at once.
func TestWhatIsWrittenAtTheEnd(t *testing.T) {
	h := newHost1(t)
	h.slots = 1
	if err := syscall.Mkfifo(filepath.Join(h.work, "gate"), 0o600); err != nil {
		t.Fatal(err)
	}
	var k *running
	over, answered := atomic.Bool{}, make(chan struct{})
	k = h.start(&stepped{h.record, func(_ string, value []byte,
		do func() (store.Revision, error)) (store.Revision, error) {
		if strings.Contains(string(value), `"state":"stopped"`) && !over.Swap(true) {
			<-answered
			k.cancel()
			return 0, context.Canceled
		}
		return do()
	}})
	<-k.up
	for _, name := range []string{"one", "late"} { // which waits for the slot of the first
		if _, err := h.submit(name, "waits"); err != nil {
			t.Fatal(err)
		}
	}
	err := Call(context.Background(), "lab", PathStop, Ask{Job: "late", Who: "ada"}, &struct{}{})
	if close(answered); err != nil {
		t.Fatal(err)
	}
	<-k.ended
	e, err := h.record.Get(context.Background(), pool.JobKey("lab", "late"))
	if err != nil || !strings.Contains(string(e.Value), `"state":"stopped"`) {
		t.Errorf("the record has %s %v", e.Value, err)
	}
}
