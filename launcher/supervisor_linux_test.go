package launcher

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
)

// A worker that has ended leaves no descriptor open: a job can lose any number of them.
func TestEndedWorkersHoldNoDescriptors(t *testing.T) {
	dir := t.TempDir()
	s := newSupervisor(nil)
	s.setProgram("/bin/sh", environment{cores: 1, here: 1,
		spec: job.Spec{Workers: 1, Command: []string{"sh", "-c", "echo begins; kill -9 $$"}}})
	console := proc.NewConsole(io.Discard, io.Discard, 1, false)
	g := group.New(t.Context())
	for worker := range 5 {
		path := filepath.Join(dir, fmt.Sprintf("rank-%d.log", worker))
		p, err := s.startProcess(g, worker, false, "token", func() (*proc.Output, error) {
			return proc.NewOutput(console, worker, path)
		}, func(*process, proc.Exit) {})
		if err != nil {
			t.Fatal(err)
		}
		<-p.Silent()
		if tail := p.output.Tail(); len(tail) != 1 || tail[0] != "begins" {
			t.Errorf("%q", tail)
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		if path, err := os.Readlink(fd); err == nil && strings.HasPrefix(path, dir) {
			t.Errorf("%s is open", path)
		}
	}
}
