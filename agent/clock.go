package agent

import (
	"time"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/probe"
)

// newClock returns a clock that begins at 0 now, for the probes by which the agent measures this
// host. Any goroutine may make and read one.
func newClock() probe.Clock {
	start := time.Now()
	return func() sense.Duration { return sense.Duration(time.Since(start)) }
}
