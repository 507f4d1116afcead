// Package run has the commands that start a job or lend a host to one, run and agent, and policy,
// which tries a policy before that.
package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/spelling"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher"
	"github.com/shoal-ml/shoal/launcher/policies"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// shoal run. The goroutine of the command runs what is here; the launcher may call the functions
// that it is given on others.

// runFlags are the flags of shoal run. One goroutine uses them, that of the command; only run waits
// for the job.
type runFlags struct {
	workers int      // number of workers at the start
	min     int      // number of workers below which the job waits; 0 = none
	max     int      // number of workers above which it is not resized; 0 = no limit
	spares  int      // number of spares
	grow    bool     // whether the job takes every slot of its hosts
	prefork []string // modules that a template imports; nil = no template
	file    string   // YAML file of the job; "" = none
	name    string   // of the job; "" = after the command
	env     []string // KEY=VALUE for the workers
	fixed   bool     // whether routes follow from lengths alone
	spread  bool     // whether replicas lie on different hosts
	auto    string   // whether policies decide, as job.Auto; "" = no
	policy  []string // files of policies or their names; nil = none
	budget  float64  // money that an epoch may cost; 0 = it does not count
	price   float64  // money that a worker costs an hour; 0 = it does not count
	logDir  string   // folder for the directory of the run; "" = the usual one
	dryRun  bool     // whether to print the job only
	listen  string   // address at which other hosts join; "" = none
	hosts   string   // hosts for agents over ssh, as parseHosts takes them; "" = none
	token   string   // file that gets the join token; "" = the usual one
	plain   bool     // whether tensors travel without encryption
	store   storeFlags
	pod     podFlags
	hostFlags
}

// hostFlags say what this host is to the job. They belong to runFlags.
type hostFlags struct {
	slots int        // number of workers that this host takes
	kind  string     // of this host; "" = as defaultKind finds it
	slurm bool       // whether srun has started this on each node
	task  *slurmTask // what Slurm says then; spec sets it
}

// NewCommand returns the command shoal run.
func NewCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [-n N] [-f job.yaml] [flags] -- command [args…]",
		Short: "Run a command as N workers of one job",
		Long: cli.Help(`Run a command as N workers of one job, on this machine or on several hosts, and keep their output.
Ctrl-C stops the workers, and a second Ctrl-C kills them. A job leaves no process and no memory.

  kind of job                     what a lost worker means
  any program                     the first worker that fails ends the job
  trains in steps                 the job goes on without workers that are killed by a signal, or
                                  that came later and fail; shoal resize changes their number
  trains in steps, with --min N   also without workers that fail; below N it waits for more
  with --spares N                 a worker that already waits takes the place of a lost one

A job trains in steps if its script uses shoal.torch.loader, job.steps, or client.Train in Go.

  hosts                           how they come
  --listen :7077                  other hosts join with the shoal agent command that is printed
  --hosts node1:4,node2:4         agents are started over ssh, in the folder of the same path
  --slurm                         srun starts this command on each node
  --store URL or FOLDER           a record of the job, by which hosts find it; training never waits
                                  for it

A worker finds its place in SHOAL_RANK and SHOAL_SIZE, and in RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR and MASTER_PORT for torch. SIGTERM frees this host at the end of a step if another host
can lead on; otherwise it ends the job.`, "Exit codes: 0 all workers ended well, 1 the job failed, 2 wrong usage, 130 stopped by Ctrl-C,\n143 by SIGTERM.", "train"),
		Example: `  shoal run -n 4 -- python3 train.py --epochs 3
  shoal run -n 4 --min 2 --max 8 --spares 1 -- python3 train.py
  shoal run -n 4 --min 2 --prefork torch,transformers -- python3 finetune.py
  shoal run -n 2 --name digits --env OMP_NUM_THREADS=1 -- ./train
  shoal run -n 4 --auto -- python3 train.py
  shoal run -n 4 --auto --policy kungfu -- python3 train.py
  shoal run -n 4 --max 16 --auto --budget 0.5 --price 2 -- python3 train.py
  shoal run -n 4 --metrics 127.0.0.1:9400 -- python3 train.py
  shoal run -n 8 --listen :7077 -- python3 train.py
  shoal run -n 4 --listen :7077 --grow --max 16 -- python3 train.py
  shoal run -n 8 --hosts node1:4,node2:4 -- python3 train.py
  srun --nodes 4 --ntasks-per-node 1 shoal run -f job.yaml --slurm
  shoal run -n 8 --name digits --listen :7077 --store nats://db:4222 -- python3 train.py
  shoal run -f job.yaml -n 8 --dry-run     print the job; flags come before the file`,
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := f.spec(cmd, args)
			if err != nil {
				return err
			}
			if f.dryRun {
				if _, _, err := f.check(cmd, spec); err != nil {
					return err
				}
				fmt.Fprint(cmd.OutOrStdout(), spec)
				return nil
			}
			if f.task != nil {
				return f.runSlurm(cmd, spec)
			}
			return f.run(cmd, spec)
		},
	}
	f.addTo(cmd.Flags())
	return cmd
}

// addTo defines the flags of shoal run.
func (f *runFlags) addTo(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.SetInterspersed(false) // what follows the command belongs to it, with or without --
	flags.IntVarP(&f.workers, "workers", "n", 0, "number of workers (default 1)")
	flags.IntVar(&f.min, "min", 0, "wait while there are fewer than `N` workers, and also "+
		"survive workers that fail (default: only those that are killed)")
	flags.IntVar(&f.max, "max", 0, "have at most `N` workers (default: no limit); with --auto "+
		"shoal may change their number up to this")
	flags.IntVar(&f.spares, "spares", 0, "keep `N` more workers waiting, which replace lost "+
		"ones at once and need as much memory as the others")
	flags.BoolVar(&f.grow, "grow", false, "with --listen or --hosts: take every slot that the "+
		"hosts of the job offer, up to --max, whenever one joins")
	flags.StringSliceVar(&f.prefork, "prefork", nil, "import these Python `MODULES` once on "+
		"each host, and fork the workers from that process, so that they start quickly")
	flags.StringVarP(&f.file, "file", "f", "", "read the job from a YAML file")
	flags.StringVar(&f.name, "name", "", "name of the job (default: after the command)")
	flags.StringArrayVar(&f.env, "env", nil, "set `KEY=VALUE` for the workers; repeat for more")
	flags.BoolVar(&f.fixed, "fixed-routes", false, "choose the route of an all-reduce by its "+
		"length and not by measurements, so that sums are the same in every run")
	flags.BoolVar(&f.spread, "redundant", false, "place replicas on different hosts, so that "+
		"losing a host loses no state")
	flags.StringVar(&f.auto, "auto", "", "let shoal change how the job trains, within what "+
		"the program allows; with --auto=watch it only says what it would change")
	flags.Lookup("auto").NoOptDefVal = string(job.AutoAct)
	flags.StringArrayVar(&f.policy, "policy", nil, "with --auto: let this `POLICY` decide, the "+
		"file of a Python policy or of a program, or one of shoal by name, such as kungfu; "+
		"repeat for more")
	flags.Float64Var(&f.budget, "budget", 0, "with --auto, --max and --price: let an epoch cost "+
		"this much `MONEY`, with the number of workers that is fastest for it")
	flags.Float64Var(&f.price, "price", 0, "with --budget: the `MONEY` that a worker costs an hour")
	flags.StringVar(&f.logDir, "log-dir", "",
		"put the directory of the run into this one (default ~/.local/state/shoal/runs)")
	flags.StringVar(&f.listen, "listen", "",
		"let other hosts join at this `ADDRESS`, such as :7077")
	flags.StringVar(&f.hosts, "hosts", "", "start agents over ssh on `H1:SLOTS,H2:SLOTS`; this "+
		"host then takes no workers, unless --slots says so")
	flags.IntVar(&f.slots, "slots", 0, "with --listen or --hosts: workers that this host takes "+
		"(default with --listen: one for each GPU, or for each core if there is none)")
	flags.StringVar(&f.kind, "kind", "", kindUsage)
	flags.BoolVar(&f.slurm, "slurm", false, "in a job of Slurm, where srun starts this once on "+
		"each node: run one job on all nodes, with --grow, and park and requeue it when Slurm "+
		"asks for them")
	flags.StringVar(&f.token, "token-file", "", "with --listen or --hosts: write the token "+
		"with which other hosts join to this `FILE` (default with --listen: "+
		"~/.local/state/shoal/token)")
	flags.BoolVar(&f.plain, "unencrypted-data", false, "with --listen or --hosts: send tensors "+
		"in the clear, faster; anyone on the network can read and change them")
	flags.StringVar(&f.store.at, "store", "", "keep the record of the job on NATS servers "+
		"(`URL`, such as nats://db:4222), or in a folder of this host")
	f.store.addCredentialsTo(flags)
	flags.BoolVar(&f.store.takeOver, "take-over", false, "with --store: begin even if a job of "+
		"this name runs elsewhere, because you know that it is gone")
	f.pod.addTo(flags)
	flags.StringVar(&f.pod.trust, "authority-file", "", "with --listen: `FILE` with the key by "+
		"which hosts trust each other, for a program that makes tokens itself (default: a new key)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print the job as YAML, and run nothing")
}

// spec returns the job of the file of --file, which it reads, overridden by the flags, with
// defaults. It fails where the job is not valid. args are the command of the workers.
func (f *runFlags) spec(cmd *cobra.Command, args []string) (job.Spec, error) {
	if err := cli.RefuseEmpty(cmd.Flags(), "file", "name", "auto"); err != nil {
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
	for _, flag := range []string{"min", "max"} { // where 0 is what they are without the flag
		if cmd.Flags().Changed(flag) && cmd.Flag(flag).Value.String() == "0" {
			return spec, cli.Usagef(
				"--%s 0 is no number of workers; give 1 to 1024, or leave it out", flag)
		}
	}
	for _, flag := range []string{"budget", "price"} { // as above
		if cmd.Flags().Changed(flag) && cmd.Flag(flag).Value.String() == "0" {
			return spec, cli.Usagef("--%s 0 is no money; give more, or leave it out", flag)
		}
	}
	if len(args) > 0 && args[0] == string(job.AutoWatch) && f.auto == string(job.AutoAct) &&
		cmd.ArgsLenAtDash() != 0 {
		return spec, cli.Usagef("--auto %s would run a program of that name: did you mean "+
			"--auto=%[1]s? If not, write -- before the program", args[0])
	}
	spec = spec.Override(
		job.Spec{Name: f.name, Min: f.min, Max: f.max, Spares: f.spares, Grow: f.grow,
			Command: args, Env: env, Prefork: f.prefork, FixedRoutes: f.fixed, Redundant: f.spread,
			Auto: job.Auto(f.auto), Policies: f.policy, Budget: f.budget,
			Price: f.price})
	f.overrideGiven(cmd.Flags(), &spec)
	if f.slurm {
		if spec, err = f.readSlurm(cmd, spec); err != nil {
			return spec, err
		}
		f.overrideGiven(cmd.Flags(), &spec) // also what a job in Slurm has by default
	}
	spec = spec.WithDefaults()
	if cmd.Flags().Changed("workers") { // also a 0, which must be refused and not defaulted
		spec.Workers = f.workers
	}
	if err := spec.Validate(); err != nil {
		return spec, err
	}
	return spec, checkPolicies(spec)
}

// readSlurm reads what Slurm says of this task, and returns the spec as a job in Slurm has it.
func (f *runFlags) readSlurm(cmd *cobra.Command, spec job.Spec) (job.Spec, error) {
	if f.hosts != "" {
		return spec, cli.Usagef("--hosts and --slurm both say which hosts there are: leave one out")
	}
	if cmd.Flags().Changed("token-file") {
		return spec, cli.Usagef("with --slurm the nodes get their token by themselves: leave out " +
			"--token-file; shoal token JOB --token-file FILE makes one for another host")
	}
	var err error
	if f.task, err = readSlurmTask(os.Getenv); err != nil {
		return spec, err
	}
	if !cmd.Flags().Changed("slots") {
		if f.slots, err = readSlots(os.Getenv); err != nil {
			return spec, err
		}
	}
	return f.task.withDefaults(spec, f.slots), nil
}

// checkPolicies returns what is wrong with the policies of a job, at whose files it looks; nil =
// nothing. Files of other hosts show only when they come to lead.
func checkPolicies(spec job.Spec) error {
	owner := map[string]string{} // of levers, as far as that is known before a program runs
	if spec.Budget > 0 {
		owner["size"] = "--budget"
	}
	for i, path := range spec.Policies {
		if slices.ContainsFunc(spec.Policies[:i], func(other string) bool {
			return filepath.Clean(other) == filepath.Clean(path)
		}) {
			return cli.Usagef("--policy %s is given twice: leave one out", path)
		}
		if p := policy.Named(path); p != nil {
			for _, lever := range p.Levers() {
				switch other := owner[lever]; {
				case other != "":
					return cli.Usagef("--policy %s and %s both decide about the %s: leave one out",
						path, other, lever)
				case lever == "size" && spec.Max == 0:
					return cli.Usagef("--policy %s: the size does not change without --max, the "+
						"most workers that the job may have", path)
				}
				owner[lever] = path
			}
			continue
		}
		switch _, err := os.Stat(path); {
		case err != nil && !strings.ContainsAny(path, "./"):
			return cli.Usagef("--policy %s: no policy of shoal is called so, and no file: there "+
				"are %s%s", path, strings.Join(policy.Names(), ", "),
				spelling.Meant(path, policy.Names()))
		case err != nil:
			return cli.Usagef("--policy: %v; it takes a file of yours, or the name of a policy of "+
				"shoal: %s", err, strings.Join(policy.Names(), ", "))
		}
		if err := policies.CheckFile(path); err != nil {
			return cli.Usagef("--policy %v", err)
		}
	}
	return nil
}

// newFleet returns the fleet that the flags describe; it starts nothing yet. It fails where the
// flags do not fit together. The caller closes the fleet.
func (f *runFlags) newFleet(cmd *cobra.Command) (*fleet, error) {
	fl := &fleet{listen: f.listen, tokenFile: f.token, slots: f.slots, open: f.listen != "",
		plain: f.plain, notes: cmd.ErrOrStderr()}
	said := cmd.Flags().Changed
	if err := cli.RefuseEmpty(cmd.Flags(), "listen", "hosts", "token-file", "kind",
		"authority-file"); err != nil {
		return nil, err
	}
	if err := checkSlots(f.slots); err != nil && said("slots") {
		return nil, err
	}
	switch {
	case f.task != nil:
		fl.task, fl.open, fl.listen = f.task, true, cmp.Or(f.listen, ":0")
	case f.listen == "" && f.hosts == "":
		for _, flag := range []string{"slots", "token-file", "unencrypted-data", "grow",
			"authority-file"} {
			if said(flag) && cmd.Flag(flag).Value.String() != "false" {
				return nil, cli.Usagef("--%s is about other hosts: it needs --listen or --hosts",
					flag)
			}
		}
		return fl, nil
	case f.hosts != "":
		var err error
		if fl.hosts, err = parseHosts(f.hosts); err != nil {
			return nil, err
		}
		if fl.listen == "" {
			fl.listen = ":0"
		}
	case !said("slots"):
		fl.slots = DefaultSlots()
	}
	if err := cli.CheckAddress("listen", f.listen); err != nil {
		return nil, err
	}
	if f.plain {
		fmt.Fprintln(fl.notes, plainWarning)
	}
	var err error
	if fl.authority, err = readAuthority(f.pod.trust); err != nil {
		return nil, err
	}
	if fl.tokenFile == "" && f.hosts != "" && f.listen == "" {
		return fl, nil // no other hosts are expected
	}
	if fl.tokenFile == "" {
		dir, err := runs.Root()
		if err != nil {
			return nil, err
		}
		fl.tokenFile = filepath.Join(filepath.Dir(dir), "token")
	}
	return fl, cli.CheckToken(fl.tokenFile)
}

// check returns the fleet that the flags describe and the kind of this host. It fails where the
// flags are wrong, as far as that shows before anything is opened; --dry-run makes it too.
func (f *runFlags) check(cmd *cobra.Command, spec job.Spec) (*fleet, string, error) {
	kind, err := hostKind(f.kind)
	if err != nil {
		return nil, "", err
	}
	others, err := f.newFleet(cmd)
	if err != nil {
		return nil, "", err
	}
	if err := others.checkRoom(spec.Workers); err != nil {
		return nil, "", err
	}
	if spec.Grow && others.listen == "" { // by the file of the job: newFleet refuses --grow
		fmt.Fprintln(others.notes, "shoal: note: the job does not grow, since no other hosts can "+
			"join: add --listen or --hosts, or leave grow out of the file")
	}
	return others, kind, f.checkHost(cmd)
}

// run runs the job until it ends or this host has left it, and writes to stderr how it ended. It
// does not return before what it has started has ended.
func (f *runFlags) run(cmd *cobra.Command, spec job.Spec) error {
	out, notes := cmd.OutOrStdout(), cmd.ErrOrStderr()
	others, kind, err := f.check(cmd, spec)
	if err != nil {
		return err
	}
	record, err := f.store.openStore(cmd.Context())
	if err != nil {
		return err
	}
	if record != nil {
		defer record.Store.Close()
	}
	asked, err := f.pod.open(cmd)
	if err != nil {
		return err
	}
	defer asked.close()
	ctx, giveUp := context.WithCancelCause(cmd.Context())
	defer giveUp(nil)
	leave := (<-chan struct{})(nil)
	var cannot func(error)
	if others.listen != "" {
		p := cli.NewShutdown(ctx, func(s syscall.Signal) bool {
			return s == syscall.SIGTERM
		}, func() { f.printLeaving(notes) })
		defer p.Close()
		ctx, leave, cannot = p.Ctx, p.Asked, func(error) { p.Must() }
	}
	defer others.close()
	result, err := launcher.Run(ctx, launcher.RunConfig{
		Spec: spec, Dir: f.logDir, Kind: kind, Manager: f.manager(), Stdout: out, Stderr: notes,
		Color: cli.WantsColor(out) && cli.WantsColor(notes), Kill: cli.SecondSignal(cmd.Context()),
		Leave: leave, CannotLeave: cannot,
		Fleet: others.launcherConfig(cmd.Context(), spec, giveUp), Record: record,
		OnStart: func(name, dir string) {
			others.job = name
			fmt.Fprintf(notes, "shoal: job %s, %s, files in %s\n", name,
				plural.Of(spec.Workers, "worker"), dir)
			asked.setRunDir(dir)
		},
	})
	if wrote := asked.writeEnd(result, false, ctx.Err() != nil, err); wrote != nil {
		err = errors.Join(err, wrote)
	}
	if f.task != nil {
		f.task.result = result
	}
	if cannot := new(stranded); errors.As(err, &cannot) {
		return cannot
	}
	if err != nil {
		return withTakeOverHint(err)
	}
	printEnd(notes, spec, result)
	return nil
}

// manager is what people call the manager of the hosts, as launcher.RunConfig has it.
func (f *runFlags) manager() string {
	if f.task != nil {
		return slurm
	}
	return ""
}

// printLeaving writes to notes what becomes of this host, which was asked to leave.
func (f *runFlags) printLeaving(notes io.Writer) {
	if f.task != nil {
		fmt.Fprintln(notes, "shoal: Slurm asks for this node: the job is parked when its step "+
			"ends, if it is led here")
		return
	}
	fmt.Fprintln(notes, "shoal: this host leaves the job when its step ends, if others can go on "+
		"with it; a second signal ends the job at once")
}

// printEnd writes to notes how a run has ended that has ended well.
func printEnd(notes io.Writer, spec job.Spec, result *runs.Result) {
	took := time.Duration(result.Seconds * float64(time.Second)).Round(10 * time.Millisecond)
	if result.GoesOn != "" {
		fmt.Fprintf(notes, "shoal: this host has left job %s after %s; it goes on on host %s\n",
			result.Job, took, result.GoesOn)
		return
	}
	if result.Parked {
		fmt.Fprintf(notes, "shoal: job %s is parked after %s; started again, it goes on with the "+
			"next sample\n", result.Job, took)
		return
	}
	by := ""
	if result.StoppedBy != "" {
		by = "was stopped by " + result.StoppedBy + " and "
	}
	fmt.Fprintf(notes, "shoal: job %s %sended well after %s\n", result.Job, by, took)
	if result.Alone && spec.Workers > 1 {
		fmt.Fprintf(notes, "shoal: note: no worker joined, so shoal had no part in what the %d "+
			"processes did, and each ran alone unless they met in another way, as by "+
			"init_process_group(\"gloo\"); call shoal.join() in the script, or import "+
			"shoal.torch and call init_process_group(\"shoal\"), to make them one job\n",
			spec.Workers)
	}
}
