// Package policies runs policies that users have written as programs. A program gets a line of JSON
// for each decision and answers with one, as docs/formats/policy.md says. It runs beside the job,
// where that is led, and can neither hold it up nor end it: who answers late or wrong has decided
// nothing.
package policies

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/sense"
)

// The functions without a receiver in this file are for any goroutine: commands look at policies
// before a job begins, and the launcher starts them on the host that leads.

const (
	// AnswerTime is how long a decision may take beside a job that runs.
	AnswerTime = 50 * time.Millisecond
	// startTime is how long a program may take until its first line: Python reads its modules.
	startTime = 20 * time.Second
	// maxMemory is how much private memory a program may map writably, in bytes, against accidents.
	// Address space that is only reserved, as the runtimes of languages do, does not count.
	maxMemory = 1 << 30
	// lowPriority is the niceness of a program: the job comes first.
	lowPriority = 10
)

// Program is a running policy. It implements decide.Policy; Decide panics with an error where the
// program does not answer as it must, as a policy in Go panics that is wrong: package act turns
// both into a decision to leave things as they are. One goroutine calls its methods.
type Program struct {
	hello
	path    string
	pid     int                // number of its process
	within  time.Duration      // each decision may take so long
	in      io.WriteCloser     // the program reads it
	kill    context.CancelFunc // ends the program with all that it has started; it does not wait
	lines   <-chan line        // what it answers; closed when it has ended
	tick    uint64             // number of the newest request
	pending bool               // a request was sent, and its answer has not come yet
	about   basis              // of the newest request
}

// basis is what an answer goes by: with another one it says nothing of the job as it is.
type basis struct {
	change uint64 // number of the newest change of the setting
	size   int    // members
}

// line is a line that a program has written, or why there is none.
type line struct {
	text []byte
	err  error
}

// Command returns the words that run the policy in a file: a Python file by the interpreter python,
// another one by itself.
func Command(path, python string) []string {
	if strings.HasSuffix(path, ".py") {
		return []string{python, "-m", "shoal._policy_program", "serve", path}
	}
	if !strings.ContainsRune(path, filepath.Separator) {
		path = "." + string(filepath.Separator) + path // no program of the PATH is meant
	}
	return []string{path}
}

// CheckFile looks at the file of a policy, and returns what is wrong with it, in words that begin
// with its path; nil = nothing.
func CheckFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("%s cannot be read: %w", path, err)
	case info.IsDir():
		return fmt.Errorf("%s is a folder: name a file in it", path)
	case !strings.HasSuffix(path, ".py") && info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is no program: make it one with chmod +x, or end its name "+
			"with .py if it is in Python", path)
	}
	return nil
}

// Start starts a program, by the words that run it, in the environment env without the variables of
// shoal, and waits until it has said what it decides about. A decision may take up to within.
// Errors of the program go to stderr. A goroutine of g reads what it writes; the end of g's context
// ends the program with all that it has started, and so does its own end. By proc.RunVariable in
// env, a sweep of the run finds it when the launcher is killed.
func Start(g *group.Group, command, env []string, within time.Duration,
	stderr io.Writer) (*Program, error) {
	p := &Program{path: command[len(command)-1], within: within}
	failed := func(err error) (*Program, error) {
		return nil, fmt.Errorf("the policy %s cannot run: %w", p.path, err)
	}
	ctx, cancel := context.WithCancel(g.Context())
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Env = withoutShoalVariables(env)
	c.Stderr = stderr
	c.WaitDelay = time.Second
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	in, err := c.StdinPipe()
	if err != nil {
		cancel()
		return failed(err)
	}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		cancel()
		return failed(ExplainStart(err, p.path))
	}
	// a program that cannot be bounded runs all the same
	p.pid = c.Process.Pid
	_ = unix.Setpriority(unix.PRIO_PROCESS, p.pid, lowPriority)
	limitMemory(p.pid)
	lines := make(chan line, 1)
	p.in, p.kill, p.lines = in, cancel, lines
	g.Go("policy "+p.path, func(ctx context.Context) error {
		defer cancel()
		// what the program has started in a session of its own may keep the pipe open
		context.AfterFunc(ctx, func() { _ = out.Close() })
		readLines(ctx, out, lines)
		cancel()
		// Wait has Cancel run or not where the program has ended by itself, and then what it has
		// started would stay. Its number is its own until Wait.
		_ = c.Cancel()
		_ = c.Wait() // how it ended was said by its last line, or by none
		return nil
	})
	first, err := p.awaitLine(time.Now().Add(startTime), startTime)
	if err == nil {
		p.hello, err = readHello(first)
	}
	if err != nil {
		cancel()
		return failed(err)
	}
	return p, nil
}

// ExplainStart returns an error of starting the program in a file with what to do, where the system
// does not say that: a script begins with a line that names its interpreter. It looks at the file.
func ExplainStart(err error, path string) error {
	_, missing := os.Stat(path)
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("%w: let a script begin with a line such as #!/bin/sh", err)
	case errors.Is(err, syscall.ENOENT) && missing == nil:
		return fmt.Errorf("%w: the file is there, so what its first line names behind #! is not; "+
			"that line must end as lines do on Linux", err)
	}
	return err
}

// withoutShoalVariables returns the variables of an environment but those of shoal, SHOAL_*, of
// which it keeps only the mark of the run.
func withoutShoalVariables(env []string) (list []string) {
	for _, pair := range env {
		if !strings.HasPrefix(pair, "SHOAL_") || strings.HasPrefix(pair, proc.RunVariable+"=") {
			list = append(list, pair)
		}
	}
	return list
}

// readLines sends the lines that a program writes to lines, until it ends, ctx does, or a line is
// too long, and then closes lines. Of lines that nobody has taken it keeps the newest: an answer
// that nobody waits for any more is worth nothing.
func readLines(ctx context.Context, out io.Reader, lines chan line) {
	defer close(lines)
	put := func(l line) {
		select {
		case <-lines:
		default:
		}
		select {
		case lines <- l:
		case <-ctx.Done():
		}
	}
	s := bufio.NewScanner(out)
	s.Buffer(make([]byte, 0, 4<<10), maxLine)
	for s.Scan() {
		put(line{text: append([]byte(nil), s.Bytes()...)})
	}
	if errors.Is(s.Err(), bufio.ErrTooLong) {
		put(line{err: fmt.Errorf("it wrote a line of more than %d bytes", maxLine)})
	}
}

// errEnded says that the program runs no more.
var errEnded = errors.New("it has ended; what it wrote to stderr says why")

// awaitLine returns the next line of the program, which it waits for until a time; limit says for
// the error how long that is in all.
func (p *Program) awaitLine(until time.Time, limit time.Duration) ([]byte, error) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case l, ok := <-p.lines:
		if !ok {
			return nil, errEnded
		}
		return l.text, l.err
	case <-timer.C:
		// what it has started may have its output open, so that no end of that comes
		if HasEnded(p.pid) {
			p.kill()
			return nil, errEnded
		}
		return nil, fmt.Errorf("it has not answered within %v", limit)
	}
}

// Name is the name that the program has given itself.
func (p *Program) Name() string { return p.hello.Name }

// Levers are the levers that the program has named.
func (p *Program) Levers() []string { return p.hello.Levers }

// Decide asks the program, and waits for its answer for as long as that may take. A program that
// has not answered the request before is not asked again until it has. That answer counts if
// setting and size of the job are as they were; else it is dropped. A program that does not read
// requests is ended. The twin is not at hand for programs.
func (p *Program) Decide(o sense.Observation, _ decide.Twin, state []byte) (decide.Decision,
	[]byte) {
	d, next, err := p.requestDecision(o, state)
	if err != nil {
		panic(fmt.Errorf("the policy %s: %w", p.path, err))
	}
	return d, next
}

// requestDecision sends a request, unless the one before is not answered, and returns the answer to
// it. Where that was about another setting or size, it is dropped, and the program asked anew.
func (p *Program) requestDecision(o sense.Observation, state []byte) (d decide.Decision,
	next []byte, err error) {
	until := time.Now().Add(p.within)
	now := basis{o.Setting.Number, o.Size}
	for {
		if !p.pending {
			if err := p.request(o, state, until); err != nil {
				return d, nil, err
			}
			p.pending, p.about = true, now
		}
		text, err := p.awaitLine(until, p.within)
		if err != nil {
			return d, nil, err
		}
		d, next, ours, err := readAnswer(text, p.tick, o)
		if !ours {
			continue
		}
		p.pending = false
		if err != nil || p.about == now {
			return d, next, err
		}
	}
}

// request sends a new request; see write for how long it waits.
func (p *Program) request(o sense.Observation, state []byte, until time.Time) error {
	p.tick++
	b, err := json.Marshal(newRequest(p.tick, o, state))
	if err != nil {
		return err
	}
	return p.write(append(b, '\n'), until)
}

// write gives the program a request, and waits until a time for room in the pipe, where a program
// has left requests that it answers without reading them. Half a request would spoil the next, so
// the program is ended then. It is not where nothing was written: this process may have been held
// up until that time.
func (p *Program) write(b []byte, until time.Time) error {
	if pipe, is := p.in.(interface{ SetWriteDeadline(time.Time) error }); is {
		_ = pipe.SetWriteDeadline(until) // pipes have deadlines
	}
	switch n, err := p.in.Write(b); {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded) && n == 0:
		return fmt.Errorf("it could not be asked within %v", p.within)
	case errors.Is(err, os.ErrDeadlineExceeded):
		p.kill()
		return errors.New("it does not read what it is asked, and was ended")
	}
	return errEnded
}
