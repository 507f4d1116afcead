package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
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
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/tensor/safetensors"
)

// bucket is a store in memory behind a handler that may do evil; where it is, the environment says.
func bucket(t *testing.T, front func(next http.Handler) http.Handler) *s3test.Server {
	t.Helper()
	store := s3test.New("models")
	var handler http.Handler = store
	if front != nil {
		handler = front(store)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	setStore(t, server.URL)
	return store
}

func setStore(t *testing.T, url string) {
	for name, value := range map[string]string{"HOME": t.TempDir(), "AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret",
		"AWS_ENDPOINT_URL_S3": url, "AWS_ENDPOINT_URL": "", "AWS_REGION": "us-east-1", "AWS_PROFILE": "", "AWS_CONFIG_FILE": ""} {
		t.Setenv(name, value)
	}
}

// writeOdd writes a checkpoint of 50 MB with tensors that are smaller and larger than a part, and end anywhere in one.
func writeOdd(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "odd.safetensors")
	entry := func(name string, d tensor.DType, shape ...int) safetensors.Tensor {
		return safetensors.Tensor{Name: name, DType: d, Shape: shape}
	}
	writeRandom(t, path, 7, []safetensors.Tensor{
		entry("a", tensor.BF16, 3, 7), entry("b", tensor.U8, 3_000_001), entry("c", tensor.F32, 3000, 1001), entry("d", tensor.BF16, 4000, 1500),
		entry("e", tensor.F32, 3, 0), entry("f", tensor.F16, 1_000_003), entry("g", tensor.BF16, 10000, 1001),
	})
	return path
}

// columns cuts the tensors of writeOdd that are matrices, so that what lies in a row comes from many places.
var columns = &layout.Spec{Shoal: layout.Version, Mesh: "tp=2", Rules: []layout.Rule{{Match: "c", Place: "tp=shard(1,balanced)"}, {Match: "g", Place: "tp=shard(1,balanced)"}, {Match: "**"}}}

// moved moves a checkpoint, and fails when that does.
func moved(t *testing.T, from, to string, f Form) (*Report, error) {
	t.Helper()
	c := opened(t, from)
	f.File = filepath.Base(to)
	out, _, err := c.Lay(f)
	if err != nil {
		t.Fatal(err)
	}
	return Move(t.Context(), c, out, to, Options{Workers: 2, Seal: true})
}

// alike fails unless the objects below a prefix are the files of a folder, or a file and its manifest, bit by bit, and nothing else is there.
func alike(t *testing.T, store *s3test.Server, prefix, path string) {
	t.Helper()
	want := map[string][]byte{}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, root := range files {
		if err := filepath.WalkDir(root, func(file string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				want[prefix+strings.TrimPrefix(file, path)], err = os.ReadFile(file)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range store.Keys() {
		if b, ok := want[key]; !strings.HasPrefix(key, prefix) || !ok || !bytes.Equal(b, store.Get(key)) {
			t.Errorf("%s: is due: %v, and has %d bytes, as is due: %v", key, ok, len(store.Get(key)), bytes.Equal(b, store.Get(key)))
		}
		delete(want, key)
	}
	for key := range want {
		t.Errorf("%s is not there", key)
	}
	if left := store.Uploads(); len(left) > 0 {
		t.Errorf("uploads are left: %q", left)
	}
}

// TestMoveToBucket writes every format to a bucket and to a disk: the same files come to be, and can be verified where they are.
func TestMoveToBucket(t *testing.T) {
	stages, err := layout.Parse([]byte(megatronLayout))
	if err != nil {
		t.Fatal(err)
	}
	odd := writeOdd(t)
	megatron, _ := megatronSample(t, "distributed")
	for _, c := range []struct {
		name, from, to string
		form           Form
	}{
		{"hf", odd, "hf", Form{Format: "hf", Most: 20e6}}, {"file", odd, "model.safetensors", Form{Format: "hf"}}, {"pt", odd, "model.pt", Form{Format: "pt"}},
		{"dcp", odd, "dcp", Form{Format: "dcp", Spec: columns}}, {"shards", odd, "shards", Form{Format: "shards", Spec: columns}},
		{"ranks", odd, "ranks", Form{Format: "ranks", Spec: columns}}, {"one", odd, "one", Form{Format: "ranks"}},
		{"megatron", megatron, "megatron", Form{Format: "megatron", Spec: stages}}, {"torch_dist", megatron, "dist", Form{Format: "torch_dist"}},
		{"replicas", megatron, "replicas", Form{Format: "ranks", Spec: stages}},
		{"dist to pt", megatron, "dist.pt", Form{Format: "pt"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			store, here, there := bucket(t, nil), filepath.Join(t.TempDir(), c.to), "s3://models/runs/"+c.to
			want, err := moved(t, c.from, here, c.form)
			if err != nil {
				t.Fatal(err)
			}
			got, err := moved(t, c.from, there, c.form)
			if err != nil {
				t.Fatal(err)
			}
			if got.State != want.State || got.Moved != want.Moved {
				t.Errorf("%+v, and to a folder %+v", got, want)
			}
			alike(t, store, "runs/"+c.to, here)
			if damage, _, err := Verify(t.Context(), there, 2); err != nil || len(damage) > 0 {
				t.Errorf("verified: %v, %v", damage, err)
			}
			if found, err := Diff(t.Context(), opened(t, here), opened(t, there), 2); err != nil || len(found) > 0 {
				t.Errorf("they differ: %v, %v", found, err)
			}
			before := store.Keys()
			if _, err := moved(t, c.from, there, c.form); err == nil || !strings.Contains(err.Error(), there+" is there already; shoal overwrites nothing") {
				t.Errorf("moved again: %v", err)
			}
			if !slices.Equal(before, store.Keys()) {
				t.Errorf("there are %q, and were %q", store.Keys(), before)
			}
		})
	}
}

// TestParts has parts that wait for checksums, and bounds what of them is in memory.
func TestParts(t *testing.T) {
	store := bucket(t, nil)
	path := filepath.Join(t.TempDir(), "model.safetensors")
	bytes := writeRandom(t, path, 1, []safetensors.Tensor{{Name: "a", DType: tensor.F32, Shape: tensor.Shape{25, 1 << 20}}, {Name: "b", DType: tensor.F32, Shape: tensor.Shape{25, 1 << 20}}})
	c := opened(t, path)
	out, _, err := c.Lay(Form{Format: "pt", File: "model.pt"})
	if err != nil {
		t.Fatal(err)
	}
	from, err := newSource(c)
	if err != nil {
		t.Fatal(err)
	}
	u, err := newUpload(t.Context(), "s3://models/model.pt", out, identity(c, out))
	if err != nil {
		t.Fatal(err)
	}
	x := transfer{src: c, from: from, to: u, key: c.key(u.id)}
	if _, err := x.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := x.commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if most := 25 * 16 << 20; u.parts.peak > most || u.parts.peak >= int(bytes) || u.parts.bytes != 0 {
		t.Errorf("%d bytes of parts were in memory, and %d are at the end", u.parts.peak, u.parts.bytes)
	}
	t.Logf("%d MiB of parts in memory of %d", u.parts.peak>>20, bytes>>20)
	if n := len(store.Get("model.pt")); int64(n) != out.Files[0].Size {
		t.Errorf("%d bytes", n)
	}
}

// TestStoreFails has every second request fail, in one way or another.
func TestStoreFails(t *testing.T) {
	odd := writeOdd(t)
	here := filepath.Join(t.TempDir(), "out")
	if _, err := moved(t, odd, here, Form{Format: "dcp", Spec: columns}); err != nil {
		t.Fatal(err)
	}
	for name, fail := range map[string]func(w http.ResponseWriter, r *http.Request, next http.Handler){
		"slow down": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { s3test.Refuse(w, 503, "SlowDown") },
		"cut": func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			_, _ = io.CopyN(io.Discard, r.Body, max(r.ContentLength/2, 0))
			hangUp(w)
		},
		"the answer is lost": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(httptest.NewRecorder(), r)
			hangUp(w)
		},
		"spoiled on the way": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Body = io.NopCloser(&spoiling{r.Body})
			next.ServeHTTP(w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var n atomic.Int64
			store := bucket(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if part := r.URL.Query().Has("partNumber"); n.Add(1)%2 == 0 && (part || name != "spoiled on the way") {
						fail(w, r, next)
						return
					}
					next.ServeHTTP(w, r)
				})
			})
			if _, err := moved(t, odd, "s3://models/out", Form{Format: "dcp", Spec: columns}); err != nil {
				t.Fatal(err)
			}
			alike(t, store, "out", here)
		})
	}
}

func hangUp(w http.ResponseWriter) {
	if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
		_ = conn.Close()
	}
}

// spoiling changes a bit of the first bytes.
type spoiling struct{ io.Reader }

func (s *spoiling) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if n > 0 {
		b[0] ^= 1
	}
	return n, err
}

// TestKilledUpload stops the store from answering after so many requests, as if the command were gone: until then nothing there reads as a checkpoint; run again it
// succeeds, with nothing left of what was there.
func TestKilledUpload(t *testing.T) {
	odd := writeOdd(t)
	form := Form{Format: "hf", Most: 20e6}
	here := filepath.Join(t.TempDir(), "out")
	if _, err := moved(t, odd, here, form); err != nil {
		t.Fatal(err)
	}
	for n := int64(1); ; n++ {
		var left atomic.Int64
		left.Store(n)
		store := bucket(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet && r.Method != http.MethodHead && left.Add(-1) < 0 {
					s3test.Refuse(w, 403, "AccessDenied") // for good, so that it is not asked for again
					return
				}
				next.ServeHTTP(w, r)
			})
		})
		_, err := moved(t, odd, "s3://models/out", form)
		used := n - left.Load()
		whole := used <= n
		left.Store(1 << 40)
		if whole {
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d requests that change something", used)
			alike(t, store, "out", here)
			return
		}
		if err == nil {
			t.Fatalf("after %d requests: no error", n)
		}
		if c, opened := Open("s3://models/out"); opened == nil {
			t.Fatalf("after %d requests there is a checkpoint: %v: %q", n, c.Close(), store.Keys())
		}
		if damage, _, err := Verify(t.Context(), "s3://models/out", 1); err == nil && len(damage) == 0 {
			t.Fatalf("after %d requests it verifies: %q", n, store.Keys())
		}
		if _, err := moved(t, odd, "s3://models/out", form); err != nil {
			t.Fatalf("again, after %d requests: %v: %q", n, err, store.Keys())
		}
		alike(t, store, "out", here)
	}
}

// TestRealServer moves to versitygw, kills a process that does with SIGKILL at some moments, and lets the next one begin anew.
func TestRealServer(t *testing.T) {
	url, folder := s3test.Real(t, "..")
	setStore(t, url)
	killedUploads(t, []int{0, 200, 700, ticks}, func() []string { return filesBelow(t, filepath.Join(folder, "models")) })
}

// TestKilledUploader is the same with a store in memory.
func TestKilledUploader(t *testing.T) {
	store := bucket(t, nil)
	killedUploads(t, []int{0, 400, ticks}, func() []string { return slices.Concat(store.Keys(), store.Uploads()) })
}

// filesBelow lists all files of a folder but those that are hidden in it.
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

// killedUploads kills a process that moves a checkpoint when it has moved so many thousandths of it, and lets another one make the move. GB says how large it is.
func killedUploads(t *testing.T, when []int, left func() []string) {
	dir := t.TempDir()
	m := childMove{From: filepath.Join(dir, "model.safetensors"), To: filepath.Join(dir, "here"), Format: "dcp"}
	if gb := environment(t, "GB", 0); gb > 0 {
		writeRandom(t, m.From, 1, decoder(max(1, (int(gb)*1e9-embedding)/layer)))
	} else {
		writeModel(t, m.From, rand.New(rand.NewPCG(1, 2)), 4, 16384)
	}
	k := killer{t: t}
	k.undisturbed(m)
	m.To = "s3://models/out"
	done := false
	for _, after := range when {
		cmd, ticking, said := k.start(m)
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
			t.Fatalf("killed behind tick %d, it can be compared: %v", after, damage)
		}
	}
	if !done {
		cmd, ticking, said := k.start(m)
		_, _ = io.Copy(io.Discard, ticking)
		if err := cmd.Wait(); err != nil {
			t.Fatal(err, said)
		}
		t.Log(said)
	}
	if damage, _, err := Verify(t.Context(), m.To, 2); err != nil || len(damage) > 0 {
		t.Errorf("%v, %v", damage, err)
	}
	if found, err := Diff(t.Context(), opened(t, filepath.Join(dir, "here")), opened(t, m.To), 2); err != nil || len(found) > 0 {
		t.Errorf("%v, %v", found, err)
	}
	if files, want := left(), len(filesBelow(t, filepath.Join(dir, "here"))); len(files) != want {
		t.Errorf("there are %q, and %d are due", files, want)
	}
}

// TestUploadFails leaves nothing when the source is not what it was, when it is stopped, and when it is refused in the middle.
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
		"it is stopped":     {progress: func(stop context.CancelFunc) { stop() }, want: "context canceled"},
		"a part is refused": {refuse: "partNumber=2", want: "cannot write s3://models/out/model.safetensors: "},
	} {
		t.Run(name, func(t *testing.T) {
			store := bucket(t, func(next http.Handler) http.Handler {
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
			from := opened(t, odd)
			out, _, err := from.Lay(Form{Format: "hf"})
			if err != nil {
				t.Fatal(err)
			}
			_, err = Move(ctx, from, out, "s3://models/out", Options{Progress: func(done, all int64) {
				if c.progress != nil && done > all/2 {
					c.progress(stop)
				}
			}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
			if left := slices.Concat(store.Keys(), store.Uploads()); len(left) > 0 {
				t.Errorf("it left %q", left)
			}
		})
	}
}

// TestReplicaToBucket loses a source file in the middle: what was sent is sent anew, from the replica.
func TestReplicaToBucket(t *testing.T) {
	store := bucket(t, nil)
	dir := t.TempDir()
	for _, name := range []string{"a.safetensors", "b.safetensors"} {
		writeModel(t, filepath.Join(dir, name), rand.New(rand.NewPCG(1, 2)), 3, 16384)
	}
	c, out := dyingModel(t, dir, 80, true)
	r, err := Move(t.Context(), c, out, "s3://models/out", Options{})
	if err != nil || !slices.Equal(r.Dead, []string{"a.safetensors"}) {
		t.Fatal(r, err)
	}
	want, err := os.ReadFile(filepath.Join(dir, "a.safetensors"))
	if err != nil || !bytes.Equal(want, store.Get("out/model.safetensors")) || len(store.Keys()) != 2 || len(store.Uploads()) > 0 {
		t.Errorf("%v; there are %q", err, store.Keys())
	}
}

// TestRefusedUpload asks for what cannot be done: nothing that is there is touched.
func TestRefusedUpload(t *testing.T) {
	small := filepath.Join(t.TempDir(), "small.safetensors")
	writeModel(t, small, rand.New(rand.NewPCG(1, 2)), 2, 4)
	hf := Form{Format: "hf"}
	for name, c := range map[string]struct {
		dst  string
		form Form
		keys []string
		set  map[string]string
		want string
	}{
		"a bucket":        {dst: "s3://models", form: hf, want: "is a bucket, and not a folder or file in one"},
		"no such bucket":  {dst: "s3://other/out", form: hf, want: "make the bucket other, or correct its name"},
		"no credentials":  {dst: "s3://models/out", form: hf, set: map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:1/none"}, want: "no credentials for http://127"},
		"a folder":        {dst: "s3://models/out", form: hf, keys: []string{"out/x"}, want: "s3://models/out is there already"},
		"deeper":          {dst: "s3://models/out/", form: hf, keys: []string{"out/x/y"}, want: "s3://models/out is there already"},
		"a file":          {dst: "s3://models/out", form: hf, keys: []string{"out"}, want: "s3://models/out is there already"},
		"file for file":   {dst: "s3://models/m.pt", form: Form{Format: "pt"}, keys: []string{"m.pt"}, want: "s3://models/m.pt is there already"},
		"folder for file": {dst: "s3://models/m.pt", form: Form{Format: "pt"}, keys: []string{"m.pt/x"}, want: "s3://models/m.pt is there already"},
		"its manifest":    {dst: "s3://models/m.pt", form: Form{Format: "pt"}, keys: []string{"m.pt.shoal-manifest.json"}, want: "s3://models/m.pt is there already"},
		"another mark":    {dst: "s3://models/out", form: hf, keys: []string{"out/.partial"}, want: "is no mark of an unfinished checkpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			store := bucket(t, nil)
			for name, value := range c.set {
				t.Setenv(name, value)
			}
			for _, key := range c.keys {
				store.Set(key, []byte("x"))
			}
			if _, err := moved(t, small, c.dst, c.form); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
			if !slices.Equal(store.Keys(), c.keys) {
				t.Errorf("there are %q", store.Keys())
			}
		})
	}
	store := bucket(t, nil)
	store.Set("out.pt", []byte("x"))
	store.Set("outer/x", []byte("x"))
	if _, err := moved(t, small, "s3://models/out", hf); err != nil {
		t.Errorf("beside others whose names begin so: %v", err)
	}
	if _, err := moved(t, small, "s3://models/out.p", Form{Format: "pt"}); err != nil {
		t.Errorf("beside others whose names begin so: %v", err)
	}
}

// TestLeftUpload finds what others have left: of the same move, of another one, and files that are nobody's.
func TestLeftUpload(t *testing.T) {
	small := filepath.Join(t.TempDir(), "small.safetensors")
	writeModel(t, small, rand.New(rand.NewPCG(1, 2)), 2, 4)
	begin := func(store *s3test.Server) *upload {
		c := opened(t, small)
		out, _, err := c.Lay(Form{Format: "hf"})
		if err != nil {
			t.Fatal(err)
		}
		u, err := newUpload(t.Context(), "s3://models/out", out, identity(c, out))
		if err != nil {
			t.Fatal(err)
		}
		store.Set("out/model.safetensors", []byte("half"))
		return u
	}
	store := bucket(t, nil)
	left := begin(store)
	if _, err := Open("s3://models/out"); err == nil || !strings.Contains(err.Error(), "s3://models/out is not whole, which its .partial says") {
		t.Error(err)
	}
	if _, err := moved(t, small, "s3://models/out", Form{Format: "dcp"}); err == nil || !strings.Contains(err.Error(), "is what is left of another move") {
		t.Error(err)
	}
	store.Set("out/notes", []byte("x"))
	if _, err := moved(t, small, "s3://models/out", Form{Format: "hf"}); err == nil || !strings.Contains(err.Error(), "s3://models/out/notes is there, and nothing that this move writes") {
		t.Error(err)
	}
	store.Set("out/notes", nil)
	if _, err := moved(t, small, "s3://models/out", Form{Format: "hf"}); err != nil {
		t.Error(err)
	}
	keys := store.Keys()
	// The run that was thought dead does not touch what the other one has made.
	if err := left.fail(t.Context(), false); err == nil || !strings.Contains(err.Error(), "another command writes there") {
		t.Error(err)
	}
	if !slices.Equal(keys, store.Keys()) || len(keys) != 2 {
		t.Errorf("there are %q, and were %q", store.Keys(), keys)
	}
	// A run that was stopped behind its manifest is finished.
	store.Set("out/.partial", fmt.Appendf(nil, `{"shoal":"partial/1","move":"%x","run":"x"}`, left.id[:]))
	r, err := moved(t, small, "s3://models/out", Form{Format: "hf"})
	if err != nil || !r.Already || !slices.Equal(keys, store.Keys()) {
		t.Errorf("%+v, %v: %q", r, err, store.Keys())
	}
}

// TestSealInABucket seals what somebody else has put there.
func TestSealInABucket(t *testing.T) {
	store := bucket(t, nil)
	small := filepath.Join(t.TempDir(), "small.safetensors")
	writeModel(t, small, rand.New(rand.NewPCG(1, 2)), 2, 4)
	text, err := os.ReadFile(small)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"folder/model.safetensors", "m.safetensors"} {
		store.Set(key, text)
	}
	for _, url := range []string{"s3://models/folder", "s3://models/m.safetensors"} {
		if _, err := Seal(t.Context(), opened(t, url), 1); err != nil {
			t.Fatal(err)
		}
		if damage, _, err := Verify(t.Context(), url, 1); err != nil || len(damage) > 0 {
			t.Errorf("%v, %v", damage, err)
		}
		if _, err := Seal(t.Context(), opened(t, url), 1); err == nil || !strings.Contains(err.Error(), "is there already") {
			t.Errorf("twice: %v", err)
		}
	}
	store.Set("m.safetensors", append(text[:len(text)-1:len(text)-1], text[len(text)-1]^1))
	if damage, _, err := Verify(t.Context(), "s3://models/m.safetensors", 1); err != nil || len(damage) == 0 {
		t.Errorf("damaged: %v, %v", damage, err)
	}
}

// Checksums of pieces add up to that of the whole, in any order.
func TestShiftedCRC(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		b := make([]byte, r.IntN(5000))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		sum := uint32(0)
		for rest := b; len(rest) > 0; {
			n := 1 + r.IntN(len(rest))
			sum ^= shiftedCRC(crc32.ChecksumIEEE(rest[:n]), int64(len(rest)-n))
			rest = rest[n:]
		}
		if want := crc32.ChecksumIEEE(b); sum != want {
			t.Fatalf("%d bytes: %x, want %x", len(b), sum, want)
		}
	}
}
