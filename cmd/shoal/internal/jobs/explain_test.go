package jobs

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	api "github.com/shoal-ml/shoal/api/control"
)

// TestNothingControlsTheTerminal has a ledger and metrics with what would: explain and ps show it.
func TestNothingControlsTheTerminal(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	dir := t.TempDir()
	entry := `{"time":"2026-11-26T16:27:01Z","what":"change","generation":1,"size":2,"step":5,` +
		`"change":{"number":1,"phase":"entered","policy":"mine","from":"batch=64","to":"batch=128",` +
		`"because":"it is \u001b[31mred"}}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "events.jsonl"), []byte(entry), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{dir}, {dir, "--change", "1"}} {
		var out bytes.Buffer
		cmd := NewExplainCommand()
		cmd.SetArgs(args)
		cmd.SetOut(&out)
		if err := cmd.ExecuteContext(t.Context()); err != nil ||
			!strings.Contains(out.String(), `it is \x1b[31mred`) {
			t.Errorf("%v: %v, %q", args, err, out.String())
		}
	}
	var out bytes.Buffer
	j := api.Job{Workers: []api.Worker{{Metrics: api.Metrics{"a\n\x1b[31m": 1}, Running: true}}}
	if err := showWorkers(&out, j, false); err != nil ||
		!strings.HasSuffix(out.String(), `  a\n\x1b[31m=1`+"\n") {
		t.Errorf("%v, %q", err, out.String())
	}
}

// TestFolderWithoutASlash: in the directory of a run, a dot names it, and what its name says is
// known.
func TestFolderWithoutASlash(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	dir := filepath.Join(t.TempDir(), "train@h2")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "events.jsonl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, cmd := range []*cobra.Command{NewExplainCommand(), NewTopCommand()} {
		var out bytes.Buffer
		cmd.SetArgs([]string{"."})
		cmd.SetOut(&out)
		if err := cmd.ExecuteContext(t.Context()); err != nil ||
			!strings.Contains(out.String(), "the host that led the job last has it") {
			t.Errorf("shoal %s: %v, %q", cmd.Name(), err, out.String())
		}
	}
}
