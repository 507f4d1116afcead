package snapshot

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// TestFullDiskHint asks for fewer checkpoints only where several are kept.
func TestFullDiskHint(t *testing.T) {
	full := fmt.Errorf("write: %w", syscall.ENOSPC)
	for keep, fewer := range map[int]bool{1: false, 2: true} {
		hint := fullDiskHint(full, keep)
		if !strings.Contains(hint, "make room") || strings.Contains(hint, "keep fewer") != fewer {
			t.Errorf("keep=%d: %q", keep, hint)
		}
	}
	if hint := fullDiskHint(syscall.EIO, 2); hint != "" {
		t.Errorf("of another error: %q", hint)
	}
}
