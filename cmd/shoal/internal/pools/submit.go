package pools

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/pool/keeper"
)

// shoal submit. One goroutine runs what is here, that of the command, so nothing is locked. The
// functions that return a text are pure.

// ownVariables returns the variables of this process. Who starts one may give it other entries too,
// which no keeper takes.
func ownVariables() []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return !strings.Contains(entry, "=")
	})
}

// checkText fails for a folder, and for variables, that a pool cannot take as they are, since its
// record is text in UTF-8.
func checkText(dir string, variables []string) error {
	if !utf8.ValidString(dir) {
		return cli.Usagef("the folder %q has a name that is no UTF-8, and a pool keeps no other: "+
			"go to one that has another name, or give the folder one", dir)
	}
	for _, entry := range variables {
		if name, _, _ := strings.Cut(entry, "="); !utf8.ValidString(entry) {
			return cli.Usagef("the variable %q has bytes that are no UTF-8, and a pool keeps no "+
				"others: give it another value, or take it out, as env -u %[1]s shoal submit "+
				"does", name)
		}
	}
	return nil
}

// submitFlags are the flags of shoal submit.
type submitFlags struct {
	pool     string   // name; "" = the only one of this host
	name     string   // of the job; "" = after the command
	workers  string   // N or LEAST:MOST; "" = as the file says, or 1
	file     string   // YAML file of the job; "" = none
	env      []string // KEY=VALUE for the workers
	priority int
	deadline string
	tenant   string
	preempt  string
	json     bool
}

// NewSubmitCommand returns the command shoal submit.
func NewSubmitCommand() *cobra.Command {
	var f submitFlags
	cmd := &cobra.Command{
		Use:   "submit [-n N | -n LEAST:MOST] [-f job.yaml] [flags] -- command [args…]",
		Short: "Submit a job to the pool of this host",
		Long: cli.Help(`Submit a job to the pool of this host, and say what the pool does with it. Once the command has
answered, the job is in the record of the pool and cannot be lost.

The command is run in the folder and with the environment of shoal submit. With -n LEAST:MOST the
pool decides how many workers the job has, and changes that while it trains, if it trains in steps.
A spec (-f) is the one of shoal run, with these keys for pools in schedule: priority, deadline,
tenant, value, budget, steps, sizes, meshes and preempt.

Use the usual commands for jobs of a pool: shoal ps, logs, top, explain and stop.`,
			cli.ExitCodes, "pool"),
		Example: `  shoal submit --name big -n 1:4 -- python3 train.py
  shoal submit --name urgent -n 2 --priority 10 -- python3 train.py --epochs 1
  shoal submit -n 1:4 --deadline 6h -- python3 train.py
  shoal submit -f job.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := f.spec(cmd, args)
			if err != nil {
				return err
			}
			dir, err := os.Getwd()
			if err != nil {
				return fmt.Errorf("the folder in which the job is to run: %w: go to one that is "+
					"there", err)
			}
			if err := cmp.Or(spec.CheckText(), checkText(dir, ownVariables())); err != nil {
				return err
			}
			var a pool.Answer
			if err := call(cmd.Context(), f.pool, keeper.PathSubmit, keeper.Request{
				Spec: spec.String(), Dir: dir, Env: ownVariables(), Who: cli.Requester()},
				&a); err != nil {
				return err
			}
			if a.State == pool.Failed {
				return fmt.Errorf("job %s is refused: %s", a.Job, a.Error)
			}
			if f.json {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(a)
			}
			fmt.Fprintln(cmd.OutOrStdout(), answerText(a, time.Now().UnixMilli()))
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.SetInterspersed(false) // what follows the command belongs to it
	flags.StringVarP(&f.workers, "workers", "n", "", "number of workers, or `LEAST:MOST` "+
		"(default 1)")
	flags.StringVarP(&f.file, "file", "f", "", "read the job from a YAML file")
	flags.StringVar(&f.name, "name", "", "name of the job (default: after the command)")
	flags.IntVar(&f.priority, "priority", 0, "a job of a higher priority goes first")
	flags.StringVar(&f.deadline, "deadline", "", "how long from now on the job should have ended, "+
		"such as 6h")
	flags.StringVar(&f.tenant, "tenant", "", "whose job it is, for policies that share by that")
	flags.StringVar(&f.preempt, "preempt", "", "what may be done to it for other jobs: never, "+
		"shrink or park (default shrink)")
	flags.StringArrayVar(&f.env, "env", nil, "set `KEY=VALUE` for the workers; repeat for more")
	addPool(cmd, &f.pool)
	flags.BoolVar(&f.json, "json", false, "print the answer as JSON")
	_ = cmd.RegisterFlagCompletionFunc("preempt", cobra.FixedCompletions(
		[]cobra.Completion{"never", "shrink", "park"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// spec returns the job of the file of --file, which it reads, overridden by the flags. It fails
// where the job is not valid. args are the command of the workers.
func (f *submitFlags) spec(cmd *cobra.Command, args []string) (job.Spec, error) {
	err := cli.RefuseEmpty(cmd.Flags(), "file", "name", "workers", "deadline", "tenant", "preempt")
	if err != nil {
		return job.Spec{}, err
	}
	spec, err := cli.LoadSpec(cmd.Context(), f.file)
	if err != nil {
		return spec, err
	}
	env, err := cli.ParseEnv(f.env)
	if err != nil {
		return spec, err
	}
	top := job.Spec{Name: f.name, Command: args, Env: env}
	if f.workers != "" {
		least, most, err := parseWorkers(f.workers)
		if err != nil {
			return spec, err
		}
		spec.Min, spec.Max = 0, 0
		if top.Workers = most; least < most {
			top.Min, top.Max = least, most
		}
	}
	spec = spec.Override(top)
	said := cmd.Flags().Changed
	if said("priority") || said("deadline") || said("tenant") || said("preempt") {
		s := job.Schedule{}
		if spec.Schedule != nil {
			s = *spec.Schedule
		}
		if said("priority") {
			s.Priority = f.priority
		}
		if said("deadline") {
			s.Deadline = f.deadline
		}
		if said("tenant") {
			s.Tenant = f.tenant
		}
		if said("preempt") {
			s.Preempt = job.Preempt(f.preempt)
		}
		spec.Schedule = &s
	}
	spec = spec.WithDefaults()
	return spec, spec.Validate()
}

// parseWorkers reads N or LEAST:MOST.
func parseWorkers(text string) (least, most int, err error) {
	first, last, both := strings.Cut(text, ":")
	least, errFirst := strconv.Atoi(first)
	if most = least; both {
		most, err = strconv.Atoi(last)
	}
	switch {
	case errFirst != nil || err != nil || least < 1 || most < 1 || most > job.MaxWorkers:
		return 0, 0, cli.Usagef("-n %s is no number of workers; give 1 to %d, or LEAST:MOST such "+
			"as 1:4", text, job.MaxWorkers)
	case least > most:
		return 0, 0, cli.Usagef("-n %s: the least number of workers is above the largest; write "+
			"-n %d:%d", text, most, least)
	}
	return least, most, nil
}

// answerText says what has become of a submission; now is in milliseconds since 1970.
func answerText(a pool.Answer, now int64) string {
	if a.Workers == 0 {
		return fmt.Sprintf("%s waits: %s", a.Job, a.Because)
	}
	text := fmt.Sprintf("%s starts now with %s", a.Job, plural.Of(a.Workers, "worker"))
	for i, move := range a.Moves {
		what := fmt.Sprintf("%s goes from %d to %d when its step ends", move.Job, move.From,
			move.To)
		if move.To == 0 {
			what = fmt.Sprintf("%s is parked when its step ends", move.Job)
		}
		var known []string
		if move.Expect.Pause > 0 {
			known = append(known, "expected pause "+formatDuration(move.Expect.Pause))
		}
		if move.Before > 0 && move.Expect.End > 0 {
			known = append(known, fmt.Sprintf("its end moves from %s to %s",
				clock(move.Before, now), clock(move.Expect.End, now)))
		}
		if len(known) > 0 {
			what += " (" + strings.Join(known, ", ") + ")"
		}
		if i == 0 {
			text += ": " + what
		} else {
			text += "; " + what
		}
	}
	return text
}

// formatDuration returns a time in milliseconds as people read it.
func formatDuration(ms int64) string {
	if ms < 1000 {
		return fmt.Sprintf("%d ms", ms)
	}
	return plural.Seconds(float64(ms) / 1000)
}
