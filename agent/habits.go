package agent

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// remembered is how many waits that stood out are remembered, and few how many make them usual: a
// worker that saves a model now and then, and for which the others wait, is news a few times.
const remembered, few = 15, 3

// habits is how long the last waits took that stood out and ended by themselves, the newest last.
type habits []habit

type habit struct {
	took  time.Duration
	ended time.Duration // on the lookout's clock
}

// learn takes a wait that has ended.
func (h *habits) learn(begun, ended time.Duration) {
	if h.faded(begun) {
		*h = nil
	}
	*h = append(*h, habit{ended - begun, ended})
	if len(*h) > remembered {
		*h = slices.Delete(*h, 0, 1)
	}
}

// usual is up to when a wait that began then is as others that stood out: twice their median, to
// which each counts half as much as those that came a few later. It is 0 where there is no habit.
func (h habits) usual(begun time.Duration) time.Duration {
	if len(h) < few || h.faded(begun) {
		return 0
	}
	type weighed struct {
		took   time.Duration
		weight float64
	}
	list, half := make([]weighed, len(h)), 0.0
	for i, x := range h {
		list[i] = weighed{x.took, math.Exp2(float64(i-len(h)) / few)}
		half += list[i].weight / 2
	}
	slices.SortFunc(list, func(a, b weighed) int { return cmp.Compare(a.took, b.took) })
	at := 0
	for ; half > list[at].weight; at++ {
		half -= list[at].weight
	}
	return 2 * list[at].took
}

// faded reports whether what came again and again has not come for twice as long as it did.
func (h habits) faded(now time.Duration) bool {
	if len(h) < few {
		return false
	}
	first, last := h[0].ended, h[len(h)-1].ended
	return now-last > 2*(last-first)
}

// excuse takes out a time in which nobody looked.
func (h habits) excuse(pause time.Duration) {
	for i := range h {
		h[i].ended += pause
	}
}
