package main

import (
	"strconv"
	"strings"
	"unicode"
)

// visible writes what would do something to a terminal as Go does in quotes: errors and faults
// carry names that files and folders of others have. Lines and tabs stay if they may, as in errors
// of several lines.
func visible(text string, lines bool) string {
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
