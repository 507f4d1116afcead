package cli

import (
	"strings"
	"testing"
	"time"
)

// What takes less than two seconds says nothing; then a terminal has one line, and a file a line
// every ten seconds.
func TestProgress(t *testing.T) {
	for _, x := range []struct {
		terminal bool
		want     string
	}{
		{true, "\r\x1b[K\x1b[?7lmoving: 50.0 %, 1.00 of 2.00 GB, 0.50 GB/s, 2 s left\x1b[?7h" +
			"\r\x1b[K\x1b[?7lmoving: 75.0 %, 1.50 of 2.00 GB, 0.60 GB/s, 1 s left\x1b[?7h" +
			"\r\x1b[K\x1b[?7lplaying steps: 20.0 %, 400 of 2000, 40/s, 40 s left\x1b[?7h" +
			"\r\x1b[K"},
		{false, "shoal: moving: 50.0 %, 1.00 of 2.00 GB, 0.50 GB/s, 2 s left\n" +
			"shoal: playing steps: 20.0 %, 400 of 2000, 40/s, 40 s left\n"},
	} {
		var out strings.Builder
		now := time.Unix(1e9, 0)
		p := NewProgress(&out)
		p.terminal, p.now, p.started = x.terminal, func() time.Time { return now }, now
		p.Clear() // nothing is shown yet
		now = now.Add(time.Second)
		p.Bytes("moving", 5e8, 2e9)
		now = now.Add(time.Second)
		p.Bytes("moving", 1e9, 2e9)
		now = now.Add(50 * time.Millisecond)
		p.Bytes("moving", 11e8, 2e9) // too soon for either
		now = now.Add(450 * time.Millisecond)
		p.Bytes("moving", 15e8, 2e9)
		p.Count("playing steps", 0, 2000)
		now = now.Add(10 * time.Second)
		p.Count("playing steps", 400, 2000)
		p.Clear()
		if out.String() != x.want {
			t.Errorf("terminal %t: %q, want %q", x.terminal, out.String(), x.want)
		}
	}
}
