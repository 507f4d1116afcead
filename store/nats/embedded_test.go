package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/storetest"
)

// folder is an embedded store as the suite takes it: its clients share the one that this process
// has open.
type folder struct{ *embedded }

// shared is a client whose end is not that of the store.
type shared struct {
	*client
	cancel context.CancelFunc // has later calls of this client fail
}

// Close ends this client, and leaves the store open.
func (s shared) Close() error { s.cancel(); return nil }

// Open implements storetest.Server: it returns a new client.
func (f folder) Open(testing.TB) store.Store {
	ctx, cancel := context.WithCancel(context.Background())
	return shared{&client{f.where, f.full, func() (*session, error) {
		if ctx.Err() != nil {
			return nil, errClosed
		}
		return f.currentSession()
	}}, cancel}
}

// Stop implements storetest.Server: the server fails, and cannot be started again before Start.
func (f folder) Stop(testing.TB) {
	f.setStart(func(string) (*running, error) { return nil, errors.New("pulled out") })
	f.now.fail(errors.New("pulled out"))
}

// Start implements storetest.Server: it makes the store reachable again.
func (f folder) Start(testing.TB) { f.setStart(startServer) }

// setStart replaces the function that starts a server. Any goroutine may call it.
func (f folder) setStart(start func(string) (*running, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.embedded.start = start
}

// openFolder opens the store in the folder path until the test ends; the test may close it before.
// A failure ends the test.
func openFolder(t testing.TB, path string) *embedded {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.(*embedded)
}

// TestEmbedded runs the suite of package storetest on a store in a folder.
func TestEmbedded(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Server {
		return folder{openFolder(t, t.TempDir())}
	})
}

// TestOpenAgain opens a folder several times: what was written before is there.
func TestOpenAgain(t *testing.T) {
	path := t.TempDir()
	for n := range 3 {
		s := openFolder(t, path)
		for i := range n {
			if e, err := s.Get(t.Context(), fmt.Sprintf("life.%d", i)); err != nil ||
				string(e.Value) != "kept" {
				t.Errorf("life %d: %q (%v)", i, e.Value, err)
			}
		}
		if _, err := s.Create(t.Context(), fmt.Sprintf("life.%d", n), []byte("kept")); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullFolder fills a folder: the error says what to do, which is not to purge, since nobody can
// ask the server inside this process for that.
func TestFullFolder(t *testing.T) {
	s := openFolder(t, t.TempDir())
	c := streamConfig(1)
	c.MaxBytes, c.AllowAtomicPublish = 2000, true
	if _, err := s.now.js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	var err error
	for i := 0; i < 20 && err == nil; i++ {
		_, err = s.Create(t.Context(), fmt.Sprintf("k.%d", i), make([]byte, 200))
	}
	if err == nil || !strings.Contains(err.Error(), "name another folder") ||
		strings.Contains(err.Error(), "purge") {
		t.Errorf("a full folder: %v", err)
	}
}

// A batch is done as a whole or not at all, also in a bucket that was made before there were any,
// and is there when the folder is opened again.
func TestBatch(t *testing.T) {
	path := t.TempDir()
	s := openFolder(t, path)
	if err := s.now.forbidBatches(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openFolder(t, path)
	old, err := s.Create(t.Context(), "a.0", []byte("old"))
	if err != nil {
		t.Fatal(err)
	}
	puts := []store.Put{{Key: "a.0", Value: []byte("new"), Was: old}}
	for i := 1; i < 20; i++ {
		puts = append(puts, store.Put{Key: fmt.Sprintf("a.%d", i), Value: []byte("new")})
	}
	list, err := s.Batch(t.Context(), puts)
	if err != nil || len(list) != len(puts) || list[0] <= old {
		t.Fatal(list, err)
	}
	again := []store.Put{{Key: "b", Value: []byte("x")}, {Key: "a.1", Value: []byte("x"), Was: old}}
	if _, err := s.Batch(t.Context(), again); !errors.Is(err, store.ErrConflict) {
		t.Error("a write in place of another revision:", err)
	}
	again[1].Was = 0
	if _, err := s.Batch(t.Context(), again); !errors.Is(err, store.ErrConflict) {
		t.Error("a write to a key that is taken:", err)
	}
	if _, err := s.Batch(t.Context(), make([]store.Put, maxBatch+1)); err == nil {
		t.Error("a batch that is too large is taken")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Batch(t.Context(), puts); !errors.Is(err, store.ErrUnavailable) {
		t.Error("a store that is closed:", err)
	}
	s = openFolder(t, path)
	if _, err := s.Get(t.Context(), "b"); !errors.Is(err, store.ErrNotFound) {
		t.Error("half of a batch is done:", err)
	}
	for i, p := range puts {
		e, err := s.Get(t.Context(), p.Key)
		if err != nil || string(e.Value) != "new" || e.Revision != list[i] {
			t.Errorf("%s: %q, %d, not %d (%v)", p.Key, e.Value, e.Revision, list[i], err)
		}
		if _, err := s.Update(t.Context(), p.Key, []byte("newer"), list[i]); err != nil {
			t.Error(err)
		}
	}
}

// forbidBatches has the server take no batches any more, as in a bucket of an older version.
func (s *session) forbidBatches(ctx context.Context) error {
	c := s.stream.CachedInfo().Config
	c.AllowAtomicPublish = false
	_, err := s.js.UpdateStream(ctx, c)
	return err
}
