package proc

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"
)

// tailLines is how much of its output a failed worker is reported with.
const tailLines = 10

// Console shows the lines of all workers of a run, each behind "[rank] ". Lines are written whole.
type Console struct {
	mu       sync.Mutex
	out, err io.Writer
	width    int
	color    bool

	// also gets every line of a worker; nil = nobody does
	Forward func(rank int, stderr bool, line string)
}

// NewConsole returns a console for n workers.
func NewConsole(out, err io.Writer, n int, color bool) *Console {
	return &Console{out: out, err: err, width: len(strconv.Itoa(n - 1)), color: color}
}

// rankColors are the ANSI foregrounds that read well on both dark and light grounds.
var rankColors = [...]int{36, 33, 32, 35, 34, 31}

// prefix is "[2] ", as wide as that of the highest rank.
func (c *Console) prefix(rank int) string {
	p := fmt.Sprintf("[%*d]", c.width, rank)
	if c.color {
		p = fmt.Sprintf("\x1b[%dm%s\x1b[0m", rankColors[rank%len(rankColors)], p)
	}
	return p + " "
}

func (c *Console) write(w io.Writer, prefix string, line []byte) {
	text := make([]byte, 0, len(prefix)+len(line)+1)
	text = append(append(append(text, prefix...), line...), '\n')
	c.mu.Lock()
	defer c.mu.Unlock()
	w.Write(text) // nobody to tell when the console itself is gone
}

// Output is where the output of one worker goes: all of it to its log, its lines to the console,
// the last to the tail.
type Output struct {
	console *Console
	rank    int
	prefix  string
	log     *os.File

	mu       sync.Mutex
	tail     *Tail
	discards bool
	logErr   error
}

// NewOutput writes the log to path, which must not exist yet. Others may append lines of their own
// to it.
func NewOutput(c *Console, rank int, path string) (*Output, error) {
	log, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("proc: log of rank %d: %w", rank, err)
	}
	return &Output{console: c, rank: rank, prefix: c.prefix(rank), log: log,
		tail: NewTail(tailLines)}, nil
}

// LogPath is the file that holds the whole output.
func (o *Output) LogPath() string { return o.log.Name() }

// Tail returns the last lines.
func (o *Output) Tail() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tail.Lines()
}

// Mute keeps what comes from now on from the console; the log has it.
func (o *Output) Mute() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.discards = true
}

// Close closes the log and returns the first error of writing it.
func (o *Output) Close() error {
	err := o.log.Close()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.logErr != nil {
		err = o.logErr
	}
	return err
}

// copyFrom carries one stream until it ends.
func (o *Output) copyFrom(r io.Reader, to io.Writer) {
	lines := Lines{Emit: func(line []byte) {
		o.mu.Lock()
		o.tail.Add(string(line))
		discards := o.discards
		o.mu.Unlock()
		if discards {
			return
		}
		o.console.write(to, o.prefix, line)
		if o.console.Forward != nil {
			o.console.Forward(o.rank, to == o.console.err, string(line))
		}
	}}
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		o.writeLog(buf[:n])
		lines.Feed(buf[:n], time.Now())
		if err != nil {
			lines.Close()
			return
		}
	}
}

// writeLog says once on the console that the log stops; the worker need not suffer from a full disk
// of ours.
func (o *Output) writeLog(p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.logErr != nil {
		return
	}
	if _, o.logErr = o.log.Write(p); o.logErr != nil {
		o.console.write(o.console.err, o.prefix,
			fmt.Appendf(nil, "shoal: the log of this worker stops here: %v", o.logErr))
	}
}

// Line writes a line of a worker on another host.
func (c *Console) Line(rank int, stderr bool, text string) {
	to := c.out
	if stderr {
		to = c.err
	}
	c.write(to, c.prefix(rank), []byte(text))
}

// Note writes a line of shoal's own between the workers' lines.
func (c *Console) Note(text string) { c.write(c.err, "shoal: ", []byte(text)) }
