package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
)

// Command is what to start: an absolute path from Lookup, the words of the command line, and the
// whole environment.
type Command struct {
	Path string
	Args []string
	Env  []string
	CPUs []int // processors to use, if the kernel grants them; none = all that the launcher may use
}

// Worker is one started process with a process group of its own. It is safe for concurrent use.
type Worker struct {
	pid     int
	bound   bool          // the process began with the processors of its Command alone
	streams []*os.File    // the launcher's ends of stdout and stderr
	reading atomic.Int32  // streams that are still read
	silent  chan struct{} // closed when reading becomes 0

	// mu orders signals against reaping, after which the kernel may give the process number to
	// another process.
	mu   sync.Mutex
	gone bool // the process was reaped
}

// Start starts a worker, with goroutines in g, and returns when its process runs. The worker's
// stdin is empty. ended is called once, on one of these goroutines, when the worker has ended;
// processes that the worker started may still run and write then (Silent, StopReadingAfter).
func Start(g *group.Group, c Command, out *Output, ended func(Exit)) (*Worker, error) {
	w := &Worker{silent: make(chan struct{})}
	cmd := &exec.Cmd{Path: c.Path, Args: c.Args, Env: c.Env, SysProcAttr: workerAttr()}
	theirs, err := w.makePipes(cmd)
	if err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	g.Go(fmt.Sprintf("wait for %s", c.Args[0]), func(context.Context) error {
		// The parent-death signal means the death of the thread that started the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		from := time.Now()
		var err error
		w.bound, err = startOnCPUs(c.CPUs, cmd.Start)
		if err == nil {
			w.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			ended(w.waitAndReap(cmd, from))
		}
		return nil
	})
	err = <-started
	closeAll(theirs)
	if err != nil {
		closeAll(w.streams)
		return nil, startError(c.Args[0], err)
	}
	w.reading.Store(2)
	g.Go("read stdout", func(context.Context) error {
		w.readStream(0, out, out.console.out)
		return nil
	})
	g.Go("read stderr", func(context.Context) error {
		w.readStream(1, out, out.console.err)
		return nil
	})
	return w, nil
}

// readStream copies one stream to the output, blocks until it ends, and closes it; after the last
// one silent is closed.
func (w *Worker) readStream(stream int, out *Output, to io.Writer) {
	out.copyFrom(w.streams[stream], to)
	w.streams[stream].Close()
	if w.reading.Add(-1) == 0 {
		close(w.silent)
	}
}

// makePipes makes the pipes of stdout and stderr. theirs are the ends that the worker gets.
func (w *Worker) makePipes(cmd *exec.Cmd) (theirs []*os.File, err error) {
	for range 2 {
		r, t, err := os.Pipe()
		if err != nil {
			closeAll(append(theirs, w.streams...))
			return nil, fmt.Errorf(
				"proc: a pipe for the output of a worker: %w; close files or raise ulimit -n", err)
		}
		w.streams, theirs = append(w.streams, r), append(theirs, t)
	}
	cmd.Stdout, cmd.Stderr = theirs[0], theirs[1]
	return theirs, nil
}

// waitAndReap blocks until the process has ended, and reaps it with mu held: until then no other
// process gets its number, and no signal can hit another process.
func (w *Worker) waitAndReap(cmd *exec.Cmd, from time.Time) Exit {
	awaitExit(w.pid)
	w.mu.Lock()
	defer w.mu.Unlock()
	err := cmd.Wait()
	w.gone = true
	exit := Exit{PID: w.pid, Started: from, Ended: time.Now()}
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		if status := ee.Sys().(syscall.WaitStatus); status.Signaled() {
			exit.Signal = status.Signal()
		} else {
			exit.Code = status.ExitStatus()
		}
	}
	return exit
}

// PID is the process number, and also the number of the process group.
func (w *Worker) PID() int { return w.pid }

// Bound reports whether the process began with the processors of its Command alone.
func (w *Worker) Bound() bool { return w.bound }

// Signal sends sig to the whole process group, unless the worker has ended. Any goroutine may call
// it.
func (w *Worker) Signal(sig syscall.Signal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.gone {
		syscall.Kill(-w.pid, sig)
	}
}

// Silent returns a channel that is closed when neither the worker nor a process that it started can
// write to its output any more.
func (w *Worker) Silent() <-chan struct{} { return w.silent }

// StopReadingAfter makes the readers of the worker's output give up after d, in case another
// process holds the other end. It does not wait.
func (w *Worker) StopReadingAfter(d time.Duration) {
	for _, s := range w.streams {
		s.SetReadDeadline(time.Now().Add(d))
	}
}

// closeAll closes files.
func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
