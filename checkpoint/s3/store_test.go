package s3_test

import (
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/checkpoint/s3/s3test"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/checkpoint/snapshot/snapshottest"
	"github.com/shoal-ml/shoal/state/manifest"
)

// openBucket opens a bucket of a store in memory, until the test ends, whose requests go to what
// front makes first; nil = nothing. It returns the folder of a job there, and the store. It sets
// variables of the environment, so the test must not be parallel.
func openBucket(t *testing.T, front func(http.Handler) http.Handler) (snapshot.Folder,
	*s3test.Server) {
	t.Helper()
	store := s3test.Start(t, front)
	return bucketFolder(t, "s3://models/runs/digits", nil), store
}

// bucketFolder returns the folder of a job at a URL in the store that the environment names, whose
// pauses between tries are appended to pauses and not made; nil = to nothing. The test logs its
// lines.
func bucketFolder(t *testing.T, url string, pauses *[]time.Duration) snapshot.Folder {
	t.Helper()
	b, err := s3.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	return snapshot.Folder{Root: url, Keep: 2, Store: b.Unpaced(pauses), Log: func(line string) {
		t.Log(line)
	}}
}

// fetchSealed copies a sealed checkpoint in a bucket into a folder of the test, and returns that.
// If it cannot the test fails.
func fetchSealed(t *testing.T, f snapshot.Folder, a snapshot.Attempt) snapshot.Folder {
	t.Helper()
	here := snapshot.Folder{Root: t.TempDir()}
	if err := f.Store.(*s3.Bucket).Fetch(t.Context(), a, here.Root); err != nil {
		t.Fatal(err)
	}
	return here
}

// TestBucket runs the suite of package snapshottest on a bucket.
func TestBucket(t *testing.T) {
	var store *s3test.Server
	snapshottest.Run(t, snapshottest.Kind{
		Open: func(t *testing.T) (f snapshot.Folder) {
			f, store = openBucket(t, nil)
			return f
		},
		Fetch: fetchSealed,
		Files: func(*testing.T, snapshot.Folder) []string {
			return slices.Concat(store.Keys(), store.Uploads())
		},
	})
}

// A worker whose receipt is sent twice, because the first answer was lost, may send it after the
// manifest of another.
func TestReceiptAfterTheManifest(t *testing.T) {
	f, store := openBucket(t, nil)
	s, memory := snapshottest.State(5, 2)
	snapshottest.Write(t, f, s, memory, 55, 0, 1)
	sealed, err := f.Sealed()
	if err != nil || len(sealed) != 1 {
		t.Fatal(sealed, err)
	}
	before := store.Keys()
	if err := f.Store.Put(t.Context(), sealed[0], ".part-00001-of-00002.json",
		[]byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := f.Store.Seal(t.Context(), sealed[0], nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("sealed again: %v", err)
	}
	if after := store.Keys(); !slices.Equal(before, after) {
		t.Errorf("%q became %q", before, after)
	}
}

// Two jobs write the same step, of which a bucket keeps both: what the second one says must not be
// nothing.
func TestAnotherJobInTheBucket(t *testing.T) {
	f, _ := openBucket(t, nil)
	var first, second snapshottest.Lines
	s, memory := snapshottest.SmallState(5, 2)
	f.Log = first.Say
	snapshottest.Write(t, f, s, memory, 55, 0, 1)
	f.Log = second.Say
	snapshottest.Write(t, f, s, memory, 66, 0, 1)
	if strings.Contains(first.String(), "another") ||
		!strings.Contains(second.String(), "another checkpoint of step 5 is in "+f.Root+
			", so another job writes into the folder: give each job a folder of its own") {
		t.Errorf("the first job says %q, the second %q", &first, &second)
	}
}

// A sealed attempt whose manifest cannot be parsed, as that of a newer shoal, is not abandoned: it
// stays as it is.
func TestAbandonUnknownManifest(t *testing.T) {
	f, store := openBucket(t, nil)
	s, memory := snapshottest.SmallState(5, 2)
	snapshottest.Write(t, f, s, memory, 55, 0, 1)
	sealed, err := f.Sealed()
	if err != nil || len(sealed) != 1 {
		t.Fatal(sealed, err)
	}
	if err := f.Store.Put(t.Context(), sealed[0], manifest.Name, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	before := store.Keys()
	gone, err := f.Store.Abandon(t.Context(), sealed[0], func([]string) bool { return false })
	if gone || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("abandoned: %v, %v", gone, err)
	}
	if after := store.Keys(); !slices.Equal(before, after) {
		t.Errorf("%q became %q", before, after)
	}
}

// What a worker that was lost left in a bucket whose files cannot be removed stays there, and the
// log says so.
func TestBucketThatLetsNothingBeRemoved(t *testing.T) {
	f, _ := openBucket(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodDelete {
				s3test.Refuse(w, http.StatusForbidden, "AccessDenied")
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	var l snapshottest.Lines
	f.Log = l.Say
	s, memory := snapshottest.SmallState(5, 2)
	snapshottest.Write(t, f, s, memory, 55, 1)
	if err := f.CleanUp(); err != nil || strings.Contains(l.String(), "abandoned") ||
		!strings.Contains(l.String(), "what is left in "+f.Root+
			" of earlier checkpoints stays there: ") ||
		!strings.Contains(l.String(), "s3:DeleteObject") {
		t.Errorf("%v, and the log says %q", err, &l)
	}
}

// TestDescriptionIsMissing has an attempt with all receipts lose its description: nobody can seal
// it, and the next to come removes it and does not try for ever.
func TestDescriptionIsMissing(t *testing.T) {
	var left atomic.Int64 // requests that are answered
	f, store := openBucket(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if left.Add(-1) < 0 {
				s3test.Refuse(w, http.StatusForbidden, "AccessDenied")
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	left.Store(1000)
	s, memory := snapshottest.SmallState(5, 2)
	snapshottest.Write(t, f, s, memory, 55, 0)
	store.Set("runs/digits/step-000000000005-0000000000000037/"+snapshot.StateName, nil)
	snapshottest.Write(t, f, s, memory, 55, 1)
	if err := f.CleanUp(); err != nil {
		t.Error(err)
	}
	if keys := store.Keys(); len(keys) > 0 {
		t.Errorf("left are %q", keys)
	}
}
