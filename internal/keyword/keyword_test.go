package keyword_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/keyword"
)

// TestOf has the words of some names, none of which ends a word of a key.
func TestOf(t *testing.T) {
	for name, want := range map[string]string{"": "", "train-2_B": "train-2_B", "a.b": "a=2Eb",
		"a=2Eb": "a=3D2Eb", "é*>": "=C3=A9=2A=3E"} {
		if got := keyword.Of(name); got != want {
			t.Errorf("the word of %q is %q, want %q", name, got, want)
		}
	}
	for b := range 256 {
		word := keyword.Of(string([]byte{byte(b)}))
		if strings.TrimLeft(word, keyword.Plain+"=") != "" {
			t.Errorf("the word of byte %d is %q", b, word)
		}
	}
}
