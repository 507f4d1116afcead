package jobs

import (
	"bytes"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
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
