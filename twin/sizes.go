package twin

import (
	"cmp"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/sense"
)

const (
	// maxSizes is how many sizes of steps a twin remembers.
	maxSizes = 64
	// mergedSteps is how many steps of a size count at most beside newer ones.
	mergedSteps = 64
	// shrinkFactor is by which factor a step with more samples must take less time than one with
	// fewer, before, to show that the job has become another one meanwhile.
	shrinkFactor = 1.15
)

// size is what steps took in which the busiest worker had as many samples.
type size struct {
	members int
	samples float64 // of the busiest worker
	log     float64 // logarithm of the median of their seconds
	steps   int     // how many there were
	newest  uint64  // number of the newest one
	// scaled is whether the steps are from before the job became faster or slower by itself. Then
	// log is what they would take since if that went for all alike.
	scaled bool
}

// rescale takes in that steps take longer since a drift. Of steps that were made meanwhile nobody
// knows whether they were before or behind it, so they are forgotten.
func (t *Twin) rescale(d drift) {
	t.sizes = slices.DeleteFunc(t.sizes, func(s size) bool {
		return s.newest > d.until && s.newest <= d.since
	})
	for i := range t.sizes {
		t.sizes[i].log += d.longer
		t.sizes[i].scaled = true
	}
}

// remember takes in what steps took, and forgets what does not hold any more.
func (t *Twin) remember(steps []sense.StepSample) {
	for _, s := range sizesOf(slices.DeleteFunc(steps, t.isRemembered)) {
		if i := t.find(s.members, s.samples); i < 0 {
			t.sizes = append(t.sizes, s)
		} else {
			t.sizes[i] = t.sizes[i].merge(s)
		}
	}
	slices.SortFunc(t.sizes, func(a, b size) int {
		return cmp.Or(cmp.Compare(b.newest, a.newest), cmp.Compare(a.samples, b.samples))
	})
	t.sizes = t.sizes[:min(len(t.sizes), maxSizes)]
	var valid []size // the newest first
	for _, s := range t.sizes {
		if !slices.ContainsFunc(valid, s.isRefutedBy) {
			valid = append(valid, s)
		}
	}
	t.sizes = valid
}

// find returns the index of a size that is remembered; -1 = it is not.
func (t *Twin) find(members int, samples float64) int {
	return slices.IndexFunc(t.sizes, func(s size) bool {
		return s.members == members && s.samples == samples
	})
}

// isRemembered reports whether a step is part of what is remembered of its size.
func (t *Twin) isRemembered(x sense.StepSample) bool {
	i := t.find(x.Size, perWorker(x.Samples, x.Size))
	return i >= 0 && x.Step <= t.sizes[i].newest
}

// merge returns what newer steps of the size make of it. Those before count as mergedSteps at most,
// and not at all if the job has become another one.
func (s size) merge(newer size) size {
	if s.scaled {
		return newer
	}
	before := min(s.steps, mergedSteps)
	steps := before + newer.steps
	newer.log = (float64(before)*s.log + float64(newer.steps)*newer.log) / float64(steps)
	newer.steps = steps
	return newer
}

// isRefutedBy reports whether newer steps show that the job has changed since: with more samples
// they take less time, or with fewer more.
func (s size) isRefutedBy(newer size) bool {
	shrunk := s.log - newer.log
	if newer.samples < s.samples {
		shrunk = -shrunk
	}
	return newer.members == s.members && newer.samples != s.samples &&
		shrunk > math.Log(shrinkFactor)
}

// sizesOf returns what steps took, by their size, of sizes that occurred often enough.
func sizesOf(steps []sense.StepSample) (sizes []size) {
	type one struct {
		members          int
		samples, seconds float64
		step             uint64
	}
	var list []one
	for _, x := range steps {
		list = append(list, one{x.Size, perWorker(x.Samples, x.Size), x.Seconds, x.Step})
	}
	slices.SortFunc(list, func(a, b one) int {
		return cmp.Or(cmp.Compare(a.members, b.members), cmp.Compare(a.samples, b.samples),
			cmp.Compare(a.seconds, b.seconds))
	})
	for len(list) > 0 {
		n, first, newest := 0, list[0], uint64(0)
		for n < len(list) && list[n].members == first.members && list[n].samples == first.samples {
			newest = max(newest, list[n].step)
			n++
		}
		if n >= minSteps {
			sizes = append(sizes, size{members: first.members, samples: first.samples,
				log: math.Log(list[n/2].seconds), steps: n, newest: newest})
		}
		list = list[n:]
	}
	return sizes
}

// sizesFor returns the sizes that say how a job with so many members does, the smallest first: its
// own, where these are fewer than two those of any number, and where these are too, those from
// before the job became another one.
func (t *Twin) sizesFor(members int) (list []size) {
	choices := []func(size) bool{
		func(s size) bool { return s.members == members && !s.scaled },
		func(s size) bool { return !s.scaled },
		func(s size) bool { return true },
	}
	for _, choose := range choices {
		list = nil
		for _, s := range t.sizes { // the newest of as many samples is the first
			if choose(s) {
				list = append(list, s)
			}
		}
		slices.SortStableFunc(list, func(a, b size) int {
			return cmp.Compare(a.samples, b.samples)
		})
		list = slices.CompactFunc(list, func(a, b size) bool { return a.samples == b.samples })
		if len(list) > 1 {
			break
		}
	}
	return list
}
