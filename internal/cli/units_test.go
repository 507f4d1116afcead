package cli

import (
	"strings"
	"testing"
)

// TestParseBytes checks which sizes are read, and what is said of others.
func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "4096": 4096, "1B": 1, "4KiB": 4096, "256MiB": 256 << 20, "2GiB": 2 << 30,
		"64kB": 64000, "3MB": 3e6, "1GB": 1e9,
		"8589934591GiB": 8589934591 << 30,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "no size", "KiB": "no size", "4 KiB": "no size", "4kib": "no size", "4K": "no size",
		"-4": "no size", "+4": "no size",
		"1.5MiB": "no size", "0x10": "no size", "1_000": "no size", "4KiBKiB": "no size",
		"8589934592GiB": "more than any machine", "9223372036854775808": "more than any machine",
	} {
		if got, err := ParseBytes(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseBytes(%q) = %d, %v, want an error with %q", text, got, err, want)
		}
	}
}

// TestFormatBytes checks which unit a size is written in.
func TestFormatBytes(t *testing.T) {
	for n, want := range map[int64]string{1: "1 B", 1000: "1000 B", 4096: "4 KiB", 3 << 20: "3 MiB",
		1 << 30: "1 GiB", 1025 << 10: "1025 KiB"} {
		if got := FormatBytes(n); got != want {
			t.Errorf("FormatBytes(%d) = %q, want %q", n, got, want)
		}
	}
}
