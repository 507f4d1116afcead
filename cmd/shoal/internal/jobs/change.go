package jobs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/setting"
)

// What shoal explain says of a change, and why nothing was changed. One goroutine runs what is
// here, that of the command, so nothing is locked. It reads the ledger and other files of the run;
// functions that return a text are pure.

// explainChange prints to out all that the ledger of the run in dir says of the change of a name:
// what, when and why, what else was compared, what was predicted, and what came of it. asJSON
// prints the entries of the ledger about it. over says that the run is. An error says which numbers
// there are.
func explainChange(out io.Writer, dir string, name string, asJSON, over bool) error {
	var about []runs.Entry    // the entries about the change
	var all []string          // the names of all changes, each once
	seen := map[string]bool{} // these
	damaged, err := eachEntry(dir, over, func(e runs.Entry) error {
		if e.Change == nil {
			return nil
		}
		if !seen[e.Change.Name()] {
			seen[e.Change.Name()] = true
			all = append(all, e.Change.Name())
		}
		if e.Change.Name() == name {
			about = append(about, e)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case len(about) == 0 && damaged > 0:
		return fmt.Errorf("the ledger %s has no change %s in what can be read; left out: %s",
			runs.LedgerPath(dir), name, plural.Of(damaged, "line"))
	case len(about) == 0:
		return fmt.Errorf("the ledger %s has no change %s: %s", runs.LedgerPath(dir), name,
			knownChanges(name, all))
	case asJSON:
		return encodeEntries(out, about)
	}
	_, err = io.WriteString(out, changeText(about))
	return err
}

// encodeEntries prints entries of a ledger to out, an object each.
func encodeEntries(out io.Writer, list []runs.Entry) error {
	for _, e := range list {
		if err := json.NewEncoder(out).Encode(e); err != nil {
			return err
		}
	}
	return nil
}

// changeName is the name of a change, as the flag --change takes it; "" = none was given.
type changeName string

// String implements pflag.Value: the name that was given, as it stands.
func (n *changeName) String() string { return string(*n) }

// Type implements pflag.Value: what the help calls the value.
func (n *changeName) Type() string { return "name" }

// Set implements pflag.Value: it takes a name from the command line, and fails for what cannot be
// one.
func (n *changeName) Set(text string) error {
	if !namesChange.MatchString(text) {
		return errors.New("it takes a whole number, or r and a number for a change of routes")
	}
	*n = changeName(text)
	return nil
}

// namesChange matches the name of a change.
var namesChange = pattern.New("^r?[0-9]+$")

// knownChanges says which changes a ledger has that has none of a name, and how those of its kind
// come about where there are none.
func knownChanges(name string, all []string) string {
	byKind := map[bool][]string{} // by whether they are of routes
	for _, known := range all {
		byKind[known[0] == 'r'] = append(byKind[known[0] == 'r'], known)
	}
	none := ""
	if ofRoutes := name[0] == 'r'; len(byKind[ofRoutes]) == 0 && ofRoutes {
		none = "the routes of all-reduces were not changed"
	} else if len(byKind[ofRoutes]) == 0 {
		none = "the setting of the job was not changed, as shoal set JOB batch=512 does"
	} else if len(all) == 1 {
		return "the only one is change " + all[0]
	}
	var parts []string
	for _, list := range [][]string{byKind[false], byKind[true]} {
		switch len(list) {
		case 0:
		case 1:
			parts = append(parts, "change "+list[0])
		default:
			parts = append(parts, fmt.Sprintf("changes %s to %s", list[0], list[len(list)-1]))
		}
	}
	there := "there " + plural.Verb(len(all), "is ", "are ") + strings.Join(parts, " and ")
	switch {
	case none == "":
		return there
	case len(all) == 0:
		return none
	}
	return none + "; " + there
}

// changeText says one change whole, in lines; about has the entries of the ledger about it.
func changeText(about []runs.Entry) string {
	first, last := about[0], about[len(about)-1]
	c := *last.Change
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(&b, "change %s at %s: %s\n", c.Name(), setting.MomentText(c.Step, c.OptimizerSteps),
		c.DiffText())
	ended := setting.MomentText(last.Step, last.OptimizerSteps)
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
	if c.IsAtOnce() {
		line("came of it", "kept at once: it changes nothing of how fast the job is")
		return b.String()
	}
	line("predicted", "%s", bandText(c))
	line("measured", "%s", measuredText(c))
	switch c.Phase {
	case setting.Entered:
		line("so far", "it is in force, and no verdict is in this ledger")
	case setting.Reverted:
		line("came of it", "taken back at %s%s", ended, whyText(c))
	default:
		line("came of it", "%s at %s%s", c.Phase, ended, whyText(c))
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

// bandText says by which factor the goodput of a job, or the speed of all-reduces, was to grow.
func bandText(c setting.Change) string {
	b := c.Predicted
	if !b.IsKnown() {
		return "nothing"
	}
	return fmt.Sprintf("%.3gx %s, in 80 of 100 cases %.3g to %.3g", b.Mid, c.FactorText(), b.Low,
		b.High)
}

// measuredText says by which factor the goodput of a job has grown with a change.
func measuredText(c setting.Change) string {
	if c.Measured == 0 {
		return "nothing"
	}
	text := fmt.Sprintf("%.3gx over %s", c.Measured, plural.Of(int(c.Steps), c.Unit()))
	if c.Rate > 0 {
		text += ", as against " + digits(c.Rate) + " samples/s before"
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

// printWhyNot prints to out which hosts of a job are slow, and why its policies have left things as
// they are lately, the newest reason last.
func printWhyNot(out io.Writer, j control.Job) error {
	var b strings.Builder
	for _, line := range j.Slow {
		b.WriteString(line + "\n")
	}
	switch {
	case j.Auto != "" && j.Mesh != "":
		b.WriteString("its policies change nothing, since it has a mesh\n")
	case j.Auto == "watch":
		b.WriteString("its policies only say what they would change\n")
	case j.Auto != "":
		b.WriteString("its policies change how it trains\n")
	}
	if j.Auto != "" && j.Levers != nil && j.Levers.Sync != "" {
		b.WriteString("how workers synchronise: " + cmp.Or(j.Levers.WhyNotAuto(),
			"the program leaves it to the job (sync=\"auto\"), and it is "+syncText(j)) + "\n")
	}
	b.WriteString(whyNotText(j.WhyNot))
	_, err := io.WriteString(out, b.String())
	return err
}

// printKeptWhyNot prints to out why the policies of a job that does not run any more, or does not
// answer, have left things as they were, as its directory has it.
func printKeptWhyNot(out io.Writer, dir string) error {
	list, err := runs.ReadWhyNots(dir)
	if err != nil || len(list) == 0 {
		return err
	}
	_, err = io.WriteString(out, "why its policies left things as they were:\n"+whyNotText(list))
	return err
}

// whyNotText says in lines why policies have left things as they are.
func whyNotText(list []control.WhyNot) string {
	var b strings.Builder
	for _, w := range list {
		when := fmt.Sprintf("at commit %d", w.Last)
		if w.Times > 1 {
			when = fmt.Sprintf("at %d decisions, commits %d to %d", w.Times, w.First, w.Last)
		}
		fmt.Fprintf(&b, "  %s changed nothing %s: %s\n", cmp.Or(w.Policy, "a person"), when, w.Why)
	}
	return b.String()
}
