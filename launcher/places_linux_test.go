package launcher_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/checkpoint/s3/s3test"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
)

// openBucket has agents of this process find a store in memory, behind a handler that may do evil
// (nil = none), and a folder of their own for what is fetched, until the test ends. It sets
// variables of the environment, so the test must not be parallel.
func openBucket(t *testing.T, front func(http.Handler) http.Handler) *s3test.Server {
	store := s3test.Start(t, front)
	short, err := os.MkdirTemp("", "s3") // sockets are made there too, and have short names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	t.Setenv("TMPDIR", short)
	return store
}

// fetchedFolders are the paths of the folders for what is fetched that are there now.
func fetchedFolders(t *testing.T) []string {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), "shoal-fetched-*"))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// A training goes on from a checkpoint in a bucket as from one in a folder.
func TestTrainerGoesOnFromABucket(t *testing.T) {
	for _, c := range []struct{ before, after int }{{3, 3}, {2, 3}, {3, 1}} {
		t.Run(fmt.Sprintf("%d workers, then %d", c.before, c.after), func(t *testing.T) {
			store := openBucket(t, nil)
			whole := runTraining(t, c.after, filepath.Join(t.TempDir(), "undisturbed"), nil)
			const url = "s3://models/runs/a"
			runTraining(t, c.before, url, map[string]string{stopVariable: "31"})
			again := runTraining(t, c.after, url, nil)
			if again.from < 5 || again.from > 31 || len(again.results) != c.after {
				t.Errorf("went on from step %d: %s", again.from, again.output)
			}
			if c.before == c.after && !slices.Equal(whole.results, again.results) {
				t.Errorf("ended with %v, undisturbed with %v", again.results, whole.results)
			}
			if dirs := fetchedFolders(t); len(dirs) > 0 {
				t.Errorf("%q is left", dirs)
			}
			for _, key := range slices.Concat(store.Keys(), store.Uploads()) {
				if !strings.HasPrefix(key, "runs/a/step-") || strings.Contains(key, ".part-") {
					t.Errorf("%s is left", key)
				}
			}
		})
	}
}

// What is damaged in the bucket is passed over, and kept; where nothing else is, the training does
// not begin anew.
func TestDamagedCheckpointInABucket(t *testing.T) {
	store := openBucket(t, nil)
	const url = "s3://models/runs/a"
	runTraining(t, 2, url, nil)
	b, err := s3.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	folder := snapshot.Folder{Root: url, Store: b}
	sealed, err := folder.Sealed()
	if err != nil || len(sealed) < 2 {
		t.Fatal(sealed, err)
	}
	damage := func(a snapshot.Attempt) {
		keys := store.Keys()
		begin := fmt.Sprintf("runs/a/step-%012d-%016x/shard-00002", a.Step, a.Seed)
		key := keys[slices.IndexFunc(keys, func(key string) bool {
			return strings.HasPrefix(key, begin)
		})]
		bytes := slices.Clone(store.Get(key))
		bytes[len(bytes)-3] ^= 1
		store.Set(key, bytes)
	}
	damage(sealed[0])
	r := runTraining(t, 3, url, nil)
	if r.from != int(sealed[1].Step) || len(r.results) != 3 ||
		!strings.Contains(r.output, "not as it was sealed") {
		t.Errorf("went on from %d, not %d: %s", r.from, sealed[1].Step, r.output)
	}
	if store.Get(fmt.Sprintf("runs/a/step-%012d-%016x/.damaged", sealed[0].Step,
		sealed[0].Seed)) == nil {
		t.Errorf("the damaged one has no mark: %q", store.Keys())
	}
	if sealed, err = folder.Sealed(); err != nil {
		t.Fatal(err)
	}
	for _, a := range sealed {
		damage(a)
	}
	r = runTraining(t, 2, url, map[string]string{stopVariable: "1"})
	if r.from != 0 || !strings.Contains(r.output, "checkpoints in "+url+" can be used") {
		t.Error(r.output)
	}
}

// A store that goes away ends no training. One that is away when a job begins, or takes no
// checkpoints then, ends that, with the reason: the job must not begin anew.
func TestStoreIsAway(t *testing.T) {
	var puts, refused atomic.Int64
	var gone, readOnly atomic.Bool
	openBucket(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			put := r.Method == http.MethodPut
			if gone.Load() || put && readOnly.Load() ||
				put && puts.Add(1) > 9 && puts.Load() < 14 {
				refused.Add(1)
				s3test.Refuse(w, http.StatusForbidden, "AccessDenied")
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	const url = "s3://models/runs/a"
	r := runTraining(t, 2, url, nil)
	if len(r.results) != 2 || refused.Load() == 0 ||
		!strings.Contains(r.output, "is abandoned, which does not stop the job: ") ||
		!strings.Contains(r.output, "AccessDenied") || !strings.Contains(r.output, "is sealed") {
		t.Errorf("%d refused: %s", refused.Load(), r.output)
	}
	gone.Store(true)
	r = runTraining(t, 2, url, map[string]string{stopVariable: "1"})
	if strings.Contains(r.output, "FROM") || !strings.Contains(r.output, "AccessDenied") {
		t.Error(r.output)
	}
	gone.Store(false)
	readOnly.Store(true)
	for _, place := range []string{url, "s3://models/runs/b", "/proc/shoal"} {
		r = runTraining(t, 2, place, map[string]string{stopVariable: "1"})
		if strings.Contains(r.output, "FROM") ||
			!strings.Contains(r.output, "no checkpoint can be written to "+place) {
			t.Errorf("%s takes no checkpoints: %s", place, r.output)
		}
	}
}

// Workers of one host share what is fetched; what a killed agent has left is removed, and that of
// one that lives is not.
func TestFetchedOnce(t *testing.T) {
	store := openBucket(t, nil)
	const url = "s3://models/runs/a"
	runTraining(t, 2, url, nil)
	dead, alive := filepath.Join(os.TempDir(), "shoal-fetched-1"),
		filepath.Join(os.TempDir(), "shoal-fetched-2")
	if err := errors.Join(os.Mkdir(dead, 0o700), os.Mkdir(alive, 0o700)); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(alive)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	before := len(store.Log())
	runTraining(t, 3, url, nil)
	shards := 0
	for _, line := range store.Log()[before:] {
		if strings.HasPrefix(line, "GET runs/") && strings.Contains(line, "shard-00001") {
			shards++
		}
	}
	if shards != 1 {
		t.Errorf("3 workers had a shard fetched %d times", shards)
	}
	if dirs := fetchedFolders(t); !slices.Equal(dirs, []string{alive}) {
		t.Errorf("%q are left, besides %s of one that lives", dirs, alive)
	}
}
