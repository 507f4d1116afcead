package setting

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/shoal-ml/shoal/internal/plural"
)

// How a Change is said to people: in the ledger, by shoal explain and in the logs of a run. Nothing
// here changes a Change, so any goroutine may call these functions.

// String says the change in one line for a person: that it was entered and why, with what was
// predicted, or how it has ended, with what was measured.
func (c Change) String() string {
	switch text := fmt.Sprintf("change %s %s", c.Name(), c.Phase); {
	case c.Phase == Entered || c.IsAtOnce():
		return fmt.Sprintf("change %s at %s: %s", c.Name(), MomentText(c.Step, c.OptimizerSteps),
			c.Reason())
	case c.Phase == Reverted:
		return text + c.ending() + "; " + Change{From: c.To, To: c.From}.DiffText()
	default:
		return text + c.ending()
	}
}

// MomentText says when something was, by the number of commits before, and that of optimizer steps,
// which programs and checkpoints count; 0 = as many.
func MomentText(commits, optimizerSteps uint64) string {
	if optimizerSteps == 0 {
		return fmt.Sprintf("step %d", commits)
	}
	return fmt.Sprintf("step %d (commit %d)", optimizerSteps, commits)
}

// Name returns the number of the change, as people write it: changes of routes, which count by
// themselves, have an r before it.
func (c Change) Name() string {
	if c.Policy == Routes {
		return fmt.Sprintf("r%d", c.Number)
	}
	return fmt.Sprint(c.Number)
}

// FactorText says of what the factors of the change are.
func (c Change) FactorText() string {
	if c.Policy == Routes {
		return "speed"
	}
	return "goodput"
}

// Unit says what is counted while the change is measured.
func (c Change) Unit() string {
	if c.Policy == Routes {
		return "all-reduce"
	}
	return "step"
}

// Reason says what the change changes, why, and what is predicted of it.
func (c Change) Reason() string {
	text := c.DiffText()
	if c.Because != "" {
		text += ", because " + c.Because
	}
	if c.Predicted.IsKnown() {
		text += fmt.Sprintf("; predicted %s", c.Predicted.factor(c.FactorText()+" "))
	}
	return text
}

// AskedBy says who has asked for what the change brings, for people: a person, a policy, or the end
// of the change itself.
func (c Change) AskedBy() string {
	switch {
	case c.Phase.IsEnd():
		return fmt.Sprintf("the end of change %d", c.Number)
	case c.Who != "":
		return c.Who
	}
	return fmt.Sprintf("policy %s (change %d)", c.Policy, c.Number)
}

// IsNews reports whether a person wants to hear of the change: not where a policy has changed the
// rate alone, which it does as often as the noise changes; nor where it has ended, as a person's
// change, without a prediction or a measurement, which mostly another one has cut short.
func (c Change) IsNews() bool {
	if c.IsAtOnce() {
		return c.IsRequest()
	}
	return c.Phase != Void || c.Policy != "" || c.Predicted.IsKnown()
}

// DiffText says what the change changes, such as "batch 128 -> 256".
func (c Change) DiffText() string {
	var list []string
	for _, name := range c.named() {
		from, to := PartOf(c.From, name), PartOf(c.To, name)
		if name == "shares" {
			from, to = cmp.Or(from, "equal"), cmp.Or(to, "equal")
		}
		switch {
		case from == to:
			list = append(list, fmt.Sprintf("%s stays %s", name, to))
		case from == "":
			list = append(list, name+" "+to)
		case to == "":
			list = append(list, fmt.Sprintf("%s %s -> as the program has it", name, from))
		default:
			list = append(list, fmt.Sprintf("%s %s -> %s", name, from, to))
		}
	}
	return strings.Join(list, ", ")
}

// PartOf returns the value of a part in the text form of a setting; "" = it is not there.
func PartOf(text, name string) string {
	for _, word := range strings.Split(text, ",") {
		if value, is := strings.CutPrefix(word, name+"="); is {
			return value
		}
	}
	return ""
}

// ending says what was measured, beside what was predicted, and why the change ended, each after
// ": " or ", "; "" if nothing is known of it.
func (c Change) ending() string {
	var list []string
	if c.Measured > 0 {
		list = append(list, fmt.Sprintf("%.3gx over %s", c.Measured,
			plural.Of(int(c.Steps), c.Unit())))
		switch {
		case !c.Predicted.IsKnown():
		case c.Phase != Reverted && c.Measured >= 1 && c.Predicted.Contains(c.Measured):
			list = append(list, "as predicted")
		default: // also within the band, where that alone would not explain what came of it
			list = append(list, "predicted "+c.Predicted.factor(""))
		}
	}
	switch {
	case c.Why != "":
		list = append(list, c.Why)
	case c.Phase == Kept && c.Measured > 0 && c.Measured < 1 && c.Who != "":
		list = append(list, "kept because "+c.Who+" asked")
	}
	if len(list) == 0 {
		return ""
	}
	return ": " + strings.Join(list, ", ")
}

// factor writes a band of factors as text; `of` is what FactorText returns, with a space behind it,
// or "". The Mid comes first, such as "1.31x (1.18–1.44)", with three digits, and four where it is
// hardly more than 1.
func (b Band) factor(of string) string {
	digits := 3
	if math.Abs(b.Mid-1) < 0.01 {
		digits = 4
	}
	return fmt.Sprintf("%.*gx %s(%.*g–%.*g)", digits, b.Mid, of, digits, b.Low, digits, b.High)
}
