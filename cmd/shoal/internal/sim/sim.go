// Package sim has shoal sim: what would become of a job, in virtual time.
package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/world/play"
	"github.com/shoal-ml/shoal/world/scenario"
)

// shoal sim. One goroutine runs what is here, that of the command, so nothing is locked. It reads
// scenarios and plays them, which takes as long as they are.

// options are the flags of shoal sim.
type options struct {
	json   bool
	dir    string // directory of a run; "" = scenarios are played
	what   string // a what-if; "" = none
	seed   uint64
	reseed bool     // whether seed was given
	policy []string // files of policies of users, or names of those of shoal; nil = none
	python string   // interpreter of those in Python

	programs *group.Group // what runs policies of users
	progress *cli.Progress
}

// NewCommand returns the command shoal sim.
func NewCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "sim FILE... | --run DIR",
		Short: "Simulate a job in virtual time",
		Long: cli.Help(`Simulate scenarios: jobs in virtual time, what happens to them, and which policies decide. The
command prints the result, with every change, its reason, and what was predicted and measured. It
fails if something is not as the scenario expects.

The policies are those of real jobs, and they see what a job measures of itself. A file gives the
same output each time. docs/formats/scenario.md has all lines that a scenario can have:

  hosts 4 cable 1Gbit
  compute 30ms + 0.2ms/sample sd 5%
  gradients 10MB
  data 50000 batch 128 range 32-1024
  noise 600 growing to 4000
  target 20 epochs
  at step 200 cable h2 100Mbit
  policy batch
  expect goodput >= 0.95 of best after 100 steps

With --policy, a policy of yours decides as well: the same file that shoal run takes. It replaces a
policy of the scenario that decides about the same thing. It may take 10 s for a decision, which
takes no time in the scenario.

With --what, each scenario is simulated twice: as it is, and with something changed from the start.
Both draw the same random numbers, so they differ by the change alone. A policy in --what replaces
all others.

With --run, a job is simulated from the files in the directory of its run: what a step takes by its
batch and its workers, who is slow, and what the network takes. The command prints the seconds that
were measured and those that it simulates, so that you see how far to believe it, then what --what
would bring, with a band that holds in 80 of 100 cases, and what it does not know.`, cli.ExitCodes, "train"),
		Example: `  shoal sim slow_cable.txt
  shoal sim scenarios/*.txt --seed 7       with other random numbers
  shoal sim slow_cable.txt --json          one JSON object a file
  shoal sim slow_cable.txt --what "size=8, batch=512, link h2=100Mbit, slow h3=2x, policy=none"
  shoal sim slow_cable.txt --policy ./mine.py --what policy=batch    yours beside one of shoal
  shoal sim --run ~/.local/state/shoal/runs/gpt --what "size=8, link h2=100Mbit"
  shoal sim --run ~/.local/state/shoal/runs/gpt --what "sync=local/16"`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.dir != "" {
				return cli.Arguments(0, 0)(cmd, args)
			}
			return cli.Arguments(1, math.MaxInt)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.checkTexts(cmd); err != nil {
				return err
			}
			if err := o.checkPolicies(cmd); err != nil {
				return err
			}
			o.reseed = cmd.Flags().Changed("seed")
			o.progress = cli.NewProgress(cmd.ErrOrStderr())
			o.programs = group.New(cmd.Context())
			done := cli.ExitOnSignal(cmd.Context(), o.endPrograms) // nothing else is to be undone
			defer done()
			if o.dir != "" {
				return o.playRun(cmd.OutOrStdout())
			}
			return o.run(cmd.OutOrStdout(), args)
		},
	}
	o.addTo(cmd.Flags())
	return cmd
}

// addTo defines the flags of shoal sim.
func (o *options) addTo(flags *pflag.FlagSet) {
	flags.BoolVar(&o.json, "json", false, "print one JSON object a file")
	flags.StringVar(&o.dir, "run", "", "play the job whose directory of a run this is")
	flags.StringVar(&o.what, "what", "", "compare with what would come of something else")
	flags.StringArrayVar(&o.policy, "policy", nil, "let this `POLICY` decide, the file of a "+
		"Python policy or of a program, or one of shoal by name; repeat for more")
	flags.StringVar(&o.python, "python", "python3", "run policies in Python with this "+
		"`INTERPRETER`")
	flags.Uint64Var(&o.seed, "seed", 0, "draw by another seed than the files say")
}

// checkTexts returns what is wrong with the texts of flags, as far as that shows at once; nil =
// nothing.
func (o *options) checkTexts(cmd *cobra.Command) error {
	if cmd.Flags().Changed("what") && strings.TrimSpace(o.what) == "" {
		return cli.Usagef("--what is empty: say what is to be otherwise, such as size=8, or " +
			"leave it out")
	}
	if part := givenTwice(o.what); part != "" {
		return cli.Usagef("--what: %s is given twice: leave one out", part)
	}
	return cli.RefuseEmpty(cmd.Flags(), "run", "python")
}

// givenTwice returns a part that a what-if has more than once, such as "link h2"; "" = it has none.
func givenTwice(what string) string {
	seen := map[string]bool{}
	for name := range names(what) {
		if seen[name] {
			return name
		}
		seen[name] = true
	}
	return ""
}

// names goes through the names of the parts of a what-if, such as "link h2".
func names(what string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for item := range strings.SplitSeq(what, ",") {
			name, _, _ := strings.Cut(item, "=")
			if !yield(strings.Join(strings.Fields(name), " ")) {
				return
			}
		}
	}
}

// played is what came of a file.
type played struct {
	File string `json:"file"`
	*play.Result
	// What is the what-if, and With what came of the file with it.
	What string       `json:"what,omitempty"`
	With *play.Result `json:"with,omitempty"`
}

// run plays the files one after the other, and prints what came to out. It fails when something is
// not as expected, after all of them. With a what-if, nothing is expected.
func (o *options) run(out io.Writer, files []string) error {
	failed, all := 0, 0
	for i, file := range files {
		p, err := o.play(file)
		if err != nil {
			return err
		}
		for _, c := range p.Checks {
			all++
			if !c.Holds {
				failed++
			}
		}
		if i > 0 && !o.json {
			fmt.Fprintln(out)
		}
		if err := o.print(out, p); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d expectations failed", failed, all)
	}
	return nil
}

// maxFile is how many bytes of a scenario are read.
const maxFile = 16 << 20

// play plays a file, and if there is a what-if also with that. What is wrong with the file or the
// scenario is wrong usage.
func (o *options) play(file string) (*played, error) {
	text, err := durable.Read(file, maxFile)
	if err != nil {
		return nil, cli.AsUsage(err)
	}
	p := &played{File: file}
	if p.Result, err = o.playText(file, string(text), ""); err != nil || o.what == "" {
		return p, err
	}
	p.What, p.Checks = o.what, nil
	p.With, err = o.playText(file, string(text), o.what)
	if err == nil {
		p.With.Checks = nil
	}
	return p, err
}

// playText plays a scenario that stands in a file, with a what-if; "" = without one.
func (o *options) playText(file, text, what string) (*play.Result, error) {
	s, err := scenario.Parse(text, play.PolicyNames(), what)
	if o.reseed {
		s, err = scenario.ParseSeeded(text, play.PolicyNames(), what, o.seed)
	}
	switch {
	case err != nil && what != "":
		return nil, cli.Usagef("--what: %v", err)
	case err != nil:
		return nil, cli.Usagef("%s is no scenario:\n%v\nAll lines: docs/formats/scenario.md", file,
			err)
	}
	var users []decide.Policy
	if !slices.Contains(slices.Collect(names(what)), "policy") {
		var stop func()
		if users, stop, err = o.startPolicies(); err != nil {
			return nil, err
		}
		defer stop()
	}
	next := uint64(progressSteps)
	r, err := play.Play(s, users, func(seen sense.Observation) sense.Observation {
		if seen.Step >= next {
			next = seen.Step + progressSteps
			o.progress.Count("playing steps of "+file, seen.Step, stepsOf(s, &seen))
		}
		return seen
	})
	o.progress.Clear()
	if signal := context.Cause(o.programs.Context()); signal != nil { // it has ended policies too
		return nil, signal
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// progressSteps is after how many steps a scenario says how far it is.
const progressSteps = 1000

// stepsOf returns how many steps a scenario has, by what was seen after some of them: it ends at a
// step, at a time, or after so many epochs.
func stepsOf(s *scenario.Scenario, seen *sense.Observation) uint64 {
	all, step := float64(s.Steps), float64(seen.Step)
	if s.Seconds > 0 && seen.Now > 0 {
		all = math.Min(all, step*s.Seconds/seen.Now.Seconds())
	}
	if samples := float64(seen.Epoch * seen.Samples); s.Progress > 0 && samples > 0 {
		all = math.Min(all, step*s.Progress/samples)
	}
	return uint64(math.Max(all, step))
}

// print prints what came of a file.
func (o *options) print(out io.Writer, p *played) error {
	switch {
	case o.json:
		text := json.NewEncoder(out)
		text.SetEscapeHTML(false)
		return text.Encode(p)
	case p.With != nil:
		return printWhatIf(out, p)
	}
	return printResult(out, p.File, p.Result)
}
