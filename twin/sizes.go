package twin

import (
	"cmp"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
)

// What the Twin remembers of how long steps took: by members and samples of the busiest worker. The
// methods run within Twin.refit and Twin.Predict, on the goroutine that uses the Twin.

const (
	// maxSizes is how many sizes of steps a twin remembers.
	maxSizes = 64
	// maxFitted is how many sizes say how long steps take: with more it takes a millisecond to find
	// out.
	maxFitted = 16
	// mergedSteps is how many steps of a size count at most beside newer ones.
	mergedSteps = 64
	// ShrinkFactor is by which factor a step with more samples must take less time than one with
	// fewer, before, to show that the job has become another one meanwhile.
	ShrinkFactor = 1.15
	// alikeFactor is by which factor steps of other members may differ from those of now, where
	// they say as much as these.
	alikeFactor = 1.1
)

// size is what steps took in which the busiest worker had as many samples.
type size struct {
	members int
	samples float64 // of the busiest worker
	log     float64 // logarithm of the median of their seconds
	steps   int     // how many there were
	newest  uint64  // number of the newest one
	base    float64 // log when other sizes were last compared with it; 0 = they were not yet
	// scaled is whether the steps are from before the job became faster or slower by itself. Then
	// log is what they would take since if that went for all alike.
	scaled bool
}

// rescaleSizes takes in that steps take longer since a drift. Of steps that were made meanwhile
// nobody knows whether they were before or after it, so they are forgotten.
func (t *Twin) rescaleSizes(d Drift) {
	t.sizes = slices.DeleteFunc(t.sizes, func(s size) bool {
		return s.newest > d.until && s.newest <= d.Since
	})
	for i := range t.sizes {
		t.sizes[i].log += portable.Log(d.Factor)
		t.sizes[i].scaled = true
	}
}

// under is what steps depend on besides their size.
type under struct {
	deal uint32 // sense.DealOf the shares
	way  way    // to synchronise
}

// rescaleForDivision takes in that work is divided otherwise than before, or that workers
// synchronise in another way, as some steps of now show: what steps of other sizes took says as
// much about now as after a drift.
func (t *Twin) rescaleForDivision(current []sense.StepSample) {
	now := under{sense.DealOf(t.now.Setting.Shares), wayOf(t.now.Setting)}
	if now == t.under || len(current) < minSteps {
		return
	}
	t.under = now
	i := t.findSize(current[0].Size, samplesOfBusiestWorker(current[0].Samples, current[0].Size))
	if i < 0 {
		t.sizes = nil
		return
	}
	newest := t.sizes[i].newest
	t.rescaleSizes(Drift{Factor: portable.Exp(median(logsOf(current)) - t.sizes[i].log),
		until: newest, Since: newest})
}

// rememberSizes takes in what steps of other sizes than that of now took, and forgets what does not
// hold any more. It uses the list of steps up.
func (t *Twin) rememberSizes(steps []sense.StepSample) {
	for _, s := range sizesOf(slices.DeleteFunc(steps, t.isRemembered)) {
		if i := t.findSize(s.members, s.samples); i < 0 {
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

// doubtSizes takes in that what steps of some members took is doubted, as Learn says: it counts as
// from before a drift, until steps of as many are measured anew.
func (t *Twin) doubtSizes() {
	for i := range t.sizes {
		if t.sizes[i].members == t.doubted {
			t.sizes[i].scaled = true
		}
	}
	t.doubted = 0
}

// findSize returns the index of a size that is remembered; -1 = it is not.
func (t *Twin) findSize(members int, samples float64) int {
	return slices.IndexFunc(t.sizes, func(s size) bool {
		return s.members == members && s.samples == samples
	})
}

// isRemembered reports whether a step is part of what is remembered of its size, or will be since
// it is as the job trains now.
func (t *Twin) isRemembered(x sense.StepSample) bool {
	samples := samplesOfBusiestWorker(x.Samples, x.Size)
	if x.Size == t.now.Size && samples == samplesOfBusiestWorker(t.now.Setting.Batch, t.now.Size) {
		return true
	}
	i := t.findSize(x.Size, samples)
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
	all := float64(float64(before)*s.log) + float64(float64(newer.steps)*newer.log)
	newer.log = all / float64(steps)
	newer.steps, newer.base = steps, s.base
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
		shrunk > portable.Log(ShrinkFactor)
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
		samples := samplesOfBusiestWorker(x.Samples, x.Size)
		list = append(list, one{x.Size, samples, x.Seconds, x.Step})
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
				log: portable.Log(list[n/2].seconds), steps: n, newest: newest})
		}
		list = list[n:]
	}
	return sizes
}

// sizesFor returns the sizes that say how a job with so many members does, the smallest first: its
// own, where these are fewer than two those of any number too, as far as they agree with its own,
// and where these are too few, those from before the job became another one.
func (t *Twin) sizesFor(members int) (list []size) {
	own := t.selectSizes(func(s size) bool { return s.members == members && !s.scaled })
	if len(own) > 1 {
		return own
	}
	others := t.selectSizes(func(s size) bool { return s.members != members && !s.scaled })
	if len(own) == 1 {
		others = adaptToOwnSize(others, own[0])
	}
	if list = mergeSizeLists(own, others); len(list) > 1 {
		return list
	}
	before := t.selectSizes(func(s size) bool { return s.scaled && s.members == members })
	return mergeSizeLists(list, before)
}

// nearestSizes returns the maxFitted sizes that are nearest to a number of samples, the smallest
// first.
func nearestSizes(list []size, at float64) []size {
	for len(list) > maxFitted {
		if first, last := list[0], list[len(list)-1]; at/first.samples > last.samples/at {
			list = list[1:]
		} else {
			list = list[:len(list)-1]
		}
	}
	return list
}

// selectSizes returns those of the sizes that are remembered for which is holds, the smallest
// first; of as many samples that of the newest steps. The list is the caller's.
func (t *Twin) selectSizes(is func(size) bool) (list []size) {
	for _, s := range t.sizes { // the newest of as many samples is the first
		if is(s) {
			list = append(list, s)
		}
	}
	return mergeSizeLists(list, nil)
}

// mergeSizeLists returns the sizes of two lists in one, the smallest first; of as many samples that
// of the first list.
func mergeSizeLists(a, b []size) []size {
	list := slices.Concat(a, b)
	slices.SortStableFunc(list, func(a, b size) int { return cmp.Compare(a.samples, b.samples) })
	return slices.CompactFunc(list, func(a, b size) bool { return a.samples == b.samples })
}

// adaptToOwnSize returns what sizes of other members say of the members of now, of which only their
// own size is known: that much if the steps of now take about as long as the others say, and
// nothing if they do not, since then it matters who is there. In between only the share of what
// does not depend on samples is believed. With too few others nobody knows, which counts as in
// between.
func adaptToOwnSize(others []size, own size) []size {
	apart := portable.Log(ShrinkFactor)
	if len(others) > 1 {
		_, level := fitShare(others, own.samples, 0)
		apart = math.Abs(own.log - level)
	}
	switch {
	case apart >= portable.Log(driftFactor):
		return nil
	case apart >= portable.Log(alikeFactor):
		for i := range others {
			others[i].scaled = true
		}
	}
	return others
}
