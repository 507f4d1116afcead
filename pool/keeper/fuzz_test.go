package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/pool"
)

// FuzzRequests checks that whatever tools send, the keeper answers in JSON, keeps its promises, and
// says what is wrong.
func FuzzRequests(f *testing.F) {
	spec := "name: one\ncommand: [fake]\nworkers: 2\nmin: 1\nmax: 2\nschedule: {deadline: 6h}\n"
	for path, body := range map[string]any{
		PathSubmit: Request{spec, "/", []string{"A=b", "SHOAL_X=1", "none"}, "ada"},
		PathStop:   Ask{Job: "one", Who: "ada", Now: true},
		PathResize: Ask{Job: "one", Workers: 2, Who: "ada"},
		PathQueue:  nil, PathQueue + "?all": nil, PathJob + "?name=one": nil,
		"/v1/other": map[string]int{"more": 1},
	} {
		text, err := json.Marshal(body)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(path, text)
		f.Add(path, append(text, '{'))
		f.Add(path, text[:len(text)/2])
	}
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		m, err := pool.New(pool.Config{Name: "lab"}, 1)
		if err != nil {
			t.Fatal(err)
		}
		m.HostUp(1, "here", 4, "")
		m.Reported(1, pool.Report{Host: "here"})
		for _, name := range []string{"one", "two"} {
			if _, err := m.Submit(1, pool.Submission{Name: name, Spec: "x", Min: 1, Max: 4,
				Asked: 4, Preempt: "shrink"}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		k := &keeper{Config: Config{Name: "lab", Host: "here"}, m: m, events: make(chan func()),
			group: group.New(ctx)}
		over := make(chan struct{})
		k.group.Go("keep", func(ctx context.Context) error {
			for {
				m.Settle(2)
				for _, w := range m.TakeWrites() {
					m.Written(2, w)
				}
				k.reply()
				select {
				case f := <-k.events:
					f()
				case <-over:
					return nil
				case <-ctx.Done():
					return nil
				}
			}
		})
		method := http.MethodPost
		if strings.HasPrefix(path, PathQueue) || strings.HasPrefix(path, PathJob) {
			method = http.MethodGet
		}
		if r, err := http.NewRequest(method, "http://pool", bytes.NewReader(body)); err == nil {
			r.URL.Path, r.URL.RawQuery, _ = strings.Cut(path, "?")
			w := httptest.NewRecorder()
			k.handler().ServeHTTP(w, r)
			switch text := w.Body.Bytes(); {
			case w.Code == http.StatusConflict:
				var no Refusal
				if err := json.Unmarshal(text, &no); err != nil || no.Error == "" {
					t.Errorf("%s %q: %s (%v)", path, body, text, err)
				}
			case w.Code == http.StatusOK && !json.Valid(text):
				t.Errorf("%s %q: %d %s", path, body, w.Code, text)
			}
		}
		close(over)
		if err := k.group.Wait(); err != nil {
			t.Error(err)
		}
		if err := m.Check(); err != nil {
			t.Errorf("%s %q: %v", path, body, err)
		}
	})
}

// FuzzSaved checks that whatever the files of a part hold, what is known of it can be reported, and
// no process is taken for its launcher that cannot be.
func FuzzSaved(f *testing.F) {
	f.Add([]byte(`{"attempt":1,"part":1,"pid":4711,"run":"/runs/one"}`),
		[]byte("shoal: job one, 1 worker, files in /runs/one\nshoal: it ends\n"))
	f.Add([]byte(`{"attempt":-1}`), []byte("\n\n"))
	f.Add([]byte(``), []byte(``))
	f.Fuzz(func(t *testing.T, text, log []byte) {
		dir := t.TempDir()
		h := newHost(Config{Name: "lab", Host: "here", Dir: dir}, group.New(context.Background()))
		p := newPart(h, "one")
		if p.saved = parseSaved(text); p.saved.PID < 0 || p.saved.Attempt < 0 || p.saved.Part < 0 {
			t.Errorf("%s is read as %+v", text, p.saved)
		}
		p.saved.PID = 0
		if err := os.WriteFile(filepath.Join(dir, "one"+logSuffix), log, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := p.report(true); r.End == nil || r.Live {
			t.Errorf("%+v", r)
		}
		if line := lastLine(string(log)); strings.Contains(line, "\n") {
			t.Errorf("%q is the last line", line)
		}
	})
}

// FuzzAnswers checks that a tool survives whatever answers on the socket of a pool.
func FuzzAnswers(f *testing.F) {
	f.Add(200, []byte(`{"pool":"lab","now":1,"hosts":[],"jobs":[]}`))
	f.Add(409, []byte(`{"error":"no","usage":true}`))
	f.Add(500, []byte(`{`))
	runtime, err := os.MkdirTemp("", "k")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { os.RemoveAll(runtime) })
	f.Setenv("XDG_RUNTIME_DIR", runtime)
	socket, err := Socket("lab")
	if err != nil {
		f.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		f.Fatal(err)
	}
	var code int
	var body []byte
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write(body)
		})}}
	server.Start()
	f.Cleanup(server.Close)
	f.Fuzz(func(t *testing.T, status int, text []byte) {
		code, body = 200+(status%400+400)%400, text
		var s State
		err := Call(context.Background(), "lab", PathQueue, nil, &s)
		if err == nil && code != 200 || err != nil && err.Error() == "" {
			t.Errorf("%d %s: %v", code, text, err)
		}
	})
}

// FuzzMessages checks that whatever another host sends, it is a message that can be sent again as
// it was read, or is refused.
func FuzzMessages(f *testing.F) {
	for _, m := range []message{
		{Hello: &hello{"node2", "5f0c27a9d1e4", 4, "127.0.0.1:7070", 25e6, true}},
		{Welcome: &welcome{"lab"}},
		{Refused: &refused{"it is another machine"}},
		{Report: &pool.Report{Host: "node2", Jobs: []pool.JobReport{{Job: "one", Attempt: 1,
			Part: 1, Live: true, Led: &pool.Led{Host: "here", Size: 2, Want: 2, Pace: 0.1,
				Sent: 70, Waits: 0.5, Limit: 9,
				Workers: map[string]int{"here": 2}}}}}},
		{Order: &pool.Order{Seq: 1, Host: "node2", Verb: pool.JoinRun, Job: "one", Attempt: 1,
			Part: 1, Slots: 2, Join: "127.0.0.1:1", Token: "t", Name: "node2-1-2"}},
		{Order: &pool.Order{Seq: 2, Host: "node2", Verb: pool.LimitRun, Job: "one", Limit: 9}},
		{Ask: &forwarded{1, PathJob + "?name=one", nil}},
		{Ask: &forwarded{2, PathSubmit, json.RawMessage(`{"spec":"x"}`)}},
		{Answer: &answered{1, 200, []byte(`{}`), false}}, {Answer: &answered{1, 200, nil, true}},
	} {
		text, err := m.encode()
		if err != nil {
			f.Fatal(err)
		}
		if _, err := decodeMessage(text); err != nil {
			f.Fatalf("%s: %v", text, err)
		}
		f.Add(text)
		f.Add(text[:len(text)/2])
	}
	f.Add([]byte(`{"welcome":{"pool":"a"},"refused":{"why":"b"}}`))
	f.Add([]byte(`{"ask":{"id":1,"path":"//other/v1/queue"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := decodeMessage(text)
		if err != nil {
			return
		}
		again, err := m.encode()
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if _, err := decodeMessage(again); err != nil {
			t.Fatalf("%s is refused as %s: %v", text, again, err)
		}
	})
}
