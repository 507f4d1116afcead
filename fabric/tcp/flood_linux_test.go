package tcp

import (
	"context"
	"net"
	"os"
	"testing"

	"github.com/shoal-ml/shoal/fabric/fabrictest"
	"github.com/shoal-ml/shoal/internal/group"
)

// countDescriptors returns how many descriptors this process has open, or fails the test.
func countDescriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// TestFloodTakesNoDescriptors: connections that are opened and dropped as fast as they can be take
// no more descriptors than the bound of those that have not shown who they are, and as fast as they
// can be accepted.
func TestFloodTakesNoDescriptors(t *testing.T) {
	j := newJob(t, Config{})
	j.a.strangers.set(0)
	const clients, each = 100, 30
	before, most := countDescriptors(t), 0
	g := group.New(t.Context())
	for i := range clients {
		g.Go("client", func(context.Context) error {
			for range each {
				c, err := net.Dial("tcp", j.a.Addr())
				if err != nil {
					return err
				}
				c.Write([]byte{0x16, 3, 1}) // as TLS begins
				c.Close()
				if i == 0 {
					most = max(most, countDescriptors(t))
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if limit := before + clients + maxPending + 20; most > limit {
		t.Errorf("%d descriptors were open at once, with %d before: more than %d", most, before,
			limit)
	}
	j.join(j.newcomerConfig(), fabrictest.NewRecorder(t))
	j.checkUnhurt()
}
