package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/watch"
)

// shoal explain. One goroutine runs what is here, that of the command, so nothing is locked. It
// reads files of the run.

// NewExplainCommand returns the command shoal explain.
func NewExplainCommand() *cobra.Command {
	var asJSON bool
	var change changeName
	cmd := &cobra.Command{
		Use:   "explain JOB",
		Short: "Say what happened to a job's workers, and why",
		Long: cli.Help(`Say which changes the workers and the setting of a job went through: when, and why.
The command also says why policies have left things as they are, and of a job that runs which worker
the others wait for, and what to do about it, and which host is slow.
Of a job in a pool of this host it first says what the pool has decided: each number of workers, the
reason, what was expected and what came, or why it did not come, and for what the job waits.
With --change it says all of one change of the setting: the reason, what else was compared, what was
predicted, and what was measured.

JOB is the name of a running job, of one in a pool, else of its newest run, or the directory of a
run.`, cli.ExitCodes, "troubleshooting"),
		Example: `  shoal explain train
  shoal explain train --json               one JSON object a change
  shoal explain train --change 3           all about change 3 of the setting
  shoal explain train --change r3          all about change 3 of the routes of all-reduces
  shoal explain ~/.local/state/shoal/runs/train-3`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeExplained,
		RunE: func(cmd *cobra.Command, args []string) error {
			out := cmd.OutOrStdout()
			if !asJSON {
				out = visibleWriter{out}
			}
			dir, live, silent, err := findRun(cmd.Context(), args[0])
			pooled, isPooled, late := pooledJob(cmd.Context(), args[0], dir)
			if isPooled && pooled.Job.Dir != "" && pooled.Job.Dir != dir {
				dir, live, silent, err = findRun(cmd.Context(), pooled.Job.Dir)
				if err != nil {
					err = fmt.Errorf("the files of its last run are on host %s of the pool: %w",
						pooled.Job.Lead, err)
				}
			}
			if late != nil && err == nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "note: what a pool has decided is not shown: %v\n",
					late)
			}
			if isPooled && !cmd.Flags().Changed("change") {
				show := func() error {
					_, err := io.WriteString(out, pooledText(pooled))
					return err
				}
				if asJSON {
					show = func() error { return encodePooled(out, pooled) }
				}
				if shown := show(); shown != nil || pooled.Job.Dir == "" {
					return shown
				}
			}
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("change") {
				return explainChange(out, dir, string(change), asJSON,
					live == nil && silent == nil)
			}
			return explain(out, dir, live, silent, asJSON)
		},
	}
	cmd.Flags().Var(&change, "change",
		"say all about the change that has this `number`, such as 3, or r3 of the routes")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a change, as in the ledger")
	return cmd
}

// visibleWriter writes texts for people to out: nothing that a program or a policy has named
// controls the terminal.
type visibleWriter struct{ out io.Writer }

// Write implements io.Writer. A text is whole: it does not end within a character.
func (w visibleWriter) Write(text []byte) (int, error) {
	_, err := io.WriteString(w.out, cli.Visible(string(text), true))
	return len(text), err
}

// explain prints the changes of the run in dir to out, and then either whom the workers of its job
// wait for, or how the run has ended. live is nil for a job that does not run. silent is the error
// of findRun about launchers that do not answer; it is returned for a run without a result. asJSON
// prints the entries of the ledger alone.
func explain(out io.Writer, dir string, live *control.Job, silent error, asJSON bool) error {
	over := live == nil && silent == nil
	if asJSON {
		_, err := eachEntry(dir, over, func(e runs.Entry) error {
			return showEntry(out, e, true)
		})
		return err
	}
	started, err := explainRecord(out, dir)
	if err != nil {
		return err
	}
	damaged, err := eachEntry(dir, over, func(e runs.Entry) error {
		if started.IsZero() {
			started = e.Time
		}
		_, err := fmt.Fprintf(out, "  %9s  %s%s\n",
			fmt.Sprintf("+%.2f s", e.Time.Sub(started).Seconds()), e.Event, listMoved(e.Event))
		return err
	})
	if err != nil {
		return err
	}
	if _, err := os.Stat(runs.LedgerPath(dir)); over && errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(out, "note: there is no events.jsonl: what happened to the job is not known")
	}
	if damaged > 0 {
		fmt.Fprintf(out, "note: left out: %s of events.jsonl that cannot be read\n",
			plural.Of(damaged, "line"))
	}
	if live != nil {
		_, err = fmt.Fprintf(out, "it is %s: %s workers, step %s\n", live.State, sizeText(live.Job),
			stepText(live.Job, newestMetrics(live.Job)))
		return errors.Join(err, printNeed(out, live.Job), printWhyNot(out, live.Job),
			printWaits(out, live.Job, time.Now(), true))
	}
	if err := printKeptWhyNot(out, dir); err != nil {
		fmt.Fprintf(out, "note: %v\n", err)
	}
	result, err := runs.ReadResult(dir)
	switch {
	case err == nil:
	case !errors.Is(err, fs.ErrNotExist):
		_, err = fmt.Fprintf(out, "note: %v\n", err)
		return err
	case silent != nil:
		return fmt.Errorf("it has no result, and may still run: %w", silent)
	default:
		_, err = fmt.Fprintln(out, watch.NoResult(dir).Text)
		return err
	}
	_, err = fmt.Fprintln(out, resultText(result))
	return err
}

// explainRecord prints what was run in dir, and returns when it began; a zero time = that is not
// known.
func explainRecord(out io.Writer, dir string) (started time.Time, err error) {
	record, err := runs.ReadRecord(dir)
	if err != nil {
		_, err = fmt.Fprintf(out, "note: what was run is not known: %v\n", err)
		return started, err
	}
	command, err := json.Marshal(record.Spec.Command)
	if err != nil {
		return started, err
	}
	_, err = fmt.Fprintf(out, "job %s: %s of %s, started %s\n", record.Spec.Name,
		plural.Of(record.Spec.Workers, "worker"), command,
		record.Started.Local().Format(time.DateTime))
	return record.Started, err
}

// eachEntry calls show with each entry of the ledger of the run in dir, until show fails, and of a
// run that is over with the ends of changes that the ledger lacks. It returns how many lines it has
// left out, because they cannot be read.
func eachEntry(dir string, over bool, show func(e runs.Entry) error) (damaged int, err error) {
	var all []runs.Entry
	ledger := &tail{path: runs.LedgerPath(dir)}
	err = ledger.readEntries(func(e runs.Entry) error {
		all = append(all, e)
		return show(e)
	})
	if err != nil || !over {
		return ledger.damaged, err
	}
	for _, e := range runs.MissingEnds(dir, all) {
		if err := show(e); err != nil {
			return ledger.damaged, err
		}
	}
	return ledger.damaged, nil
}

// listMoved returns the workers that an event is about, as in " (joined 3, lost 1)", or "" for
// none.
func listMoved(e agent.Event) string {
	var parts []string
	for _, part := range []struct {
		what    string
		workers []int
	}{{"joined", e.Joined}, {"lost", e.Lost}, {"released", e.Released}, {"finished", e.Finished},
		{"again", e.Again}} {
		if len(part.workers) > 0 {
			parts = append(parts,
				fmt.Sprintf("%s %s", part.what,
					strings.Trim(strings.ReplaceAll(fmt.Sprint(part.workers), " ", ", "), "[]")))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}
