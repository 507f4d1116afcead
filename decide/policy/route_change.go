package policy

import (
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense/predict"
	"github.com/shoal-ml/shoal/setting"
)

// Changes of routes as the ledger has them. What is predicted and measured is by which factor the
// all-reduces of a class become faster. The methods run within Routes.Decide, on the goroutine that
// uses the Routes.

const (
	// maxMisses is how many past predictions the band of the next one follows from.
	maxMisses = 32
	// priorMiss is by which factor predictions are off before there are any; priorMisses is how
	// many there must be until it counts no more.
	priorMiss, priorMisses = 1.4, 10
	// covered is the part of predictions whose bands hold what is measured.
	covered = 0.8
)

// beginChange has class c try the route `to`, and returns that change for the ledger. may is the
// band of seconds that an all-reduce may take by it. The route before is c.previous, which the
// caller has set, and was measured.
func (p *Routes) beginChange(c *classState, to collective.Route, may setting.Band) setting.Change {
	p.number++
	now, wide := c.seconds[c.previous].Median(), portable.Exp(p.predictionError())
	text := fmt.Sprintf("%.3g", 1e3*may.Low)
	if high := fmt.Sprintf("%.3g", 1e3*may.High); high != text {
		text += " to " + high
	}
	c.route, c.may = to, may
	c.change = setting.Change{Number: p.number, Phase: setting.Entered, Policy: setting.Routes,
		From: routeText(c.previous), To: routeText(to),
		Because: fmt.Sprintf("%v took %.3g ms, and may take %s ms", c.Class, 1e3*now, text),
		Predicted: setting.Band{Low: now / may.High / wide, Mid: now / may.Mid,
			High: now / may.Low * wide}}
	return c.change
}

// endChange returns the end of the trial of a class for the ledger, and learns from it how far off
// predictions are.
func (p *Routes) endChange(c *classState, phase setting.Phase) setting.Change {
	e, own := c.change, c.change.Policy != ""
	if !own {
		e.Policy, e.From, e.To = setting.Routes, routeText(c.previous), routeText(c.route)
		e.Because = fmt.Sprintf("the host that led before tried it for %v", c.Class)
	}
	e.Phase = phase
	if w := c.seconds[c.previous]; w != nil {
		took := c.seconds[c.route].Median()
		e.Measured, e.Steps = w.Median()/took, uint64(min(c.since, trialLength))
		e.Why = fmt.Sprintf("they took %.3g ms", 1e3*took)
		if own {
			off := portable.Log(took / min(max(took, c.may.Low), c.may.High))
			p.misses = append(p.misses, math.Abs(off))
		}
	}
	if len(p.misses) > maxMisses {
		p.misses = slices.Delete(p.misses, 0, 1)
	}
	return e
}

// predictionError returns how far off the next prediction is with the probability covered, as the
// logarithm of a factor.
func (p *Routes) predictionError() float64 {
	list := slices.Clone(p.misses)
	for len(list) < priorMisses {
		list = append(list, portable.Log(priorMiss))
	}
	slices.Sort(list)
	miss, _ := predict.ConformalQuantile(list, covered)
	return miss
}

// routeText returns a route as a part of a setting, in its text form.
func routeText(r collective.Route) string { return "route=" + r.String() }
