package act

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

const (
	// minGain is by which factor the progress a second must be predicted to grow for a change.
	minGain = 1.03
	// horizon is for how many seconds a change is assumed to pay.
	horizon = 600.0
	// maxCost is the share of the time that changes may cost, in any costWindow, or in as long as
	// windowSteps steps take where that is longer.
	maxCost, windowSteps = 0.02, 100
	costWindow           = 600 * sense.Second
	// maxAlternatives is how many alternatives a change tells.
	maxAlternatives = 3
)

// spending is what a change has cost.
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
	score  float64 // seconds that the change saves within the horizon
}

// decide asks the policies, and orders the best of what they want. It is time to decide, and no
// change is under way.
func (l *Loop) decide() []Order {
	l.twin.Observe(l.now)
	if since := l.twin.Since(); since != l.since {
		l.since = since
		l.release()
	}
	o := l.now
	if l.tooLarge > 0 {
		o.Levers.Batch.To = min(o.Levers.Batch.To, l.tooLarge-1)
	}
	var best *candidate
	l.again = maxInterval
	for _, m := range l.policies {
		if m.faults >= maxFaults {
			continue
		}
		d, fault := m.ask(o, l.twin)
		if fault != "" {
			l.fault(m, fault)
			continue
		}
		m.faults = 0
		if d.To == nil && d.Again > 0 {
			l.again = min(l.again, d.Again)
		}
		if c := l.weigh(m, d); c != nil && (best == nil || c.score > best.score) {
			best = c
		}
	}
	if best == nil {
		return nil
	}
	return l.order(*best)
}

// weigh returns what a policy wants with what is predicted of it; nil if it is not worth a change,
// which is noted.
func (l *Loop) weigh(m *member, d decide.Decision) *candidate {
	if d.To == nil {
		l.note(m.Name(), d.Because)
		return nil
	}
	p := l.twin.Predict(*d.To)
	c := &candidate{member: m, Decision: d, Prediction: p,
		change: l.change(decide.Scored{Target: *d.To, Prediction: p})}
	c.score = (p.Gain()-1)*horizon - p.CostSeconds.Mid
	if why := l.whyNot(c); why != "" {
		l.note(m.Name(), why)
		return nil
	}
	return c
}

// whyNot returns why a candidate is not worth a change, in words; "" = it is.
func (l *Loop) whyNot(c *candidate) string {
	held, measured := l.held(c.change), l.twin.Measured()
	deviation, cost := sense.Deviation(measured), c.CostSeconds.Mid
	window := max(costWindow.Seconds(), windowSteps*c.StepSeconds.Mid)
	spent := l.spentWithin(window)
	brings := fmt.Sprintf("%s may bring %.4gx", c.change.To, c.Gain())
	switch {
	case len(c.change.Parts()) == 0:
		return "it is as it should be: " + c.Because
	case held != "":
		return held
	case len(measured) < minMeasure:
		return fmt.Sprintf("%s waits until %d steps by the setting of now are measured",
			c.change.To, minMeasure)
	case c.Gain() == 0:
		return fmt.Sprintf("nothing can be predicted of %s: %s", c.change.To, c.Guess)
	case !(c.Gain() > minGain) || !c.change.Predicted.IsKnown():
		return fmt.Sprintf("%s, and a change must bring %.3gx", brings, minGain)
	case stepsToMeasure(deviation, c.Gain()) > maxMeasure:
		return fmt.Sprintf("%s, and steps differ by %.2g %%, so that %d of them would not show it",
			brings, 100*deviation, maxMeasure)
	case !(c.score > 0):
		return fmt.Sprintf("%s, and costs %.3g s, more than that saves in %.0f s", brings, cost,
			horizon)
	case spent+cost > maxCost*window:
		return fmt.Sprintf("%s costs %.3g s, and changes have cost %.3g s in the last %.0f s: "+
			"%.3g s are allowed", c.change.To, cost, spent, window, maxCost*window)
	}
	return ""
}

// order returns the order to make a change.
func (l *Loop) order(c candidate) []Order {
	c.change.Policy, c.change.Because = c.member.Name(), cut(c.Because)
	for _, x := range c.Alternatives[:min(len(c.Alternatives), maxAlternatives)] {
		_, text := l.now.Setting.Diff(x.Setting)
		c.change.Alternatives = append(c.change.Alternatives, cut(fmt.Sprintf("%s: %.3gx", text,
			x.Gain())))
	}
	next := c.To.Setting
	next.Number = l.entry.Setting.Number
	if l.mode == Watch { // the same again is worth a line later
		v := l.lever(mainPart(c.change))
		v.delay(l.now.Step)
		v.why = "it was said what should change"
		return []Order{{Next: next, Change: c.change, Watch: true}}
	}
	l.asked = &asked{change: c.change, efficiency: c.Efficiency.Mid, step: l.now.Step}
	return []Order{{Next: next, Change: c.change}}
}

// change returns the change from the setting of now to a target, without who wants it and why.
// What it predicts is what the trial measures: the factor of the throughput, times the middle of
// that of the efficiency.
func (l *Loop) change(to decide.Scored) setting.Change {
	c := setting.Change{Phase: setting.Entered, Step: l.now.Step, Rate: round(l.twin.Rate().Mid)}
	c.From, c.To = l.now.Setting.Diff(to.Setting)
	t, e := to.Throughput, to.Efficiency.Mid
	b := setting.Band{Low: round(t.Low * e), Mid: round(t.Mid * e), High: round(t.High * e)}
	if b.Low >= 0 && b.High <= math.MaxFloat32 { // neither NaN nor infinite
		c.Predicted = b
	}
	return c
}

// round returns a number with four significant digits.
func round(x float64) float64 {
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 4, 64), 64)
	return x
}

// spentWithin returns how many seconds changes have cost in the last so many seconds, and forgets
// those before.
func (l *Loop) spentWithin(window float64) (sum float64) {
	l.spent = slices.DeleteFunc(l.spent, func(s spending) bool {
		return (l.now.Now - s.at).Seconds() > window
	})
	for _, s := range l.spent {
		sum += s.seconds
	}
	return sum
}
