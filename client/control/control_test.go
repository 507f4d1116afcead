package control_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/group"
)

// socketDir makes the empty directory in which this process looks for sockets, until the test ends,
// and returns its path. It sets the environment, so the test must not be parallel. A failure ends
// the test.
func socketDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "shoal") // a socket path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	own := filepath.Join(dir, "shoal")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	return own
}

// serveText answers every request on a new socket with a code and a text, until the test ends,
// which waits for it. It fails as serveWith does.
func serveText(t *testing.T, socket string, code int, text string) {
	serveWith(t, socket, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		w.Write([]byte(text))
	})
}

// serveWith answers requests on a new socket, each on a goroutine of its own, until the test ends,
// which waits for it. A failure to listen ends the test.
func serveWith(t *testing.T, socket string, answer http.HandlerFunc) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: answer}
	g := group.New(t.Context())
	g.Go("launcher", func(context.Context) error { server.Serve(l); return nil })
	t.Cleanup(func() { server.Close(); g.Wait() })
}

// List returns the jobs that answer, oldest first, and leaves out sockets of launchers that are
// gone.
func TestListSkipsTheDead(t *testing.T) {
	dir := socketDir(t)
	l, err := net.ListenUnix("unix",
		&net.UnixAddr{Name: filepath.Join(dir, "dead.ctl"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	serveText(t, filepath.Join(dir, "old.ctl"), 200,
		`{"job":"old","dir":"/old","started":"2026-01-02T03:04:05Z"}`)
	serveText(t, filepath.Join(dir, "ending.ctl"), 503, `{"error":"the job is at its end"}`)
	serveText(t, filepath.Join(dir, "a-new.ctl"), 200,
		`{"job":"new","dir":"/new","started":"2026-02-02T03:04:05Z"}`)
	jobs, err := control.List(t.Context())
	if err != nil || len(jobs) != 2 || jobs[0].Name != "old" || jobs[1].Name != "new" {
		t.Errorf("%v, %v", jobs, err)
	}
	var unknown *control.Unknown
	if _, err := control.Find(t.Context(), "dead"); !errors.As(err, &unknown) ||
		!strings.HasSuffix(err.Error(), "running: old, new") {
		t.Errorf("%v", err)
	}
	if _, err := control.Find(t.Context(), "a\nb"); err == nil ||
		!strings.HasPrefix(err.Error(), `no running job is called "a\nb"; running: `) {
		t.Errorf("a name of two lines: %v", err)
	}
}

// A launcher of the protocol before is refused with both versions, however it answers.
func TestOtherProtocolsAreRefused(t *testing.T) {
	dir := socketDir(t)
	old := filepath.Join(dir, "old.ctl")
	serveText(t, old, 404,
		`{"error":"GET /v2/job is no request of this version; there are GET /v1/job and others"}`)
	err := control.AtSocket(old).Refresh(t.Context())
	if err == nil || !strings.Contains(err.Error(), "speaks protocol 1 of control sockets") ||
		!strings.Contains(err.Error(), "protocol 2: use the version of shoal") {
		t.Errorf("%v", err)
	}
	mixed := filepath.Join(dir, "mixed.ctl")
	serveText(t, mixed, 200, `{"job":"train","back":"it went back to step 8"}`)
	if err := control.AtSocket(mixed).Refresh(t.Context()); err == nil ||
		!strings.Contains(err.Error(), `it is called "last_rollback" since protocol 2`) {
		t.Errorf("%v", err)
	}
}

// An empty name, as of a variable that is not set, is that of no job.
func TestAnEmptyNameIsOfNoJob(t *testing.T) {
	serveText(t, filepath.Join(socketDir(t), "a.ctl"), 200, `{"job":"train","dir":"/train"}`)
	if j, err := control.Find(t.Context(), ""); err == nil {
		t.Errorf("it is that of %s", j.Name)
	}
}

// A name is first that of a job that has it, then that of the only one that was started with it.
func TestFindByTheNameThatWasAsked(t *testing.T) {
	dir := socketDir(t)
	serveText(t, filepath.Join(dir, "2.ctl"), 200,
		`{"job":"train-2","requested_name":"train","dir":"/train-2"}`)
	// find fails the test unless the job that Find returns for a name is called want.
	find := func(name, want string) {
		t.Helper()
		if j, err := control.Find(t.Context(), name); err != nil || j.Name != want {
			t.Errorf("%s is %v, %v", name, j, err)
		}
	}
	find("train", "train-2")
	serveText(t, filepath.Join(dir, "3.ctl"), 200,
		`{"job":"train-3","requested_name":"train","dir":"/train-3"}`)
	if _, err := control.Find(t.Context(), "train"); err == nil ||
		!strings.Contains(err.Error(), "/train-2, /train-3") &&
			!strings.Contains(err.Error(), "/train-3, /train-2") {
		t.Errorf("%v", err)
	}
	serveText(t, filepath.Join(dir, "1.ctl"), 200, `{"job":"train","dir":"/train"}`)
	find("train", "train")
	find("train-3", "train-3")
}

// A name that no job has may be that of a script, of which a job's name is made: people type what
// they have started.
func TestFindByTheNameOfTheScript(t *testing.T) {
	dir := socketDir(t)
	serveText(t, filepath.Join(dir, "1.ctl"), 200,
		`{"job":"ddp-shoal-2","requested_name":"ddp-shoal","dir":"/ddp"}`)
	for _, name := range []string{"ddp_shoal", "ddp_shoal.py", "DDP_Shoal", "ddp-shoal"} {
		if j, err := control.Find(t.Context(), name); err != nil || j.Dir != "/ddp" {
			t.Errorf("%s is %v, %v", name, j, err)
		}
	}
	if j, err := control.Find(t.Context(), "/runs/ddp_shoal"); err == nil {
		t.Errorf("a path to another folder is %v", j)
	}
}

// Launchers are asked at once: here none answers before all were asked, which in turn would be
// never.
func TestListAsksAtOnce(t *testing.T) {
	const launchers = 4
	dir := socketDir(t)
	var asked atomic.Int32
	all := make(chan struct{})
	for i := range launchers {
		serveWith(t, filepath.Join(dir, fmt.Sprintf("%d.ctl", i)),
			func(w http.ResponseWriter, r *http.Request) {
				if asked.Add(1) == launchers {
					close(all)
				}
				select {
				case <-all:
					fmt.Fprintf(w, `{"job":"job%d"}`, i)
				case <-r.Context().Done():
				}
			})
	}
	if jobs, err := control.List(t.Context()); err != nil || len(jobs) != launchers {
		t.Errorf("%d of %d launchers answered: %v", len(jobs), launchers, err)
	}
}

// List and Find return the jobs that answer, and tell of sockets on which something else answers.
func TestListTellsOfStrangers(t *testing.T) {
	dir := socketDir(t)
	serveText(t, filepath.Join(dir, "stranger.ctl"), 200, "hello")
	serveText(t, filepath.Join(dir, "train.ctl"), 200, `{"job":"train","dir":"/train"}`)
	jobs, err := control.List(t.Context())
	if len(jobs) != 1 || err == nil ||
		!strings.Contains(err.Error(), "stranger.ctl does not speak this version's language") {
		t.Errorf("%v, %v", jobs, err)
	}
	if j, err := control.Find(t.Context(), "train"); err != nil || j.Name != "train" {
		t.Errorf("%v, %v", j, err)
	}
	var unknown *control.Unknown
	_, err = control.Find(t.Context(), "tran")
	if !errors.As(err, &unknown) || unknown.Silent == nil ||
		!strings.Contains(err.Error(), "running: train; control: the launcher at ") {
		t.Errorf("%v", err)
	}
}

// Where a launcher does not answer, the job may well run.
func TestFindDoesNotSayThatNoneRuns(t *testing.T) {
	serveText(t, filepath.Join(socketDir(t), "stranger.ctl"), 200, "hello")
	if _, err := control.Find(t.Context(), "train"); err == nil ||
		!strings.HasPrefix(err.Error(), "no running job that answers is called train; control: ") {
		t.Errorf("%v", err)
	}
}

// What a launcher refuses is an error with its text.
func TestRefusal(t *testing.T) {
	dir := socketDir(t)
	for text, want := range map[string]string{`{"error":"no room"}`: "no room",
		"teapot": "answers 418"} {
		socket := filepath.Join(dir, "j.ctl")
		// checkRefusal is a subtest: a launcher that answers 418 with the text is told of as want.
		checkRefusal := func(t *testing.T) {
			serveText(t, socket, 418, text)
			jobs, err := control.List(t.Context())
			if len(jobs) != 0 || err != nil {
				t.Errorf("%v, %v", jobs, err)
			}
			if _, err := control.Find(t.Context(), "j"); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("who looks for the job is told %v", err)
			}
			j := control.AtSocket(socket)
			var refusal *control.Refusal
			if err := j.Resize(t.Context(), 3, "me"); !errors.As(err, &refusal) ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%v", err)
			}
		}
		t.Run(want, checkRefusal)
	}
}

// A launcher that is gone is ErrEnded, and a context that has ended its cause.
func TestLauncherThatIsGone(t *testing.T) {
	dir := socketDir(t)
	j := control.AtSocket(filepath.Join(dir, "gone.ctl"))
	if err := j.Refresh(t.Context()); !errors.Is(err, control.ErrEnded) {
		t.Errorf("%v", err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := j.Stop(ctx, true, "me"); !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
}
