package shorten_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/shorten"
)

// TestText cuts texts between two characters of several bytes, and of none that is in UTF-8.
func TestText(t *testing.T) {
	for _, c := range []struct {
		text string
		most int
		want string
	}{
		{"", 3, ""},
		{"abcdef", 6, "abcdef"},
		{"abcdefg", 6, "abc…"},
		{"äöü", 6, "äöü"},
		{"äöüß", 6, "ä…"},
		{"a😀😀", 8, "a😀…"},
		{"a😀😀", 7, "a…"},
		{strings.Repeat("\x80", 9), 6, "…"},
	} {
		if got := shorten.Text(c.text, c.most); got != c.want {
			t.Errorf("%q in %d bytes: %q, want %q", c.text, c.most, got, c.want)
		}
	}
}
