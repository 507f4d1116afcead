package sched

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/internal/plural"
)

// elasticGain is how many times faster a job must be with more slots to get them.
const elasticGain = 1.1

// elastic gives every job its smallest size, those with the least work left first, and then more
// slots to whoever saves most time with each (Peng et al., "Optimus", EuroSys 2018, section 4.1,
// whose jobs all get one first, in the order of shortest remaining processing time).
var elastic = Policy{Name: "elastic",
	About: "smallest sizes by least work left, then more slots where they save most time",
	Share: elasticShare{}}

// elasticShare is the share of elastic.
type elasticShare struct{}

// candidate is a job of a view and where it comes.
type candidate struct {
	index    int
	job      *Job
	priority int
	key      float64 // smaller comes first
}

// sortedBy returns the jobs of a view by priority and a key, of equal ones the older first.
func sortedBy(v *View, key func(j *Job) float64) []candidate {
	list := make([]candidate, len(v.Jobs))
	for i, j := range v.Jobs {
		list[i] = candidate{i, j, j.Priority, key(j)}
	}
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.key, b.key),
			cmp.Compare(a.index, b.index))
	})
	return list
}

// workLeft returns the slot-seconds that are left of a job at its smallest size.
func workLeft(j *Job) float64 {
	n := j.Smallest()
	return j.Seconds(n) * float64(n)
}

// Decide implements Share.
func (elasticShare) Decide(v *View, mem []byte) (Decision, []byte) {
	list := sortedBy(v, workLeft)
	want := make([]int, len(v.Jobs))
	free := startSmallest(v, list, want)
	growBest(v, want, free, func(j *Job, n, next int) float64 {
		if j.Rate(next) < elasticGain*j.Rate(n) {
			return 0
		}
		return (j.Seconds(n) - j.Seconds(next)) / float64(next-n)
	})
	because := func(i int) string { return elasticReason(v, want, i) }
	return Decision{Want: want, Because: because}, mem
}

// startSmallest gives jobs what cannot be taken from them, and then their smallest sizes to others,
// who comes first. It returns how many slots are left.
func startSmallest(v *View, list []candidate, want []int) (free int) {
	free = v.Slots
	for i, j := range v.Jobs {
		want[i] = j.kept()
		free -= want[i]
	}
	for _, c := range list {
		if free <= 0 {
			break
		}
		if want[c.index] > 0 {
			continue
		}
		if n := c.job.Smallest(); n > 0 && n <= free {
			want[c.index] = n
			free -= n
		}
	}
	return free
}

// growBest gives free slots to jobs that have some, each time to who gains most by the next size,
// until nobody gains or fits. gain returns what a job gains from n to next slots; 0 = it is not to
// have them.
func growBest(v *View, want []int, free int, gain func(j *Job, n, next int) float64) (left int) {
	var heap growths
	push := func(i int) {
		j := v.Jobs[i]
		if next := j.nextSize(want[i]); next > 0 {
			if x := gain(j, want[i], next); x > 0 {
				heap.push(growth{i, next, x})
			}
		}
	}
	for i := range v.Jobs {
		if free > 0 && want[i] > 0 {
			push(i)
		}
	}
	for len(heap) > 0 && free > 0 {
		g := heap.pop()
		if more := g.next - want[g.index]; more <= free {
			want[g.index], free = g.next, free-more
			push(g.index)
		}
	}
	return free
}

// nextSize returns the next number of slots that is worth a look for a job that has n: the next one
// of its sizes, and where it has none twice as many, at most Max; 0 = there is none.
func (j *Job) nextSize(n int) int {
	if j.Sizes == nil {
		if n < j.Max {
			return min(2*n, j.Max)
		}
		return 0
	}
	for _, size := range j.Sizes {
		if size > n && j.Allows(size) {
			return size
		}
	}
	return 0
}

// elasticReason returns in words why a job gets what it gets.
func elasticReason(v *View, want []int, i int) string {
	j, n := v.Jobs[i], v.Jobs[i].Slots()
	switch {
	case want[i] == 0:
		return "its slots go to jobs with less work left"
	case n == 0 && j.Priority > 0:
		return fmt.Sprintf("priority %d", j.Priority)
	case n == 0:
		return "it has less work left than those that wait"
	case want[i] > n:
		return fmt.Sprintf("%s more: it saves more time with them than others",
			plural.Of(want[i]-n, "slot"))
	}
	taken, best := n-want[i], -1
	for k, other := range v.Jobs {
		if other.Slots() == 0 && want[k] > 0 &&
			(best < 0 || other.Priority > v.Jobs[best].Priority) {
			best = k
		}
	}
	if best < 0 {
		return plural.Of(taken, "slot") + " save more time elsewhere"
	}
	text := fmt.Sprintf("%s for %s", plural.Of(taken, "slot"), v.Jobs[best].ID)
	if p := v.Jobs[best].Priority; p > 0 {
		text += fmt.Sprintf(", priority %d", p)
	}
	return text
}

// growth is that a job gets its next size.
type growth struct {
	index, next int
	gain        float64
}

// growths is a heap whose first has the greatest gain.
type growths []growth

// before reports whether growth i comes before growth k.
func (h growths) before(i, k int) bool {
	return h[i].gain > h[k].gain || h[i].gain == h[k].gain && h[i].index < h[k].index
}

// push adds a growth.
func (h *growths) push(g growth) {
	*h = append(*h, g)
	for i := len(*h) - 1; i > 0 && h.before(i, (i-1)/2); i = (i - 1) / 2 {
		(*h)[i], (*h)[(i-1)/2] = (*h)[(i-1)/2], (*h)[i]
	}
}

// pop removes the first and returns it.
func (h *growths) pop() growth {
	list := *h
	first, last := list[0], len(list)-1
	list[0] = list[last]
	list = list[:last]
	for i := 0; 2*i+1 < last; {
		child := 2*i + 1
		if child+1 < last && list.before(child+1, child) {
			child++
		}
		if list.before(i, child) {
			break
		}
		list[i], list[child] = list[child], list[i]
		i = child
	}
	*h = list
	return first
}
