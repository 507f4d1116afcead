package keeper

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
)

// The answer to who ends a keeper is not over when the keeper is, but when who runs it has closed
// what it has used, too.
func TestEndLastsUntilAllIsClosed(t *testing.T) {
	h := newHost1(t)
	k := h.start(h.record)
	<-k.up
	socket, err := Socket("lab")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST "+PathEnd+" HTTP/1.1\r\nHost: pool\r\n"+
		"Content-Length: 13\r\n\r\n"+`{"who":"ada"}`); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	reply, err := http.ReadResponse(in, nil)
	if err != nil || reply.StatusCode != http.StatusOK {
		t.Fatalf("%+v %v", reply, err)
	}
	if line, err := in.ReadString('\n'); line != "{}\n" {
		t.Errorf("the answer is %q, %v", line, err)
	}
	<-k.ended
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if readErr := raw.Read(func(fd uintptr) bool {
		var n int
		n, err = syscall.Read(int(fd), make([]byte, 1))
		if n == 0 {
			err = io.EOF
		}
		return true
	}); readErr != nil || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("not all is closed, and the answer ends with %v, %v", readErr, err)
	}
	k.waiters.Close()
	if b, err := in.ReadByte(); err != io.EOF {
		t.Errorf("all is closed, and the answer goes on with %q, %v", b, err)
	}
}

// Who waits for the end of a keeper can be told to end himself.
func TestEndIsInterrupted(t *testing.T) {
	h := newHost1(t)
	k := h.start(h.record)
	<-k.up
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	g := group.New(context.Background())
	g.Go("end the keeper", func(context.Context) error { return End(ctx, "lab", "ada") })
	<-k.ended
	cancel(enough)
	if err := g.Wait(); !errors.Is(err, enough) {
		t.Errorf("not all is closed, and End returns %v", err)
	}
}

// A keeper that does not answer, since it is stopped, is not waited for without an end.
func TestKeeperDoesNotAnswer(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	socket, err := Socket("lab")
	if err != nil {
		t.Fatal(err)
	}
	stopped, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	_, err = request(context.Background(), time.Millisecond, "lab", PathQueue, nil)
	if err == nil || !strings.Contains(err.Error(), "lab has not answered for 1ms") {
		t.Errorf("got %v", err)
	}
}

// Who looks for a job asks all pools at once: one whose keeper is stopped delays no other.
func TestJobBesideAStoppedKeeper(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	g, others := group.New(ctx), make(chan struct{})
	defer func() { _ = g.Wait() }()
	for name, answer := range map[string]http.HandlerFunc{
		"aside": func(http.ResponseWriter, *http.Request) {
			select { // stopped, until the other pool is asked
			case <-others:
			case <-ctx.Done():
			}
		},
		"lab": func(w http.ResponseWriter, _ *http.Request) {
			close(others)
			_, _ = io.WriteString(w, `{"pool":"lab","job":{"id":"one","submitted":1}}`)
		},
	} {
		socket, err := Socket(name)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: answer}
		g.Go(name, func(context.Context) error { _ = server.Serve(l); return nil })
		defer server.Close()
	}
	if found, is, silent := FindJob(ctx, "one"); !is || found.Pool != "lab" || silent != nil {
		t.Errorf("found %v, in pool %q, %v", is, found.Pool, silent)
	}
}

// Who looks for a job that no pool says it has is told of the keepers that do not answer. That a
// pool is not kept any more, or does not have the job, is no reason to ask again.
func TestJobThatAStoppedKeeperMayHave(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	listen := func(name string) net.Listener {
		socket, err := Socket(name)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	g := group.New(t.Context())
	defer func() { _ = g.Wait() }()
	other := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, nil, errors.New("no job is called one"))
	})}
	defer other.Close()
	l := listen("other")
	g.Go("other", func(context.Context) error { _ = other.Serve(l); return nil })
	gone := listen("gone")
	gone.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = gone.Close()
	if _, is, silent := FindJob(t.Context(), "one"); is || silent != nil {
		t.Errorf("found %v, %v", is, silent)
	}
	defer listen("lab").Close()
	_, is, silent := findJobWithin(t.Context(), time.Millisecond, "one")
	if is || silent == nil || !strings.Contains(silent.Error(), "stopped: lab") {
		t.Errorf("found %v, %v", is, silent)
	}
}

// A socket whose path is too long is called that.
func TestSocketPathIsTooLong(t *testing.T) {
	h := newHost1(t)
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", long)
	k := h.start(h.record)
	if err := <-k.ended; err == nil || !strings.Contains(err.Error(), "a shorter path") {
		t.Errorf("got %v", err)
	}
}

// A request that there is not is refused as any other one, with the version that knows others.
func TestUnknownRequest(t *testing.T) {
	h := newHost1(t)
	k := h.start(h.record)
	<-k.up
	for path, body := range map[string]any{"/v2/queue": nil, PathQueue: Ask{}} {
		err := Call(context.Background(), "lab", path, body, &struct{}{})
		if err == nil || !strings.Contains(err.Error(), path+": use the version of shoal that") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A keeper that ends says so to those who wait for its answer, and one whose answer breaks off has
// ended.
func TestAnswersOfAKeeperThatEnds(t *testing.T) {
	newHost1(t)
	g := group.New(context.Background())
	g.Stop(nil)
	k := &keeper{Config: Config{Name: "lab"}, events: make(chan func()), group: g}
	spec := `{"spec":"command: [fake]\nname: one\n","dir":"/","who":"ada"}`
	for path, body := range map[string]string{PathQueue: "", PathJob: "", PathStop: `{"who":"ada"}`,
		PathSubmit: spec} {
		method := http.MethodPost
		if body == "" {
			method = http.MethodGet
		}
		w := httptest.NewRecorder()
		k.handler().ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "has ended before") {
			t.Errorf("%s: %d %q", path, w.Code, w.Body)
		}
	}
	socket, err := Socket("lab")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == PathJob {
			w.Header().Set("Content-Length", "100")
		}
		_, _ = io.WriteString(w, r.URL.Query().Get("said"))
	})}
	served := group.New(context.Background())
	served.Go("serve", func(context.Context) error { return server.Serve(listener) })
	for _, path := range []string{PathQueue, PathJob} {
		for _, said := range []string{"", "?said=" + url.QueryEscape(`{"pool":`)} {
			err := Call(context.Background(), "lab", path+said, nil, &State{})
			if err == nil || !strings.Contains(err.Error(), "has ended before it answered") {
				t.Errorf("%s %q: %v", path, said, err)
			}
		}
	}
	server.Close()
	if err := served.Wait(); !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}
