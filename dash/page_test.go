package dash

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/watch"
	"github.com/shoal-ml/shoal/watch/follow"
)

// evil is a name that would be a script in a page that does not escape it.
const evil = `</script><script>alert(1)</script><img src=x onerror=alert(2)>`

// evilRun makes the directory of a run in which that is the name of everything.
func evilRun(t *testing.T) string {
	t.Helper()
	name, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}
	return writeRunDir(t, map[string]string{
		"job.json": fmt.Sprintf(`{"spec":{"name":%s,"command":[%[1]s]},"version":%[1]s}`, name),
		"events.jsonl": fmt.Sprintf(`{"time":"2026-11-26T16:27:01Z","what":"stop","step":3,`+
			`"because":%s}`+"\n", name),
		"metrics.jsonl": fmt.Sprintf(`{"time":"2026-11-26T16:27:01Z","rank":0,"metrics":{%s:1}}`+
			"\n", name),
		"rank-0.log": evil + "\n",
	})
}

// openRun returns a Follower of a directory.
func openRun(t *testing.T, dir string) *follow.Follower {
	t.Helper()
	f, err := follow.Open(dir, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// startPage serves the page of a run, fast, until the test ends. It returns the page, a browser
// that is not logged in, and the page's address without the token.
func startPage(t *testing.T, dir string) (*Page, *http.Client, string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p, err := openPage(ctx, openRun(t, dir), "--listen", "127.0.0.1:0", 10*time.Millisecond,
		10*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
	})
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	base, _, _ := strings.Cut(p.URL(), "#")
	return p, &http.Client{Jar: jar}, base
}

// login logs a browser in.
func login(t *testing.T, p *Page, browser *http.Client, base string) {
	t.Helper()
	reply, err := browser.Post(base+"login", "text/plain", strings.NewReader(p.token))
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	cookie := reply.Header.Get("Set-Cookie")
	if reply.StatusCode != 204 || !strings.Contains(cookie, "HttpOnly; SameSite=Strict") ||
		strings.Contains(cookie, p.token) {
		t.Fatalf("login: %s, %s", reply.Status, cookie)
	}
}

// getPage returns the status and the body of a page.
func getPage(t *testing.T, browser *http.Client, url string) (int, string) {
	t.Helper()
	reply, err := browser.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(text)
}

// event is one that a server sends.
type event struct{ id, kind, data string }

// readEvent reads one event.
func readEvent(t *testing.T, r *bufio.Reader) (e event) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch key {
		case "id":
			e.id = value
		case "event":
			e.kind = value
		case "data":
			e.data = value
		case "":
			return e
		}
	}
}

// openEvents opens the stream of events, as who has what an ID names; "" = nothing. The test closes
// it at its end.
func openEvents(t *testing.T, browser *http.Client, base, id string) *bufio.Reader {
	t.Helper()
	ask, err := http.NewRequest(http.MethodGet, base+"events", nil)
	if err != nil {
		t.Fatal(err)
	}
	ask.Header.Set("Last-Event-ID", id)
	reply, err := browser.Do(ask)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reply.Body.Close() })
	if reply.StatusCode != 200 || reply.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("events: %s", reply.Status)
	}
	return bufio.NewReader(reply.Body)
}

// Ten hostile requests are refused, slowed or escaped, and the page is still served.
func TestHostileRequests(t *testing.T) {
	p, browser, base := startPage(t, evilRun(t))
	addr := p.host + ":" + p.port
	host := "Host: " + addr
	for _, test := range []struct {
		name  string
		want  int
		lines []string
	}{
		{"a foreign host", 421, []string{"GET / HTTP/1.1", "Host: evil.example"}},
		{"a foreign host that begins well", 421,
			[]string{"GET / HTTP/1.1", "Host: 127.0.0.1.evil.example"}},
		{"a path upwards", 404, []string{"GET /../../etc/passwd HTTP/1.1", host}},
		{"a path upwards, hidden", 404, []string{"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1", host}},
		{"a log elsewhere", 401, []string{"GET /log?worker=../../etc/passwd HTTP/1.1", host}},
		{"no token", 401, []string{"GET /events HTTP/1.1", host}},
		{"a wrong token", 401,
			[]string{"POST /login HTTP/1.1", host, "Content-Length: 4", "", "abcd"}},
		{"a token without end", 401, []string{"POST /login HTTP/1.1", host,
			"Content-Length: 999", "", strings.Repeat("a", 999)}},
		{"a wrong cookie", 401, []string{"GET /events HTTP/1.1", host,
			"Cookie: " + p.cookieName() + "=" + p.token}},
		{"a head without end", 431,
			[]string{"GET / HTTP/1.1", host, "X: " + strings.Repeat("x", 1<<20)}},
		{"another method", 405, []string{"DELETE / HTTP/1.1", host}},
		{"a change of the job", 404, []string{"POST /v2/stop HTTP/1.1", host, "Content-Length: 0"}},
	} {
		if status, _ := sendRawRequest(t, addr, test.lines...); status != test.want {
			t.Errorf("%s: %d, want %d", test.name, status, test.want)
		}
	}
	login(t, p, browser, base)
	if status, _ := getPage(t, browser, base+"log?worker=../../etc/passwd"); status != 400 {
		t.Errorf("a log elsewhere, logged in: %d", status)
	}
	status, text := getPage(t, browser, base+"log?worker=0")
	if status != 200 || text != evil+"\n" {
		t.Errorf("the log of worker 0: %d, %s", status, text)
	}
	if status, _ := getPage(t, browser, base+"log?worker=1"); status != 404 {
		t.Errorf("the log of a worker that is none: %d", status)
	}
	if e := readEvent(t, openEvents(t, browser, base, "")); e.kind != "view" ||
		strings.Contains(e.data, "<") {
		t.Errorf("the first event: %s, %.300s", e.kind, e.data)
	}
}

// While as many wrong tokens wait as may, others are refused at once, and the right one is taken.
func TestGuessesAreBounded(t *testing.T) {
	p, _, _ := startPage(t, evilRun(t))
	for range maxRefusals {
		p.refusing <- struct{}{}
	}
	addr := p.host + ":" + p.port
	login := []string{"POST /login HTTP/1.1", "Host: " + addr, "Content-Length: 32", ""}
	guess := append(login, strings.Repeat("x", 32))
	if status, _ := sendRawRequest(t, addr, guess...); status != 429 {
		t.Errorf("one guess too many: %d", status)
	}
	if status, _ := sendRawRequest(t, addr, append(login, p.token)...); status != 204 {
		t.Errorf("the token, while others guess: %d", status)
	}
}

// The files of the page have strict headers, and load nothing from elsewhere.
func TestPageFiles(t *testing.T) {
	_, browser, base := startPage(t, evilRun(t))
	for _, name := range []string{"", "page.js", "page.css", "licenses.txt"} {
		reply, err := browser.Get(base + name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(reply.Body)
		reply.Body.Close()
		csp := reply.Header.Get("Content-Security-Policy")
		if err != nil || reply.StatusCode != 200 || len(text) == 0 ||
			!strings.HasPrefix(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") ||
			reply.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%q: %s, %v, %v", name, reply.Status, reply.Header, err)
		}
		if name == "" && regexp.MustCompile(`(src|href)="?https?:`).Match(text) {
			t.Errorf("the page loads something from elsewhere:\n%s", text)
		}
	}
}

// What comes while a page is open is sent as updates; who was interrupted gets what is missing, and
// who has something else all.
func TestEvents(t *testing.T) {
	dir := evilRun(t)
	p, browser, base := startPage(t, dir)
	login(t, p, browser, base)
	stream := openEvents(t, browser, base, "")
	first := readEvent(t, stream)
	file, err := os.OpenFile(filepath.Join(dir, "events.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(file, `{"time":"2026-11-26T16:27:02Z","what":"generation","generation":2,`+
		`"size":1,"lost":[1],"step":7,"because":"w1 was killed"}`)
	file.Close()
	// marks reads updates until one has marks.
	marks := func(stream *bufio.Reader) (e event, u watch.Update) {
		for len(u.Marks) == 0 {
			e = readEvent(t, stream)
			if err := json.Unmarshal([]byte(e.data), &u); err != nil || e.kind != "update" {
				t.Fatalf("%+v, %v", e, err)
			}
		}
		return e, u
	}
	_, update := marks(stream)
	if len(update.Marks) != 1 || update.Marks[0].Kind != "loss" {
		t.Errorf("the update has %+v", update.Marks)
	}
	if _, again := marks(openEvents(t, browser, base, first.id)); len(again.Marks) != 1 {
		t.Errorf("after an interruption the update has %+v", again.Marks)
	}
	if e := readEvent(t, openEvents(t, browser, base, "other-3")); e.kind != "view" {
		t.Errorf("who has something else gets %s", e.kind)
	}
}

// Pages that have waited while a launcher took long to answer get what it has said, and none of
// them asks it again: else each would wait for all the others.
func TestASlowLauncherIsAskedOnce(t *testing.T) {
	dir := writeRunDir(t, map[string]string{"job.json": "{}"})
	root, err := os.MkdirTemp("", "shoal") // a socket path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	l, err := net.Listen("unix", filepath.Join(root, "a.ctl"))
	if err != nil {
		t.Fatal(err)
	}
	const tick = 2 * time.Second
	var asked atomic.Int32
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		<-time.After(tick * 3 / 4)
		fmt.Fprint(w, "{}")
	})}
	g := group.New(t.Context())
	g.Go("launcher", func(context.Context) error { server.Serve(l); return nil })
	t.Cleanup(func() { server.Close(); g.Wait() })
	run, err := follow.Open(dir, control.AtSocket(l.Addr().String()), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &Page{run: run, tick: tick}
	for range 2 {
		if _, _, err := p.newsSince(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the launcher was asked %d times", n)
	}
}

// A report is one file that loads nothing, in which no name of a user ends a script.
func TestReport(t *testing.T) {
	f := openRun(t, evilRun(t))
	if err := f.Poll(context.Background(), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := WriteReport(&b, f.Run.View(2)); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if n := strings.Count(text, "<script"); n != 2 || strings.Contains(text, "<img") {
		t.Errorf("the report has %d scripts", n)
	}
	if regexp.MustCompile(`(src|href)="?https?:`).MatchString(text) {
		t.Error("the report loads something from elsewhere")
	}
	data := regexp.MustCompile(`(?s)id="data">(.*?)</script>`).FindStringSubmatch(text)
	var v watch.View
	if data == nil || json.Unmarshal([]byte(data[1]), &v) != nil || v.Job != evil {
		t.Errorf("the run in the report is called %q", v.Job)
	}
}
