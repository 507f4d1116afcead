package jobs

import (
	"fmt"
	"math"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
	"github.com/shoal-ml/shoal/internal/plural"
)

// What a reshape by a plan brings: the file of the plan promises how long a step takes then, and
// the job knows how long its steps take now. The functions are pure; the goroutine of the command
// shoal reshape calls them.

// gain is what a reshape brings. In JSON it stands after what the reshape moves.
type gain struct {
	// Predicted is what the plan promises of a step.
	Predicted deployment.Prediction `json:"predicted"`
	Batch     int                   `json:"batch"` // samples of a step of the plan
	// Now is what steps take now; nil = there are no whole steps yet.
	Now *api.Pace `json:"now,omitempty"`
	// Pause is how many seconds the reshape takes.
	Pause float64 `json:"pause"`
	// PaysAfter is after how many steps on the new mesh the time is won back that the reshape
	// takes; nil = it never is, or that is not known.
	PaysAfter *int `json:"pays_after,omitempty"`
}

// dryRun is what a reshape moves, and what it brings.
type dryRun struct {
	*api.Plan
	Gain *gain `json:"gain,omitempty"` // nil = no plan promises anything
}

// dryRunOf returns what a reshape of a job moves and brings, for JSON.
func (f *reshapeFlags) dryRunOf(p *api.Plan, j *api.Job) dryRun {
	d := dryRun{Plan: p}
	if f.planned != nil {
		g := gainOf(f.planned, p, j)
		d.Gain = &g
	}
	return d
}

// gainOf returns what a reshape of a job by a plan brings.
func gainOf(d *deployment.Deployment, p *api.Plan, j *api.Job) gain {
	g := gain{Predicted: d.Predicted, Batch: d.Batch, Now: j.Pace, Pause: p.Seconds}
	if g.comparable() {
		if won := g.Now.Median - d.Predicted.Seconds; won > 0 && g.Pause/won < math.MaxInt32 {
			n := int(math.Ceil(g.Pause / won))
			g.PaysAfter = &n
		}
	}
	return g
}

// comparable reports whether steps of the plan and of the job have as many samples.
func (g *gain) comparable() bool { return g.Now != nil && int(g.Now.Batch) == g.Batch }

// text returns what a reshape brings, as a line for people.
func (g gain) text() string {
	text := fmt.Sprintf("step           predicted %s (%s to %s)",
		plural.Seconds(g.Predicted.Seconds), plural.Seconds(g.Predicted.Low),
		plural.Seconds(g.Predicted.High))
	if g.Now == nil {
		return text + "; the job has made no whole step yet to compare with\n"
	}
	text += fmt.Sprintf("; now %s (median of %s)", plural.Seconds(g.Now.Median),
		plural.Of(int(g.Now.Steps), "step"))
	switch {
	case !g.comparable():
		return text + fmt.Sprintf(", and of %d samples where the plan is for %d\n", g.Now.Batch,
			g.Batch)
	case g.PaysAfter == nil:
		return text + ": it never pays for itself, since steps take no less\n"
	}
	return text + fmt.Sprintf(": it pays for itself after %s\n", plural.Of(*g.PaysAfter, "step"))
}
