package s3_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/checkpoint/s3/s3test"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/checkpoint/snapshot/snapshottest"
)

// checkFetched fetches a checkpoint, which compares all of it, and compares the state with the
// first of memory as well. The test fails where they differ.
func checkFetched(t *testing.T, f snapshot.Folder, a snapshot.Attempt, memory [][]byte) {
	t.Helper()
	found, err := fetchSealed(t, f, a).Open(a.Step)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(memory[0]))
	if _, err := found.Read(t.Context(), [][]byte{got}, 0, 1); err != nil ||
		!bytes.Equal(got, memory[0]) {
		t.Fatalf("%v; the same bytes: %v", err, bytes.Equal(got, memory[0]))
	}
}

// TestFaultsThatPass has each request fail in one way or another the first time.
func TestFaultsThatPass(t *testing.T) {
	for name, fail := range map[string]func(w http.ResponseWriter, r *http.Request,
		next http.Handler){
		"slow down": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			s3test.Refuse(w, http.StatusServiceUnavailable, "SlowDown")
		},
		"a proxy's error": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			http.Error(w, "<html>bad gateway</html>", http.StatusBadGateway)
		},
		"cut before it is read": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			s3test.HangUp(w)
		},
		"cut in the middle of an upload": func(w http.ResponseWriter, r *http.Request,
			_ http.Handler) {
			_, _ = io.CopyN(io.Discard, r.Body, max(r.ContentLength/2, 0))
			s3test.HangUp(w)
		},
		"the answer is lost": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(httptest.NewRecorder(), r)
			s3test.HangUp(w)
		},
		"half an answer": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			for name := range answer.Header() {
				w.Header().Set(name, answer.Header().Get(name))
			}
			if r.Method != http.MethodHead {
				w.Header().Set("Content-Length", strconv.Itoa(answer.Body.Len()))
			}
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes()[:answer.Body.Len()/2])
		},
	} {
		t.Run(name, func(t *testing.T) {
			var n atomic.Int64
			f, store := openBucket(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if n.Add(1)%2 == 1 {
						fail(w, r, next)
						return
					}
					next.ServeHTTP(w, r)
				})
			})
			s, memory := snapshottest.State(5, 2)
			snapshottest.Write(t, f, s, memory, 55, 0, 1)
			sealed, err := f.Sealed()
			if err != nil || len(sealed) != 1 {
				t.Fatal(sealed, err)
			}
			checkFetched(t, f, sealed[0], memory)
			if keys := store.Keys(); len(keys) != 4 {
				t.Errorf("left are %q", keys)
			}
		})
	}
}

// TestCompletionFailsLate has the store say that it has failed to complete an upload when it has
// sent status 200 already, as S3 does: that passes, as any error inside a store.
func TestCompletionFailsLate(t *testing.T) {
	var n atomic.Int64
	f, store := openBucket(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && r.URL.Query().Has("uploadId") && n.Add(1) <= 3 {
				s3test.Refuse(w, http.StatusOK, "InternalError")
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	l := &snapshottest.Lines{}
	f.Log = l.Say
	s, memory := snapshottest.State(5, 2)
	snapshottest.Write(t, f, s, memory, 55, 0, 1)
	sealed, err := f.Sealed()
	if err != nil || len(sealed) != 1 || n.Load() < 4 {
		t.Fatalf("sealed are %v, %v, after %d tries: %s", sealed, err, n.Load(), l)
	}
	checkFetched(t, f, sealed[0], memory)
	if uploads := store.Uploads(); len(uploads) > 0 {
		t.Errorf("left are %q", uploads)
	}
}

// TestKilled kills the writers after each number of requests: the last sealed checkpoint can be
// read, and the next to come cleans up.
func TestKilled(t *testing.T) {
	var left atomic.Int64 // requests that are answered
	front := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet && r.Method != http.MethodHead && left.Add(-1) < 0 {
				s3test.HangUp(w)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	for n := int64(0); ; n++ {
		left.Store(1 << 40)
		f, store := openBucket(t, front)
		f.Keep, f.Store = 1, f.Store.(*s3.Bucket).WithoutRetries()
		first, before := snapshottest.SmallState(1, 2)
		snapshottest.Write(t, f, first, before, 11, 0, 1)
		second, after := snapshottest.State(2, 2)
		left.Store(n)
		snapshottest.Write(t, f, second, after, 22, 0, 1)
		killed := left.Load() < 0
		left.Store(1 << 40)

		f = bucketFolder(t, f.Root, nil) // of a new process
		f.Keep = 1
		if err := f.CleanUp(); err != nil {
			t.Fatal(err)
		}
		sealed, err := f.Sealed()
		if err != nil || len(sealed) == 0 {
			t.Fatalf("after %d requests: sealed are %v: %v; %q", n, sealed, err, store.Keys())
		}
		for _, a := range sealed {
			checkFetched(t, f, a, map[uint64][][]byte{1: before, 2: after}[a.Step])
		}
		third, memory := snapshottest.SmallState(3, 1)
		snapshottest.Write(t, f, third, memory, 33, 0)
		if files := slices.Concat(store.Keys(), store.Uploads()); len(files) != 3 ||
			!slices.Equal(snapshottest.SealedSteps(t, f), []uint64{3}) {
			t.Fatalf("after %d requests: left are %q", n, files)
		}
		if !killed {
			t.Logf("%d requests that change something", n)
			return
		}
	}
}

// TestStoreIsAway has a checkpoint fail, and training goes on to the next one.
func TestStoreIsAway(t *testing.T) {
	var away atomic.Bool
	f, store := openBucket(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if away.Load() {
				s3test.Refuse(w, http.StatusServiceUnavailable, "SlowDown")
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	l := &snapshottest.Lines{}
	f.Log = l.Say
	for step := range uint64(3) {
		away.Store(step == 1)
		s, memory := snapshottest.SmallState(step+1, 2)
		snapshottest.Write(t, f, s, memory, step+11, 0, 1)
	}
	if steps := snapshottest.SealedSteps(t, f); !slices.Equal(steps, []uint64{3, 1}) ||
		len(store.Keys()) != 8 {
		t.Errorf("sealed are %v: %q", steps, store.Keys())
	}
	if !strings.Contains(l.String(), "checkpoint of step 2 in s3://models/runs/digits is "+
		"abandoned, which does not stop the job: cannot") ||
		!strings.Contains(l.String(), "SlowDown") {
		t.Error(l)
	}
}

// TestPauses checks that pauses get longer, and are not all the same.
func TestPauses(t *testing.T) {
	openBucket(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			s3test.Refuse(w, 503, "SlowDown")
		})
	})
	var pauses []time.Duration
	if _, err := bucketFolder(t, "s3://models", &pauses).Sealed(); err == nil || len(pauses) != 7 {
		t.Fatal(err, pauses)
	}
	for i, p := range pauses {
		if most := min(100*time.Millisecond<<i, 5*time.Second); p < most/2 || p > most {
			t.Errorf("pause %d is %v, of %v", i, p, most)
		}
	}
}

// TestDamage damages a checkpoint in a bucket (a byte, an end, a file): it is found when the
// checkpoint is fetched.
func TestDamage(t *testing.T) {
	f, store := openBucket(t, nil)
	s, memory := snapshottest.State(5, 2)
	snapshottest.Write(t, f, s, memory, 55, 0, 1)
	r := rand.New(rand.NewPCG(1, 2))
	for _, key := range store.Keys() {
		whole := store.Get(key)
		broken := slices.Clone(whole)
		broken[r.IntN(len(broken))] ^= 4
		for what, b := range map[string][]byte{"a byte": broken, "the end": whole[:len(whole)-2],
			"all": nil} {
			store.Set(key, b)
			err := f.Store.(*s3.Bucket).Fetch(t.Context(), snapshot.Attempt{Step: 5, Seed: 55},
				t.TempDir())
			if what == "a byte" && strings.HasSuffix(key, "shoal-manifest.json") {
				continue // it may be a byte that nobody needs, or a hash of another file
			}
			if !errors.Is(err, snapshot.ErrDamaged) {
				t.Errorf("%s, other in %s: %v", key, what, err)
			} else if !strings.Contains(err.Error(), key[strings.LastIndex(key, "/")+1:]) {
				t.Errorf("%v does not name %s", err, key)
			}
		}
		store.Set(key, whole)
	}
	checkFetched(t, f, snapshot.Attempt{Step: 5, Seed: 55}, memory)
}

// TestUploadThatCannotBegin checks that there is no upload when the store does not begin one: parts
// that went to it would be whole objects under the name of the file.
func TestUploadThatCannotBegin(t *testing.T) {
	f, _ := openBucket(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			s3test.Refuse(w, http.StatusForbidden, "AccessDenied")
		})
	})
	upload, err := f.Store.(*s3.Bucket).Upload(t.Context(), "large", 1<<30)
	if upload != nil || err == nil || !strings.Contains(err.Error(), "AccessDenied") {
		t.Errorf("%v, %v", upload, err)
	}
}

// TestErrors checks what is said of requests that fail for good.
func TestErrors(t *testing.T) {
	refusing := func(status int, code string) func(http.Handler) http.Handler {
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				s3test.Refuse(w, status, code)
			})
		}
	}
	for name, c := range map[string]struct {
		url   string
		front func(http.Handler) http.Handler
		set   map[string]string
		want  []string
	}{
		"no credentials": {url: "s3://models/a",
			set: map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "",
				"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:1/none"},
			want: []string{"no credentials for http://127", "AWS_ACCESS_KEY_ID",
				"where shoal is started"}},
		"no bucket": {url: "s3://other/a",
			want: []string{"NoSuchBucket", "make the bucket other"}},
		"not allowed": {url: "s3://models/a", front: refusing(403, "AccessDenied"),
			want: []string{"list s3://models/a", "AccessDenied", "s3:PutObject"}},
		"wrong secret": {url: "s3://models/a", front: refusing(403, "SignatureDoesNotMatch"),
			want: []string{"SignatureDoesNotMatch", "check the credentials"}},
		"another region": {url: "s3://models/a",
			front: refusing(400, "AuthorizationHeaderMalformed"), want: []string{"set AWS_REGION"}},
		"nobody answers": {url: "s3://models/a",
			set:  map[string]string{"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"},
			want: []string{"http://127.0.0.1:1 cannot be reached, tried 8 times", "refused"}},
		"an error inside": {url: "s3://models/a", front: refusing(500, "InternalError"),
			want: []string{"not able to just now, tried 8 times", "500 InternalError"}},
	} {
		t.Run(name, func(t *testing.T) {
			openBucket(t, c.front)
			for name, value := range c.set {
				t.Setenv(name, value)
			}
			_, err := bucketFolder(t, c.url, nil).Sealed()
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v; want %q", err, want)
				}
			}
		})
	}
}

// TestURLs checks which URLs and endpoints are taken.
func TestURLs(t *testing.T) {
	s3test.SetEnvironment(t, "")
	for url, ok := range map[string]bool{
		"s3://b": true, "s3://b/": true, "s3://b/p/q": true, "s3://b/p/q/": true,
		"s3://": false, "s3:///p": false, "s3://b//p": false, "s3://b/../p": false,
		"s3://b/p/..": false, "s3://b/./p": false, "s3://b/.": false, "s3:b": false,
		"s3://b/p?x": false,
	} {
		b, err := s3.Open(url)
		if (err == nil) != ok {
			t.Errorf("%s: %v", url, err)
		} else if ok && b.String() != strings.TrimSuffix(url, "/") {
			t.Errorf("%s became %s", url, b)
		}
	}
	for _, endpoint := range []string{"localhost:9000", "ftp://x", "http://", "http://x/path",
		"http://u:p@x"} {
		t.Setenv("AWS_ENDPOINT_URL_S3", endpoint)
		if _, err := s3.Open("s3://b"); err == nil ||
			!strings.Contains(err.Error(), "AWS_ENDPOINT_URL_S3") {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}

// TestEnvironment checks that the store is named by variables, or by the profile.
func TestEnvironment(t *testing.T) {
	config := t.TempDir() + "/config"
	text := "[default]\nregion = eu-west-1\n[profile lab]\n# endpoint_url = " +
		"http://no\nendpoint_url = http://lab:9000\nregion=lab-1\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ profile, s3, all, region, want string }{
		{"", "", "", "", "https://s3.amazonaws.com eu-west-1"},
		{"", "", "", "us-west-2", "https://s3.amazonaws.com us-west-2"},
		{"lab", "", "", "", "http://lab:9000 lab-1"},
		{"other", "", "", "", "https://s3.amazonaws.com "},
		{"lab", "", "https://all", "", "https://all lab-1"},
		{"other", "https://s3", "https://all", "", "https://s3 us-east-1"},
	} {
		s3test.SetEnvironment(t, c.s3)
		t.Setenv("AWS_CONFIG_FILE", config)
		t.Setenv("AWS_PROFILE", c.profile)
		t.Setenv("AWS_ENDPOINT_URL", c.all)
		t.Setenv("AWS_REGION", c.region)
		if got := s3.StoreOfEnvironment(t); got != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}
