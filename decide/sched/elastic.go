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
// slots to whoever saves the greatest part of its time with each (Peng et al., "Optimus", EuroSys
// 2018, section 4.1, whose jobs all get one worker first). Optimus counts the seconds that are
// saved, by which long jobs come first; a part of the time is the same for short and long ones, so
// that slots go to where they are used best, and of equal ones to the job with the least work left.
// Mean completion times are a tenth to a sixth shorter by that (docs/experiments/sched.md).
var elastic = Policy{Name: "elastic",
	About: "smallest sizes by least work left, then more slots where jobs use them best",
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
	sortCandidates(list)
	return list
}

// sortCandidates sorts by priority and key, of equal ones the older first.
func sortCandidates(list []candidate) {
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.key, b.key),
			cmp.Compare(a.index, b.index))
	})
}

// workLeft returns the slot-seconds that are left of a job at its smallest size.
func workLeft(j *Job) float64 {
	n := j.Smallest()
	return j.Seconds(n) * float64(n)
}

// Decide implements Share.
func (elasticShare) Decide(v *View, mem []byte) (Decision, []byte) {
	list := sortedBy(v, func(j *Job) float64 { return v.aged(j, workLeft(j)) })
	want := make([]int, len(v.Jobs))
	free := startSmallest(v, list, want, keepUntakable(v, want))
	growBest(list, want, free, partSaved)
	because := func(i int) string { return elasticReason(v, want, i) }
	return Decision{Want: want, Because: because}, mem
}

// partSaved returns the part of its time that a job saves with each slot more, from n to next; 0 =
// it is not faster enough to have them.
func partSaved(j *Job, n, next int) float64 {
	slow, fast := j.Rate(n), j.Rate(next)
	if fast < elasticGain*slow {
		return 0
	}
	return (1 - slow/fast) / float64(next-n)
}

// keepUntakable gives jobs what cannot be taken from them. It returns how many slots are left.
func keepUntakable(v *View, want []int) (free int) {
	free = v.Slots
	for i, j := range v.Jobs {
		want[i] = j.untakableSlots()
		free -= want[i]
	}
	return free
}

// takeBackFromLast has jobs give up what can be taken from them until what all have is there, the
// last of a list first. It returns how many slots are free then; fewer than 0 = what cannot be
// taken is more than there is.
func takeBackFromLast(list []candidate, want []int, free int) (left int) {
	for k := len(list) - 1; k >= 0 && free < 0; k-- {
		c := &list[k]
		if n, keeps := want[c.index], c.job.untakableSlots(); n > keeps {
			want[c.index], free = keeps, free+n-keeps
		}
	}
	return free
}

// startSmallest gives jobs that have nothing, or stand still, their smallest sizes, who comes
// first. Who does not fit is passed by others until it is overdue; one that stands still is not
// passed. It returns how many slots are left.
func startSmallest(v *View, list []candidate, want []int, free int) (left int) {
	for _, c := range standingFirst(list, want) {
		if free <= 0 {
			break
		}
		has, n := want[c.index], c.job.Smallest()
		stands, more := c.job.standsStill(has), n-has
		if more <= 0 || has > 0 && !stands {
			continue
		}
		if more > free && n <= v.Slots && (stands || c.job.overdue(v.Age, c.job.Waited)) {
			break
		}
		if more <= free {
			want[c.index] = n
			free -= more
		}
	}
	return free
}

// standingFirst returns candidates, which are in order, with those first of their priority that
// stand still: what they have is of no use to anybody.
func standingFirst(list []candidate, want []int) []candidate {
	stands := func(c candidate) bool { return c.job.standsStill(want[c.index]) }
	if !slices.ContainsFunc(list, stands) {
		return list
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b candidate) int {
		switch x, y := stands(a), stands(b); {
		case a.priority != b.priority || x == y:
			return cmp.Compare(b.priority, a.priority)
		case x:
			return -1
		}
		return 1
	})
	return list
}

// elasticReason returns in words why a job gets what it gets.
func elasticReason(v *View, want []int, i int) string {
	j, n := v.Jobs[i], v.Jobs[i].Slots()
	switch {
	case want[i] == 0:
		return "its slots go to jobs with less work left"
	case n == 0 && j.Priority > 0:
		return fmt.Sprintf("priority %d", j.Priority)
	case n == 0 && len(v.Jobs) > 1 && slices.Contains(want, 0):
		return "it has less work left than those that wait"
	case n == 0:
		return "there are slots for all"
	case want[i] > n && len(v.Jobs) == 1:
		return fmt.Sprintf("%s more, which %s free", plural.Of(want[i]-n, "slot"),
			plural.Verb(want[i]-n, "is", "are"))
	case want[i] > n:
		return fmt.Sprintf("%s more: it uses them better than others",
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
		for k, other := range v.Jobs {
			if want[k] > other.Slots() {
				return fmt.Sprintf("%s %s used better elsewhere", plural.Of(taken, "slot"),
					plural.Verb(taken, "is", "are"))
			}
		}
		return fewerReason(v, taken)
	}
	text := fmt.Sprintf("%s for %s", plural.Of(taken, "slot"), v.Jobs[best].ID)
	if p := v.Jobs[best].Priority; p > 0 {
		text += fmt.Sprintf(", priority %d", p)
	}
	return text
}

// fewerReason returns in words why a job of a view has fewer slots by so many, which no other job
// gets: the hosts have fewer than all jobs hold, or the job is as fast without them.
func fewerReason(v *View, taken int) string {
	held := 0
	for _, j := range v.Jobs {
		held += j.Slots()
	}
	if held > v.Slots {
		return fmt.Sprintf("%s less, since there %s only %d now", plural.Of(taken, "slot"),
			plural.Verb(v.Slots, "is", "are"), v.Slots)
	}
	return fmt.Sprintf("%s less, which hardly %s it faster", plural.Of(taken, "slot"),
		plural.Verb(taken, "makes", "make"))
}
