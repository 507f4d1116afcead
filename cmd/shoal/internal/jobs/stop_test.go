package jobs

import (
	"bytes"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/pool/keeper"
)

// Who has asked for the end of a job hears how it has ended, or that it goes on under another host,
// or that nothing is known here, and why.
func TestEndThatWasAskedFor(t *testing.T) {
	const nobody = math.MaxInt32 // no process has this number
	for what, c := range map[string]struct {
		folder, result string
		pid            int
		done           bool
		says, fails    string
	}{
		"it runs":       {"train", "", os.Getpid(), false, "", ""},
		"it was killed": {"train", "", nobody, false, "", "its launcher was killed"},
		"another host led then": {"train@h2", "", nobody, false, "",
			"the host that led the job last has it"},
		"the result is damaged": {"train", "{", nobody, false, "", "result.json is damaged"},
		"it was stopped": {"train", `{"job":"train","ok":true,"stopped_by":"ada"}`, nobody, true,
			"job train was stopped by ada and ended well", ""},
		"this host has left it": {"train@h2", `{"job":"train","ok":true,"goes_on":"h3"}`, nobody,
			true, "", "job train goes on: this host has left it, and host h3 leads it now"},
	} {
		dir := filepath.Join(t.TempDir(), c.folder)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if c.pid == os.Getpid() { // a launcher that lives has it open
			ledger, err := os.Create(runs.LedgerPath(dir))
			if err != nil {
				t.Fatal(err)
			}
			defer ledger.Close()
		}
		if c.result != "" {
			err := os.WriteFile(filepath.Join(dir, "result.json"), []byte(c.result), 0o600)
			if err != nil {
				t.Fatal(err)
			}
		}
		j := &control.Job{Job: api.Job{Name: "train", Dir: dir, PID: c.pid}}
		r, done, err := readEnd(j)
		var out bytes.Buffer
		if done {
			err = printEnd(&out, r, false)
		}
		fails := ""
		if err != nil {
			fails = err.Error()
		}
		says := out.String()
		if done != c.done || !strings.Contains(says, c.says) || (says == "") != (c.says == "") ||
			!strings.Contains(fails, c.fails) || (fails == "") != (c.fails == "") {
			t.Errorf("%s: %t, %q, %q", what, done, says, fails)
		}
	}
}

// TestResultText: what a result does not have is not shown as if it were empty.
func TestResultText(t *testing.T) {
	for want, r := range map[string]runs.Result{
		"job failed, and its result does not say why, after 0.0 s": {},
		"job a failed, and its result does not say why, after 2.0 s; its files are in /a": {
			Job: "a", Dir: "/a", Seconds: 2},
		"job a goes on under host h3, and this host has left it, after 0.0 s": {Job: "a", OK: true,
			GoesOn: "h3"},
		"job a has failed: it is red, after 0.0 s": {Job: "a",
			Error: "job a has failed: it is red\nand more"},
	} {
		if got := resultText(r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestStopFlagsThatDisagree: a time that would be passed over, or taken for none, is refused.
func TestStopFlagsThatDisagree(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	for want, args := range map[string][]string{
		"give one of them":       {"x", "--now", "--grace", "2m"},
		"--grace 0s: give a":     {"x", "--grace", "0s"},
		"--grace -1s: give a":    {"x", "--grace=-1s"},
		"no running job is call": {"x", "--now"},
	} {
		cmd := NewStopCommand()
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

// TestGraceElsewhere: a job that another host leads cannot be given a time from here, and one that
// has no processes needs none.
func TestGraceElsewhere(t *testing.T) {
	for state, want := range map[string]string{
		"waiting": "", "parked": "", "running": "can end what still runs then, and that is h2",
		"stopping": "can end what still runs then, and that is h2",
	} {
		asked := stopInPool(t, state)
		cmd := NewStopCommand()
		cmd.SetArgs([]string{"x", "--grace", "2m"})
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		err := cmd.ExecuteContext(t.Context())
		if want == "" && err != nil || want != "" &&
			(err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", state, err, want)
		}
		if stops := len(asked); stops > 0 != (want == "") {
			t.Errorf("%s: the pool was asked %d times to stop it", state, stops)
		}
	}
}

// stopInPool has a pool on this host with a job x in a state, led by host h2. The result gets an
// element for each time that the pool is asked to stop it.
func stopInPool(t *testing.T, state string) <-chan struct{} {
	dir, err := os.MkdirTemp("", "pool") // of a short name, as that of a socket must be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	socket, err := keeper.Socket("lab")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 8)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		body := "{}"
		if r.URL.Path == keeper.PathJob {
			body = `{"pool":"lab","job":{"job":"x","state":"` + state + `","lead":"h2"}}`
		} else {
			asked <- struct{}{}
		}
		_, _ = io.WriteString(w, body)
	}))
	s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return asked
}

// A launcher whose process has a number that none has here lives as long as it has its run open.
func TestLauncherThatCannotBeSeen(t *testing.T) {
	j := &control.Job{}
	j.PID, j.Dir = 1<<22+1, t.TempDir() // above all numbers of processes
	ledger, err := os.Create(runs.LedgerPath(j.Dir))
	if err == nil {
		err = durable.Flock(ledger, syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	if launcherHasEnded(j) {
		t.Error("it has ended, and has its run open")
	}
	if err := ledger.Close(); err != nil {
		t.Fatal(err)
	}
	if !launcherHasEnded(j) {
		t.Error("it lives, and nobody has its run open")
	}
}

// A launcher that was killed has ended, also when another process has its number by now.
func TestNumberOfALauncherIsGivenAgain(t *testing.T) {
	j := &control.Job{}
	j.PID, j.Dir = os.Getpid(), t.TempDir()
	ledger, err := os.Create(runs.LedgerPath(j.Dir))
	if err != nil {
		t.Fatal(err)
	}
	if launcherHasEnded(j) {
		t.Error("it has ended, and has its run open on a disk without locks")
	}
	if err := ledger.Close(); err != nil {
		t.Fatal(err)
	}
	if !launcherHasEnded(j) {
		t.Error("it lives, since a process has its number that has not opened its run")
	}
}
