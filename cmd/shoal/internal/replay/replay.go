// Package replay is the command shoal replay: files and printing around world/cluster.
package replay

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/sim/trace"
	"github.com/shoal-ml/shoal/world/cluster"
	"github.com/shoal-ml/shoal/world/experiment"
)

// shoal replay. One goroutine runs what is here, that of the command, so nothing is locked; a
// signal ends programs on another one. It reads and writes files, and computes for as long as the
// replays take.

// flags are those of shoal replay.
type flags struct {
	gpus     []int
	policies []string
	answerIn time.Duration
	perHost  int
	curves   string // folder; "" = jobs have the GPUs that they ask for
	costs    string
	sigma    float64
	load     float64
	seed     uint64
	round    time.Duration
	age      float64
	price    float64
	strict   bool
	json     bool
	csv      string
	html     string
	force    bool

	experiment string
	data       string

	programs *group.Group // what runs policies that are programs
	progress *cli.Progress
}

// NewCommand returns the command shoal replay.
func NewCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "replay TRACE --gpus N,... --policy NAME,... | replay --experiment NAME",
		Short: "Replay the recorded jobs of a cluster under other policies",
		Long: cli.Help(`Replay the jobs of a trace in virtual time on a cluster of GPUs, under one policy after another, and
compare when jobs end, how busy the GPUs are, how fair that is, and how many deadlines are met.
The policies are those of a pool, in the same code. TRACE is a table of jobs, which may be
compressed with gzip (docs/formats/trace.md). Faulty lines are counted and reported.

With --curves, a folder with the speeds of models by GPUs, jobs can have other sizes than they ask
for. Without it they have the size that they ask for, or none. A policy exec:./mine.py is a program
that gets a line of JSON and answers with one; if it fails, elastic decides.

Policies, and experiments on public data:
`+wrapNames(sched.Names())+`
`+wrapNames(experiment.Names()), cli.ExitCodes, "replay"),
		Example: `  shoal replay cluster04.csv.gz --gpus 512 --policy fifo,fifo-skip
  shoal replay cluster04.csv.gz --gpus 384,448,512 --html report.html     how many GPUs to buy?
  shoal replay jobs.csv --gpus 64 --curves speeds/ --costs restart --sigma 1 --load 1.5
  shoal replay jobs.csv --gpus 64 --policy fifo,exec:./mine.py --csv jobs-played.csv
  shoal replay --experiment orders --data ~/data`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.experiment != "" {
				return cli.Arguments(0, 0)(cmd, args)
			}
			return cli.Arguments(1, 1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.progress = cli.NewProgress(cmd.ErrOrStderr())
			f.programs = group.New(cmd.Context())
			// files are written whole or not at all, so nothing else is to be undone
			done := cli.ExitOnSignal(cmd.Context(), f.endPrograms)
			defer done()
			err := cli.RefuseEmpty(cmd.Flags(), "curves", "costs", "csv", "html", "data",
				"experiment")
			if err != nil {
				return err
			}
			if err := f.refuseUnused(cmd.Flags()); err != nil {
				return err
			}
			if f.experiment != "" {
				return f.runExperiment(cmd.OutOrStdout())
			}
			if err := f.validate(args[0], cmd.Flags().Changed); err != nil {
				return err
			}
			return f.run(cmd.OutOrStdout(), args[0])
		},
	}
	f.addTo(cmd)
	return cmd
}

// addTo adds the flags to a command.
func (f *flags) addTo(cmd *cobra.Command) {
	set := cmd.Flags()
	set.IntSliceVar(&f.gpus, "gpus", nil, "GPUs of the cluster; several numbers are compared")
	set.StringSliceVar(&f.policies, "policy", []string{"fifo", "fifo-skip"},
		"the policies, or exec:FILE for a program")
	set.DurationVar(&f.answerIn, "answer-in", 50*time.Millisecond,
		"how long a policy that is a program may take to decide")
	set.IntVar(&f.perHost, "per-host", 0,
		"GPUs of a host; jobs on more hosts than they need are slower (default: all are alike)")
	set.StringVar(&f.curves, "curves", "", "the folder with a table of speeds for each model")
	set.StringVar(&f.costs, "costs", "live", "what a change takes: live (1 s), restart (900 s), "+
		"a time such as 30s, or a JSON file with seconds of start, resize, park and resume")
	set.Float64Var(&f.sigma, "sigma", 0,
		"predictions of work are off by a log-normal factor with this deviation")
	set.Float64Var(&f.load, "load", 1, "jobs arrive this many times as fast as in the trace")
	set.Uint64Var(&f.seed, "seed", 1, "the seed of all random numbers")
	set.DurationVar(&f.round, "round", time.Minute,
		"time between decisions of policies that decide about all jobs at once")
	set.Float64Var(&f.age, "age", 0, "how much sooner a job comes for each second that it waits")
	set.Float64Var(&f.price, "price", 0, "what a GPU costs an hour")
	set.BoolVar(&f.strict, "strict", false, "refuse a file with a faulty line")
	set.BoolVar(&f.json, "json", false, "print one JSON object for each policy and size")
	set.StringVar(&f.csv, "csv", "", "write a line for each job to this `FILE`")
	set.StringVar(&f.html, "html", "", "write a page with charts to this `FILE`")
	set.BoolVar(&f.force, "force", false, "replace files that are there")
	set.StringVar(&f.experiment, "experiment", "", "replay an experiment of a paper on public data")
	set.StringVar(&f.data, "data", "",
		"folder with public data, for --experiment (default: that of SHOAL_DATA)")
}

// refuseUnused fails for flags that would change nothing.
func (f *flags) refuseUnused(set *pflag.FlagSet) error {
	if f.experiment == "" {
		return cli.RefuseFlags(set, "an experiment, which --experiment names", "data")
	}
	return cli.RefuseFlags(set, "a TRACE of yours, and an experiment says itself what it plays",
		"gpus", "policy", "answer-in", "per-host", "curves", "costs", "sigma", "load", "round",
		"age", "price", "strict", "csv", "html", "force")
}

// programOf returns the file of the program that the name of a policy names, if it names one.
func programOf(policy string) (file string, is bool) { return strings.CutPrefix(policy, "exec:") }

// isProgram reports whether the name of a policy is that of a program.
func isProgram(policy string) bool {
	_, is := programOf(policy)
	return is
}

// decidesForAll reports whether the policy of a name decides about all jobs at once. It says so of
// a name that there is not, which findPolicies refuses.
func decidesForAll(policy string) bool {
	p, err := sched.Named(policy)
	return err != nil || p.Share != nil
}

// validate fails for flags that make no sense with a trace; given says of the name of a flag
// whether it is there.
func (f *flags) validate(traceFile string, given func(flag string) bool) error {
	switch {
	case len(f.gpus) == 0:
		return cli.Usagef("say how many GPUs the cluster has: --gpus 64; no trace says it")
	case len(f.policies) == 0:
		return cli.Usagef("--policy is empty: choose one of %s", strings.Join(sched.Names(), ", "))
	case given("answer-in") && !slices.ContainsFunc(f.policies, isProgram):
		return cli.Usagef("--answer-in is about a policy that is a program, such as --policy " +
			"exec:./mine.py; leave it out")
	case f.answerIn <= 0:
		return cli.Usagef("--answer-in=%v: it is above 0", f.answerIn)
	case f.round < 0 || f.round > 0 && f.round < time.Millisecond:
		return cli.Usagef("--round=%v: it is 0, or a millisecond or more", f.round)
	case given("round") && !slices.ContainsFunc(f.policies, decidesForAll):
		return cli.Usagef("--round is about a policy that decides about all jobs at once, such " +
			"as --policy elastic; leave it out")
	case given("force") && f.csv == "" && f.html == "":
		return cli.Usagef("--force is about the files of --csv and --html; leave it out")
	case !(f.price >= 0 && f.price <= mostPrice):
		return cli.Usagef("--price=%v: it is from 0 to %v", f.price, mostPrice)
	case f.csv == "-" || f.html == "-":
		return cli.Usagef("--csv and --html take a file, since the output has the table: to call " +
			"one -, write ./-")
	case f.load == 0:
		return cli.Usagef("--load=0: nobody would arrive; 1 is as in the trace")
	}
	for i, n := range f.gpus {
		if n < 1 || n > 1<<20 {
			return cli.Usagef("--gpus=%d: it is from 1 to %d", n, 1<<20)
		}
		if slices.Contains(f.gpus[:i], n) {
			return cli.Usagef("--gpus %d is given twice: leave one out", n)
		}
	}
	for i, name := range f.policies {
		if slices.Contains(f.policies[:i], name) {
			return cli.Usagef("--policy %s is given twice: leave one out", name)
		}
	}
	same := f.checkOutputs(traceFile)
	return cmp.Or(same, cli.CheckFolder("--curves", f.curves),
		cli.CheckNewOutput("--csv", f.csv, f.force), cli.CheckNewOutput("--html", f.html, f.force))
}

// checkOutputs fails where a file that is written would replace one that is read, or another that
// is written, or would be read as a table of speeds from then on.
func (f *flags) checkOutputs(traceFile string) error {
	pairs := [][4]string{{"--csv", f.csv, "--html", f.html}}
	for _, written := range [][2]string{{"--csv", f.csv}, {"--html", f.html}} {
		flag, path := written[0], written[1]
		pairs = append(pairs, [4]string{flag, path, "the trace", traceFile},
			[4]string{flag, path, "--costs", f.costs})
		for _, name := range f.policies {
			if file, is := programOf(name); is {
				pairs = append(pairs, [4]string{flag, path, "the policy", file})
			}
		}
	}
	if f.csv != "" {
		pairs = append(pairs,
			[4]string{"the folder of --csv", filepath.Dir(f.csv), "--curves", f.curves})
	}
	return cli.RefuseSame(pairs)
}

const (
	most      = 1 << 30 // bytes of a trace that are read
	mostPrice = 1e9     // of a GPU for an hour, so that the cost of any trace is a number
)

// run plays a trace and prints and writes what came.
func (f *flags) run(out io.Writer, file string) error {
	text, err := durable.Read(file, most)
	if err != nil {
		return cli.AsUsage(err)
	}
	costs, err := parseCosts(f.costs)
	if err != nil {
		return err
	}
	r := &report{File: filepath.Base(file), Price: f.price}
	var curves []trace.Curve
	if f.curves != "" {
		curves, r.Speeds, err = experiment.ReadCurves(durable.Folder(f.curves), ".", f.strict)
		if err != nil {
			return cli.AsUsage(fmt.Errorf("--curves %s: %w", f.curves, err))
		}
	}
	policies, err := f.findPolicies()
	if err != nil {
		return err
	}
	for _, gpus := range f.gpus {
		t, err := trace.Read(bytes.NewReader(text), trace.Options{GPUs: gpus, Strict: f.strict})
		if err != nil {
			return cli.AsUsage(fmt.Errorf("%s: %w", file, err))
		}
		r.Traces = append(r.Traces, traceOf{gpus, t})
		for _, p := range policies {
			cfg := cluster.Config{Policy: p, GPUs: gpus, PerHost: f.perHost, Costs: costs,
				Sigma: f.sigma, Load: f.load, Seed: f.seed, Curves: curves,
				Round: f.round.Milliseconds(), Age: f.age,
				Progress: func(ended, all int) {
					f.progress.Count(fmt.Sprintf("playing %s on %d GPUs", p.Name, gpus),
						uint64(ended), uint64(all))
				}}
			result, err := f.play(t.Jobs, cfg)
			if err != nil {
				return err
			}
			r.Runs = append(r.Runs, run{Result: result, File: r.File, Lines: t.Rows,
				Found: t.Found, SpeedsFound: r.Speeds, Costs: f.costs, Sigma: f.sigma, Load: f.load,
				Cost: float64(f.price * result.GPUHours)})
		}
	}
	return f.write(out, r)
}

// write writes what came to the files that are asked for, and prints it.
func (f *flags) write(out io.Writer, r *report) error {
	if f.csv != "" {
		text, err := csvOf(r)
		if err == nil {
			err = durable.Write(f.csv, text)
		}
		if err != nil {
			return err
		}
	}
	if f.html != "" {
		if err := durable.Write(f.html, pageOf(r)); err != nil {
			return err
		}
	}
	if f.json {
		return printJSON(out, r)
	}
	if err := printReport(out, r); err != nil {
		return err
	}
	if f.html != "" {
		fmt.Fprintf(out, "%s: open it in a browser\n", f.html)
	}
	return nil
}

// wrapNames returns names for the help with commas between them, in indented lines of up to 98
// columns.
func wrapNames(names []string) string {
	const most = 98
	var b strings.Builder
	at := 0
	for i, name := range names {
		if i < len(names)-1 {
			name += ","
		}
		switch {
		case i == 0:
			b.WriteString("  ")
			at = 2
		case at+1+len(name) > most:
			b.WriteString("\n  ")
			at = 2
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(name)
		at += len(name)
	}
	return b.String()
}

// findPolicies returns the policies by their names. Those that are programs have no Share yet.
func (f *flags) findPolicies() (list []sched.Policy, err error) {
	for _, name := range f.policies {
		p := sched.Policy{Name: name, About: "a program"}
		if file, is := programOf(name); is {
			err = checkProgram(file)
		} else if p, err = sched.Named(name); err != nil {
			err = cli.Usagef("--policy: %v; or exec:FILE for a program", err)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// play plays jobs by a configuration. A policy that is a program runs for as long: what one play
// has left in it, or its end, is nothing to the next one.
func (f *flags) play(jobs []trace.Job, cfg cluster.Config) (*cluster.Result, error) {
	if file, is := programOf(cfg.Policy.Name); is {
		p, err := startProgram(f.programs, file, f.answerIn)
		if err != nil {
			return nil, err
		}
		defer p.stop()
		cfg.Policy.Share = p
	}
	result, err := cluster.Play(jobs, cfg)
	f.progress.Clear()
	if signal := context.Cause(f.programs.Context()); signal != nil { // it has ended programs too
		return nil, signal
	}
	return result, cli.AsUsage(err)
}

// endPrograms ends what runs policies, and waits for that.
func (f *flags) endPrograms() {
	f.programs.Stop(nil)
	_ = f.programs.Wait()
}

// costsFile is a file with what changes take, in seconds.
type costsFile struct {
	Start  float64 `json:"start"`
	Resize float64 `json:"resize"`
	Park   float64 `json:"park"`
	Resume float64 `json:"resume"`
}

// parseCosts reads what changes of jobs take from the text of --costs: a word, a time, or the name
// of a file, which it reads.
func parseCosts(text string) (sched.Costs, error) {
	switch text {
	case "live":
		return cluster.Live, nil
	case "restart":
		return cluster.Restart, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		if d < 0 || d > 1e6*time.Second {
			return sched.Costs{}, cli.Usagef("--costs=%s: it is from 0 to 1000000 s", text)
		}
		return cluster.PausePerChange(d.Seconds()), nil
	}
	content, err := durable.Read(text, 1<<20)
	if err != nil {
		return sched.Costs{}, cli.Usagef("--costs: write live, restart, a time such as 30s, or a "+
			"file: %v", err)
	}
	var c costsFile
	if err := strict.JSON(content, &c); err != nil {
		return sched.Costs{}, cli.Usagef(`--costs %s: %v; it is such as {"start": 0, "resize": 1, `+
			`"park": 2, "resume": 30}, in seconds`, text, err)
	}
	for _, s := range []float64{c.Start, c.Resize, c.Park, c.Resume} {
		if !(s >= 0 && s <= 1e6) {
			return sched.Costs{}, cli.Usagef("--costs %s: %v s: it is from 0 to 1000000 s", text, s)
		}
	}
	// pause returns seconds as milliseconds.
	pause := func(s float64) sched.Estimate { return sched.Estimate{Mean: 1000 * s} }
	return sched.Costs{Start: pause(c.Start), Resize: pause(c.Resize), Park: pause(c.Park),
		Resume: pause(c.Resume)}, nil
}

// runExperiment plays an experiment and prints its table.
func (f *flags) runExperiment(out io.Writer) error {
	e, err := experiment.Named(f.experiment)
	if err != nil {
		return cli.Usagef("--experiment: %v", err)
	}
	from, data := "--data", f.data
	if data == "" {
		from, data = "SHOAL_DATA", os.Getenv("SHOAL_DATA")
	}
	if data == "" {
		return cli.Usagef("say where the public data lie: --data FOLDER, or SHOAL_DATA")
	}
	if err := cli.CheckFolder(from, data); err != nil {
		return err
	}
	t, err := e.Run(&experiment.Input{Data: durable.Folder(data), Seed: f.seed,
		Progress: func(what string, done, all int) {
			f.progress.Count(what, uint64(done), uint64(all))
		}})
	f.progress.Clear()
	if err != nil {
		return fmt.Errorf("the public data in %s: %w", data, err)
	}
	if f.json {
		return encode(out, struct {
			Name string `json:"name"`
			Seed uint64 `json:"seed"`
			*experiment.Table
		}{e.Name, f.seed, t})
	}
	fmt.Fprintf(out, "%s\n%s\npublished: %s\n\n", e.Paper, e.Question,
		cmp.Or(e.Published, "no figure that could be confirmed"))
	if err := cli.Table(out, append([][]string{t.Heads}, t.Rows...)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\n%s (seed %s)\n", t.Difference, strconv.FormatUint(f.seed, 10))
	return err
}
