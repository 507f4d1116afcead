package replay

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/sim/trace"
	"github.com/shoal-ml/shoal/world/cluster"
)

// What shoal replay prints and writes, on the goroutine of the command. The functions change
// nothing, and wait for nothing but out.

// report is all that came of a trace.
type report struct {
	File   string
	Price  float64                    // of a GPU an hour; 0 = not known
	Speeds map[string][]trace.Finding // in tables of speeds, by the name of the file
	Traces []traceOf
	Runs   []run
}

// traceOf is the trace as a cluster of some GPUs takes it.
type traceOf struct {
	gpus int
	*trace.Trace
}

// run is what came of a trace under a policy on some GPUs.
type run struct {
	*cluster.Result
	File  string          `json:"file"`
	Lines int             `json:"lines"`
	Found []trace.Finding `json:"found,omitempty"`
	// SpeedsFound is the Speeds of the report.
	SpeedsFound map[string][]trace.Finding `json:"speeds_found,omitempty"`

	Costs string  `json:"costs"`
	Sigma float64 `json:"sigma"`
	Load  float64 `json:"load"`
	Cost  float64 `json:"cost,omitempty"`
}

// encode prints a value as a line of JSON.
func encode(out io.Writer, value any) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	return e.Encode(value)
}

// printJSON prints a JSON object for each run.
func printJSON(out io.Writer, r *report) error {
	for _, x := range r.Runs {
		if err := encode(out, x); err != nil {
			return err
		}
	}
	return nil
}

// printReport prints what was found in the trace, and a table of all runs.
func printReport(out io.Writer, r *report) error {
	for i, t := range r.Traces {
		on := ""
		if len(r.Traces) > 1 {
			on = fmt.Sprintf(" on %d GPUs", t.gpus)
		}
		fmt.Fprintf(out, "%s%s: %s of %s, %s GPU hours\n", cli.Visible(r.File, false), on,
			plural.Of(len(t.Jobs), "job"), plural.Of(t.Rows, "line"), amountText(t.Work()/3.6e6))
		for _, f := range r.found(i) {
			fmt.Fprintf(out, "  %s\n", f)
		}
	}
	if err := cli.Table(out, r.table()); err != nil {
		return err
	}
	for _, text := range r.remarks() {
		fmt.Fprintln(out, text)
	}
	return nil
}

// found returns what was found in the i-th trace and not said of the first, which is the same file.
func (r *report) found(i int) []trace.Finding {
	if i == 0 {
		return r.Traces[0].Found
	}
	return slices.DeleteFunc(slices.Clone(r.Traces[i].Found),
		func(f trace.Finding) bool { return f.Rule != trace.LargerThanCluster })
}

// remarks returns what has to be known to read the table, as texts for people: what was found in
// tables of speeds, for which jobs these say nothing, jobs that never ended, and how policies
// failed.
func (r *report) remarks() (list []string) {
	for _, file := range slices.Sorted(maps.Keys(r.Speeds)) {
		for _, f := range r.Speeds[file] {
			list = append(list, fmt.Sprintf("%s: %s", cli.Visible(file, false), f))
		}
	}
	for i, x := range r.Runs {
		if x.NoSpeeds > 0 && (i == 0 || r.Runs[i-1].GPUs != x.GPUs) {
			first := slices.IndexFunc(x.Jobs, func(j cluster.Job) bool { return j.NoSpeeds })
			j := &x.Jobs[first]
			model := ""
			if j.Model != "" {
				model = cli.Visible(j.Model, false) + ", "
			}
			list = append(list, fmt.Sprintf("%s on %d GPUs can have no other size, since no table "+
				"of speeds is for the model and the size; the first is in line %d: %s%s",
				plural.Of(x.NoSpeeds, "job"), x.GPUs, j.Line, model, plural.Of(j.GPUs, "GPU")))
		}
	}
	for _, x := range r.Runs {
		name := fmt.Sprintf("%s on %d GPUs", cli.Visible(x.Policy, false), x.GPUs)
		if x.Unfinished > 0 {
			list = append(list, fmt.Sprintf("%s: %s never ended, because the policy does not run "+
				"them, or on GPUs where they take for ever", name,
				plural.Of(x.Unfinished, "job")))
		}
		for _, f := range x.Faults {
			list = append(list, fmt.Sprintf("%s, %s: %s", name, plural.Of(f.Count, "time"),
				cli.Visible(f.Text, false)))
		}
	}
	return list
}

// table returns the heads of the table of a report, and after them a row for each run.
func (r *report) table() [][]string {
	rows := [][]string{{"POLICY", "GPUS", "MEAN H", "MEDIAN H", "P99 H", "WAIT H", "MAKESPAN H",
		"USED", "MOVES", "UNFAIR", "DEADLINES MET", "REFUSED", "GPU HOURS", "COST"}}
	for _, x := range r.Runs {
		met, refused, cost := "-", "-", "-"
		if x.Deadlines > 0 {
			met = percentText(float64(x.Met) / float64(x.Deadlines))
		}
		if x.Refused > 0 {
			refused = strconv.Itoa(x.Refused)
		}
		if r.Price > 0 {
			cost = fmt.Sprintf("%.2f", x.Cost)
		}
		row := []string{cli.Visible(x.Policy, false), strconv.Itoa(x.GPUs),
			hoursText(x.Mean), hoursText(x.Median), hoursText(x.P99), hoursText(x.Wait),
			hoursText(x.Makespan), percentText(x.Used), strconv.Itoa(x.Moves),
			percentText(x.Unfair), met, refused, amountText(float64(x.GPUHours)), cost}
		if x.Done == 0 { // these are of jobs that are done, and no time of none is 0
			for _, column := range []int{2, 3, 4, 5, 6, 7, 9} {
				row[column] = "-"
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// hoursText writes a number of hours with the digits that people need.
func hoursText(x float64) string {
	if x < 0.1 && x > 0 {
		return fmt.Sprintf("%.4f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// amountText writes a number of GPU hours, of which there can be many, as hoursText does, and from
// 1000 on without a fraction.
func amountText(x float64) string {
	if x >= 1000 {
		return fmt.Sprintf("%.0f", x)
	}
	return hoursText(x)
}

// percentText writes a part, from 0 to 1, in percent.
func percentText(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

// csvOf returns a table with a line for each job of each run, times in seconds.
func csvOf(r *report) ([]byte, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	heads := "policy,cluster_gpus,job_id,line,tenant,model,num_gpu,submission_time,start,end," +
		"duration,jct,deadline,met,moves,parks,gpu_seconds,unfair,refused"
	if err := w.Write(strings.Split(heads, ",")); err != nil {
		return nil, err
	}
	// text writes milliseconds in seconds; those below zero are none.
	text := func(ms int64) string {
		if ms < 0 {
			return ""
		}
		return strconv.FormatFloat(seconds(ms), 'f', -1, 64)
	}
	for _, x := range r.Runs {
		for i := range x.Jobs {
			j := &x.Jobs[i]
			took, deadline, met := "", "", ""
			if j.Done() {
				took = text(j.JCT())
			}
			if j.Deadline > 0 {
				deadline, met = text(j.Deadline), strconv.FormatBool(j.MetDeadline())
			}
			row := []string{x.Policy, strconv.Itoa(x.GPUs), j.Name, strconv.Itoa(j.Line), j.Tenant,
				j.Model, strconv.Itoa(j.GPUs), text(j.Arrived), text(j.Started), text(j.Ended),
				text(j.Duration), took, deadline, met, strconv.Itoa(j.Moves),
				strconv.Itoa(j.Parks), strconv.FormatFloat(j.GPUSeconds, 'f', -1, 64),
				strconv.FormatFloat(j.Unfair, 'g', 6, 64), j.Refused}
			if err := w.Write(row); err != nil {
				return nil, err
			}
		}
	}
	w.Flush()
	return b.Bytes(), w.Error()
}

// seconds returns milliseconds in seconds.
func seconds(ms int64) float64 { return float64(ms) / 1000 }
