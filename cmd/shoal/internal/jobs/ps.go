// Package jobs has the commands about running jobs and their runs: ps, top, dash, report, logs,
// explain, resize, set, reshape, limit, drain, stop, park, resume, recover and token.
package jobs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
)

// The functions of this file are those of shoal ps, and texts about a job that other commands print
// too. One goroutine runs what is here, that of the command, so nothing is locked.

// NewPsCommand returns the command shoal ps.
func NewPsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ps [JOB]",
		Short: "List the running jobs, or the workers of one",
		Long: cli.Help(`List the jobs that you run on this machine, or the workers of one of them.
JOB is the name of a running job, or the directory of its run.

  column        meaning
  WORKERS       members of the job / members that it should have
  SPARES        workers that wait to replace a lost one / those that --spares asks for
  GENERATION    number of the membership; it grows with every change
  STEP          optimizer steps that are committed
  BATCH         samples of a step, where the program lets shoal set change them
  SYNC          how workers synchronise, and after how many steps, where shoal set may change that;
                with "auto" policies may too
  STATE         what the job does; of a worker: running, waiting to become a member, or waited
                for, when it keeps the others from going on`, cli.ExitCodes, "troubleshooting"),
		Example: `  shoal ps
  shoal ps train
  shoal ps --json | jq -r .job`,
		Args:              cli.Arguments(0, 1),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				j, err := findRunning(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return showWorkers(cmd.OutOrStdout(), j.Job, asJSON)
			}
			jobs, refused, err := control.ListWithRefusals(cmd.Context())
			if len(jobs) == 0 && err == nil {
				if len(refused) == 0 && !asJSON {
					refused = []string{"no job runs here under this user; shoal run starts one"}
				}
				for _, why := range refused {
					fmt.Fprintln(cmd.ErrOrStderr(), "shoal:", why)
				}
				return nil
			}
			if shown := showJobs(cmd.OutOrStdout(), jobs, asJSON); shown != nil {
				return shown
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a job, or a worker of JOB")
	return cmd
}

// showJobs prints a table of jobs to out, with a line below it for each job that needs attention,
// or as JSON an object a job.
func showJobs(out io.Writer, jobs []*control.Job, asJSON bool) error {
	batches := slices.ContainsFunc(jobs, func(j *control.Job) bool {
		return j.Setting != nil && j.Levers.Batch.IsOpen()
	})
	syncs := slices.ContainsFunc(jobs, func(j *control.Job) bool { return syncText(j.Job) != "-" })
	// row returns the cells of a row that are shown.
	row := func(job, workers, spares, generation, step, batch, sync string,
		others ...string) []string {
		cells := []string{job, workers, spares, generation, step}
		if batches {
			cells = append(cells, batch)
		}
		if syncs {
			cells = append(cells, sync)
		}
		return append(cells, others...)
	}
	rows := [][]string{row("JOB", "WORKERS", "SPARES", "GENERATION", "STEP", "BATCH", "SYNC",
		"STATE", "SINCE", "LOSS", "ACCURACY", "SAMPLES/S", "DIR")}
	for _, j := range jobs {
		if asJSON {
			if err := json.NewEncoder(out).Encode(j.Job); err != nil {
				return err
			}
			continue
		}
		m := newestMetrics(j.Job)
		batch := "-"
		if j.Setting != nil {
			batch = numberOrDash(j.Setting.Batch)
		}
		rows = append(rows, row(j.Name, sizeText(j.Job), sparesText(j.Job),
			numberOrDash(j.Generation), stepText(j.Job, m), batch, syncText(j.Job),
			string(j.State), timeOrDate(j.Started, time.Now()), metricText(m, "loss"),
			metricText(m, "accuracy"), metricText(m, "samples_per_s"), j.Dir))
	}
	if asJSON {
		return nil
	}
	if err := cli.Table(out, rows); err != nil {
		return err
	}
	for _, j := range jobs {
		if err := errors.Join(printRollback(out, j.Job), printNeed(out, j.Job),
			printStall(out, j.Job, time.Now())); err != nil {
			return err
		}
	}
	return nil
}

// syncText returns how the workers of a job synchronise, and after how many steps, such as
// "local/16 auto" where policies may change that; "-" where nobody may.
func syncText(j api.Job) string {
	if j.Setting == nil || j.Levers == nil || j.Levers.Sync == "" {
		return "-"
	}
	s := j.Setting.WithStated(0, *j.Levers)
	text := s.Sync
	if s.Round > 1 {
		text += fmt.Sprintf("/%d", s.Round)
	}
	if j.Levers.Auto {
		text += " auto"
	}
	return text
}

// printRollback prints to out that a job goes back to a checkpoint, or how it last has; nothing for
// any other job.
func printRollback(out io.Writer, j api.Job) (err error) {
	switch {
	case j.RollbackReason != "":
		_, err = fmt.Fprintf(out, "%s: goes back to a checkpoint, on mesh %s: %s\n", j.Name,
			cmp.Or(j.NextMesh, j.Mesh), j.RollbackReason)
	case j.LastRollback != "":
		_, err = fmt.Fprintf(out, "%s: %s\n", j.Name, j.LastRollback)
	}
	return err
}

// awaited is the state of a worker that the others wait for.
const awaited = "waited for"

// rankAndState returns the rank of a worker and what it does, for a table.
func rankAndState(w *api.Worker) (rank, state string) {
	rank, state = "-", "running"
	if w.Rank >= 0 {
		rank = strconv.Itoa(w.Rank)
	}
	switch {
	case !w.Running:
		state = w.Ended
	case w.Waiting:
		state = "waiting"
	case w.Awaited != nil:
		state = awaited
	}
	return rank, state
}

// showWorkers prints a table of the workers of a job to out, with what else is to be known of the
// job below it, or as JSON an object a worker. asJSON prints the objects alone.
func showWorkers(out io.Writer, j api.Job, asJSON bool) error {
	rows := [][]string{{"WORKER", "RANK", "HOST", "PID", "STATE", "REPORTED"}}
	for _, w := range j.Workers {
		if asJSON {
			if err := json.NewEncoder(out).Encode(w); err != nil {
				return err
			}
			continue
		}
		rank, state := rankAndState(&w)
		if state == awaited {
			state += ", " + waitedFor(w.Awaited, time.Now())
		}
		var last []string
		for _, key := range slices.Sorted(maps.Keys(w.Metrics)) {
			last = append(last, key+"="+plural.Number(w.Metrics[key], 6))
		}
		host := "-" // that is, this one
		if slices.ContainsFunc(j.Workers, func(x api.Worker) bool { return x.Host != w.Host }) {
			host = cli.OrDash(w.Host)
		}
		rows = append(rows,
			[]string{strconv.Itoa(w.Worker), rank, host, strconv.Itoa(w.PID), state,
				cli.OrDash(cli.Visible(strings.Join(last, " "), false))})
	}
	if asJSON {
		return nil
	}
	return errors.Join(cli.Table(out, rows), printHosts(out, j), printRollback(out, j),
		printNeed(out, j),
		printWaits(out, j, time.Now(), false))
}

// printHosts prints to out the hosts of a job that has several, with their kinds, and what they may
// send.
func printHosts(out io.Writer, j api.Job) (err error) {
	if len(j.Hosts) > 1 {
		var hosts []string
		for _, host := range j.Hosts {
			if kind := j.Kinds[host]; kind != "" {
				host += " (" + kind + ")"
			}
			hosts = append(hosts, host)
		}
		_, err = fmt.Fprintf(out, "hosts: %s; led from %s\n", strings.Join(hosts, ", "), j.Head)
	}
	if err == nil && j.Limit > 0 {
		_, err = fmt.Fprintln(out, limitText(j))
	}
	return err
}

// newestMetrics returns what the member with the lowest rank of those that have reported did last,
// or where no member has what another worker did; nil if nobody has reported.
func newestMetrics(j api.Job) (m api.Metrics) {
	lowest := -1
	for _, w := range j.Workers {
		if len(w.Metrics) > 0 && (m == nil || w.Rank >= 0 && (lowest < 0 || w.Rank < lowest)) {
			m, lowest = w.Metrics, w.Rank
		}
	}
	return m
}

// sizeText returns the number of members, and after a slash the number that the job should have.
func sizeText(j api.Job) string {
	if j.Generation == 0 { // nobody counts members yet
		return fmt.Sprintf("%d/%d", j.Alive(), j.Want)
	}
	return fmt.Sprintf("%d/%d", j.Size, j.Want)
}

// sparesText returns the number of spares that wait, and after a slash the number that the job
// should have; "-" for a job without spares.
func sparesText(j api.Job) string {
	if j.Spares == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", j.Waiting()-j.Entering, j.Spares)
}

// stepText returns the number of committed optimizer steps, or for a job that does not train in
// steps the step that its workers have reported.
func stepText(j api.Job, m api.Metrics) string {
	if j.Elastic {
		return strconv.FormatUint(cmp.Or(j.OptimizerSteps, j.Steps), 10)
	}
	return metricText(m, "step")
}

// metricText returns a metric as digits does, or "-" if it is missing.
func metricText(m api.Metrics, key string) string {
	x, ok := m[key]
	if !ok {
		return "-"
	}
	return digits(x)
}

// numberOrDash returns n in decimal digits, or "-" for 0.
func numberOrDash(n uint64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(n, 10)
}

// timeOrDate returns the time of day of t, or if that was on another day than now its date and
// time.
func timeOrDate(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04")
}
