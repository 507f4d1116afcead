package jobs

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A terminal that is drawn on, for shoal top. One goroutine uses it, that of the command.

// terminal is a terminal that shows a screen in place of what was there, which close brings back.
type terminal struct {
	out    io.Writer
	file   *os.File // the same
	keys   *os.File // nil = no keys come
	before *unix.Termios
	closed bool
}

// openTerminal takes the terminal that out is; nil = it is none that can be drawn on. keys is where
// keys come from. The caller closes it.
func openTerminal(out io.Writer, keys *os.File) *terminal {
	file, ok := out.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(file.Fd()), getTermios); err != nil {
		return nil
	}
	t := &terminal{out: out, file: file}
	if before, err := unix.IoctlGetTermios(int(keys.Fd()), getTermios); err == nil {
		now := *before
		now.Lflag &^= unix.ICANON | unix.ECHO
		if unix.IoctlSetTermios(int(keys.Fd()), setTermios, &now) == nil {
			t.keys, t.before = keys, before
		}
	}
	fmt.Fprint(out, "\x1b[?1049h\x1b[?25l")
	return t
}

// close brings back what the terminal showed before. A second call does nothing.
func (t *terminal) close() {
	if t.closed {
		return
	}
	t.closed = true
	if t.before != nil {
		_ = unix.IoctlSetTermios(int(t.keys.Fd()), setTermios, t.before)
	}
	fmt.Fprint(t.out, "\x1b[?25h\x1b[?1049l")
}

// size returns the columns and rows of the terminal.
func (t *terminal) size() (width, height int) {
	w, err := unix.IoctlGetWinsize(int(t.file.Fd()), unix.TIOCGWINSZ)
	if err != nil || w.Col == 0 || w.Row == 0 {
		return 80, 24
	}
	return int(w.Col), int(w.Row)
}

// draw shows a text of lines.
func (t *terminal) draw(text string) {
	text = strings.ReplaceAll(text, "\n", "\x1b[K\r\n")
	fmt.Fprint(t.out, "\x1b[H"+text+"\x1b[K\x1b[J")
}

// waitKey waits for the key q for a time, in parts in which it looks whether ctx has ended. An
// error is the cause of that.
func (t *terminal) waitKey(ctx context.Context, wait time.Duration) (quit bool, err error) {
	const part = 100 * time.Millisecond
	for end := time.Now().Add(wait); time.Now().Before(end); {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		var list []unix.PollFd
		if t.keys != nil {
			list = []unix.PollFd{{Fd: int32(t.keys.Fd()), Events: unix.POLLIN}}
		}
		n, err := unix.Poll(list, int(part/time.Millisecond))
		if err != nil || n == 0 {
			continue
		}
		key := make([]byte, 16)
		n, err = t.keys.Read(key)
		if err != nil || n == 0 {
			t.keys = nil // the terminal of the keys is gone
			continue
		}
		if strings.ContainsAny(string(key[:n]), "qQ\x04") {
			return true, nil
		}
	}
	return false, nil
}
