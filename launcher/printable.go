package launcher

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// colors matches what gives text a color on a terminal.
var colors = regexp.MustCompile("\x1b\\[[0-9;:]*m")

// printable leaves colors out, and writes whatever else would do something to a terminal as Go does
// in quotes, but for tabs. Text of other hosts goes to a terminal and into logs that are shown on
// one; a new line in it would look like a line of another worker.
func printable(text string) string {
	if !strings.ContainsFunc(text, acts) {
		return text
	}
	var b strings.Builder
	for _, r := range colors.ReplaceAllString(text, "") {
		if acts(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// acts reports whether a terminal does something else with a character than show it.
func acts(r rune) bool { return r != '\t' && !unicode.IsPrint(r) }

// sanitize makes all texts of a note fit to be shown.
func (n *note) sanitize() {
	var texts []*string
	switch {
	case n.Offer != nil:
		texts = []*string{&n.Offer.Machine}
	case n.Line != nil:
		texts = []*string{&n.Line.Text}
	case n.Ended != nil:
		texts = []*string{&n.Ended.Lost, &n.Ended.Because, &n.Ended.Log}
		for i := range n.Ended.Tail {
			texts = append(texts, &n.Ended.Tail[i])
		}
	case n.Leaving != nil:
		texts = []*string{&n.Leaving.Why}
	case n.Over != nil:
		texts = []*string{&n.Over.Why}
	case n.Stays != nil:
		texts = []*string{&n.Stays.Why}
	}
	for _, text := range texts {
		*text = printable(*text)
	}
}
