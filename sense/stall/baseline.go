package stall

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
)

const (
	// maxEnded is how many stalls a baseline remembers at most.
	maxEnded = 15
	// minEnded is how many stalls make stalls of their length usual: a worker that saves a model
	// now and then, and for which the others wait, is reported that often. It is also the half-life
	// of a stall, in newer stalls: after so many a stall counts half as much.
	minEnded = 3
)

// baseline is the newest stalls that were suspicious and ended by themselves, the newest last. It
// says how long such a stall usually lasts. It is the Detector's, and used as that is.
type baseline []ended

// ended is a stall that is over.
type ended struct {
	took sense.Duration // how long the stall lasted
	at   sense.Duration // when the stall was over
}

// addStall adds a stall that has ended, and forgets all others if they are outdated.
func (b *baseline) addStall(begin, end sense.Duration) {
	if b.isOutdated(begin) {
		*b = nil
	}
	*b = append(*b, ended{end - begin, end})
	if len(*b) > maxEnded {
		*b = slices.Delete(*b, 0, 1)
	}
}

// usualDuration returns how long a stall that began at a time may last and be like others before
// it: twice their weighted median; 0 = there were too few of them.
func (b baseline) usualDuration(begin sense.Duration) sense.Duration {
	if len(b) < minEnded || b.isOutdated(begin) {
		return 0
	}
	type weighted struct {
		took   sense.Duration
		weight float64
	}
	list, half := make([]weighted, len(b)), 0.0
	for i, x := range b {
		list[i] = weighted{x.took, portable.Exp2(float64(i-len(b)) / minEnded)}
		half += float64(list[i].weight / 2)
	}
	slices.SortFunc(list, func(x, y weighted) int { return cmp.Compare(x.took, y.took) })
	at := 0
	for ; half > list[at].weight; at++ {
		half -= list[at].weight
	}
	return 2 * list[at].took
}

// isOutdated reports whether the last stall is more than twice as long ago as the stalls were
// apart, from the first to the last.
func (b baseline) isOutdated(now sense.Duration) bool {
	if len(b) < minEnded {
		return false
	}
	first, last := b[0].at, b[len(b)-1].at
	return now-last > 2*(last-first)
}

// excusePause takes a pause in which nobody observed out of all times in b, which it changes.
func (b baseline) excusePause(pause sense.Duration) {
	for i := range b {
		b[i].at += pause
	}
}
