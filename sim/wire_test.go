package sim_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/sim"
)

// Whatever agents say in random schedules comes back from bytes as it was. (What goes on with it is in all schedules what came as bytes.)
func TestMessagesAsBytes(t *testing.T) {
	seed, count := number(t, "SEED", 1), min(number(t, "SCHEDULES", 5000)/50, 1000)
	messages, words := 0, 0
	var reader head.Reader
	for s := seed; s <= seed+count; s++ {
		lines, err := sim.Random(s, 300)
		if err != nil {
			t.Fatalf("SEED=%d: %v", s, err)
		}
		c := sim.New()
		c.Said = func(m head.Message, b []byte) {
			if messages++; head.InWords(b) {
				words++
			}
			got, err := reader.Read(b)
			if diff := cmp.Diff(m, got); diff != "" || err != nil {
				t.Fatalf("SEED=%d: %q is read with error %v and differs:\n%s", s, b, err, diff)
			}
		}
		if err := playOn(c, strings.Join(lines, "\n")); err != nil {
			t.Fatalf("SEED=%d: %v", s, err)
		}
	}
	t.Logf("%d messages, %d of them in words", messages, words)
}

// playOn plays a schedule.
func playOn(c *sim.Cluster, script string) error {
	for line := range strings.SplitSeq(script, "\n") {
		if err := c.Do(line); err != nil {
			return err
		}
	}
	return c.Finally()
}
