package scenario

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/spelling"
)

// line is one line of a scenario that is being read, word by word, by one call of Parse. The first
// thing that is wrong stays in err, and all that is read afterwards is 0.
type line struct {
	number int // in the file, from 1
	words  []string
	next   int // index of the word that is read next
	err    error
}

// failf notes what is wrong with the line, unless something is already.
func (l *line) failf(format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf("line %d: %s", l.number, fmt.Sprintf(format, args...))
		l.next = len(l.words)
	}
}

// hasNext reports whether the line goes on.
func (l *line) hasNext() bool { return l.next < len(l.words) }

// peek returns the next word, which stays the next; "" at the end.
func (l *line) peek() string {
	if !l.hasNext() {
		return ""
	}
	return l.words[l.next]
}

// nextWord returns the next word. what says what it should be, with an example.
func (l *line) nextWord(what string) string {
	if !l.hasNext() {
		l.failf("after %q comes %s", l.words[len(l.words)-1], what)
		return ""
	}
	l.next++
	return l.words[l.next-1]
}

// nextOf returns the next word, which must be one of some.
func (l *line) nextOf(known ...string) string {
	word := l.nextWord(listText(known))
	if l.err == nil && !slices.Contains(known, word) {
		l.failf("%q cannot stand here%s: it takes %s", word, spelling.Meant(word, known),
			listText(known))
		return ""
	}
	return word
}

// listText returns words as people list them, such as "a, b or c".
func listText(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// unit is the end of a quantity and what it stands for.
type unit struct {
	name  string
	value float64
}

// The units of quantities: seconds, bytes, bytes a second, parts, factors and plain numbers.
var (
	times = []unit{{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}}
	sizes = []unit{{"B", 1}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"KiB", 1 << 10},
		{"MiB", 1 << 20}, {"GiB", 1 << 30}}
	rates = []unit{{"kbit", 1e3 / 8}, {"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8}, {"kbit/s", 1e3 / 8},
		{"Mbit/s", 1e6 / 8}, {"Gbit/s", 1e9 / 8}}
	part  = []unit{{"%", 0.01}}
	fold  = []unit{{"x", 1}}
	plain = []unit{{"", 1}}
)

// maxQuantity bounds every quantity, so that no sum of them overflows.
const maxQuantity = 1e15

// readQuantity reads the next word as a number with one of some units. what says what it is, with
// an example.
func (l *line) readQuantity(what string, units []unit) float64 {
	return l.parseQuantity(l.nextWord(what), what, units)
}

// parseQuantity returns the number that a word of the line is, with one of some units, in the unit
// of value 1. what is as in readQuantity.
func (l *line) parseQuantity(word, what string, units []unit) float64 {
	if l.err != nil {
		return 0
	}
	digits := strings.TrimRight(word, "BkKMGTibtsumnhx%/")
	for _, u := range units {
		if word != digits+u.name {
			continue
		}
		x, err := strconv.ParseFloat(digits, 64)
		if err != nil || math.IsNaN(x) || strings.ContainsAny(digits, "xXpP_") {
			break
		}
		if x < 0 || x*u.value > maxQuantity {
			l.failf("%s cannot be: it takes a number from 0 to %g", word, maxQuantity)
			return 0
		}
		return x * u.value
	}
	l.failf("%q is not %s", word, what)
	return 0
}

// readWhole reads the next word as a whole number from 1 to most. what says what it is, with an
// example.
func (l *line) readWhole(what string, most uint64) uint64 {
	return l.parseWhole(l.nextWord(what), what, most)
}

// parseWhole returns the whole number from 1 to most that a word of the line is.
func (l *line) parseWhole(word, what string, most uint64) uint64 {
	if l.err != nil {
		return 0
	}
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil || n < 1 || n > most {
		l.failf("%q is not %s: it takes a whole number from 1 to %d", word, what, most)
		return 0
	}
	return n
}

// expectEnd notes that the line should have ended.
func (l *line) expectEnd() {
	if l.hasNext() {
		l.failf("%q is too much", l.peek())
	}
}
