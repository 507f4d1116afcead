package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/s3/s3test"
	"github.com/shoal-ml/shoal/internal/envtest"
)

// TestStoreFails has every second request fail, in one way or another.
func TestStoreFails(t *testing.T) {
	odd := writeOdd(t)
	here := filepath.Join(t.TempDir(), "out")
	if _, err := sealedMove(t, odd, here, TargetFormat{Format: "dcp", Spec: columns}); err != nil {
		t.Fatal(err)
	}
	for name, fail := range map[string]func(w http.ResponseWriter, r *http.Request,
		next http.Handler){
		"slow down": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			s3test.Refuse(w, 503, "SlowDown")
		},
		"cut": func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			_, _ = io.CopyN(io.Discard, r.Body, max(r.ContentLength/2, 0))
			s3test.HangUp(w)
		},
		"the answer is lost": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(httptest.NewRecorder(), r)
			s3test.HangUp(w)
		},
		"spoiled on the way": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Body = io.NopCloser(&spoiling{r.Body})
			next.ServeHTTP(w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var n atomic.Int64
			store := s3test.Start(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if part := r.URL.Query().Has("partNumber"); n.Add(1)%2 == 0 &&
						(part || name != "spoiled on the way") {
						fail(w, r, next)
						return
					}
					next.ServeHTTP(w, r)
				})
			})
			if _, err := sealedMove(t, odd, "s3://models/out",
				TargetFormat{Format: "dcp", Spec: columns}); err != nil {
				t.Fatal(err)
			}
			checkAlike(t, store, "out", here)
		})
	}
}

// spoiling is a reader that changes a bit of the first byte of each read.
type spoiling struct{ io.Reader }

// Read implements io.Reader.
func (s *spoiling) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if n > 0 {
		b[0] ^= 1
	}
	return n, err
}

// TestKilledUpload stops the store from answering after so many requests, as if the command were
// gone: until then nothing there reads as a checkpoint; run again it succeeds, with nothing left of
// what was there.
func TestKilledUpload(t *testing.T) {
	odd := writeOdd(t)
	form := TargetFormat{Format: "hf", MaxFileBytes: 20e6}
	here := filepath.Join(t.TempDir(), "out")
	if _, err := sealedMove(t, odd, here, form); err != nil {
		t.Fatal(err)
	}
	for n := int64(1); ; n++ {
		var left atomic.Int64
		left.Store(n)
		store := s3test.Start(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet && r.Method != http.MethodHead && left.Add(-1) < 0 {
					// for good, so that it is not asked for again
					s3test.Refuse(w, 403, "AccessDenied")
					return
				}
				next.ServeHTTP(w, r)
			})
		})
		_, err := sealedMove(t, odd, "s3://models/out", form)
		used := n - left.Load()
		whole := used <= n
		left.Store(1 << 40)
		if whole {
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d requests that change something", used)
			checkAlike(t, store, "out", here)
			return
		}
		if err == nil {
			t.Fatalf("after %d requests: no error", n)
		}
		if c, opened := Open("s3://models/out"); opened == nil {
			t.Fatalf("after %d requests there is a checkpoint: %v: %q", n, c.Close(), store.Keys())
		}
		if damage, _, err := Verify(t.Context(), "s3://models/out", 1); err == nil &&
			len(damage) == 0 {
			t.Fatalf("after %d requests it verifies: %q", n, store.Keys())
		}
		if _, err := sealedMove(t, odd, "s3://models/out", form); err != nil {
			t.Fatalf("again, after %d requests: %v: %q", n, err, store.Keys())
		}
		checkAlike(t, store, "out", here)
	}
}

// TestRealServer moves to versitygw, kills a process that does with SIGKILL at some moments, and
// lets the next one begin anew.
func TestRealServer(t *testing.T) {
	url, folder := s3test.StartReal(t, "..")
	s3test.SetEnvironment(t, url)
	killUploads(t, []int{0, 200, 700, ticks}, func() []string {
		return filesBelow(t, filepath.Join(folder, "models"))
	})
}

// TestKilledUploader is the same with a store in memory.
func TestKilledUploader(t *testing.T) {
	store := s3test.Start(t, nil)
	killUploads(t, []int{0, 400, ticks}, func() []string {
		return slices.Concat(store.Keys(), store.Uploads())
	})
}

// filesBelow returns the paths of all regular files below a folder.
func filesBelow(t *testing.T, folder string) (names []string) {
	if err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			names = append(names, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return names
}

// killUploads kills processes that move a checkpoint to s3://models/out, one after the other, when
// they have moved so many thousandths of it, and lets another one make the move. The environment
// names the store; GB says how large the checkpoint is. left returns the names of what is in the
// bucket, of which there must be as many as a folder has. It fails the test where the result is not
// whole.
func killUploads(t *testing.T, when []int, left func() []string) {
	dir := t.TempDir()
	m := childMove{From: filepath.Join(dir, "model.safetensors"), To: filepath.Join(dir, "here"),
		Format: "dcp"}
	if gb := envtest.Number(t, "GB", 0); gb > 0 {
		writeRandom(t, m.From, 1, decoderTensors(max(1, (int(gb)*1e9-embedding)/layer)))
	} else {
		writeModel(t, m.From, rand.New(rand.NewPCG(1, 2)), 4, 16384)
	}
	k := killer{t: t}
	k.timeMove(m)
	m.To = "s3://models/out"
	done := false
	for _, after := range when {
		cmd, ticking, said := k.startChild(m)
		if _, err := io.CopyN(io.Discard, ticking, int64(after)); err != nil {
			t.Fatal(err, said)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			done = true // it was killed too late
			break
		}
		if damage, _, err := Verify(t.Context(), m.To, 2); err == nil {
			t.Fatalf("killed after tick %d, it can be compared: %v", after, damage)
		}
	}
	if !done {
		cmd, ticking, said := k.startChild(m)
		_, _ = io.Copy(io.Discard, ticking)
		if err := cmd.Wait(); err != nil {
			t.Fatal(err, said)
		}
		t.Log(said)
	}
	if damage, _, err := Verify(t.Context(), m.To, 2); err != nil || len(damage) > 0 {
		t.Errorf("%v, %v", damage, err)
	}
	if found, _, err := Compare(t.Context(), openCheckpoint(t, filepath.Join(dir, "here")),
		openCheckpoint(t, m.To),
		2); err != nil || len(found) > 0 {
		t.Errorf("%v, %v", found, err)
	}
	if files, want := left(), len(filesBelow(t, filepath.Join(dir, "here"))); len(files) != want {
		t.Errorf("there are %q, and %d are due", files, want)
	}
}

// TestUploadFails leaves nothing when the source is not what it was, when it is stopped, and when
// it is refused in the middle.
func TestUploadFails(t *testing.T) {
	odd := writeOdd(t)
	for name, c := range map[string]struct {
		progress func(stop context.CancelFunc)
		refuse   string // requests with this in their query
		want     string
	}{
		"the source changes": {progress: func(context.CancelFunc) {
			if err := os.Chtimes(odd, time.Time{}, time.Unix(1, 0)); err != nil {
				t.Error(err)
			}
		}, want: "was changed while it was read"},
		"it is stopped": {progress: func(stop context.CancelFunc) {
			stop()
		}, want: "context canceled"},
		"a part is refused": {refuse: "partNumber=2",
			want: "cannot write s3://models/out/model.safetensors: "},
	} {
		t.Run(name, func(t *testing.T) {
			store := s3test.Start(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if c.refuse != "" && strings.Contains(r.URL.RawQuery, c.refuse) {
						s3test.Refuse(w, 403, "AccessDenied")
						return
					}
					next.ServeHTTP(w, r)
				})
			})
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			from := openCheckpoint(t, odd)
			out, _, err := from.Output(TargetFormat{Format: "hf"})
			if err != nil {
				t.Fatal(err)
			}
			ctx = whileMoving(ctx, func(done, all int64) {
				if c.progress != nil && done > all/2 {
					c.progress(stop)
				}
			})
			_, err = Move(ctx, from, out, "s3://models/out", Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
			if left := slices.Concat(store.Keys(), store.Uploads()); len(left) > 0 {
				t.Errorf("it left %q", left)
			}
		})
	}
}

// TestReplicaToBucket loses a source file in the middle: what was sent is sent anew, from the
// replica.
func TestReplicaToBucket(t *testing.T) {
	store := s3test.Start(t, nil)
	dir := t.TempDir()
	for _, name := range []string{"a.safetensors", "b.safetensors"} {
		writeModel(t, filepath.Join(dir, name), rand.New(rand.NewPCG(1, 2)), 3, 16384)
	}
	c, out := openDying(t, dir, 80, true)
	r, err := Move(t.Context(), c, out, "s3://models/out", Options{})
	if err != nil || !slices.Equal(r.Unreadable, []string{"a.safetensors"}) {
		t.Fatal(r, err)
	}
	want, err := os.ReadFile(filepath.Join(dir, "a.safetensors"))
	if err != nil || !bytes.Equal(want, store.Get("out/model.safetensors")) ||
		len(store.Keys()) != 2 || len(store.Uploads()) > 0 {
		t.Errorf("%v; there are %q", err, store.Keys())
	}
}

// TestLeftUpload finds what others have left: of the same move, of another one, and files that are
// nobody's.
func TestLeftUpload(t *testing.T) {
	small := filepath.Join(t.TempDir(), "small.safetensors")
	writeModel(t, small, rand.New(rand.NewPCG(1, 2)), 2, 4)
	begin := func(store *s3test.Server) *upload {
		c := openCheckpoint(t, small)
		out, _, err := c.Output(TargetFormat{Format: "hf"})
		if err != nil {
			t.Fatal(err)
		}
		u, err := newUpload(t.Context(), "s3://models/out", out, moveIdentity(c, out))
		if err != nil {
			t.Fatal(err)
		}
		store.Set("out/model.safetensors", []byte("half"))
		return u
	}
	store := s3test.Start(t, nil)
	left := begin(store)
	if _, err := Open("s3://models/out"); err == nil ||
		!strings.Contains(err.Error(), "s3://models/out is not whole, which its .partial says") {
		t.Error(err)
	}
	if _, err := sealedMove(t, small, "s3://models/out", TargetFormat{Format: "dcp"}); err == nil ||
		!strings.Contains(err.Error(), "is what is left of another move") {
		t.Error(err)
	}
	store.Set("out/notes", []byte("x"))
	if _, err := sealedMove(t, small, "s3://models/out", TargetFormat{Format: "hf"}); err == nil ||
		!strings.Contains(err.Error(),
			"s3://models/out/notes is there, and nothing that this move writes") {
		t.Error(err)
	}
	store.Set("out/notes", nil)
	if _, err := sealedMove(t, small, "s3://models/out", TargetFormat{Format: "hf"}); err != nil {
		t.Error(err)
	}
	keys := store.Keys()
	// The run that was thought dead does not touch what the other one has made.
	if err := left.cleanUpFailed(t.Context(), false); err == nil ||
		!strings.Contains(err.Error(), "another command writes there") {
		t.Error(err)
	}
	if !slices.Equal(keys, store.Keys()) || len(keys) != 2 {
		t.Errorf("there are %q, and were %q", store.Keys(), keys)
	}
	// A run that was stopped after its manifest is finished.
	store.Set("out/.partial",
		fmt.Appendf(nil, `{"shoal":"partial/1","move":"%x","run":"x"}`, left.id[:]))
	r, err := sealedMove(t, small, "s3://models/out", TargetFormat{Format: "hf"})
	if err != nil || !r.AlreadyDone || !slices.Equal(keys, store.Keys()) {
		t.Errorf("%+v, %v: %q", r, err, store.Keys())
	}
}

// TestOtherWriter has another command write to the same place, after all is sent or after the
// manifest is: the move does not say that it is done.
func TestOtherWriter(t *testing.T) {
	small := filepath.Join(t.TempDir(), "small.safetensors")
	writeModel(t, small, rand.New(rand.NewPCG(1, 2)), 2, 4)
	for want, c := range map[string]struct{ method, path, key, text string }{
		"model.safetensors has 4 bytes, and 8376 were sent": {http.MethodGet, "/out/.partial",
			"out/model.safetensors", "half"},
		"something else was written there meanwhile": {http.MethodGet, "/out/.partial",
			"out/other.safetensors", "half"},
		"another command writes there, or has removed what was there": {http.MethodPut,
			"/out/shoal-manifest.json", "out/.partial",
			`{"shoal":"partial/1","move":"00","run":"x"}`},
		"is no mark of an unfinished checkpoint": {http.MethodPut, "/out/shoal-manifest.json",
			"out/.partial", `{"shoal":"partial/2","move":"00","run":"x"}`},
	} {
		var store *s3test.Server
		store = s3test.Start(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == c.method && strings.HasSuffix(r.URL.Path, c.path) {
					store.Set(c.key, []byte(c.text))
				}
				next.ServeHTTP(w, r)
			})
		})
		r, err := sealedMove(t, small, "s3://models/out", TargetFormat{Format: "hf"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v, %v, want %q", r, err, want)
		}
	}
}

// TestMarkCannotBeRemoved finds what a finished run has left at a store that removes nothing: as
// long as the mark is there, nobody can open the checkpoint, so the move is not done.
func TestMarkCannotBeRemoved(t *testing.T) {
	small := filepath.Join(t.TempDir(), "small.safetensors")
	writeModel(t, small, rand.New(rand.NewPCG(1, 2)), 2, 4)
	var keeps atomic.Bool
	store := s3test.Start(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if keeps.Load() && r.Method == http.MethodDelete {
				s3test.Refuse(w, 403, "AccessDenied")
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	form := TargetFormat{Format: "hf"}
	if _, err := sealedMove(t, small, "s3://models/out", form); err != nil {
		t.Fatal(err)
	}
	c := openCheckpoint(t, small)
	out, _, err := c.Output(form)
	if err != nil {
		t.Fatal(err)
	}
	id := moveIdentity(c, out)
	store.Set("out/.partial", fmt.Appendf(nil, `{"shoal":"partial/1","move":"%x","run":"x"}`, id[:]))
	keeps.Store(true)
	if r, err := sealedMove(t, small, "s3://models/out", form); err == nil ||
		!strings.Contains(err.Error(), "cannot remove s3://models/out/.partial") {
		t.Errorf("%+v, %v", r, err)
	}
	keeps.Store(false)
	if r, err := sealedMove(t, small, "s3://models/out", form); err != nil || !r.AlreadyDone {
		t.Errorf("%+v, %v", r, err)
	}
}
