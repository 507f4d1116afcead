package proc

import (
	"strings"
	"testing"
)

// The error on another system says what works there.
func TestNeedsLinux(t *testing.T) {
	text := needsLinuxError("darwin").Error()
	for _, want := range []string{"needs Linux, and this is darwin", "memfd", "eventfd",
		"works    shoal version", "--dry-run", "python3 train.py", "container"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
