package act

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/setting"
)

// How the Loop handles changes that no measurement of steps could judge: they are kept at once. The
// methods run within Loop.Observe, on the goroutine that uses the Loop.

// isUnseen reports whether no trial shows what a change brings: one of the steps between
// checkpoints alone, which saves a part of the time in hours, or of the rate alone, which changes
// nothing of how fast the job is.
func isUnseen(c setting.Change) bool {
	return slices.Equal(c.Parts(), []string{"save"}) || isRateChange(c)
}

// isRateChange reports whether a change is one of the rate alone.
func isRateChange(c setting.Change) bool { return slices.Equal(c.Parts(), []string{"rate"}) }

// whyUnseenNotWorthIt returns why a candidate that no trial shows is not worth a change, in words;
// "" = it is. Its gain is below that of others, as it costs no trial, and that of the rate is none.
func (l *Loop) whyUnseenNotWorthIt(c *candidate) string {
	switch {
	case isRateChange(c.change):
	case !(c.gain > 0):
		return fmt.Sprintf("nothing can be predicted of %s: %s", c.change.To, c.Guess)
	case !(c.gain > decide.SameGain):
		return fmt.Sprintf("%s may bring %.4gx, and a change must bring %.4gx", c.change.To, c.gain,
			decide.SameGain)
	}
	return ""
}

// orderUnseenEnd orders that a change which no trial shows is kept, at once. A policy's change of
// the rate has ended with the entry that has begun it.
func (l *Loop) orderUnseenEnd(c setting.Change) []Order {
	c.Why = "what checkpoints cost and save shows in hours, so no trial measures it"
	if isRateChange(c) {
		c.Why = "the rate changes nothing of how fast the job is, so no trial measures it"
	}
	return l.orderTrialEnd(c, setting.Kept)
}
