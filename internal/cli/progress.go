package cli

import (
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// progressFrom is how long a command runs before it says how far it is.
	progressFrom = 2 * time.Second
	// terminalEvery and lineEvery are the times from one report to the next, on a terminal and
	// where there is none.
	terminalEvery, lineEvery = 100 * time.Millisecond, 10 * time.Second
)

// Progress says how far a command is, once that has taken two seconds: on a terminal in one line,
// which it writes anew, elsewhere in a line every ten seconds. One goroutine at a time calls its
// methods, which print and so may wait for the terminal.
type Progress struct {
	out      io.Writer
	terminal bool
	now      func() time.Time
	started  time.Time // of the command
	what     string    // what is done now
	began    time.Time // of that
	shown    time.Time // the newest report; zero = there was none
}

// NewProgress returns the Progress of a command that begins now and prints it to out.
func NewProgress(out io.Writer) *Progress {
	p := &Progress{out: out, now: time.Now, started: time.Now()}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// Bytes says that so many of all bytes are done of what the command does now, such as "moving".
func (p *Progress) Bytes(what string, done, all int64) {
	p.show(what, float64(done)/1e9, float64(all)/1e9, "%.2f of %.2f GB, %.2f GB/s")
}

// Count says that so many of all are done of what the command does now, such as "playing steps".
func (p *Progress) Count(what string, done, all uint64) {
	p.show(what, float64(done), float64(all), "%.0f of %.0f, %.0f/s")
}

// show says how much is done, in a format of that, of all there is, and of the rate, where it is
// time to say so.
func (p *Progress) show(what string, done, all float64, format string) {
	now, every := p.now(), lineEvery
	if p.terminal {
		every = terminalEvery
	}
	if p.what == "" { // the first thing that it does
		p.what, p.began = what, p.started
	} else if what != p.what {
		p.what, p.began = what, now
	}
	if now.Sub(p.started) < progressFrom || now.Sub(p.shown) < every || done <= 0 {
		return
	}
	p.shown = now
	rate := done / max(now.Sub(p.began).Seconds(), 1e-3)
	text := fmt.Sprintf("%s: %.1f %%, "+format+", %.0f s left", what, 100*done/all, done, all, rate,
		(all-done)/rate)
	if p.terminal {
		// Where the terminal is too narrow, the text ends there: of two lines one would stay.
		fmt.Fprintf(p.out, "\r\x1b[K\x1b[?7l%s\x1b[?7h", text)
		return
	}
	fmt.Fprintf(p.out, "shoal: %s\n", text)
}

// Clear erases the line on a terminal. The command calls it before it prints anything else.
func (p *Progress) Clear() {
	if p.terminal && !p.shown.IsZero() {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	p.shown = time.Time{}
}
