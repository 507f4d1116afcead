package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/watch"
)

// shoal set. The functions without a receiver are pure.

// setFlags are the flags of shoal set. One goroutine uses them, that of the command; only run waits
// for the job. The functions of this file read the job as run has refreshed it.
type setFlags struct {
	noWait bool // whether to ask, and not to wait until the job trains so
	json   bool // whether to print JSON objects
	dryRun bool // whether to print what is predicted, and change nothing
}

// maxAssignments is how many parts of a setting one command takes; there are fewer.
const maxAssignments = 16

// NewSetCommand returns the command shoal set.
func NewSetCommand() *cobra.Command {
	var f setFlags
	cmd := &cobra.Command{
		Use:   "set JOB NAME=VALUE…",
		Short: "Change how a running job trains, such as its batch",
		Long: cli.Help(`Change how a running job trains. All workers do so from the same step on, and no sample is lost.
The command ends when that is so, or says why it will not be. No policy of shoal run --auto
changes what is set, even if the job had that value already, until NAME=auto leaves it to them
again, or the job is started again.

  batch=512   samples of a step over all workers, within what the program allows:
              shoal.torch.loader(…, batch_range=(64, 1024)), job.steps, or client.Data in Go
  rate=1.4    factor of the learning rate of SGD at that batch, as against the one of the program;
              without it shoal.torch.optimizer chooses the factor, also for other optimizers
  sync=local  how workers synchronise, where the program states that or leaves it to the job:
              shoal.torch.optimizer(…, sync="auto"); there are ssgd, local, diloco, sma, pair and
              hybrid, with options as in sync=diloco:lr=0.7:momentum=0.9
  round=8     steps that workers make on their own between two averages, where the program has
              opened that: by sync, or job.steps(…, local_steps=4)
  shares=2:1  work of each rank, compared with the others; 1:1 = all have the same
  save=100    steps from one checkpoint to the next, where the program leaves that to the job:
              job.checkpoint(…, every="auto"), or client.Checkpoint in Go
  size=4      workers, within --min and --max of the job: as shoal resize does, but predicted and
              measured`, cli.ExitCodes, "train"),
		Example: `  shoal set train batch=512
  shoal set train batch=512 --dry-run          what is predicted of it
  shoal set train size=4
  shoal set train batch=auto                   policies may change it again
  shoal set train sync=local round=16          each 16 steps on their own, then the mean of all
  shoal set train batch=256 rate=1.4 --no-wait
  shoal set ~/runs/train batch=64 --json       by the directory of the run, one object a change`,
		Args:              cli.Arguments(2, 1+maxAssignments),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			text := strings.Join(args[1:], ",")
			if _, err := (setting.Setting{}).WithRequested(text); err != nil {
				return cli.AsUsage(err)
			}
			j, err := findChangeable(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if f.dryRun {
				return f.predict(cmd.Context(), cmd.OutOrStdout(), j, text)
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), j, text)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.noWait, "no-wait", false, "ask, and do not wait until the job trains so")
	flags.BoolVar(&f.json, "json", false,
		"print one JSON object a change, and a last one when the job trains so")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print what is predicted, and change nothing")
	return cmd
}

// atSetting is the last line of shoal set --json.
type atSetting struct {
	Job     string          `json:"job"`
	Setting setting.Setting `json:"setting"`
	Steps   uint64          `json:"steps"`   // committed steps
	Seconds float64         `json:"seconds"` // from the request on
}

// run asks a job for what text sets, and waits until it trains so unless --no-wait is given. It
// prints the changes of the job to out, and what delays them to notes.
func (f *setFlags) run(ctx context.Context, out, notes io.Writer, j *control.Job,
	text string) error {
	if printed, err := f.printIfUnchanged(out, j, text); printed || err != nil {
		return err
	}
	var number uint64 // of the change; 0 = the job was not asked yet
	var head string   // the host that was asked
	var ask func() error
	ask = func() error {
		// Another change may wait for the end of a step, and only one does at a time.
		if j.NextChange != nil && !f.noWait {
			if err := cli.Poll(ctx, func() (bool, error) {
				err := j.Refresh(ctx)
				return j.NextChange == nil, err
			}); err != nil {
				return err
			}
		}
		if hasSetting(j, text) && j.NextChange == nil {
			number = max(number, j.Setting.Number)
			return nil
		}
		if err := j.Set(ctx, text, cli.Requester()); err != nil {
			// Somebody else may have been faster since the job was looked at.
			refusal := new(control.Refusal)
			if !f.noWait && errors.As(err, &refusal) && j.Refresh(ctx) == nil &&
				j.NextChange != nil {
				return ask()
			}
			return fmt.Errorf("job %s keeps its setting: %w", j.Name, err)
		}
		if head = j.Head; j.NextChange != nil {
			number = j.NextChange.Number
		} else if j.Setting != nil {
			number = j.Setting.Number
		}
		return nil
	}
	g := goal{job: j, what: strings.ReplaceAll(text, ",", " "), noWait: f.noWait, json: f.json,
		ask: ask, lost: lostChangeText(j), last: func(seconds float64) any {
			return atSetting{j.Name, *j.Setting, j.Steps, seconds}
		}}
	g.reached = func() (bool, error) {
		switch {
		case j.Setting == nil || j.NextChange != nil && j.NextChange.Number <= number:
			return false, nil
		case j.Setting.Number < number && j.Head == head && !hasSetting(j, text):
			return false, fmt.Errorf("job %s keeps its setting: somebody has asked for another "+
				"size meanwhile, as shoal explain %[1]s says", j.Name)
		case j.Setting.Number < number && j.Head != head:
			fmt.Fprintf(notes, "shoal: the host that led job %s is lost, and with it the "+
				"request; host %s, which leads now, is asked again\n", j.Name, j.Head)
			return false, ask()
		case !hasSetting(j, text) && !isOfOthers(j, text, number):
			return false, fmt.Errorf("job %s now has %v and not %s: it was changed again since; "+
				"shoal explain %[1]s says why", j.Name, j.Setting, g.what)
		}
		return !strings.Contains(text, "size=") || j.Size == int(j.Setting.Size), nil
	}
	err := g.askAndWait(ctx, out)
	if refusal := new(control.Refusal); number > 0 && errors.As(err, &refusal) {
		return fmt.Errorf("%w. A change that was not made yet is lost with the host that led: "+
			"if shoal ps there shows another setting, ask again there", err)
	}
	return err
}

// predict prints to out what is predicted of a job that trains as text says, as text or as a JSON
// object, and changes nothing.
func (f *setFlags) predict(ctx context.Context, out io.Writer, j *control.Job, text string) error {
	c, err := j.PlanSet(ctx, text, cli.Requester())
	if err != nil {
		return fmt.Errorf("job %s keeps its setting: %w", j.Name, err)
	}
	switch {
	case f.json:
		return json.NewEncoder(out).Encode(c)
	case c.IsAtOnce():
		_, err = fmt.Fprintln(out, c.DiffText())
	case c.DiffText() == "":
		_, err = fmt.Fprintf(out, "job %s has %s already\n", j.Name,
			strings.ReplaceAll(text, ",", " "))
	case !c.Predicted.IsKnown():
		_, err = fmt.Fprintf(out, "%s: nothing can be predicted: %s\n", c.DiffText(),
			cmp.Or(c.Why, "too little was measured"))
	default:
		_, err = fmt.Fprintf(out, "%s: %s\n", c.DiffText(), bandText(c))
	}
	return err
}

// printIfUnchanged prints to out that a job trains as text says already, and returns whether it has
// printed that: not while another change or workers are awaited, nor with --json, which has its own
// last line. It fails where printing does, and where the job is to have as many workers, and nobody
// starts those that it waits for.
func (f *setFlags) printIfUnchanged(out io.Writer, j *control.Job, text string) (printed bool,
	err error) {
	what, sized := strings.ReplaceAll(text, ",", " "), strings.Contains(text, "size=")
	switch {
	case !hasSetting(j, text) || j.NextChange != nil:
	case sized && j.State == api.Paused:
		return false, fmt.Errorf("job %s is to have %s already, and waits for workers%s", j.Name,
			what, watch.MoreWorkersText(j.Job))
	case !f.json && (!sized || j.Size == int(j.Setting.Size)):
		_, err := fmt.Fprintf(out, "job %s has %s already\n", j.Name, what)
		return true, err
	}
	return false, nil
}

// isOfOthers reports whether a job trains by the change of a number, which text has asked for, and
// has other shares only because its members are others since: shares go with the members.
func isOfOthers(j *control.Job, text string, number uint64) bool {
	want, err := j.Setting.WithRequested(text)
	if err != nil || j.Setting.Number != number || len(want.Shares) == len(j.Setting.Shares) {
		return false
	}
	want.Shares = j.Setting.Shares
	return want.Equal(*j.Setting)
}

// hasSetting reports whether a job trains as text says.
func hasSetting(j *control.Job, text string) bool {
	if j.Setting == nil {
		return false
	}
	want, err := j.Setting.WithRequested(text)
	switch {
	case err != nil:
		return false
	case j.Auto == "": // it says so itself where nothing can be left to policies
		return setting.LeftPart(text) == "" && want.Equal(*j.Setting)
	}
	before, after := j.Setting.DiffRequested(want)
	return before == after && after == ""
}

// lostChangeText says what to do where the launcher of a job is gone before a change was made; ""
// for a job that has no other hosts.
func lostChangeText(j *control.Job) string {
	if len(j.Hosts) < 2 {
		return ""
	}
	return "; if it goes on on another host, a change that was not made yet is lost: ask again " +
		"there"
}
