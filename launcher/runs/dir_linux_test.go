package runs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/internal/durable/durabletest"
)

// On a full disk, of a line that does not fit nothing is left, so that the next one can be read
// when there is room.
func TestLinesOnFullDisk(t *testing.T) {
	disk := durabletest.SmallDisk(t, "256k")
	d, _, err := New(disk, "digits")
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]func(n int) error{
		"events.jsonl": func(n int) error {
			return d.AppendEvent(agent.Event{What: "generation", Step: uint64(n),
				Because: "the test says so"}, time.Unix(0, 0))
		},
		"metrics.jsonl": func(n int) error {
			return d.AppendMetrics(0, map[string]float64{"loss": float64(n)}, time.Unix(0, 0))
		},
		"rank-3.log": func(n int) error {
			return d.AppendLine(3, fmt.Sprintf(`{"what": "a line of a worker", "step": %d}`, n))
		},
	}
	for name, add := range lines {
		ballast := filepath.Join(disk, "ballast")
		if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err,
			syscall.ENOSPC) {
			t.Fatalf("the disk takes it all: %v", err)
		}
		filled, err := os.Stat(ballast)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(ballast, filled.Size()-16<<10); err != nil {
			t.Fatal(err)
		}
		written := 0
		for err = nil; err == nil; written++ {
			err = add(written)
		}
		if written--; !errors.Is(err, syscall.ENOSPC) || written < 2 {
			t.Fatalf("%s: %d lines and %v", name, written, err)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if err := add(written); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(d.path, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Count(text, []byte("\n")); got != written+1 {
			t.Errorf("%s has %d lines of %d", name, got, written+1)
		}
		if _, _, damaged := ParseLedger(text); damaged > 0 {
			t.Errorf("%d lines of %s cannot be read", damaged, name)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
