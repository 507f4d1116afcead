package cli

import (
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
)

// Visible writes what would do something to a terminal as Go does in quotes: errors and faults
// carry names that files and folders of others have. Lines and tabs stay if they may, as in errors
// of several lines.
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

// Colorful reports whether w is a terminal that wants colours (https://no-color.org).
func Colorful(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
