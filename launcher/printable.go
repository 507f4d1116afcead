package launcher

import (
	"strconv"
	"strings"
	"unicode"

	"github.com/shoal-ml/shoal/internal/pattern"
)

// Text from elsewhere, as it may be shown on a terminal: of messages of other hosts, and of events.
// The functions are pure; only sanitize changes something, its own message.

// colors matches what gives text a color on a terminal.
var colors = pattern.New("\x1b\\[[0-9;:]*m")

// printableText returns a text without colors, and with characters that control a terminal, but for
// tabs, as Go writes them in quotes. Text of other hosts goes to a terminal and into logs that are
// shown on one; a new line in such a text would look like a line of another worker.
func printableText(text string) string {
	if !strings.ContainsFunc(text, isControl) {
		return text
	}
	var b strings.Builder
	for _, r := range colors.ReplaceAllString(text, "") {
		if isControl(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isControl reports whether a terminal does something else with a character than show it.
func isControl(r rune) bool { return r != '\t' && !unicode.IsPrint(r) }

// sanitize makes all texts of a message printable, in place. decodeMessage calls it, before others
// have the message.
func (m *message) sanitize() {
	var texts []*string
	switch {
	case m.Offer != nil:
		texts = []*string{&m.Offer.Machine}
	case m.Line != nil:
		texts = []*string{&m.Line.Text}
	case m.Ended != nil:
		texts = []*string{&m.Ended.Lost, &m.Ended.Because, &m.Ended.Log}
		for i := range m.Ended.Tail {
			texts = append(texts, &m.Ended.Tail[i])
		}
	case m.Leaving != nil:
		texts = []*string{&m.Leaving.Why}
	case m.WhyNot != nil:
		for i := range m.WhyNot.List {
			texts = append(texts, &m.WhyNot.List[i].Policy, &m.WhyNot.List[i].Why)
		}
	case m.Over != nil:
		texts = []*string{&m.Over.Why}
	case m.Stays != nil:
		texts = []*string{&m.Stays.Why}
	}
	for _, text := range texts {
		*text = printableText(*text)
	}
}
