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
	if err := writeReport(pipe, watch.View{}, true); err == nil {
		t.Error("a report was written in the place of a pipe")
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the pipe is %v (%v)", info.Mode(), err)
	}
	for _, force := range []bool{false, true} {
		if err := writeReport(file, watch.View{}, force); err != nil {
			t.Error(err)
		}
	}
	if err := writeReport(file, watch.View{}, false); err == nil {
		t.Error("a report was replaced without --force")
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
