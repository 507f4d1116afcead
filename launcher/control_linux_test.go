package launcher_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/launcher"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// runControlled runs n workers that do what, as runWorker says, and calls f on a goroutine of its
// own when all of them wait; dir is where the job's sockets are, and j the job as a tool finds it.
// f has to stop the job; its error stops it too, and fails the test. It blocks until the job has
// ended, and returns what Run returns.
func runControlled(t *testing.T, n int, what string,
	f func(dir string, j *control.Job) error) (*runs.Result, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tool := group.New(ctx)
	waiting := 0
	result, out, err := runWorkers(t, ctx, n, what, func(cfg *launcher.RunConfig) {
		cfg.Stdout = &console{seen: func(line string) {
			if !strings.HasSuffix(line, "waiting\n") {
				return
			}
			if waiting++; waiting == n {
				tool.Go("tool", func(ctx context.Context) error {
					j, err := control.Find(ctx, "test")
					if err == nil {
						err = f(filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "shoal"), j)
					}
					if err != nil {
						cancel()
					}
					return err
				})
			}
		}}
	})
	if fault := tool.Wait(); fault != nil {
		t.Fatalf("%v\n%s", fault, out)
	}
	return result, err
}

// Tools see, resize and stop a running job by its control socket.
func TestControl(t *testing.T) {
	result, err := runControlled(t, 2, "wait", func(dir string, j *control.Job) error {
		if j.State != api.Running || j.Size != 2 || j.Want != 2 || j.Generation != 1 || j.Elastic ||
			j.PID != os.Getpid() || len(j.Workers) != 2 {
			t.Errorf("%+v", j.Job)
		}
		for i, w := range j.Workers {
			if w.Worker != i || w.Rank != i || !w.Running || w.PID == 0 {
				t.Errorf("%+v", w)
			}
		}
		checkSocket(t, dir)
		var refusal *control.Refusal
		if err := j.Resize(t.Context(), 3, "me"); !errors.As(err, &refusal) ||
			!strings.Contains(refusal.Reason, "cannot change its size") {
			t.Errorf("%v", err)
		}
		err := j.Stop(t.Context(), false, "me@here")
		if j.State != api.Stopping || j.StoppedBy != "me@here" {
			t.Errorf("%+v", j.Job)
		}
		return err
	})
	var stopped *launcher.Stopped
	if !errors.As(err, &stopped) || stopped.By != "me@here" || len(stopped.Ends) != 2 {
		t.Errorf("%v", err)
	}
	if result.OK || result.StoppedBy != "me@here" {
		t.Errorf("%+v", result)
	}
	for _, w := range result.Workers {
		if !w.Stopped || w.How != "was killed by SIGTERM" {
			t.Errorf("%+v", w)
		}
	}
}

// A worker that does not end by SIGTERM is not left to wait for one that did.
func TestStoppedWorkerHearsOfOthers(t *testing.T) {
	result, err := runControlled(t, 2, "deaf-1", func(_ string, j *control.Job) error {
		return j.Stop(t.Context(), false, "me@here")
	})
	var stopped *launcher.Stopped
	if !errors.As(err, &stopped) {
		t.Fatal(err)
	}
	var ends []string
	for _, w := range result.Workers {
		ends = append(ends, w.How)
	}
	if diff := cmp.Diff([]string{"was killed by SIGTERM", "exited with code 1"}, ends); diff != "" {
		t.Error(diff)
	}
}

// checkSocket checks that only this user can open the one control socket in dir, and sends it bad
// requests. It reports by Errorf, so it may run on another goroutine than the test's.
func checkSocket(t *testing.T, dir string) {
	sockets, err := filepath.Glob(filepath.Join(dir, "*.ctl"))
	if err != nil || len(sockets) != 1 {
		t.Errorf("%v %v", sockets, err)
		return
	}
	if info, err := os.Stat(sockets[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	checkBadRequests(t, sockets[0])
}

// checkBadRequests sends requests that no tool would send to the control socket of a running job
// called test, and checks how each is refused. It reports by Errorf, as checkSocket does.
func checkBadRequests(t *testing.T, socket string) {
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}
	for _, c := range []struct {
		method, path, body string
		code               int
		says               string
	}{
		{"GET", "/v2/job", "", 200, `"job":"test"`},
		{"GET", "/v2/cluster", "", 200, `"shoal":"cluster/1"`},
		{"POST", "/v2/cluster", "{}", 405, "POST /v2/cluster is no request"},
		{"GET", "/", "", 404, "there are GET /v2/job"},
		{"GET", "/v1/job", "", 404, "speaks protocol 2 of control sockets, the command protocol 1"},
		{"POST", "/v3/stop", "", 404, "the command protocol 3"},
		{"DELETE", "/v2/job", "", 405, "DELETE /v2/job is no request"},
		{"GET", "/v2/resize", "", 405, "GET /v2/resize is no request"},
		{"POST", "/v2/resize", "", 400, "the body is no request"},
		{"POST", "/v2/resize", "workers=3", 400, "the body is no request"},
		{"POST", "/v2/resize", `{"workers":3,"force":true}`, 400, `unknown field \"force\"`},
		{"POST", "/v2/resize", `{"Workers":3}`, 400, `unknown field \"Workers\"; write \"workers\"`},
		{"POST", "/v2/resize", `{"workers":3,"workers":2}`, 400, "stands in it twice"},
		{"POST", "/v2/resize", `{"workers":"3"}`, 400,
			"the body is no request: field workers has a string (at byte 14), and takes a whole"},
		{"POST", "/v2/resize", `{"workers":3}{}`, 400, "something stands after it"},
		{"POST", "/v2/resize", `{"workers":0}`, 400, "0 is not a size"},
		{"POST", "/v2/resize", `{"workers":-4}`, 400, "-4 is not a size"},
		{"POST", "/v2/resize", `{"workers":1000000}`, 400,
			"give 1 to 1024, and to end the job use shoal stop test"},
		{"POST", "/v2/resize", `{"workers":3,"who":"` + strings.Repeat("x", 101) + `"}`, 400,
			"cannot stand in a message"},
		{"POST", "/v2/resize", `{"workers":3,"who":"\u001b[2J"}`, 400, "cannot stand in a message"},
		{"POST", "/v2/resize", `{"who":"` + strings.Repeat("x", 5000) + `"}`, 400,
			"it has more than 4096 bytes"},
		{"POST", "/v2/resize", `{"workers":3,"who":"me"}`, 409, "cannot change its size"},
		{"POST", "/v2/stop", `{"now":1}`, 400, "the body is no request"},
		{"POST", "/v2/stop", `{"later":true}`, 400, "unknown field"},
		{"GET", "/v2/token", "", 405, "GET /v2/token is no request"},
		{"POST", "/v2/token", `{"seconds":0}`, 400, "cannot be good for 0 s"},
		{"POST", "/v2/token", `{"seconds":9000000000000000000}`, 400, "give 1 to 31622400"},
		{"POST", "/v2/token", `{"seconds":60}`, 409, "takes no other hosts"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, "http://job"+c.path,
			strings.NewReader(c.body))
		if err != nil {
			t.Error(err)
			continue
		}
		reply, err := transport.RoundTrip(r)
		if err != nil {
			t.Errorf("%s %s: %v", c.method, c.path, err)
			continue
		}
		text, err := io.ReadAll(reply.Body)
		reply.Body.Close()
		if err != nil || reply.StatusCode != c.code || !strings.Contains(string(text), c.says) {
			t.Errorf("%s %s %s: %d %s, %v; want %d with %q", c.method, c.path, c.body,
				reply.StatusCode, text, err, c.code, c.says)
		}
		var refusal api.Error
		if c.code != 200 && (json.Unmarshal(text, &refusal) != nil || refusal.Error == "") {
			t.Errorf("%s %s: %s is no error", c.method, c.path, text)
		}
	}
}

// One worker that fails in a job that is stopped is named; the rest ended as asked.
func TestStoppedNamesWhoDidNotEndWell(t *testing.T) {
	e := &launcher.Stopped{Job: "test", By: "me@here",
		Ends: []string{"worker 0 exited with code 3", "worker 1 was killed by SIGKILL", "c", "d",
			"e", "f"}}
	want := "job test was stopped by me@here: worker 0 exited with code 3, worker 1 was killed " +
		"by SIGKILL, c, d, and 2 more"
	if diff := cmp.Diff(want, e.Error()); diff != "" {
		t.Error(diff)
	}
}

// Metrics that are no JSON numbers, such as NaN, are written and read all the same.
func TestMetricsSurviveJSON(t *testing.T) {
	before := api.Metrics{"loss": math.Inf(1), "low": math.Inf(-1), "step": 3, "nan": math.NaN()}
	text, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	var after api.Metrics
	if err := json.Unmarshal(text, &after); err != nil || !math.IsNaN(after["nan"]) ||
		!math.IsInf(after["loss"], 1) || !math.IsInf(after["low"], -1) || after["step"] != 3 {
		t.Errorf("%s became %v, %v", text, after, err)
	}
	for _, bad := range []string{`{"loss":"many"}`, `{"loss":[1]}`, `[]`} {
		if err := json.Unmarshal([]byte(bad), &after); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
