package policy

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// The functions here only read an Observation, and what a twin predicts of it. They run within
// Size.Decide, on the goroutine of its caller.

const (
	// sizeCandidates is how many sizes of a range are compared: all of up to as many, and else some
	// at equal factors.
	sizeCandidates = 64
	// sizeGain is by which factor the goodput must be predicted to grow, or be possible.
	sizeGain = 1.02
	// leastOfSmaller is which part of the goodput a smaller size must surely have that was not
	// measured, to be tried because it may have the same.
	leastOfSmaller = 0.9
)

// Size finds the number of members with which the job trains fastest, and of those with which it
// trains as fast the smallest, since hosts cost (decide.SameGain). It asks the twin about all sizes
// of the range. As long as one that was not measured may be better than the best that was, it goes
// to the one that may be best; each trial tells the twin more about all others, so that few are
// needed. The batch stays, and so what is learned does. It remembers nothing.
type Size struct{}

// Name implements decide.Policy.
func (Size) Name() string { return "size" }

// Levers implements decide.Policy.
func (Size) Levers() []string { return []string{"size"} }

// Decide implements decide.Policy.
func (Size) Decide(o sense.Observation, twin decide.Twin,
	state []byte) (decide.Decision, []byte) {
	if why := sizeWaits(o); why != "" {
		return decide.NoChange(why), state
	}
	list := scoreSizes(o, twin)
	if len(list) == 0 || list[0].Gain() == 0 {
		text := "there is no other size"
		if len(list) > 0 {
			text = list[0].Guess
		}
		return decide.NoChange(text), state
	}
	best, hope := 1.0, decide.Scored{} // the best goodput that was measured
	for _, x := range list {
		if !x.Untried {
			best = max(best, x.Gain())
		} else if x.HopedGain() > hope.HopedGain() {
			hope = x
		}
	}
	for _, x := range list {
		if !x.Untried && x.Gain() == best && best > sizeGain {
			return decideSize(o, x, list), state
		}
	}
	if hope.HopedGain() > sizeGain {
		return decideSize(o, hope, list), state
	}
	if x := smallestAlike(o, list); x.To != nil {
		return x, state
	}
	return decide.NoChange(fmt.Sprintf("no other size from %d to %d is better than %d by more "+
		"than %.0f %%", o.Levers.Size.From, o.Levers.Size.To, o.Size, 100*(sizeGain-1))), state
}

// smallestAlike returns the decision to go to the smallest size below that of now that has the same
// goodput as the best one, as far as is known; its To is nil if there is none.
func smallestAlike(o sense.Observation, list []decide.Scored) (d decide.Decision) {
	top := max(list[0].Gain(), 1)
	smallest := o.Size
	for _, x := range list {
		n := x.Members(o)
		least := leastOfSmaller
		if !x.Untried {
			least = top / sizeGain
		}
		if n < smallest && x.Gain() >= top/decide.SameGain && x.Throughput.Low > least {
			d, smallest = decideSize(o, x, list), n
			d.Least = 1 / decide.SameGain
		}
	}
	return d
}

// sizeWaits returns why nothing can be decided about the size, in words; "" = it can. It does not
// wait for members that no host has room for, since one is lost.
func sizeWaits(o sense.Observation) string {
	switch {
	case !o.Levers.Size.IsOpen():
		return "the size is closed: shoal run --max opens it"
	case o.Setting.Size != 0 && min(int(o.Setting.Size), int(o.Levers.Size.To)) != o.Size:
		return fmt.Sprintf("%d of %d members are there", o.Size, o.Setting.Size)
	}
	return ""
}

// withSize returns the target of a job that has another size and is as it is else.
func withSize(o sense.Observation, size int) decide.Target {
	to := decide.Target{Setting: o.Setting}
	to.Setting.Size = uint32(size)
	return to
}

// scoreSizes returns what is predicted of the other sizes of the range with which each member has a
// sample and what it surely has memory for, the best first and of equal ones the smaller.
func scoreSizes(o sense.Observation, twin decide.Twin) (list []decide.Scored) {
	batch := max(o.Setting.Batch, 1)
	most := float64(fitOf(o).most) // samples of a batch, divided among as many as there are
	for _, n := range sizesOf(o.Levers.Size) {
		if n == o.Size || uint64(n) > batch ||
			n < o.Size && float64(batch)*float64(o.Size)/float64(n) > most {
			continue
		}
		to := withSize(o, n)
		list = append(list, decide.Scored{Target: to, Prediction: twin.Predict(to)})
	}
	slices.SortStableFunc(list, func(a, b decide.Scored) int {
		return cmp.Compare(b.Gain(), a.Gain())
	})
	return list
}

// sizesOf returns the sizes of a range that are compared, the smallest first.
func sizesOf(r setting.Range) (list []int) {
	least, most := int(max(r.From, 1)), int(min(r.To, setting.MaxSize))
	if most-least < sizeCandidates {
		for n := least; n <= most; n++ {
			list = append(list, n)
		}
		return list
	}
	growth := portable.Log(float64(most) / float64(least))
	for i := range sizeCandidates {
		part := float64(i) / (sizeCandidates - 1)
		list = append(list, int(math.Round(float64(least)*portable.Exp(part*growth))))
	}
	return slices.Compact(list)
}

// decideSize returns the decision to go to a size, whose reason has the seconds of steps.
func decideSize(o sense.Observation, to decide.Scored, list []decide.Scored) decide.Decision {
	now := to.StepSeconds.Mid * to.Throughput.Mid
	because := fmt.Sprintf("a step takes %s with %s, and %s (%s–%s) with %d",
		plural.Seconds(now), plural.Of(o.Size, "member"), plural.Seconds(to.StepSeconds.Mid),
		plural.Seconds(to.StepSeconds.Low), plural.Seconds(to.StepSeconds.High), to.Members(o))
	if to.Untried {
		because += ", which was not measured"
	}
	d := decide.Decision{To: &to.Target, Because: because, Least: sizeGain}
	for _, x := range list {
		if len(d.Alternatives) < 3 && x.Setting.Size != to.Setting.Size {
			d.Alternatives = append(d.Alternatives, x)
		}
	}
	return d
}
