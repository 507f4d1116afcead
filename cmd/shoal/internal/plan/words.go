package plan

import (
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
	"github.com/shoal-ml/shoal/internal/plural"
)

// What shoal plan says of a plan, in words. The functions are pure.

// helpText writes what would let more samples through, and by how much.
func helpText(list []planner.Help) string {
	parts := make([]string, len(list))
	for i, h := range list {
		parts[i] = fmt.Sprintf("%+.1f %% with %s", 100*h.Gain, h.What)
	}
	return strings.Join(parts, ", ") + " (samples/s)"
}

// stepText writes by which argument how many plans are ruled out.
func stepText(step deployment.Step) string {
	switch {
	case step.Plans >= 1e6:
		number, power, _ := strings.Cut(fmt.Sprintf("%.1e", step.Plans), "e+")
		return fmt.Sprintf("%s·10^%s %s", number, strings.TrimLeft(power, "0"), step.Argument)
	case step.Plans == 1: // "cuts by …", "plans, each …"
		return "1 " + strings.Replace(step.Argument, "s", "", 1)
	}
	return fmt.Sprintf("%.0f %s", step.Plans, step.Argument)
}

// memoryText writes how much memory the workers need that have least left, and, where that is
// known, what takes it.
func memoryText(r *planner.Result) string {
	needs, parts := r.Best.Stages[r.Fullest].Memory, ""
	if r.Memory != nil {
		m := r.Memory[r.Fullest]
		needs, parts = m.Sum(), ": "+m.String()
	}
	return fmt.Sprintf("%s of %s on the fullest workers, those of stage %d%s",
		plural.Bytes(needs), plural.Bytes(r.Has), r.Fullest, parts)
}
