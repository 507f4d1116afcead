package act

import (
	"fmt"
	"math"
	"strconv"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// Changes of the number of members. They are entered at once, but who joins has to start first, and
// that takes as long as it takes: until then a trial settles. The methods of trial run within
// Loop.Observe, on the goroutine that uses the Loop.

const (
	// settleTime and settleAtLeast are for how long, and for how many steps, the members of a trial
	// may stay as they are while there are too few or too many. Python takes half a minute to
	// import PyTorch on a busy machine.
	settleTime    = 120 * sense.Second
	settleAtLeast = 16
	// sizeResolution is the factor between two sizes that a trial must be able to see.
	sizeResolution = 1.007
)

// sizesOfChange returns the members before a change of their number and those after it; 0 = it
// does not change, or nothing was said of it.
func sizesOfChange(c setting.Change) (list [2]int) {
	if !c.HasPart("size") {
		return list
	}
	for i, text := range []string{c.From, c.To} {
		list[i], _ = strconv.Atoi(setting.PartOf(text, "size"))
	}
	return list
}

// leastKept returns the measured factor below which a policy's change is taken back. More members
// must bring more than what counts as the same. Fewer may bring as little less, and where the
// policy has taken into account that they train more slowly, as little as was predicted. Any other
// change must not bring less than nothing, unless its policy has another good by it.
func (t *trial) leastKept() float64 {
	n, p := sizesOfChange(t.change), t.change.Predicted
	switch {
	case n[1] == 0 && t.least > 0:
		return min(t.least, 1)
	case n[1] == 0:
		return 1
	case n[1] > n[0]:
		return decide.SameGain
	case p.IsKnown() && (p.High < 1/decide.SameGain || t.least > 0 && t.least < p.Low):
		return min(p.Low, 1/decide.SameGain)
	}
	return 1 / decide.SameGain
}

// sizeSteps returns how many steps it takes to compare a size with another one by a factor, where
// the logarithms of the seconds of steps have a standard deviation; more than maxMeasure are not
// measured.
func sizeSteps(deviation, factor float64) int {
	off := math.Max(math.Abs(portable.Log(factor)), portable.Log(sizeResolution))
	return int(min(max(2*portable.Pow(deviation*certainty/off, 2), minMeasure), maxMeasure))
}

// settling is how the members of a trial come to be as many as the change says.
type settling struct {
	size int            // members at the newest look
	step uint64         // at which there were so many first
	at   sense.Duration // and when
}

// lookAtMembers looks at who made the newest step. It returns whether there are not as many yet as
// the change says, and how the trial ends because of the members, and why; "" = it does not.
func (t *trial) lookAtMembers(o sense.Observation, newest sense.StepSample) (waits bool,
	end setting.Phase, why string) {
	switch want := int(o.Setting.Size); {
	case !t.settled && newest.Size != t.size && want > 0 && want != t.size:
		// somebody is lost meanwhile, or has resized the job under a head that is lost
		return false, setting.Void, fmt.Sprintf("the job is to have size=%d now, and not size=%d",
			want, t.size)
	case !t.settled && newest.Size != t.size:
		if why = t.whyMembersStayAway(o, newest); why == "" {
			return true, "", ""
		}
		if t.change.Policy == "" { // what people have asked for stays
			return false, setting.Void, why
		}
		return false, setting.Reverted, why
	case t.settled && newest.Size == t.size && newest.Generation == t.generation:
		return false, "", ""
	case t.settled && (t.again || newest.Size != t.size):
		return false, setting.Void, fmt.Sprintf("the members changed meanwhile, from %d to %d",
			t.size, newest.Size)
	}
	t.settled, t.again = true, t.settled
	t.generation, t.from = newest.Generation, newest.Step+settleSteps
	return false, "", ""
}

// whyMembersStayAway looks at the members while there are not as many as the change says. It
// returns why they will not be, in words; "" = it waits. Newest is the newest step.
func (t *trial) whyMembersStayAway(o sense.Observation, newest sense.StepSample) (why string) {
	if s := &t.settling; s.size != newest.Size {
		*s = settling{newest.Size, o.Step, o.Now}
	}
	s := t.settling
	if most := o.Levers.Size.To; t.change.Policy != "" && most > 0 && uint64(t.size) > most {
		return fmt.Sprintf("%d of %d members were there, and no host has room for more than %d",
			s.size, t.size, most)
	}
	if o.Now < s.at+settleTime || o.Step < s.step+settleAtLeast {
		return ""
	}
	return fmt.Sprintf("%d of %d members were there %.0f s later", s.size, t.size,
		(o.Now - s.at).Seconds())
}

// costUntilSettled returns how many seconds a change has cost until there were as many members as
// it says, where steps have so many samples a second now: what steps took longer than the slower of
// those before and those after.
func (t *trial) costUntilSettled(o sense.Observation, rate float64) (cost float64) {
	slower := rate
	if t.before.IsKnown() {
		slower = math.Min(rate, t.before.Mid)
	}
	for _, x := range o.Steps.AllBetween(t.change.Step, t.from) {
		cost += float64(float64(x.Steps()) * (x.Seconds - float64(x.Samples)/slower))
	}
	return max(cost, 0)
}
