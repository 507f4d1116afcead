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

	// Template forks the process, if it still can; nil = the process is started anew.
	Template *Template
	// Shield has the process begin with SIGTERM ignored, and what it starts: a cluster manager
	// sends it to all processes of a job.
	Shield bool
}

// shielded returns what really starts the process, which becomes that of the command.
func (c Command) shielded() Command {
	if c.Shield {
		c.Args = append([]string{"sh", "-c", `trap "" TERM; exec "$@"`, "sh", c.Path},
			c.Args[1:]...)
		c.Path = "/bin/sh"
	}
	return c
}

// child is a process that ends some day. Wait calls await and then reap, each once.
type child interface {
	// await blocks until the process has ended. It stays a zombie.
	await()
	// reap gives the number of a process that has ended back to the kernel, and tells how it ended,
	// without its number and times. It does not wait for the process.
	reap() Exit
}

// Worker is one started process with a process group of its own. It is safe for concurrent use: the
// fields down to streams are set before Start returns it, and not changed then.
type Worker struct {
	pid      int
	started  time.Time
	child    child      // the process, for Wait
	template *Template  // has forked the process, or was to; nil = there is none
	shield   bool       // the process began with SIGTERM ignored
	bound    bool       // the process began with the processors of its Command alone
	streams  []*os.File // the launcher's ends of stdout and stderr

	reading atomic.Int32  // streams that are still read
	silent  chan struct{} // closed when reading becomes 0
	reaped  chan struct{} // closed when Wait has reaped the process

	// mu orders signals against reaping, after which the kernel may give the process number to
	// another process.
	mu   sync.Mutex
	gone bool // the process was reaped; guarded by mu
}

// Start starts a worker, with goroutines in g, and returns when its process runs; it blocks while a
// template imports that is to fork it. The worker's stdin is empty, and its output goes to out,
// which the caller closes after Silent. The caller has a goroutine call Wait, and then ReapGroup.
func Start(g *group.Group, c Command, out *Output) (*Worker, error) {
	w := &Worker{template: c.Template, shield: c.Shield, silent: make(chan struct{}),
		reaped: make(chan struct{})}
	theirs, err := w.makePipes()
	if err != nil {
		return nil, err
	}
	if !w.startForked(c, theirs) {
		err = w.startAnew(g, c, theirs)
	}
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

// startAnew starts the process as a new one, with the pipes, which the caller closes, as its stdout
// and stderr, on a goroutine that lasts until Wait has reaped it. It returns when the process runs,
// or with why it does not.
func (w *Worker) startAnew(g *group.Group, c Command, pipes []*os.File) error {
	as := c.shielded()
	cmd := &exec.Cmd{Path: as.Path, Args: as.Args, Env: c.Env, SysProcAttr: workerAttr(),
		Stdout: pipes[0], Stderr: pipes[1]}
	started := make(chan error, 1)
	g.Go(fmt.Sprintf("parent of %s", c.Args[0]), func(context.Context) error {
		// The parent-death signal means the death of the thread that started the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		w.started = time.Now()
		var err error
		w.bound, err = startOnCPUs(c.CPUs, cmd.Start)
		if err == nil {
			w.pid, w.child = cmd.Process.Pid, newChild{cmd}
		}
		started <- err
		if err == nil {
			<-w.reaped
		}
		return nil
	})
	return <-started
}

// startForked has the template of the command fork the process, with the pipes, which the caller
// closes, as its stdout and stderr. It blocks while the template still imports. It returns false
// where there is no template, or it has ended.
func (w *Worker) startForked(c Command, pipes []*os.File) bool {
	if c.Template == nil {
		return false
	}
	f, err := c.Template.fork(c, pipes)
	if err != nil {
		return false // the template's end says why
	}
	w.pid, w.bound, w.child, w.started = f.pid, f.bound, f, time.Now()
	return true
}

// newChild is a process that was started anew.
type newChild struct{ cmd *exec.Cmd }

// await implements child: it blocks until the process has ended.
func (c newChild) await() { awaitExit(c.cmd.Process.Pid) }

// reap implements child: it takes the exit status, and returns how the process has ended.
func (c newChild) reap() Exit {
	var ee *exec.ExitError
	if errors.As(c.cmd.Wait(), &ee) {
		return exitOf(ee.Sys().(syscall.WaitStatus))
	}
	return Exit{}
}

// exitOf is how a process has ended by its status, without its number and times. It is pure.
func exitOf(status syscall.WaitStatus) Exit {
	if status.Signaled() {
		return Exit{Signal: status.Signal()}
	}
	return Exit{Code: status.ExitStatus()}
}

// readStream copies one stream, 0 = stdout or 1 = stderr, to the output, blocks until it ends, and
// closes it; after the last one silent is closed. Each stream has a goroutine of its own; to is the
// console's writer for its lines.
func (w *Worker) readStream(stream int, out *Output, to io.Writer) {
	out.copyFrom(&patientReader{pipe: w.streams[stream]}, to)
	w.streams[stream].Close()
	if w.reading.Add(-1) == 0 {
		close(w.silent)
	}
}

// mostInPipe is how many bytes a pipe can hold, unless root has let it hold more.
const mostInPipe = 1 << 20

// patientReader reads the pipe of a worker's output, which its maker closes. After the deadline of
// StopReadingAfter it reads what is in the pipe by then, and waits for nothing more: a slow
// terminal may have held up its goroutine until after the deadline. One goroutine uses it.
type patientReader struct {
	pipe *os.File
	late int // number of bytes that were read after the deadline
}

// Read implements io.Reader.
func (r *patientReader) Read(p []byte) (int, error) {
	n, err := r.pipe.Read(p)
	if !errors.Is(err, os.ErrDeadlineExceeded) || r.late >= mostInPipe {
		return n, err
	}
	conn, failed := r.pipe.SyscallConn()
	if failed != nil {
		return 0, err
	}
	// Control heeds no deadline, and the pipe is one that does not block.
	left := -1
	_ = conn.Control(func(fd uintptr) {
		for left, failed = syscall.Read(int(fd), p); failed == syscall.EINTR; {
			left, failed = syscall.Read(int(fd), p)
		}
	})
	if left <= 0 {
		return 0, err
	}
	r.late += left
	return left, nil
}

// makePipes makes the pipes of stdout and stderr, in this order: w.streams, which readStream
// closes, and theirs, the ends that the worker gets, which the caller closes. Start calls it,
// before others know w.
func (w *Worker) makePipes() (theirs []*os.File, err error) {
	for range 2 {
		r, t, err := os.Pipe()
		if err != nil {
			closeAll(append(theirs, w.streams...))
			return nil, fmt.Errorf(
				"proc: a pipe for the output of a worker: %w; close files or raise ulimit -n", err)
		}
		w.streams, theirs = append(w.streams, r), append(theirs, t)
	}
	return theirs, nil
}

// Wait blocks until the process has ended, and tells how; processes that the worker started may
// still run and write then (Silent, StopReadingAfter). One goroutine calls it, once. It reaps the
// process with mu held: until then no other process gets its number, and no signal can hit another
// process.
func (w *Worker) Wait() Exit {
	defer close(w.reaped)
	w.child.await()
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.child.reap()
	w.gone = true
	e.PID, e.Started, e.Ended = w.pid, w.started, time.Now()
	return e
}

// ReapGroup reaps what has ended of the worker's process group, after Wait and once whoever calls
// has ended what it wants to end of it. It does not wait.
func (w *Worker) ReapGroup() { w.template.reapGroup(w.pid) }

// PID is the process number, and also the number of the process group.
func (w *Worker) PID() int { return w.pid }

// Bound reports whether the process began with the processors of its Command alone.
func (w *Worker) Bound() bool { return w.bound }

// Signal sends sig to the whole process group, unless the worker has ended. One that was shielded
// from SIGTERM, and ignores it still, gets SIGKILL in its place. SIGKILL does not go to processes
// that clear away. Any goroutine may call it.
func (w *Worker) Signal(sig syscall.Signal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return
	}
	if w.shield && sig == syscall.SIGTERM && ignores(w.pid, sig) {
		sig = syscall.SIGKILL
	}
	if sig == syscall.SIGKILL {
		killGroup(w.pid)
		return
	}
	syscall.Kill(-w.pid, sig)
}

// Silent returns a channel that is closed when neither the worker nor a process that it started can
// write to its output any more.
func (w *Worker) Silent() <-chan struct{} { return w.silent }

// StopReadingAfter makes the readers of the worker's output wait for no more of it after d, in case
// another process holds the other end: what is there by then they read. It does not wait, and a
// later call counts in place of this one.
func (w *Worker) StopReadingAfter(d time.Duration) {
	for _, s := range w.streams {
		s.SetReadDeadline(time.Now().Add(d))
	}
}

// closeAll closes files, and ignores errors.
func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
