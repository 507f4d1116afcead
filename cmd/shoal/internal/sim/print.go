package sim

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/world/play"
)

// What shoal sim prints for people, on the goroutine of the command. The functions change nothing,
// write to out and wait for nothing else.

// printResult prints what came of the scenario in a file.
func printResult(out io.Writer, file string, r *play.Result) error {
	fmt.Fprintf(out, "%s: %s in %s, seed %d\n", file, plural.Of(int(r.Steps), "step"),
		seconds(r.Seconds), r.Seed)
	if r.Ended != "" {
		fmt.Fprintf(out, "it ended early: %s\n", r.Ended)
	}
	rows := [][]string{{"STEP", "TIME", "HOSTS", "WORKERS", "BATCH", "STEPS/S", "SAMPLES/S",
		"GOODPUT", "OF BEST", "SINCE"}}
	for _, p := range r.Periods {
		rows = append(rows, []string{strconv.FormatUint(p.From, 10), seconds(p.At),
			strconv.Itoa(p.Hosts), strconv.Itoa(p.Workers), strconv.FormatUint(p.Batch, 10),
			digits(p.StepRate), digits(p.Rate), digits(p.Goodput), digits(p.Goodput / p.Best),
			strings.Join(p.Events, ", ")})
	}
	if err := cli.Table(out, rows); err != nil {
		return err
	}
	for _, c := range r.Entries {
		fmt.Fprintln(out, c)
	}
	for _, w := range newestWhyNots(r.WhyNots) {
		fmt.Fprintf(out, "%s changes nothing since step %d: %s\n", w.Policy, w.First, w.Why)
	}
	for _, c := range r.Checks {
		verdict := "holds"
		if !c.Holds {
			verdict = "FAILS"
		}
		fmt.Fprintf(out, "%s  line %d: %s: %s\n", verdict, c.Line, c.Text, valueText(c))
	}
	return nil
}

// newestWhyNots returns the newest reason of each policy why it changes nothing.
func newestWhyNots(all []play.WhyNot) (list []play.WhyNot) {
	for i, w := range all {
		newest := true
		for _, later := range all[i+1:] {
			newest = newest && later.Policy != w.Policy
		}
		if newest {
			list = append(list, w)
		}
	}
	return list
}

// valueText says what came of an expectation.
func valueText(c play.Check) string {
	switch x := float64(c.Value); {
	case strings.HasPrefix(c.Text, "expect samples "):
		return fmt.Sprintf("%.0f samples have not", x)
	case math.IsInf(x, 1):
		return "the target is not reached"
	case math.IsNaN(x):
		return "no step counts for it"
	default:
		return "it is " + digits(x)
	}
}

// printWhatIf compares what came of a scenario as it is with what came of it with a what-if.
func printWhatIf(out io.Writer, p *played) error {
	fmt.Fprintf(out, "%s, seed %d; what if %s\n", p.File, p.Seed, p.What)
	rows := [][]string{{"", "AS IT IS", "WHAT IF", "FACTOR"}}
	// row adds a row about a number of each; NaN = it is not known, and where neither is, no row.
	row := func(name string, number func(r *play.Result) float64) {
		a, b := number(p.Result), number(p.With)
		if math.IsNaN(a) && math.IsNaN(b) {
			return
		}
		rows = append(rows, []string{name, digitsOrDash(a), digitsOrDash(b), digitsOrDash(b / a)})
	}
	row("steps", func(r *play.Result) float64 { return float64(r.Steps) })
	row("seconds", func(r *play.Result) float64 { return r.Seconds })
	row("steps/s", func(r *play.Result) float64 { return float64(r.Steps) / r.Seconds })
	row("samples/s", func(r *play.Result) float64 { return float64(r.Samples) / r.Seconds })
	row("goodput", func(r *play.Result) float64 { return r.Progress / r.Seconds })
	row("changes", func(r *play.Result) float64 { return float64(r.CountChanges()) })
	row("seconds to the target", func(r *play.Result) float64 {
		if r.Target == 0 || r.Progress < r.Target {
			return math.NaN()
		}
		return r.Seconds
	})
	return cli.Table(out, rows)
}

// digitsOrDash writes a number as digits does; "-" if it is not known.
func digitsOrDash(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "-"
	}
	return digits(x)
}

// digits writes a number with three digits, or all before the point.
func digits(x float64) string { return plural.Number(x, 3) }

// seconds writes a time in virtual seconds.
func seconds(x float64) string { return strconv.FormatFloat(x, 'f', 1, 64) + " s" }
