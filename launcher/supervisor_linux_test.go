package launcher

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
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
		})
		if err != nil {
			t.Fatal(err)
		}
		if e := p.Wait(); e.OK() {
			t.Errorf("a worker %v", e)
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

// Torch is told how many workers begin on a host, which may take more than come to it.
func TestWorkersThatBeginOnAHost(t *testing.T) {
	s := newSupervisor(nil)
	s.setProgram("/bin/sh", environment{cores: 1, here: 4, spec: job.Spec{Workers: 6,
		Command: []string{"sh", "-c", "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE"}}})
	console := proc.NewConsole(io.Discard, io.Discard, 6, false)
	g := group.New(t.Context())
	s.countFirst(agent.StartOrder{First: 4, Count: 2})
	s.countFirst(agent.StartOrder{First: 6, Count: 2})
	for i, want := range []string{"0 of 2", "1 of 2", "0 of 1"} {
		p, err := s.startProcess(g, 4+i, i == 2, "token", func() (*proc.Output, error) {
			return proc.NewOutput(console, i, filepath.Join(t.TempDir(), "log"))
		})
		if err != nil {
			t.Fatal(err)
		}
		p.Wait()
		<-p.Silent()
		if tail := p.output.Tail(); len(tail) != 1 || tail[0] != want {
			t.Errorf("worker %d is %q, want %q", 4+i, tail, want)
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// A host that takes no workers, as the one that has started agents on others, starts no template.
func TestHostWithoutWorkersHasNoTemplate(t *testing.T) {
	s := newSupervisor(nil)
	s.setProgram("/bin/sh", environment{cores: 2, here: 0, spec: job.Spec{Workers: 4,
		Command: []string{"python3", "train.py"}, Prefork: []string{"torch"}}})
	g := group.New(t.Context())
	err := s.startTemplate(g, filepath.Join(t.TempDir(), "log"), func() {}, func(string) {})
	if err != nil || s.template != nil {
		t.Errorf("%v, %v", s.template, err)
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// The host that leads hears the last words of a worker of another host, also where they are read
// only when the worker has ended.
func TestLastWordsAreSaidToTheHead(t *testing.T) {
	a, text := &noting{}, &gate{opened: make(chan struct{})}
	l := &launcher{agent: a, registry: newRegistry("a", 0), reporter: newReporter(nil, nil),
		supervisor: newSupervisor(nil), tasks: newTasks()}
	l.registry.setLeader("b", nil)
	l.supervisor.setProgram("/bin/sh", environment{cores: 1, here: 1, spec: job.Spec{Workers: 1,
		Command: []string{"sh", "-c", "echo begins; echo bad batch; exit 1"}}})
	g := group.New(t.Context())
	p, err := l.supervisor.startProcess(g, 0, false, "token", func() (*proc.Output, error) {
		return proc.NewOutput(proc.NewConsole(text, text, 1, false), 0,
			filepath.Join(t.TempDir(), "log"))
	})
	if err != nil {
		t.Fatal(err)
	}
	exit := p.Wait()
	g.Go("read", func(context.Context) error {
		close(text.opened)
		return nil
	})
	l.onProcessExit(p, exit)
	for _, task := range l.tasks.list {
		task()
	}
	if want := `"tail":["begins","bad batch"]`; len(a.sent) != 1 ||
		!strings.Contains(a.sent[0], want) {
		t.Errorf("%q, want %s", a.sent, want)
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// gate is a terminal that takes nothing until it is opened.
type gate struct{ opened chan struct{} }

// Write waits until the gate is opened.
func (g *gate) Write(p []byte) (int, error) {
	<-g.opened
	return len(p), nil
}

// Only the processes that ended last are known, in whichever order their end and the end of their
// output come; those that run, whose output goes on, or that failed are known all the while.
func TestProcessesThatEndedLongAgoAreForgotten(t *testing.T) {
	s := newSupervisor(nil)
	for worker := range mostEnded + 13 {
		p := &process{worker: worker}
		s.processes[worker] = p
		over := ending{worker: worker, survived: true}
		switch {
		case worker == 0: // runs, and has closed its output
			s.setSilent(p)
		case worker == 1: // has ended, and a process that it started still writes
			s.setEnded(p, over)
		case worker == 2: // has failed, which is reported when all have ended
			s.setSilent(p)
			s.setEnded(p, ending{worker: worker, exit: proc.Exit{Code: 1}})
		case worker%2 == 0:
			s.setSilent(p)
			s.setEnded(p, over)
		default:
			s.setEnded(p, over)
			s.setSilent(p)
		}
	}
	if n := len(s.allProcesses()); n != 3+mostEnded {
		t.Errorf("%d processes are known, want 3 and the %d that ended last", n, mostEnded)
	}
	for worker, known := range map[int]bool{
		0: true, 1: true, 2: true, 3: false, 12: false, 13: true,
	} {
		if p := s.processOf(worker); (p != nil) != known {
			t.Errorf("worker %d is known: %v, want %v", worker, p != nil, known)
		}
	}
}
