package cli

import (
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
)

// What may be written to a terminal. Any goroutine may call the functions.

// Visible returns a text in which what could do something to a terminal stands as Go writes it in
// quotes: errors and faults carry names that files and folders of others have. With lines, newlines
// and tabs stay, as in errors of several lines.
func Visible(text string, lines bool) string {
	var b strings.Builder
	for _, r := range text {
		if lines && (r == '\n' || r == '\t') || unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// WantsColor reports whether w is a terminal that shows colours, and NO_COLOR
// (https://no-color.org) is not set.
func WantsColor(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
