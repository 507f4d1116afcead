package jobs

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/watch"
)

// TestReportReplacesFilesAlone: what is there and is no file stays, whatever --force says.
func TestReportReplacesFilesAlone(t *testing.T) {
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "report.html")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeReport(pipe, watch.View{}); err == nil {
		t.Error("a report was written in the place of a pipe")
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the pipe is %v (%v)", info.Mode(), err)
	}
	for range 2 {
		if err := writeReport(file, watch.View{}); err != nil {
			t.Error(err)
		}
	}
}

// TestReportReplacesNoRecord: of a run's own files none becomes its report, but an older report
// beside them does.
func TestReportReplacesNoRecord(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"events.jsonl", "rank-0.log", "report.html"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := writeReport(filepath.Join(dir, name), watch.View{Dir: dir})
		text, other := os.ReadFile(filepath.Join(dir, name))
		if other != nil {
			t.Fatal(other)
		}
		if kept := name != "report.html"; kept != (err != nil) || kept != (string(text) == "old") {
			t.Errorf("%s: %v, and %d bytes are there", name, err, len(text))
		}
	}
}

// fullOutput is an output that takes nothing, and ends the command when it is written to.
type fullOutput struct{ end context.CancelFunc }

// Write fails.
func (o fullOutput) Write([]byte) (int, error) {
	o.end()
	return 0, syscall.ENOSPC
}

// TestDashWithoutAnAddress: a page whose address nobody has seen is not served.
func TestDashWithoutAnAddress(t *testing.T) {
	dir := t.TempDir()
	err := os.WriteFile(filepath.Join(dir, "job.json"), []byte(`{"spec":{"name":"train"}}`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	cmd := NewDashCommand()
	cmd.SetArgs([]string{dir})
	cmd.SetOut(fullOutput{end})
	cmd.SetErr(io.Discard)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if err := cmd.ExecuteContext(ctx); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v, want what the output said", err)
	}
}
