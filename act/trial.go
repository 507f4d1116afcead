package act

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/twin"
)

// How the Loop measures a change: it compares the steps after the change with those before it, and
// orders that the change is kept or taken back. The methods run within Loop.Observe and
// Loop.EntryApplied, on the goroutine that uses the Loop, and do no I/O.

const (
	// settleSteps is how many steps after a change are not measured.
	settleSteps = 2
	// minMeasure and maxMeasure bound how many steps are measured.
	minMeasure, maxMeasure = 8, 256
	// ratioError is the largest standard deviation, in logarithms, of a factor that is measured.
	ratioError = 0.12
	// certainty is how many standard deviations of the difference the predicted gain must be for a
	// comparison of two medians: it then goes wrong in one of ten cases, and is seen in eight of
	// ten.
	certainty = 2.1
	// medianError is how much larger the error of a median is than that of a mean.
	medianError = 1.25
	// minEnd is how many steps end a trial early at least, and sure by how many standard deviations
	// the job must do worse then. It is looked at after every step, so that is more than for one
	// look: of 1,000 trials that change nothing, fewer than 5 end early.
	minEnd, sure = 5, 3.7
	// leastDeviation is the least standard deviation of the logarithms of the seconds of steps that
	// a few of them are believed.
	leastDeviation = 0.02
	// reorder is after how many steps the end of a trial is ordered again that has not become an
	// entry.
	reorder = 10
	// maxRefusals is how often a change may be refused to be taken back, before it is void.
	maxRefusals = 3
	// workerEnded is in why a change was taken back for a worker that has ended by itself, before
	// how: all agents learn of that from the log.
	workerEnded = "a worker ended by itself in the trial: "
)

// trial is the measurement of a change. It is the Loop's, and used as that is.
type trial struct {
	change     setting.Change
	efficiency float64 // by which factor that of a sample was predicted to grow; 0 = not known
	least      float64 // factor that the policy would take; 0 = not known
	begun      bool    // the fields below are known
	settled    bool    // there are as many members as there should be

	before     setting.Band // samples a second before the change; zero = not known
	error      float64      // standard error of its logarithm
	deviation  float64      // standard deviation of the logarithms of the seconds of steps then
	size       int          // members that are measured
	settling   settling     // of a change of their number, until there are as many as it says
	need       int          // steps to measure
	from       uint64       // steps after this one are measured
	generation uint64       // of the members that are measured
	again      bool         // it was begun anew, because members were lost
	ordered    uint64       // the step at which its end was ordered; 0 = it was not
	ended      string       // how a worker has ended by itself, in words; "" = none has
	refused    error        // why its end was refused; nil = it was not
	refusals   int          // how often its end was refused
}

// measureTrial measures the change under trial, and orders its end when enough is known.
func (l *Loop) measureTrial() []Order {
	t := l.trial
	newest, any := l.now.Steps.Newest()
	if t == nil || !any || newest.Step <= t.change.Step && t.ended == "" ||
		t.ordered > 0 && l.now.Step < t.ordered+reorder {
		return nil
	}
	if isUnseen(t.change) {
		return l.orderUnseenEnd(t.change)
	}
	if !t.begun {
		t.begin(l.now, newest.Generation, l.twin.LastOtherStep())
	}
	c := t.change
	if t.ended != "" {
		c.Why = setting.CutText(workerEnded + t.ended)
		return l.orderTrialEnd(c, setting.Reverted)
	}
	if waits, end, why := t.lookAtMembers(l.now, newest); waits {
		return nil
	} else if why != "" {
		c.Why = setting.CutText(why)
		return l.orderTrialEnd(c, end)
	}
	steps := t.measurableSteps(l.now)
	rate, n := sense.Rate(steps)
	late := l.now.Step > t.from+4*uint64(t.need)+64
	throughput := rate.Mid / t.before.Mid
	efficiency, known := 0.0, false
	if n >= minEnd {
		efficiency, known = l.efficiencyOf(t)
	}
	least := t.leastKept()
	worse := c.Policy != "" && known && t.isWorse(throughput*efficiency/min(least, 1), steps)
	switch {
	case !t.before.IsKnown():
		c.Why = "no steps before the change were measured"
		return l.orderTrialEnd(c, setting.Void)
	case n < t.need && late && !worse:
		c.Why = fmt.Sprintf("only %d of %d steps could be measured", n, t.need)
		return l.orderTrialEnd(c, setting.Void)
	case n < t.need && !worse:
		return nil
	}
	c.Steps = uint64(n)
	if !known {
		if c.Policy != "" && !late {
			return nil
		}
		c.Why = fmt.Sprintf("the noise is unknown; samples a second: %.3gx", throughput)
		return l.orderTrialEnd(c, setting.Kept)
	}
	if most := t.maxThroughputFactor(); c.Policy != "" && c.Predicted.Mid > 0 && most > 0 &&
		throughput > most {
		l.twin.RecordDrift(c.Step, c.Predicted.Mid/(throughput*efficiency))
		c.Why = fmt.Sprintf("%.3g times the samples a second are more than %s can bring: the job "+
			"became faster by itself", throughput, mainPart(c))
		return l.orderTrialEnd(c, setting.Void)
	}
	c.Measured = roundToFourDigits(throughput * efficiency)
	if t.ordered == 0 {
		l.recordCost(c, rate.Mid)
	}
	c.Why = whyOfRounds(c, throughput, efficiency)
	if c.Policy != "" && c.Measured < least { // it was to bring more, and what was before is known
		return l.orderTrialEnd(c, setting.Reverted)
	}
	return l.orderTrialEnd(c, setting.Kept)
}

// whyOfRounds says of what factors, throughput and efficiency, the measurement of a change of
// rounds is the product, as only the first was measured; "" for other changes.
func whyOfRounds(c setting.Change, throughput, efficiency float64) string {
	if parts := c.Parts(); !slices.Contains(parts, "sync") && !slices.Contains(parts, "round") {
		return ""
	}
	return setting.CutText(fmt.Sprintf("%.3gx the samples a second, times %.3gx, as predicted, "+
		"that a sample brings", throughput, efficiency))
}

// batchesOfChange returns the batch before the change and the one after it; 0 = it does not
// change.
func batchesOfChange(c setting.Change) (list [2]uint64) {
	if !c.HasPart("batch") {
		return list
	}
	for i, text := range []string{c.From, c.To} {
		list[i], _ = strconv.ParseUint(setting.PartOf(text, "batch"), 10, 64)
	}
	return list
}

// samplesOfBusiestWorkers returns how many samples the worker has that has most, before a change
// and after it.
func (l *Loop) samplesOfBusiestWorkers(c setting.Change) (list [2]float64) {
	n, b := sizesOfChange(c), batchesOfChange(c)
	for i, text := range []string{c.From, c.To} {
		s := setting.Setting{Batch: cmp.Or(b[i], l.entry.Setting.Batch, l.now.Setting.Batch),
			Round:  cmp.Or(l.entry.Setting.Round, l.now.Setting.Round),
			Shares: l.entry.Setting.Shares}
		if slices.Contains(c.Parts(), "shares") {
			s.Shares = nil
			if value := setting.PartOf(text, "shares"); value != "" {
				s, _ = s.With("shares=" + value) // its texts are of the head
			}
		}
		list[i] = samplesOfBusiestWorker(s, cmp.Or(n[i], l.sizes.tried))
	}
	return list
}

// maxThroughputFactor returns by which factor the samples a second can grow by the change at most;
// 0 = nobody knows.
func (t *trial) maxThroughputFactor() float64 {
	most := 0.0
	if b := batchesOfChange(t.change); b[0] > 0 {
		most = twin.ShrinkFactor * max(1, float64(b[1])/float64(b[0]))
	}
	switch n := sizesOfChange(t.change); {
	case n[0] > 0 && n[1] > n[0]:
		most = max(most, twin.ShrinkFactor) * float64(n[1]) / float64(n[0])
	case n[0] > 0: // what they exchange could be nearly all of a step
		return 0
	}
	return most
}

// begin looks at the steps before the change, which its agent has seen whether it led or not. Those
// up to the step `since` say nothing any more.
func (t *trial) begin(o sense.Observation, generation, since uint64) {
	t.begun, t.generation, t.from = true, generation, t.change.Step+settleSteps
	wanted := sizesOfChange(t.change)[1]
	t.size, t.need, t.settled = cmp.Or(wanted, o.Size), minMeasure, wanted == 0
	before := o.Steps.Between(min(since, t.change.Step), t.change.Step)
	if from := sizesOfChange(t.change)[0]; from > 0 { // the newest may be of a size that was tried
		if most := o.Levers.Size.To; t.change.Policy != "" && most > 0 { // of those that were there
			from = min(from, int(most))
		}
		before = slices.DeleteFunc(before, func(x sense.StepSample) bool { return x.Size != from })
	}
	for i := len(before) - 1; i >= 0; i-- {
		last := before[len(before)-1]
		if before[i].Batch != last.Batch || before[i].Size != last.Size ||
			before[i].Deal != last.Deal || before[i].Round != last.Round ||
			len(before)-i > maxMeasure {
			before = before[i+1:]
			break
		}
	}
	rate, n := sense.Rate(before)
	if n < 3 {
		if r := t.change.Rate; r > 0 { // who led before has measured it
			t.before, t.error = setting.Band{Low: r * 0.95, Mid: r, High: r * 1.05}, 0.05
		}
		return
	}
	if wanted == 0 {
		t.size = before[len(before)-1].Size
	}
	t.deviation = sense.Deviation(before)
	gain := t.change.Predicted.Mid
	if t.change.Policy != "" && gain <= minGain { // it is made to learn whether it is more
		gain = t.change.Predicted.High
	}
	t.need = int(min(stepsToMeasure(t.deviation, gain), maxMeasure))
	if wanted > 0 { // it is compared with other sizes too
		t.need = max(t.need, sizeSteps(t.deviation, 1))
	}
	if newest := max(2*minMeasure, t.need); len(before) > newest {
		rate, n = sense.Rate(before[len(before)-newest:])
	}
	t.before, t.error = rate, medianError*max(t.deviation, leastDeviation)/math.Sqrt(float64(n))
}

// isWorse reports whether the job surely does worse since the change: by a factor, over some steps,
// and by more than chance does.
func (t *trial) isWorse(factor float64, steps []sense.StepSample) bool {
	n := len(steps)
	deviation := max(t.deviation, sense.Deviation(steps), leastDeviation)
	after := medianError * deviation / math.Sqrt(float64(n))
	return n >= minEnd && portable.Log(factor) < -sure*portable.Hypot(t.error, after)
}

// stepsToMeasure returns how many steps it takes to tell a predicted factor from none, where the
// logarithms of the seconds of steps have a standard deviation. A factor of 0 is none that was
// predicted. More than maxMeasure are not measured.
func stepsToMeasure(deviation, predicted float64) float64 {
	gain := max(math.Abs(portable.Log(cmp.Or(predicted, 1))), portable.Log(minGain))
	need := 2 * portable.Pow(deviation*max(certainty/gain, medianError/ratioError), 2)
	return max(math.Ceil(need), minMeasure)
}

// measurableSteps returns the steps that the trial is judged by.
func (t *trial) measurableSteps(o sense.Observation) (list []sense.StepSample) {
	deal := sense.DealOf(o.Setting.Shares)
	for _, x := range o.Steps.Between(t.from, o.Step) {
		if x.Samples == x.Batch && x.Size == t.size && x.Batch == o.Setting.Batch &&
			x.Deal == deal && x.IsInRounds(o.Setting.Round) {
			list = append(list, x)
		}
	}
	return list
}

// efficiencyOf returns by which factor a sample brings more since the change: what was predicted,
// and on an agent that has not led then, what is predicted now; false = it is not known.
func (l *Loop) efficiencyOf(t *trial) (float64, bool) {
	parts := t.change.Parts()
	if t.efficiency == 0 && !slices.Contains(parts, "batch") && !slices.Contains(parts, "round") &&
		!slices.Contains(parts, "sync") {
		t.efficiency = 1
	}
	if t.efficiency == 0 {
		back, err := t.change.Undo(l.now.Setting)
		l.twin.Observe(l.now)
		if p := l.twin.Predict(decide.Target{Setting: back}); err == nil && p.Efficiency.IsKnown() {
			t.efficiency = 1 / p.Efficiency.Mid
			if t.change.Policy != "" {
				t.efficiency = 1 / cmp.Or(p.Careful, p.Efficiency.High)
			}
		}
	}
	return t.efficiency, t.efficiency > 0
}

// orderTrialEnd orders the end of the change under trial, in a phase; in place of Reverted it is
// Void where the change cannot be taken back.
func (l *Loop) orderTrialEnd(c setting.Change, phase setting.Phase) []Order {
	l.trial.ordered = l.now.Step
	next := l.entry.Setting
	c.Phase = phase
	if phase == setting.Reverted {
		back, err := c.Undo(next)
		others := l.trial.again || len(back.Shares) != l.now.Size
		if slices.Contains(c.Parts(), "shares") && len(back.Shares) > 0 && others {
			back.Shares = nil // whose they were is not known here
			c.Why = setting.CutText(
				"the members are others now, so all have equal shares; " + c.Why)
		}
		if l.trial.refusals >= maxRefusals {
			err = l.trial.refused
		}
		if err != nil {
			c.Phase = setting.Void
			c.Why = setting.CutText(fmt.Sprintf("it cannot be taken back: %v", err))
			back = next
		}
		next = back
	}
	return []Order{{Next: next, Change: c}}
}

// recordCost records what a change has cost, where its steps have so many samples a second: what
// its first steps took longer, and what was lost if it made the job slower.
func (l *Loop) recordCost(c setting.Change, rate float64) {
	cost, settled := 0.0, c.Step+settleSteps
	for _, x := range l.now.Steps.AllBetween(c.Step, settled) {
		cost += float64(float64(x.Steps()) * (x.Seconds - float64(x.Samples)/rate))
	}
	if sizesOfChange(c)[1] > 0 {
		cost, settled = l.trial.costUntilSettled(l.now, rate), l.trial.from
	}
	l.twin.LearnCost(c, cost)
	if c.Measured < 1 {
		for _, x := range l.now.Steps.AllBetween(settled, l.now.Step) {
			cost += float64((1 - c.Measured) * x.Seconds * float64(x.Steps()))
		}
	}
	l.spent = sense.AppendNewest(l.spent, spending{l.now.Now, max(cost, 0)}, maxSpent)
}
