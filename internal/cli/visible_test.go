package cli

import "testing"

// TestVisible checks which characters are escaped.
func TestVisible(t *testing.T) {
	for _, c := range []struct {
		text, want string
		lines      bool
	}{
		{"layers.0.w: 3 bytes “é”, it's", "layers.0.w: 3 bytes “é”, it's", false},
		{"\x1b[2J\x1b]0;x\a.safetensors", `\x1b[2J\x1b]0;x\a.safetensors`, true},
		{"a\r\nb\tc", `a\r\nb\tc`, false},
		{"a\r\nb\tc", "a\\r\nb\tc", true},
		{"\u009b31m\u202e", `\u009b31m\u202e`, true},
	} {
		if got := Visible(c.text, c.lines); got != c.want {
			t.Errorf("visible(%q, %v) = %q, want %q", c.text, c.lines, got, c.want)
		}
	}
}
