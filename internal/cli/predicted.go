package cli

import (
	"fmt"
	"time"

	api "github.com/shoal-ml/shoal/api/control"
)

// What commands say of a predicted time. Any goroutine may call the functions.

// PredictionText says how long a change should take, and what that is made of.
func PredictionText(p *api.Plan) string {
	memory := fmt.Sprintf("%v in memory, for %d bytes of new state", RoundTime(p.MemorySeconds),
		p.Copied)
	switch {
	case p.LinkSeconds == nil:
		return memory + ", without links: no all-reduce has told yet how fast they are"
	case *p.LinkSeconds == 0:
		return memory
	}
	return fmt.Sprintf("%v: %v on links, %s", RoundTime(p.Seconds), RoundTime(*p.LinkSeconds),
		memory)
}

// RoundTime returns a predicted time, rounded to the digits that a prediction can have.
func RoundTime(seconds float64) time.Duration {
	d := time.Duration(seconds * float64(time.Second))
	if d < 100*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(10 * time.Millisecond)
}
