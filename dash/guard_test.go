package dash

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/group"
)

// sendRawRequest sends a request, given as its lines, and returns the status and the body of the
// answer; 0 = the connection was closed instead.
func sendRawRequest(t *testing.T, addr string, lines ...string) (status int, body string) {
	t.Helper()
	c := dial(t, addr)
	_, _ = io.WriteString(c, strings.Join(lines, "\r\n")+"\r\n\r\n")
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, ""
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(text)
}

// dial connects to an address until the test ends.
func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// writeRunDir makes the directory of a run with these files.
func writeRunDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Metrics are answered to who asks rightly, from the begin of the run on, and to nobody else.
func TestMetrics(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	m, err := OpenMetrics("--metrics", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	host := "Host: " + m.Addr()
	if status, _ := sendRawRequest(t, m.Addr(), "GET /metrics HTTP/1.1", host); status != 503 {
		t.Errorf("before the run: %d", status)
	}
	m.ShowRun(writeRunDir(t, map[string]string{"job.json": "{}", "sense.jsonl": `{"time":` +
		`"2026-11-26T16:27:01Z","step":8,"steps":8,"size":1,"samples":64,"seconds":` +
		`{"p10":1,"median":2,"p90":3}}` + "\n"}))
	status, body := sendRawRequest(t, m.Addr(), "GET /metrics HTTP/1.1", host)
	if status != 200 || !strings.Contains(body, "shoal_samples_total 64\n") {
		t.Errorf("%d:\n%s", status, body)
	}
	for _, test := range []struct {
		want  int
		lines []string
	}{
		{421, []string{"GET /metrics HTTP/1.1", "Host: evil.example"}},
		{400, []string{"GET /metrics HTTP/1.1"}},
		{404, []string{"GET / HTTP/1.1", host}},
		{404, []string{"GET /../../etc/passwd HTTP/1.1", host}},
		{405, []string{"POST /metrics HTTP/1.1", host, "Content-Length: 0"}},
		{431, []string{"GET /metrics HTTP/1.1", host, "X: " + strings.Repeat("x", 1<<20)}},
	} {
		if status, _ := sendRawRequest(t, m.Addr(), test.lines...); status != test.want {
			t.Errorf("%.60q: %d, want %d", test.lines, status, test.want)
		}
	}
	if _, err := OpenMetrics("--metrics", m.Addr()); err == nil ||
		!strings.Contains(err.Error(), "choose another port") {
		t.Errorf("an address that is taken: %v", err)
	}
}

// A connection is for one request, whoever asks for more: else what limits connections would limit
// no requests.
func TestConnectionsAreForOneRequest(t *testing.T) {
	m, err := OpenMetrics("--metrics", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, path := range []string{"/metrics", "/", "/a/../b"} {
		c := dial(t, m.Addr())
		request := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, m.Addr())
		fmt.Fprint(c, strings.Repeat(request, 3))
		answer, err := io.ReadAll(c)
		if n := strings.Count(string(answer), "HTTP/1.1 "); n != 1 {
			t.Errorf("%s: %d answers, %v", path, n, err)
		}
	}
}

// Connections above the limit are closed at once, and the next one after one of the others has
// ended is taken. What is taken can say that it sends no more, by which net/http lets a client that
// still sends read why it is refused.
func TestTooManyConnections(t *testing.T) {
	l, err := listen("--metrics", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var first net.Conn
	for range maxConnections {
		dial(t, l.Addr().String())
		l.burst = 0 // how fast they come is not what is tested here
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		first = c
	}
	above := dial(t, l.Addr().String())
	g := group.New(t.Context())
	g.Go("accept", func(context.Context) error {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if _, ok := c.(interface{ CloseWrite() error }); !ok {
			t.Errorf("a %T cannot say that it sends no more", c)
		}
		fmt.Fprint(c, "taken")
		return c.Close()
	})
	if text, err := io.ReadAll(above); len(text) > 0 || err != nil {
		t.Errorf("one above the limit: %q, %v", text, err)
	}
	first.Close()
	first.Close() // which counts once
	if text, err := io.ReadAll(dial(t, l.Addr().String())); string(text) != "taken" {
		t.Errorf("the next one: %q, %v", text, err)
	}
	if err := g.Wait(); err != nil || l.open.Load() != maxConnections-1 {
		t.Errorf("%v, %d are open", err, l.open.Load())
	}
}

// A server that others can reach has its addresses and its machine's names; one of this machine
// alone has the names of that.
func TestHostNames(t *testing.T) {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		address, host string
		want          bool
	}{
		{"127.0.0.1:9", "127.0.0.1:9", true}, {"127.0.0.1:9", "localhost", true},
		{"127.0.0.1:9", "[::1]:9", true}, {"127.0.0.1:9", "10.0.0.1:9", false},
		{"127.0.0.1:9", name, false}, {"127.0.0.1:9", "localhost.evil.example", false},
		{":9", "10.0.0.1:9", true}, {":9", name + ".lan:9", true}, {":9", "evil.example", false},
		{":9", "127.0.0.1.evil.example", false},
		{":9", "localhost.evil.example", false}, {"train.lan:9", "TRAIN.lan:9", true},
		{":9", "", false},
	} {
		if got := newHostGuard(test.address, nil).isOwnName(test.host); got != test.want {
			t.Errorf("a server at %s, asked as %q: %v", test.address, test.host, got)
		}
	}
}
