// Package shorten cuts texts that are too long for a message.
package shorten

import "unicode/utf8"

// more stands in the place of what is cut off.
const more = "…"

// Text returns a text of so many bytes at most, with "…" in the place of what is too much; no
// character is cut. There must be room for the "…". It is pure, so any goroutine may call it.
func Text(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most - len(more)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}
