package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/internal/group"
)

// Workers that are forked from a process which has imported what they import. The goroutine that
// starts a template or a worker calls socketPair and bytesAsCharacters, and the one that waits for
// the end of a template reasonOfEnd.

// Template is a process that has imported what workers import, and forks workers from itself;
// python/shoal/_runtime/template.py is its program, and has the protocol. It may end at any time:
// workers are then started anew, and those that it has forked go on. It is safe for concurrent use.
type Template struct {
	mu       sync.Mutex    // held while a worker is forked: the answer to one request is read first
	requests *net.UnixConn // requests for workers, written with mu held
	process  *os.Process   // for tests; not changed after StartTemplate

	ctx  context.Context // ends with Stop
	stop context.CancelFunc
	gone chan struct{} // closed when the template was reaped: its children are this process's then

	endedMu sync.Mutex // guards what follows
	ended   []int      // processes that the template was last told to reap, up to mostReaped
	groups  []int      // process groups of workers that have ended, of which processes may be left
}

// mostReaped is how many workers a template may be about to reap when it ends.
const mostReaped = 64

// forkRequest asks for a worker. In the environment a character stands for each byte, since JSON
// has characters alone, and a variable can have any bytes.
type forkRequest struct {
	Environment map[string]string `json:"environment"`
	Processors  []int             `json:"processors"` // processors to use; none = all
}

// forkAnswer is an answer of the template about a worker.
type forkAnswer struct {
	PID    int  `json:"pid"`
	Bound  bool `json:"bound"` // the worker has the processors of the request alone
	Code   int  `json:"code"`
	Signal int  `json:"signal"`
}

// fork is a worker that a template has forked: a child. One goroutine at a time has it: the one
// that starts the worker, and then the one that waits for its end.
type fork struct {
	template *Template
	pid      int
	bound    bool
	socket   net.Conn      // on which the template answers; closed by reap
	answers  *json.Decoder // of socket
	end      Exit          // how it ended, after await, where the template has told
	orphan   bool          // the template had ended before the worker, whose parent this process is
}

// StartTemplate starts a template with the command and environment of c, whose output goes to the
// file log, and goroutines in g. It blocks until the process runs, and not while that imports.
// ended is called once, on one of these goroutines, with the reason why the template has ended.
// From then on this process is the parent of the workers that the template has forked; for that it
// becomes, for the rest of its life, the parent of all its descendants whose own parent has ended.
func StartTemplate(g *group.Group, c Command, log string, ended func(why string)) (*Template,
	error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("proc: this process cannot take over those of a template: %w", err)
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, fmt.Errorf("proc: the socket of a template: %w", err)
	}
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("proc: the log of a template: %w", err)
	}
	defer output.Close()
	t := &Template{requests: conn.(*net.UnixConn), gone: make(chan struct{})}
	t.ctx, t.stop = context.WithCancel(context.Background())
	as := c.shielded()
	cmd := &exec.Cmd{Path: as.Path, Args: as.Args, Env: c.Env, SysProcAttr: workerAttr(),
		Stdout: output, Stderr: output, ExtraFiles: []*os.File{theirs}}
	if third := inheritedThird(); third != nil {
		defer third.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, third)
	}
	started := make(chan error, 1)
	g.Go("wait for the template", func(context.Context) error {
		runtime.LockOSThread() // as for a worker
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		t.process = cmd.Process
		started <- err
		if err == nil {
			err = cmd.Wait()
			close(t.gone)
			conn.Close()
			t.reapEnded()
			ended(reasonOfEnd(err, log))
		}
		return nil
	})
	if err := <-started; err != nil {
		conn.Close()
		return nil, startError(c.Args[0], err)
	}
	return t, nil
}

// Stop has the template fork no more workers: who waits for one starts it anew. It does not wait,
// nor end the process. A nil Template forks none.
func (t *Template) Stop() {
	if t != nil {
		t.stop()
	}
}

// inheritedThird returns a copy of what this process has inherited as descriptor 3, such as the
// file by which the keeper of a pool knows that processes of the job run: a template has its socket
// there. nil = it has inherited none. The caller closes it.
func inheritedThird() *os.File {
	const third = 3
	flags, err := unix.FcntlInt(third, unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC != 0 {
		return nil
	}
	copied, err := unix.FcntlInt(third, unix.F_DUPFD_CLOEXEC, third+1)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(copied), "inherited")
}

// socketPair makes two connected sockets, both of which the caller closes.
func socketPair() (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("proc: a socket to a template: %w", err)
	}
	return os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs"), nil
}

// reasonOfEnd is why a template has ended, for people: the last line of the file log, where it
// ended by itself; err is what waiting for its process has returned.
func reasonOfEnd(err error, log string) string {
	text, _ := os.ReadFile(log)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var ee *exec.ExitError
	if last := lines[len(lines)-1]; last != "" && (!errors.As(err, &ee) || ee.ExitCode() == 1) {
		return last
	}
	return fmt.Sprintf("their template process has ended: %v", err)
}

// fork asks the template for a worker with these pipes, which the caller closes, as its stdout and
// stderr. It blocks while the template still imports or forks another, with t.mu held, and fails
// when the template has ended, or Stop was called.
func (t *Template) fork(c Command, pipes []*os.File) (*fork, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	socket, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, fmt.Errorf("proc: the socket of a template: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	unbind := context.AfterFunc(t.ctx, func() {
		socket.SetReadDeadline(time.Unix(1, 0))
		t.requests.SetWriteDeadline(time.Unix(1, 0)) // a long environment waits for its reader
	})
	err = t.send(c, append(slices.Clone(pipes), theirs))
	theirs.Close()
	f := &fork{template: t, socket: socket, answers: json.NewDecoder(socket)}
	var a forkAnswer
	if err == nil {
		err = f.answers.Decode(&a)
	}
	if !unbind() && err == nil {
		err = t.ctx.Err()
	}
	if err != nil {
		socket.Close()
		return nil, fmt.Errorf("proc: a template has ended: %w", err)
	}
	f.pid, f.bound = a.PID, a.Bound
	return f, nil
}

// send sends a request for a worker with the environment and processors of c, and with descriptors
// of files, which the caller closes. It blocks while the template reads nothing. t.mu is held.
func (t *Template) send(c Command, files []*os.File) error {
	environment := map[string]string{}
	for _, entry := range c.Env { // the later entry for a key counts
		if key, value, is := strings.Cut(entry, "="); is && key != "" {
			environment[bytesAsCharacters(key)] = bytesAsCharacters(value)
		}
	}
	text, err := json.Marshal(forkRequest{environment, append([]int{}, c.CPUs...)})
	if err != nil {
		return err
	}
	text = append(text, '\n')
	descriptors := make([]int, len(files))
	for i, f := range files {
		descriptors[i] = int(f.Fd())
	}
	n, _, err := t.requests.WriteMsgUnix(text, unix.UnixRights(descriptors...), nil)
	if err == nil {
		_, err = t.requests.Write(text[n:])
	}
	return err
}

// bytesAsCharacters returns a text of the characters whose numbers are the bytes of another one.
func bytesAsCharacters(text string) string {
	characters := make([]rune, len(text))
	for i := range len(text) {
		characters[i] = rune(text[i])
	}
	return string(characters)
}

// await implements child: it blocks until the worker has ended, which the template says or, once
// that has ended itself, the kernel.
func (f *fork) await() {
	var a forkAnswer
	if err := f.answers.Decode(&a); err == nil {
		f.end.Code, f.end.Signal = a.Code, syscall.Signal(a.Signal)
		return
	}
	<-f.template.gone
	f.orphan = true
	awaitExit(f.pid)
}

// reap implements child: it gives the number of the worker, which has ended, back to the kernel,
// and tells how it ended, without its number and times. Where the template is the worker's parent,
// the closed socket tells it to reap the worker. The lock of the Worker is held.
func (f *fork) reap() Exit {
	_ = f.socket.Close()
	if !f.orphan {
		f.template.recordReaped(f.pid)
		return f.end
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(f.pid, &status, 0, nil); err != nil {
		return Exit{Lost: fmt.Sprintf("ended, nobody knows how: %v", err)}
	}
	return exitOf(status)
}

// recordReaped records that the template was told to reap the process of a worker, and reaps it if
// the template has ended. It locks endedMu, and does not wait.
func (t *Template) recordReaped(pid int) {
	t.endedMu.Lock()
	t.ended = append(t.ended, pid)
	t.ended = t.ended[max(len(t.ended)-mostReaped, 0):]
	t.endedMu.Unlock()
	select {
	case <-t.gone:
		t.reapEnded()
	default:
	}
}

// reapEnded reaps the workers that the template was told to reap, and did not before it ended. It
// is called after that, locks endedMu, and does not wait.
func (t *Template) reapEnded() {
	t.endedMu.Lock()
	defer t.endedMu.Unlock()
	for _, pid := range t.ended {
		_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
	}
	t.ended = nil
}

// reapGroup reaps the processes of the process group of a worker, whose number is pgid, that have
// ended and whose parent this process has become, and those of earlier workers. It does not wait
// for any that still run: they are reaped with a later worker. It locks endedMu. A nil Template
// leaves none to this process.
func (t *Template) reapGroup(pgid int) {
	if t == nil {
		return
	}
	t.endedMu.Lock()
	defer t.endedMu.Unlock()
	left := t.groups[:0]
	for _, group := range append(t.groups, pgid) {
		pid, err := 1, error(nil)
		for pid > 0 && err == nil || err == syscall.EINTR {
			pid, err = syscall.Wait4(-group, nil, syscall.WNOHANG, nil)
		}
		if err == nil { // there are some that run
			left = append(left, group)
		}
	}
	t.groups = left
}
