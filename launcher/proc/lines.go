package proc

import (
	"bytes"
	"time"
	"unicode/utf8"
)

const (
	maxLine       = 16 << 10    // a longer line is shown in pieces
	progressEvery = time.Second // how often a line that a carriage return overwrites is shown
)

// Lines cuts a stream of bytes into lines, as a terminal would show them. Text that a carriage
// return overwrites (a progress bar) is a line of its own at most once in progressEvery. Emit gets
// each line without its end and must not keep the slice. The zero value with Emit set is ready; it
// is not safe for concurrent use.
type Lines struct {
	Emit func(line []byte)

	held     []byte    // the line that has no end yet
	returned bool      // the cursor stands at the begin of held: more text overwrites held
	shown    time.Time // when an overwritten line was last shown
}

// Feed takes the next bytes of the stream, read at now.
func (l *Lines) Feed(p []byte, now time.Time) {
	for len(p) > 0 {
		i := bytes.IndexAny(p, "\r\n")
		if i < 0 {
			l.addText(p, now)
			return
		}
		l.addText(p[:i], now)
		if p[i] == '\r' {
			l.returned = true
		} else {
			l.flush()
		}
		p = p[i+1:]
	}
}

// Close emits what is left of a last line that has no end.
func (l *Lines) Close() {
	if len(l.held) > 0 {
		l.flush()
	}
}

// flush emits held as a line, and begins a new one.
func (l *Lines) flush() {
	l.Emit(l.held)
	l.held, l.returned = l.held[:0], false
}

// addText adds text to held, and emits pieces of maxLine bytes.
func (l *Lines) addText(p []byte, now time.Time) {
	if len(p) == 0 {
		return
	}
	if l.returned {
		l.dropHeld(now)
	}
	l.held = append(l.held, p...)
	for len(l.held) > maxLine {
		cut := wholeRunesLength(l.held[:maxLine])
		l.Emit(l.held[:cut])
		l.held = append(l.held[:0], l.held[cut:]...)
	}
}

// dropHeld drops held, which a carriage return has ended, and emits it at most once in
// progressEvery.
func (l *Lines) dropHeld(now time.Time) {
	if len(l.held) > 0 && now.Sub(l.shown) >= progressEvery {
		l.shown = now
		l.Emit(l.held)
	}
	l.held, l.returned = l.held[:0], false
}

// wholeRunesLength is how many bytes of b can be cut off without breaking a UTF-8 character that
// continues after b. It is pure.
func wholeRunesLength(b []byte) int {
	for back := 1; back < utf8.UTFMax; back++ {
		if c := b[len(b)-back]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-back:]) {
				return len(b) - back
			}
			break
		}
	}
	return len(b)
}
