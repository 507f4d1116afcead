package run

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// A job that somebody has stopped is not begun again, also where its workers were ended by that in
// their step, which is an error of the command.
func TestEndOfStoppedJob(t *testing.T) {
	for _, err := range []error{nil, errors.New("job a was stopped: worker 0 was killed")} {
		p := &pod{end: filepath.Join(t.TempDir(), "end")}
		if err := p.writeEnd(&runs.Result{StoppedBy: "ann"}, false, false, err); err != nil {
			t.Fatal(err)
		}
		text, readErr := os.ReadFile(p.end)
		if readErr != nil || !strings.Contains(string(text), `"state":"stopped"`) {
			t.Errorf("with the error %v: %s, %v", err, text, readErr)
		}
	}
}

// A reason that is too long for the file of --end-file ends with a whole character.
func TestEndOfWholeCharacters(t *testing.T) {
	p := &pod{end: filepath.Join(t.TempDir(), "end")}
	if err := p.writeEnd(nil, false, false, errors.New("x"+strings.Repeat("é", 1500))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(p.end)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if want := "x" + strings.Repeat("é", 999); got["why"] != want {
		t.Errorf("%d bytes, want %d: %s", len(got["why"]), len(want), got["why"])
	}
}

// TestEndFileThatCannotBe: a path at which no file can be made is refused before the job begins,
// and not told when it has ended.
func TestEndFileThatCannotBe(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	dir := t.TempDir()
	for path, want := range map[string]string{
		dir:                                "is a folder: name a file in it",
		filepath.Join(dir, "none", "end"):  "make it, or name a file elsewhere",
		filepath.Join(dir, "began", "end"): "there is no folder " + filepath.Join(dir, "began"),
	} {
		cmd := NewCommand()
		began := filepath.Join(dir, "began")
		cmd.SetArgs([]string{"--end-file", path, "--", "touch", began})
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--end-file %s: %v, want %q", path, err, want)
		}
		if _, err := os.Stat(began); err == nil {
			t.Errorf("--end-file %s: the job began", path)
		}
	}
	for _, path := range []string{"end", filepath.Join(dir, "end"), os.DevNull} {
		if err := cli.CheckPlace("--end-file", path); err != nil {
			t.Errorf("--end-file %s: %v", path, err)
		}
	}
}

// TestListenInBrackets has pods told where to listen as the operator in deploy/kube does: with the
// address in brackets, whether it is of IPv4 or IPv6. Other hosts hear of it without those.
func TestListenInBrackets(t *testing.T) {
	for _, ip := range []string{"10.0.0.1", "fd00::1"} {
		f := fleet{listen: "[" + ip + "]:7077"}
		if err := cli.CheckAddress("listen", f.listen); err != nil || f.ownAddress() != ip {
			t.Errorf("--listen %s: %v; others reach it at %s", f.listen, err, f.ownAddress())
		}
	}
}

// A reason with characters that JSON writes as six makes no file that is longer than what
// Kubernetes takes of it, since the rest of one is none that can be read.
func TestEndOfOddCharacters(t *testing.T) {
	p := &pod{end: filepath.Join(t.TempDir(), "end")}
	why := errors.New(strings.Repeat("<a&b>", 400))
	if err := p.writeEnd(&runs.Result{}, false, false, why); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(p.end)
	if err != nil || len(text) > 4096 || !strings.Contains(string(text), `"state":"failed"`) {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}
