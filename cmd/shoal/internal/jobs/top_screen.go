package jobs

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/watch"
)

// What shoal top shows, as text. The functions only read the view.

// screenText returns a view as lines of at most so many columns; 0 = of any number. height is how
// many lines there is room for; 0 = for any number, and what does not fit is left out at the end of
// each part.
func screenText(v watch.View, width, height int) string {
	parts := [][]string{headLines(v), stepLines(v, width), workerLines(v), changeLines(v),
		markLines(v)}
	room := height
	var lines []string
	for i, part := range parts {
		if len(part) == 0 {
			continue
		}
		if i > 0 {
			part = append([]string{""}, part...)
		}
		if height > 0 { // the parts below get three lines each, if they have so many
			below := 0
			for _, p := range parts[i+1:] {
				below += min(len(p)+1, 4)
			}
			part = part[:max(min(len(part), room-below), min(len(part), 3, max(room, 0)))]
			room -= len(part)
		}
		lines = append(lines, part...)
	}
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(fitColumns(line, width) + "\n")
	}
	return b.String()
}

// fitColumns cuts a line to so many columns, and makes what could do something to a terminal
// visible.
func fitColumns(line string, width int) string {
	line = cli.Visible(line, false)
	if width == 0 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:max(width-1, 0)]) + "…"
}

// clock returns the time of day of seconds since 1970, with the date where that is another one than
// that of now; "-" = it is not known.
func clock(seconds, now float64) string {
	if seconds <= 0 {
		return "-"
	}
	return timeOrDate(time.UnixMilli(int64(seconds*1e3)), time.UnixMilli(int64(now*1e3)))
}

// headLines says which job it is, how it is, and what is missing.
func headLines(v watch.View) (lines []string) {
	facts := []string{cmp.Or(v.Job, v.Dir), v.State.Word}
	if j := v.Live; j != nil {
		facts = append(facts, "step "+stepText(*j, newestMetrics(*j)), sizeText(*j)+" workers",
			fmt.Sprintf("generation %d", j.Generation))
		if j.Setting != nil && j.Setting.Batch > 0 {
			facts = append(facts, fmt.Sprintf("batch %d", j.Setting.Batch))
		}
		if sync := syncText(*j); sync != "-" {
			facts = append(facts, "sync "+sync)
		}
	} else if n := v.Newest; n != nil {
		facts = append(facts, fmt.Sprintf("step %d", cmp.Or(n.OptimizerSteps, n.Step)))
	}
	if v.Started > 0 {
		end := v.Made
		if v.State.Over && v.State.At > 0 {
			end = v.State.At
		}
		facts = append(facts, fmt.Sprintf("since %s (%v)", clock(v.Started, v.Made),
			(time.Duration(math.Max(end-v.Started, 0))*time.Second).Round(time.Second)))
	}
	lines = append(lines, strings.Join(facts, "  "))
	switch {
	case v.State.Word == "silent" && v.State.At > 0:
		lines = append(lines, fmt.Sprintf("silent since %s: %s", clock(v.State.At, v.Made),
			v.State.Text))
	case v.Live == nil:
		lines = append(lines, v.State.Text)
	default:
		stall := stallText(*v.Live, time.UnixMilli(int64(v.Made*1e3)))
		for _, text := range []string{v.Need, stall} {
			if text != "" {
				lines = append(lines, text)
			}
		}
		lines = append(lines, v.Live.Slow...)
	}
	for _, n := range v.Notes {
		lines = append(lines, "note: "+n)
	}
	return lines
}

// stepLines says what steps take, with a small chart of each number.
func stepLines(v watch.View, width int) (lines []string) {
	chart := 40
	if width > 0 {
		chart = max(width-36, 10)
	}
	metricLoss := findSeries(v, "metric loss")
	// add adds a line about a column of a series.
	add := func(name string, s *watch.SeriesView, column string, text func(float64) string) {
		if s == nil {
			return
		}
		list := s.Values[slices.Index(s.Columns, column)]
		x, ok := newest(list)
		if !ok {
			return
		}
		said := text(x)
		if isNoNumber(s) || name == "loss" && metricLoss != nil && isNoNumber(metricLoss) {
			said = "NaN"
		}
		lines = append(lines, fmt.Sprintf("%-16.16s %16s  %s", name, said, sparkline(list, chart)))
	}
	steps := findSeries(v, "steps")
	add("step", steps, "median", plural.Seconds)
	add("samples/s", steps, "rate", digits)
	add("steps/s, now", findSeries(v, "pace"), "steps", digits)
	before := len(lines)
	add("loss", steps, "loss", digits)
	hasLoss := len(lines) > before // the mean of the workers' losses
	for i := range v.Series {
		s := &v.Series[i]
		name, is := strings.CutPrefix(s.Name, "metric ")
		known := name == "step" || name == "loss" && hasLoss
		if is && !known && len(lines) < 12 {
			add(name, s, name, digits)
		}
	}
	if s := findSeries(v, "split"); s != nil {
		lines = append(lines, splitText(s))
	}
	return lines
}

// splitText says where the time of a step goes.
func splitText(s *watch.SeriesView) string {
	sum, parts := 0.0, []string{}
	for i := range s.Columns {
		x, _ := newest(s.Values[i])
		sum += x
	}
	for i, name := range s.Columns {
		if x, ok := newest(s.Values[i]); ok && sum > 0 {
			parts = append(parts, fmt.Sprintf("%s %.0f %%", name, 100*x/sum))
		}
	}
	return "of a step: " + strings.Join(parts, ", ")
}

// findSeries returns a series by its name; nil = there is none.
func findSeries(v watch.View, name string) *watch.SeriesView {
	i := slices.IndexFunc(v.Series, func(s watch.SeriesView) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &v.Series[i]
}

// isNoNumber reports whether a series is a metric whose newest report is no number.
func isNoNumber(s *watch.SeriesView) bool {
	if n := len(s.Times); strings.HasPrefix(s.Name, "metric ") && n > 0 {
		x := s.Values[0][n-1]
		return math.IsNaN(x) || math.IsInf(x, 0)
	}
	return false
}

// newest returns the last number that is one.
func newest(list []float64) (float64, bool) {
	for _, x := range slices.Backward(list) {
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			return x, true
		}
	}
	return 0, false
}

// digits writes a number with four digits, or all before the point.
func digits(x float64) string { return plural.Number(x, 4) }

// sparkline draws numbers as a line of so many characters, the newest at the right end.
func sparkline(list []float64, width int) string {
	var all []float64
	for _, x := range list {
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			all = append(all, x)
		}
	}
	if len(all) < 2 {
		return ""
	}
	bars := []rune("▁▂▃▄▅▆▇█")
	low, high := slices.Min(all), slices.Max(all)
	width = min(width, len(all))
	line := make([]rune, width)
	for i := range line {
		from, to := i*len(all)/width, (i+1)*len(all)/width
		mean := 0.0
		for _, x := range all[from:to] {
			mean += x / float64(to-from)
		}
		k := 0
		if high > low {
			k = int((mean - low) / (high - low) * float64(len(bars)))
		}
		line[i] = bars[min(max(k, 0), len(bars)-1)]
	}
	return string(line)
}

// workerLines lists the workers of a job that runs, or how they ended.
func workerLines(v watch.View) (lines []string) {
	if v.Live == nil {
		for _, e := range v.Ended {
			lines = append(lines, fmt.Sprintf("worker %d %s", e.Rank, e.How))
		}
		return lines
	}
	// slack says how long a rank waits in each step for the slowest one, of several.
	slack := func(rank int) string {
		n := v.Newest
		if n == nil || n.Generation != v.Live.Generation || n.Size < 2 || rank < 0 ||
			rank >= len(n.Slack) {
			return "-"
		}
		return plural.Seconds(n.Slack[rank])
	}
	rows := [][]string{{"WORKER", "RANK", "HOST", "STATE", "WAITS", "REPORTED"}}
	for _, w := range v.Live.Workers {
		rank, state := rankAndState(&w)
		var last []string
		for name, x := range w.Metrics {
			last = append(last, name+"="+digits(x))
		}
		slices.Sort(last)
		rows = append(rows, []string{strconv.Itoa(w.Worker), rank, cli.OrDash(w.Host), state,
			slack(w.Rank), cli.OrDash(cli.Visible(strings.Join(last, " "), false))})
	}
	if len(rows) == 1 {
		return nil
	}
	var b strings.Builder
	_ = cli.Table(&b, rows) // a Builder fails never
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

// changeLines lists the newest changes, with what was predicted and measured of them.
func changeLines(v watch.View) (lines []string) {
	for _, c := range slices.Backward(v.Changes) {
		if len(lines) == 8 {
			break
		}
		by := cmp.Or(c.Policy, c.Who)
		text := fmt.Sprintf("change %s  %-8s  %s, by %s", c.Name, c.Phase, c.What, by)
		if b := c.Predicted; b.IsKnown() {
			text += fmt.Sprintf("; predicted %.3gx (%.3g–%.3g)", b.Mid, b.Low, b.High)
		}
		if c.Measured > 0 {
			text += fmt.Sprintf("; measured %.3gx", c.Measured)
		}
		switch {
		case c.Inside != nil && *c.Inside:
			text += ", in the band"
		case c.Inside != nil:
			text += ", outside the band"
		case c.Phase == setting.Entered:
			text += "; on trial"
		case c.Phase == setting.Void && c.Why != "":
			text += "; " + c.Why
		}
		lines = append(lines, text)
	}
	inside, of := 0, 0
	for _, c := range v.Coverage {
		inside, of = inside+c.Inside, of+c.Of
	}
	if of > 0 {
		lines = append(lines, fmt.Sprintf("bands: %d of %d held what came; 80 of 100 are meant to",
			inside, of))
	}
	return lines
}

// markLines lists what has happened last, the newest first.
func markLines(v watch.View) (lines []string) {
	for _, m := range slices.Backward(v.Marks) {
		if len(lines) == 12 {
			break
		}
		step := strconv.FormatUint(cmp.Or(m.OptimizerSteps, m.Step), 10)
		if m.StepUnknown {
			step = "-"
		}
		text := fmt.Sprintf("%s  step %-6s %s", clock(m.Time, v.Made), step, m.Title)
		if m.Text != "" {
			text += ": " + m.Text
		}
		lines = append(lines, text)
	}
	return lines
}
