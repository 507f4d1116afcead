package jobs

import (
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
