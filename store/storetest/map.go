package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/record"
)

// The functions with a Server are tests of Run, each on the goroutine of its subtest: the server is
// empty, and t's own. The others check something for these tests, and end a test where it is
// otherwise.

// mustCreate writes a key that must hold nothing yet, and returns the revision. It ends the test if
// that fails.
func mustCreate(t testing.TB, s store.Store, key, value string) store.Revision {
	t.Helper()
	r, err := s.Create(t.Context(), key, []byte(value))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// checkHolds ends the test unless a key holds want, and returns what it holds.
func checkHolds(t testing.TB, s store.Store, key, want string) store.Entry {
	t.Helper()
	e, err := s.Get(t.Context(), key)
	if err != nil || string(e.Value) != want {
		t.Fatalf("%s holds %.40q (%v), want %.40q", key, e.Value, err, want)
	}
	return e
}

// checkKind ends the test unless err is of the kind want among the errors of a store; nil is none
// of them. what names the case.
func checkKind(t testing.TB, what string, err, want error) {
	t.Helper()
	for _, kind := range []error{store.ErrNotFound, store.ErrExists, store.ErrConflict,
		store.ErrUnavailable} {
		if errors.Is(err, kind) != (kind == want) {
			t.Fatalf("%s: got %v, want %v", what, err, want)
		}
	}
}

// createOnce checks that only the first Create of a key succeeds.
func createOnce(t *testing.T, server Server) {
	s := openClient(t, server)
	_, err := s.Get(t.Context(), "a")
	checkKind(t, "nothing there", err, store.ErrNotFound)
	r := mustCreate(t, s, "a", "one")
	_, err = s.Create(t.Context(), "a", []byte("two"))
	checkKind(t, "create again", err, store.ErrExists)
	if e := checkHolds(t, s, "a", "one"); e.Revision != r {
		t.Errorf("read with revision %d what was written with %d", e.Revision, r)
	}
}

// updateWhatWasRead checks that Update succeeds only with the present revision.
func updateWhatWasRead(t *testing.T, server Server) {
	s := openClient(t, server)
	_, err := s.Update(t.Context(), "a", nil, 1)
	checkKind(t, "update of nothing", err, store.ErrConflict)
	_, err = s.Update(t.Context(), "a", nil, 0)
	checkKind(t, "update of revision 0", err, store.ErrConflict)
	first := mustCreate(t, s, "a", "one")
	second, err := s.Update(t.Context(), "a", []byte("two"), first)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Update(t.Context(), "a", []byte("three"), first)
	checkKind(t, "update of an old revision", err, store.ErrConflict)
	_, err = s.Update(t.Context(), "a", []byte("three"), second+1)
	checkKind(t, "update of a revision to come", err, store.ErrConflict)
	checkHolds(t, s, "a", "two")
}

// revisionsGrow checks that later writes have higher revisions.
func revisionsGrow(t *testing.T, server Server) {
	s := openClient(t, server)
	last := mustCreate(t, s, "count", "")
	for i := range 20 {
		other := mustCreate(t, s, fmt.Sprintf("other.%d", i), "")
		r, err := s.Update(t.Context(), "count", nil, last)
		if err != nil || r <= last || other <= last || r == other {
			t.Fatalf("revisions %d, %d, %d: %v", last, other, r, err)
		}
		last = r
	}
}

// keysBelow checks that Keys lists whole words below a prefix, in order.
func keysBelow(t *testing.T, server Server) {
	s := openClient(t, server)
	for _, key := range []string{"a", "a.c", "a.b", "a.b.c", "ab.c", "b.a", "a=2E.x", "A.b"} {
		mustCreate(t, s, key, "")
	}
	for prefix, want := range map[string]string{"a": "a.b a.b.c a.c", "a.b": "a.b.c", "a.b.c": "",
		"nothing": "", "A": "A.b", "a=2E": "a=2E.x"} {
		keys, err := s.Keys(t.Context(), prefix)
		if err != nil || strings.Join(keys, " ") != want {
			t.Errorf("below %q: %q (%v), want %q", prefix, keys, err, want)
		}
	}
}

// manyKeys checks that Keys lists 300 keys in order.
func manyKeys(t *testing.T, server Server) {
	s := openClient(t, server)
	var want []string
	for i := range 300 {
		want = append(want, fmt.Sprintf("many.%020d", i))
		mustCreate(t, s, want[i], "")
	}
	if keys, err := s.Keys(t.Context(), "many"); err != nil || !slices.Equal(keys, want) {
		t.Errorf("%d keys (%v), want %d in order", len(keys), err, len(want))
	}
}

// badKeysAndValues checks that keys and values that are not allowed are refused.
func badKeysAndValues(t *testing.T, server Server) {
	s := openClient(t, server)
	for _, key := range []string{"", ".", "a.", ".a", "a..b", "a b", "a*", ">", "a.>", "ü", "a\n",
		"a/b", strings.Repeat("k", record.MaxKey+1)} {
		_, e1 := s.Get(t.Context(), key)
		_, e2 := s.Create(t.Context(), key, nil)
		_, e3 := s.Update(t.Context(), key, nil, 1)
		_, e4 := s.Keys(t.Context(), key)
		for i, err := range []error{e1, e2, e3, e4} {
			if err == nil {
				t.Errorf("call %d takes the key %.20q", i, key)
			}
			checkKind(t, "a bad key", err, nil)
		}
	}
	mustCreate(t, s, strings.Repeat("k", record.MaxKey), "")
	_, err := s.Create(t.Context(), "a", make([]byte, record.MaxValue+1))
	if err == nil {
		t.Error("a value that is too large is taken")
	}
	checkKind(t, "a large value", err, nil)
}

// allSizes checks that values of any allowed size are kept, byte by byte.
func allSizes(t *testing.T, server Server) {
	s := openClient(t, server)
	for _, n := range []int{0, 1, 1000, record.MaxValue} {
		value := strings.Repeat("\x00\xff\r\n", n/4+1)[:n]
		key := fmt.Sprintf("size.%d", n)
		r := mustCreate(t, s, key, value)
		checkHolds(t, s, key, value)
		if _, err := s.Update(t.Context(), key, []byte(value + "")[:n/2], r); err != nil {
			t.Fatal(err)
		}
		checkHolds(t, s, key, value[:n/2])
	}
}

// valuesAreCopies checks that the store shares no memory with its callers.
func valuesAreCopies(t *testing.T, server Server) {
	s := openClient(t, server)
	value := []byte("mine")
	if _, err := s.Create(t.Context(), "a", value); err != nil {
		t.Fatal(err)
	}
	value[0] = 'X'
	checkHolds(t, s, "a", "mine").Value[1] = 'X'
	checkHolds(t, s, "a", "mine")
}

// clientsSeeTheSame checks that two clients see the writes of each other.
func clientsSeeTheSame(t *testing.T, server Server) {
	a, b := openClient(t, server), openClient(t, server)
	r := mustCreate(t, a, "a", "one")
	checkHolds(t, b, "a", "one")
	if _, err := b.Update(t.Context(), "a", []byte("two"), r); err != nil {
		t.Fatal(err)
	}
	checkHolds(t, a, "a", "two")
	_, err := a.Update(t.Context(), "a", []byte("three"), r)
	checkKind(t, "update after another client", err, store.ErrConflict)
}

// callsWithoutTime checks that a call with a context that has ended fails, and later calls work.
func callsWithoutTime(t *testing.T, server Server) {
	s := openClient(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Get(ctx, "a")
	checkKind(t, "cancelled", err, store.ErrUnavailable)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("does not tell that it was cancelled: %v", err)
	}
	mustCreate(t, s, "a", "one") // it can still be used
}

// callsAfterClose checks that all calls fail after Close, which may be repeated.
func callsAfterClose(t *testing.T, server Server) {
	s := server.Open(t)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		_, e1 := s.Get(t.Context(), "a")
		_, e2 := s.Create(t.Context(), "a", nil)
		_, e3 := s.Keys(t.Context(), "a")
		for _, err := range []error{e1, e2, e3} {
			checkKind(t, "closed", err, store.ErrUnavailable)
		}
	}
}

// randomCalls makes random calls to a store and to a map, and checks that both answer the same.
func randomCalls(t *testing.T, server Server) {
	s, round := openClient(t, server), 0
	rapid.Check(t, func(r *rapid.T) {
		round++
		want, revisions := map[string][]byte{}, map[string]store.Revision{}
		for range rapid.IntRange(1, 12).Draw(r, "calls") {
			key := fmt.Sprintf("model.%d.%s", round,
				rapid.SampledFrom([]string{"a", "b", "c.d"}).Draw(r, "key"))
			value := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(r, "value")
			old, there := want[key]
			stale := store.Revision(rapid.SampledFrom([]int{0, 0, 1}).Draw(r, "stale"))
			var err, expected error
			var n store.Revision
			switch op := rapid.SampledFrom([]string{"create", "update", "get"}).Draw(r, "op"); {
			case op == "create":
				n, err = s.Create(t.Context(), key, value)
				if there {
					expected = store.ErrExists
				}
			case op == "get":
				var e store.Entry
				e, err = s.Get(t.Context(), key)
				if !there {
					expected = store.ErrNotFound
				}
				if !bytes.Equal(e.Value, old) {
					r.Fatalf("%s holds %q, want %q", key, e.Value, old)
				}
			default:
				n, err = s.Update(t.Context(), key, value,
					revisions[key]-min(stale, revisions[key]))
				if !there || stale > 0 {
					expected = store.ErrConflict
				}
			}
			if !errors.Is(err, expected) {
				r.Fatalf("%s: got %v, want %v", key, err, expected)
			}
			if n > 0 {
				want[key], revisions[key] = value, n
			}
		}
	})
}
