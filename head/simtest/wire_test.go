package simtest_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/head/simtest"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/internal/envtest"
)

// Whatever agents say in random schedules comes back from bytes as it was, and a job whose messages
// are bytes on their way goes on the same.
func TestMessagesAsBytes(t *testing.T) {
	seed, count := envtest.Number(t, "SEED", 1), min(scheduleCount(t)/50, 1000)
	messages := 0
	for s := seed; s <= seed+count; s++ {
		lines, err := simtest.Random(s, 300)
		if err != nil {
			t.Fatalf("SEED=%d: %v", s, err)
		}
		script := strings.Join(lines, "\n")
		plain, err := playCarried(script, nil)
		if err != nil {
			t.Fatalf("SEED=%d: %v", s, err)
		}
		bytes, err := playCarried(script, func(m wire.Message) wire.Message {
			messages++
			text := wire.Append(nil, m)
			got, err := wire.Decode(text)
			if diff := cmp.Diff(m, got); diff != "" || err != nil {
				t.Fatalf("SEED=%d: %s is read with error %v and differs:\n%s", s, text, err, diff)
			}
			return got
		})
		if err != nil || plain != bytes {
			t.Fatalf("SEED=%d: with messages as bytes: %v\n%s", s, err, cmp.Diff(plain, bytes))
		}
	}
	t.Logf("%d messages", messages)
}

// playCarried plays a schedule in which carry returns what arrives of each message (nil: they
// arrive as they are); it returns what was printed, and the first invariant that is broken.
func playCarried(script string, carry func(wire.Message) wire.Message) (string, error) {
	c := simtest.New()
	c.Carry = carry
	for line := range strings.SplitSeq(script, "\n") {
		if err := c.Do(line); err != nil {
			return c.Output(), err
		}
	}
	err := c.CheckFinally()
	return c.Output(), err
}
