package proc

// Tail keeps the last lines of a stream, for the report about a worker that has failed. It is not
// safe for concurrent use: its owner locks it.
type Tail struct {
	lines []string // a ring of up to cap(lines) lines
	next  int      // position of the oldest line, once the ring is full
}

// NewTail returns a Tail of at most n lines.
func NewTail(n int) *Tail { return &Tail{lines: make([]string, 0, n)} }

// Add adds a line, in the place of the oldest if there are n already.
func (t *Tail) Add(line string) {
	if len(t.lines) < cap(t.lines) {
		t.lines = append(t.lines, line)
		return
	}
	t.lines[t.next] = line
	t.next = (t.next + 1) % len(t.lines)
}

// Lines returns a copy of the kept lines, oldest first.
func (t *Tail) Lines() []string {
	return append(append([]string{}, t.lines[t.next:]...), t.lines[:t.next]...)
}
