package act

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/twin"
)

// How the Loop chooses among what the policies want: each decides, the twin predicts what that
// brings, and what saves most time within the horizon is ordered. The methods run within
// Loop.Observe, or Loop.Propose for a person's change, on the goroutine that uses the Loop, and do
// no I/O.

const (
	// minGain is by which factor the progress a second must be predicted to grow for a change.
	minGain = decide.MinGain
	// horizon is for how many seconds a change is assumed to pay.
	horizon = 600.0
	// maxCost is the share of the time that changes may cost, in any costWindow, or in as long as
	// windowSteps steps take where that is longer.
	maxCost, windowSteps = 0.02, 100
	costWindow           = 600 * sense.Second
	// maxSpent is of how many changes the cost is remembered at most.
	maxSpent = 1 << 12
	// maxAlternatives is how many alternatives a change tells.
	maxAlternatives = 3
	// swingSteps is for how many optimizer steps it is remembered that the job became faster or
	// slower by itself.
	swingSteps = 2048
	// minSwings is how often it must have, to be expected to do so again. After one of them already
	// a gain must show within driftMeasure steps.
	minSwings, driftMeasure = 3, 32
)

// spending is what a change has cost: how many seconds of training, and when.
type spending struct {
	at      sense.Duration
	seconds float64
}

// candidate is what a policy wants.
type candidate struct {
	member *member
	decide.Decision
	decide.Prediction
	change setting.Change
	learns bool    // the gain is only possible, and the change is made to learn about it
	least  float64 // by which factor the progress a second must grow
	gain   float64 // by which factor the progress a second grows, or may grow
	score  float64 // seconds that the change saves within the horizon; +Inf = of the rate alone
}

// orderBestDecision asks the policies, and orders the best of what they want. It is time to decide,
// and no change is under way.
func (l *Loop) orderBestDecision() []Order {
	l.twin.Observe(l.now)
	if since := l.twin.LastInvalidStep(); since != l.since || l.sizes.asked != l.now.Size {
		asOrdered := l.now.Size == int(l.now.Setting.Size)
		if l.sizes.asked == 0 || l.releaseLevers(asOrdered) {
			l.pace = interval
		}
		l.since, l.sizes.asked = since, l.now.Size
	}
	o := l.now
	if r := &o.Levers.Batch; l.tooLarge > 0 && r.IsOpen() {
		large := setting.Setting{Batch: 1 << 30, Shares: o.Setting.Shares}
		most := (l.tooLarge - 1) * float64(large.Batch) / samplesOfBusiestWorker(large, o.Size)
		r.To = max(r.From, min(r.To, uint64(most)))
	}
	if r := &o.Levers.Batch; o.Samples > 0 { // of a larger batch no step would be whole
		r.To = min(r.To, max(r.From, o.Setting.Batch, o.Samples/uint64(max(o.Setting.Round, 1))))
	}
	var best *candidate
	l.again = maxInterval
	for _, m := range l.policies {
		if m.faults >= maxFaults || !l.mayAsk(m) {
			continue
		}
		d, fault := m.askPolicy(o, l.twin)
		if fault != "" {
			l.recordFault(m, fault)
			continue
		}
		m.faults = 0
		if d.To == nil && d.Again > 0 {
			l.again = min(l.again, d.Again)
		}
		c := l.evaluateDecision(m, d)
		if c == nil && d.Else != nil {
			c = l.evaluateDecision(m, *d.Else)
		}
		if c != nil && (best == nil || c.score > best.score) {
			best = c
		}
	}
	if best == nil {
		return nil
	}
	return l.orderChange(*best)
}

// evaluateDecision returns what a policy wants with what is predicted of it; nil if it is not worth
// a change, which is noted.
func (l *Loop) evaluateDecision(m *member, d decide.Decision) *candidate {
	if d.To == nil {
		l.recordWhyNot(m.Name(), d.Because)
		return nil
	}
	p := l.twin.Predict(*d.To)
	c := &candidate{member: m, Decision: d, Prediction: p, gain: p.Gain(),
		change: l.predictedChange(decide.Scored{Target: *d.To, Prediction: p}, p.SureEfficiency())}
	c.least = cmp.Or(d.Least, minGain)
	if c.learns = !(c.gain > c.least) && p.HopedGain() > cmp.Or(d.Least, decide.MinHope); c.learns {
		c.gain = p.HopedGain()
	}
	c.score = float64((c.gain/min(c.least, 1)-1)*horizon) - p.CostSeconds.Mid
	if isRateChange(c.change) { // first, because it holds up nothing else
		c.score = math.Inf(1)
	}
	if why := l.whyNotWorthIt(c); why != "" {
		l.recordWhyNot(m.Name(), why)
		return nil
	}
	return c
}

// whyNotWorthIt returns why a candidate is not worth a change, in words; "" = it is.
func (l *Loop) whyNotWorthIt(c *candidate) string {
	held, measured := l.whyLeftAlone(c.change, c.learns), l.twin.MeasuredSteps()
	now := samplesOfBusiestWorker(l.now.Setting, l.now.Size)
	then := samplesOfBusiestWorker(c.To.Setting, c.To.Members(l.now))
	deviation, cost := sense.Deviation(measured), c.CostSeconds.Mid
	window := max(costWindow.Seconds(), windowSteps*c.StepSeconds.Mid)
	spent := l.sumCosts(window)
	enough, most := minMeasure, maxMeasure
	if sizesOfChange(c.change)[1] > 0 {
		enough = max(enough, sizeSteps(deviation, c.gain))
	}
	if len(l.recentDrifts()) > 0 {
		most = driftMeasure
	}
	brings := fmt.Sprintf("%s may bring %.4gx", c.change.To, c.gain)
	switch {
	case len(c.change.Parts()) == 0:
		return "it is as it should be: " + c.Because
	case held != "":
		return held
	case isUnseen(c.change):
		return l.whyUnseenNotWorthIt(c)
	case l.tooLarge > 0 && then >= l.tooLarge && then > now:
		return fmt.Sprintf("%s gives a worker up to %.0f samples, and workers have ended by "+
			"themselves at %.0f", c.change.To, then, l.tooLarge)
	case l.twin.MayHaveDrifted():
		l.again = min(l.again, glance)
		return fmt.Sprintf("%s waits until more steps show whether the job has become faster or "+
			"slower: the newest one differs from those before", c.change.To)
	case len(measured) < enough:
		return fmt.Sprintf("%s waits until %d steps by the setting of now are measured",
			c.change.To, enough)
	case c.gain == 0:
		return fmt.Sprintf("nothing can be predicted of %s: %s", c.change.To, c.Guess)
	case !(c.gain > c.least) || !c.change.Predicted.IsKnown():
		return fmt.Sprintf("%s, and a change must bring %.3gx", brings, c.least)
	case c.Guess != "" && !c.Untried && !(c.gain > decide.MinGuess):
		return fmt.Sprintf("%s, and a change must bring %.3gx where that is a guess: %s", brings,
			decide.MinGuess, c.Guess)
	case c.gain < l.recentSwingFactor() && c.least >= 1 || c.learns && l.recentSwingFactor() > 0:
		return fmt.Sprintf("%s, and the job becomes up to %.3gx faster and slower by itself, so "+
			"that a trial would not show it", brings, l.recentSwingFactor())
	case c.least >= 1 && stepsToMeasure(deviation, c.gain) > float64(most):
		return fmt.Sprintf("%s, and steps differ by %.2g %%, so that %d of them would not show it",
			brings, 100*deviation, most)
	case !(c.score > 0):
		return fmt.Sprintf("%s, and costs %.3g s, more than that saves in %.0f s", brings, cost,
			horizon)
	case spent+cost > maxCost*window:
		return fmt.Sprintf("%s costs %.3g s, and changes have cost %.3g s in the last %.0f s: "+
			"%.3g s are allowed", c.change.To, cost, spent, window, maxCost*window)
	}
	return ""
}

// samplesOfBusiestWorker returns how many samples of a whole batch the worker has that has most.
func samplesOfBusiestWorker(s setting.Setting, size int) float64 {
	return slices.Max(decide.SamplesOf(s, max(size, 1)))
}

// recentSwingFactor returns by which factor the job has become faster and slower by itself lately;
// 0 = it has not done so often.
func (l *Loop) recentSwingFactor() float64 {
	var factors [2]float64 // the greatest
	list := l.recentDrifts()
	for _, d := range list {
		if d.Factor > 1 {
			factors[0] = max(factors[0], d.Factor)
		} else {
			factors[1] = max(factors[1], 1/d.Factor)
		}
	}
	if len(list) < minSwings {
		return 0
	}
	return min(factors[0], factors[1])
}

// recentDrifts returns the drifts of the last swingSteps steps.
func (l *Loop) recentDrifts() []twin.Drift {
	list, made := l.twin.Drifts(), l.countSteps(l.now.Step)
	for len(list) > 0 && l.countSteps(list[0].Since)+swingSteps < made {
		list = list[1:]
	}
	return list
}

// orderChange returns the order to make a change.
func (l *Loop) orderChange(c candidate) []Order {
	if c.learns && sizesOfChange(c.change)[1] == 0 {
		c.Because = "to learn what a sample takes: " + c.Guess + "; " + c.Because
	}
	c.change.Policy, c.change.Because = c.member.Name(), setting.CutText(c.Because)
	for _, x := range c.Alternatives[:min(len(c.Alternatives), maxAlternatives)] {
		_, text := l.now.Setting.Diff(x.Setting)
		c.change.Alternatives = append(c.change.Alternatives,
			setting.CutText(fmt.Sprintf("%s: %.3gx", text, x.Gain())))
	}
	if c.change.IsAtOnce() {
		c.change.Predicted, c.change.Rate = setting.Band{}, 0
	}
	next := c.To.Setting
	next.Number = l.entry.Setting.Number
	if l.mode == Watch { // the same again is worth a line later
		v := l.findOrAddLever(mainPart(c.change))
		l.delayLever(v)
		v.why = "it was said what should change"
		return []Order{{Next: next, Change: c.change, Watch: true}}
	}
	l.asked = &asked{change: c.change, efficiency: c.SureEfficiency(), least: c.least,
		learns: c.learns,
		step:   l.now.Step}
	return []Order{{Next: next, Change: c.change}}
}

// predictedChange returns the change from the setting of now to a target, without who wants it and
// why. What it predicts is what the trial measures: the factor of the throughput, times one of the
// efficiency. That of a policy's change is the low end, by which it is decided.
func (l *Loop) predictedChange(to decide.Scored, efficiency float64) setting.Change {
	c := setting.Change{Phase: setting.Entered, Step: l.now.Step,
		Rate: roundToFourDigits(l.twin.SamplesPerSecond().Mid)}
	c.From, c.To = l.now.Setting.Diff(to.Setting)
	t, e := to.Throughput, efficiency
	b := setting.Band{Low: roundToFourDigits(t.Low * e), Mid: roundToFourDigits(t.Mid * e),
		High: roundToFourDigits(t.High * e)}
	if b.Low >= 0 && b.High <= math.MaxFloat32 { // neither NaN nor infinite
		c.Predicted = b
	}
	return c
}

// roundToFourDigits returns x with four significant digits.
func roundToFourDigits(x float64) float64 {
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 4, 64), 64)
	return x
}

// sumCosts returns how many seconds changes have cost in the last so many seconds.
func (l *Loop) sumCosts(window float64) (sum float64) {
	for _, s := range l.spent {
		if (l.now.Now - s.at).Seconds() <= window {
			sum += s.seconds
		}
	}
	return sum
}
