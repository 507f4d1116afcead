package jobs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/launcher"
	"github.com/shoal-ml/shoal/setting"
)

// explainChange prints to out all that the ledger of the run in dir says of the change of a number:
// what, when and why, what else was compared, what was predicted, and what came of it. asJSON
// prints the entries of the ledger about it. An error says which numbers there are.
func explainChange(out io.Writer, dir string, number uint64, asJSON bool) error {
	var about []launcher.Entry // the entries about the change
	var all []uint64           // the numbers of all changes, each once
	ledger := &tail{path: launcher.LedgerPath(dir)}
	err := ledger.readEntries(func(e launcher.Entry) error {
		if e.Change == nil {
			return nil
		}
		if len(all) == 0 || all[len(all)-1] < e.Change.Number {
			all = append(all, e.Change.Number)
		}
		if e.Change.Number == number {
			about = append(about, e)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case len(about) == 0:
		return fmt.Errorf("the ledger %s has no change %d: %s", ledger.path, number,
			knownChanges(all))
	case asJSON:
		return encodeEntries(out, about)
	}
	_, err = io.WriteString(out, changeText(about))
	return err
}

// encodeEntries prints entries of a ledger to out, an object each.
func encodeEntries(out io.Writer, list []launcher.Entry) error {
	for _, e := range list {
		if err := json.NewEncoder(out).Encode(e); err != nil {
			return err
		}
	}
	return nil
}

// knownChanges says which changes a ledger has, and how others come about.
func knownChanges(all []uint64) string {
	switch len(all) {
	case 0:
		return "the setting of the job was not changed, as shoal set JOB batch=512 does"
	case 1:
		return fmt.Sprintf("the only one is change %d", all[0])
	}
	return fmt.Sprintf("there are changes %d to %d", all[0], all[len(all)-1])
}

// changeText says one change whole, in lines; about has the entries of the ledger about it.
func changeText(about []launcher.Entry) string {
	first, last := about[0], about[len(about)-1]
	c := *last.Change
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(&b, "change %d at step %d: %s\n", c.Number, c.Step, c.What())
	by := c.Who
	if c.Policy != "" {
		by = "policy " + c.Policy
	}
	line("by", "%s, %s", by, first.Time.Local().Format(time.DateTime))
	if c.Because != "" {
		line("because", "%s", c.Because)
	}
	for i, other := range c.Alternatives {
		line([]string{"instead of", ""}[min(i, 1)], "%s", other)
	}
	line("predicted", "%s", bandText(c.Predicted))
	line("measured", "%s", measuredText(c))
	switch c.Phase {
	case setting.Entered:
		line("so far", "it is in force, and no verdict is in this ledger")
	case setting.Reverted:
		line("came of it", "taken back at step %d%s", last.Step, whyText(c))
	default:
		line("came of it", "%s at step %d%s", c.Phase, last.Step, whyText(c))
	}
	return b.String()
}

// whyText says why a change ended as it did, after ": "; "" = by what was measured.
func whyText(c setting.Change) string {
	if c.Why == "" {
		return ""
	}
	return ": " + c.Why
}

// bandText says by which factor the goodput of a job was to grow.
func bandText(b setting.Band) string {
	if !b.IsKnown() {
		return "nothing"
	}
	return fmt.Sprintf("%.3gx goodput, in 80 of 100 cases %.3g to %.3g", b.Mid, b.Low, b.High)
}

// measuredText says by which factor the goodput of a job has grown with a change.
func measuredText(c setting.Change) string {
	if c.Measured == 0 {
		return "nothing"
	}
	text := fmt.Sprintf("%.3gx over %s", c.Measured, plural.Of(int(c.Steps), "step"))
	if c.Rate > 0 {
		text += fmt.Sprintf(", as against %.4g samples/s before", c.Rate)
	}
	switch {
	case !c.Predicted.IsKnown():
	case c.Predicted.Contains(c.Measured):
		text += ", as predicted"
	default:
		text += ", not as predicted"
	}
	return text
}

// shownReasons is how many reasons of a policy explain prints.
const shownReasons = 3

// printWhyNot prints to out which hosts of a job are slow, and why its policies have left things as
// they are lately: of each the newest reasons, the newest last.
func printWhyNot(out io.Writer, j control.Job) error {
	var b strings.Builder
	for _, line := range j.Slow {
		b.WriteString(line + "\n")
	}
	switch {
	case j.Auto == "watch":
		b.WriteString("its policies only say what they would change\n")
	case j.Auto != "":
		b.WriteString("its policies change how it trains\n")
	}
	for i, w := range j.WhyNot {
		newer := 0 // reasons of the same policy
		for _, other := range j.WhyNot[i+1:] {
			if other.Policy == w.Policy {
				newer++
			}
		}
		if newer >= shownReasons {
			continue
		}
		when := fmt.Sprintf("at step %d", w.Last)
		if w.Times > 1 {
			when = fmt.Sprintf("at %d decisions, steps %d to %d", w.Times, w.First, w.Last)
		}
		fmt.Fprintf(&b, "  %s changed nothing %s: %s\n", cmp.Or(w.Policy, "a person"), when, w.Why)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
