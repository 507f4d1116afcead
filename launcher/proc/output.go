package proc

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"
)

// tailLines is how many last lines of output the report about a failed worker has.
const tailLines = 10

// Console shows the lines of all workers of a run, each after "[rank] ". Lines are written whole.
// It is safe for concurrent use; a writer that blocks blocks whoever writes a line.
type Console struct {
	mu       sync.Mutex // held while a line is written to out or err
	out, err io.Writer  // where lines of stdout and of stderr go
	width    int        // digits of the highest rank
	color    bool       // ranks are coloured

	// Forward is called with every line of a worker too, on the goroutine that reads the worker's
	// output; nil = it is not. It is set before the first worker starts.
	Forward func(rank int, stderr bool, line string)
}

// NewConsole returns a console for n workers, at least one. Nobody closes out and err.
func NewConsole(out, err io.Writer, n int, color bool) *Console {
	return &Console{out: out, err: err, width: len(strconv.Itoa(n - 1)), color: color}
}

// rankColors are the ANSI foregrounds that read well on both dark and light grounds.
var rankColors = [...]int{36, 33, 32, 35, 34, 31}

// rankPrefix is "[2] ", as wide as that of the highest rank.
func (c *Console) rankPrefix(rank int) string {
	p := fmt.Sprintf("[%*d]", c.width, rank)
	if c.color {
		p = fmt.Sprintf("\x1b[%dm%s\x1b[0m", rankColors[rank%len(rankColors)], p)
	}
	return p + " "
}

// writeLine writes a prefix and a line to w, whole, and blocks while w does.
func (c *Console) writeLine(w io.Writer, prefix string, line []byte) {
	text := make([]byte, 0, len(prefix)+len(line)+1)
	text = append(append(append(text, prefix...), line...), '\n')
	c.mu.Lock()
	defer c.mu.Unlock()
	w.Write(text) // when the console itself is gone, nobody can be told
}

// mostHeld is how many bytes of a line that has no end yet are kept from the log.
const mostHeld = 1 << 20

// Output takes the output of one worker: all bytes go to a log, lines to the console, and the last
// lines to a tail. In the log, too, a line of one stream is never within a line of the other. It is
// safe for concurrent use, until Close.
type Output struct {
	console *Console
	rank    int
	prefix  string   // what stands before each line on the console
	log     *os.File // open until Close

	mu       sync.Mutex // guards what follows, and is held while the log is written
	tail     *Tail
	discards bool  // the console gets no more lines
	logErr   error // first error of writing the log, after which nothing is written to it
	// open is the stream whose line in the log has no end yet; nil = the log ends with a line.
	open io.Reader
}

// NewOutput makes an Output whose log is written to path, which must not exist yet. The caller
// closes it. Other programs may append lines to the log.
func NewOutput(c *Console, rank int, path string) (*Output, error) {
	log, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("proc: log of rank %d: %w", rank, err)
	}
	return &Output{console: c, rank: rank, prefix: c.rankPrefix(rank), log: log,
		tail: NewTail(tailLines)}, nil
}

// LogPath is the file that holds the whole output.
func (o *Output) LogPath() string { return o.log.Name() }

// Tail returns a copy of the last lines of the output.
func (o *Output) Tail() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tail.Lines()
}

// Mute keeps later output from the console. The log still gets it.
func (o *Output) Mute() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.discards = true
}

// Close closes the log and returns the first error of writing it. It is called once, when nothing
// reads the worker's output any more; LogPath and Tail still answer then.
func (o *Output) Close() error {
	err := o.log.Close()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.logErr != nil {
		err = o.logErr
	}
	return err
}

// copyFrom copies one stream of the worker to the log, the console and the tail, and blocks until
// the stream ends, which its caller closes. to is the console's writer for its lines. Each stream
// has a goroutine of its own.
func (o *Output) copyFrom(r io.Reader, to io.Writer) {
	lines := Lines{Emit: func(line []byte) {
		o.mu.Lock()
		o.tail.Add(string(line))
		discards := o.discards
		o.mu.Unlock()
		if discards {
			return
		}
		o.console.writeLine(to, o.prefix, line)
		if o.console.Forward != nil {
			o.console.Forward(o.rank, to == o.console.err, string(line))
		}
	}}
	buf := make([]byte, 32<<10)
	var held []byte // the end of what was read, which the log has not got yet
	for {
		n, err := r.Read(buf)
		held = append(held, buf[:n]...)
		lines.Feed(buf[:n], time.Now())
		if err != nil {
			o.writeLog(r, held)
			lines.Close()
			return
		}
		end := bytes.LastIndexAny(held, "\r\n") + 1
		if len(held)-end > mostHeld {
			end = wholeRunesLength(held)
		}
		o.writeLog(r, held[:end])
		held = append(held[:0], held[end:]...)
	}
}

// writeLog writes bytes of a stream to the log, after the end of a line of the other stream that
// has none, such as a progress bar. If that fails, it says so once on the console, and the worker
// goes on: it need not suffer from a full disk of the launcher. It locks o.mu.
func (o *Output) writeLog(stream io.Reader, p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.logErr != nil || len(p) == 0 {
		return
	}
	text := p
	if o.open != nil && o.open != stream {
		text = append([]byte{'\n'}, p...)
	}
	if o.open = nil; p[len(p)-1] != '\n' {
		o.open = stream
	}
	if _, o.logErr = o.log.Write(text); o.logErr != nil {
		o.console.writeLine(o.console.err, o.prefix,
			fmt.Appendf(nil, "shoal: the log of this worker stops here: %v", o.logErr))
	}
}

// WorkerLine writes a line of, or about, a worker whose output is not read here, as if it were. It
// may block, as the writer does.
func (c *Console) WorkerLine(rank int, stderr bool, text string) {
	to := c.out
	if stderr {
		to = c.err
	}
	c.writeLine(to, c.rankPrefix(rank), []byte(text))
}

// Note writes a line of shoal's own between the workers' lines. It may block, as the writer does.
func (c *Console) Note(text string) { c.writeLine(c.err, "shoal: ", []byte(text)) }
