package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// TestGoOn says what to do after a full disk, and nothing after an error that the same command would meet again.
func TestGoOn(t *testing.T) {
	for _, c := range []struct {
		err  error
		dst  string
		want string
	}{
		{fmt.Errorf("write: %w", syscall.ENOSPC), "out/", "make room: what is done stays in out.partial"},
		{fmt.Errorf("write: %w", syscall.EDQUOT), "out", "make room"},
		{fmt.Errorf("write: %w", syscall.EIO), "out", ""},
		{fmt.Errorf("write: %w", syscall.ENOSPC), "s3://bucket/out", ""},
	} {
		got := ""
		if err := goOn(context.Background(), c.err, c.dst); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%v, %s: %q, want %q", c.err, c.dst, got, c.want)
		}
	}
}
