package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestNextStepError checks what is said after a full disk, and that nothing is said after an error
// that the same command would meet again.
func TestNextStepError(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("out.partial", 0o777); err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for _, c := range []struct {
		err  error
		dst  string
		want string
	}{
		{fmt.Errorf("mkdir: %w", syscall.ENOSPC), "other",
			"make room, and run the same command again"},
		{fmt.Errorf("read: %w", context.Canceled), "out",
			"what is done stays in out.partial; the same command goes on there"},
		{fmt.Errorf("read: %w", context.Canceled), "other", "nothing was written yet"},
		{fmt.Errorf("read: %w", context.Canceled), "s3://bucket/out", "begins anew"},
		{fmt.Errorf("write: %w", syscall.ENOSPC), "out/",
			"make room: what is done stays in out.partial"},
		{fmt.Errorf("write: %w", syscall.EDQUOT), "out", "make room"},
		{fmt.Errorf("write: %w", syscall.EIO), "out", ""},
		{fmt.Errorf("write: %w", syscall.ENOSPC), "s3://bucket/out", ""},
	} {
		got, ctx := "", t.Context()
		if errors.Is(c.err, context.Canceled) {
			ctx = stopped
		}
		if err := nextStepError(ctx, c.err, c.dst); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%v, %s: %q, want %q", c.err, c.dst, got, c.want)
		}
	}
}
