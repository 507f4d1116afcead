package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/tcp"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// shoal agent. The goroutine of the command runs what is here; the launcher may call the functions
// that it is given on others.

// agentFlags are the flags of shoal agent. Only run waits for the job.
type agentFlags struct {
	join      string // HOST:PORT where the job listens; "" = the store knows
	tokenFile string // file with the token; "-" = standard input
	slots     int    // number of workers that this host takes; 0 = a witness
	name      string // of this host in the job; "" = its host name
	kind      string // of this host; "" = as defaultKind finds it
	listen    string // address on which other agents reach this one
	logDir    string // folder for the files of the workers; "" = the usual one
	job       string // name of the job that the store is asked for; "" = not by name
	store     storeFlags
	pod       podFlags

	manager string // as launcher.ServeConfig has it
	// onEnd is called with how the job has ended, nil where this host has not led it; nil = it is
	// not.
	onEnd func(r *runs.Result)
}

// NewAgentCommand returns the command shoal agent.
func NewAgentCommand() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent --join HOST:PORT | --store URL --job NAME  --token-file FILE",
		Short: "Lend this host to a job that runs on others",
		Long: cli.Help(`Lend this host to a job that was started elsewhere with shoal run --listen, and end with the job.
The agent runs workers of the job, as many as it has slots, over encrypted and authenticated links.

  event                          what the agent does
  nobody answers yet             it says why, and tries again until somebody does
  the host that led is lost      another host leads on; shoal ps, resize and stop work there
  Ctrl-C or SIGTERM              its workers leave when their step ends, and so does the agent; if
                                 the job cannot do without them, it says why and stays
  Ctrl-C or SIGTERM again        its workers end at once, and the job goes on without them

With --store and --job the agent asks the store of the job where the job listens, even if another
host leads it by now.`, cli.ExitCodes, "several-hosts"),
		Example: `  shoal agent --join node1:7077 --token-file token
  shoal agent --join 10.0.0.5:7077 --token-file - --slots 2 < token
  shoal agent --store nats://db:4222 --job digits --token-file token`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.join, "join", "", "where the job listens, as shoal run said")
	flags.StringVar(&f.store.at, "store", "",
		"instead of --join: the `URL` of the job's store, such as nats://db:4222")
	flags.StringVar(&f.job, "job", "", "with --store: the name of the job")
	f.store.addCredentialsTo(flags)
	flags.StringVar(&f.tokenFile, "token-file", "",
		"file with the token that shoal run wrote; - reads it from standard input")
	flags.IntVar(&f.slots, "slots", 0, "workers that this host takes, where 0 makes it a "+
		"witness, one more vote when hosts are lost (default: one for each GPU, or for each core "+
		"if there is none)")
	flags.StringVar(&f.name, "name", "", "name of this host in the job (default: its host name)")
	flags.StringVar(&f.kind, "kind", "", kindUsage)
	flags.StringVar(&f.listen, "listen", ":0", "address on which the other agents reach this one")
	flags.StringVar(&f.logDir, "log-dir", "",
		"keep the files of the workers in this directory (default ~/.local/state/shoal/runs)")
	f.pod.addTo(flags)
	return cmd
}

// run checks the flags, and then runs the agent of this host until the job ends or the host leaves
// it. It reads the token, asks the store if the job is given by its name, and writes to the streams
// of cmd.
func (f *agentFlags) run(cmd *cobra.Command) error {
	err := f.check(cmd)
	if err != nil {
		return err
	}
	if err := f.describeHost(cmd); err != nil {
		return err
	}
	token, err := cli.ReadToken(cmd.Context(), cmd.InOrStdin(), f.tokenFile,
		"shoal run --listen", tcp.CheckToken)
	if err != nil {
		return err
	}
	if f.store.at != "" {
		if f.join, err = f.store.findJob(cmd.Context(), f.job); err != nil {
			return err
		}
	}
	cli.WarnIfReadable(cmd.ErrOrStderr(), f.tokenFile)
	return f.serve(cmd, token)
}

// serve joins the job at f.join with a token, and runs the agent of this host until the job ends or
// the host leaves it. It writes to the streams of cmd.
func (f *agentFlags) serve(cmd *cobra.Command, token string) error {
	ctx, out, notes := cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	asked, err := f.pod.open(cmd)
	if err != nil {
		return err
	}
	defer asked.close()
	// who started it over ssh may be lost, and its terminal; the job goes on
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	var joined atomic.Bool // set by Link; before that there is nothing to leave
	p := cli.NewShutdown(ctx, func(syscall.Signal) bool { return joined.Load() }, func() {
		if f.manager != "" {
			fmt.Fprintf(notes, "shoal: %s asks for this node: the job is parked when its step "+
				"ends, or else this node leaves it\n", f.manager)
			return
		}
		fmt.Fprintln(notes, "shoal: this host leaves the job when its step ends; Ctrl-C again "+
			"ends its workers at once")
	})
	defer p.Close()
	var cannot func(error)
	if f.manager != "" {
		cannot = func(error) { p.Must() }
	}
	var network *tcp.Network
	unreachable := reportUnreachable(notes, f.join)
	var wrote error // what has come of the file of --end-file
	left := partingLine(nil, true)
	err = launcher.Serve(p.Ctx,
		launcher.ServeConfig{Manager: f.manager, CannotLeave: cannot,
			Slots: f.slots, Kind: f.kind, Dir: f.logDir, Stdout: out,
			Stderr: notes, Color: cli.WantsColor(out) && cli.WantsColor(notes), Leave: p.Asked,
			Link: func(h fabric.Handler) (fabric.Network, error) {
				var err error
				joined.Store(false)
				network, err = f.joinNetwork(p.Ctx, token, notes, unreachable, h)
				unreachable = nil // a job that has answered before has ended where it does not
				if p.Ctx.Err() != nil {
					err = cmp.Or(context.Cause(p.Ctx), err)
				}
				joined.Store(err == nil)
				return network, err
			},
			Join:  func() string { return network.Addr() },
			Token: func(life time.Duration) string { return network.Token(life) },
			Store: f.store.unconnectedStore,
			OnJob: func(job, dir string) {
				fmt.Fprintf(notes, "shoal: this host takes up to %s of job %s, files in %s\n",
					plural.Of(f.slots, "worker"), job, dir)
				asked.setRunDir(dir)
			},
			OnEnd: func(result *runs.Result, goesOn bool, err error) {
				left = partingLine(result, goesOn)
				wrote = asked.writeEnd(result, goesOn, p.Ctx.Err() != nil, err)
				if f.onEnd != nil {
					f.onEnd(result)
				}
			},
		})
	if wrote != nil {
		err = errors.Join(err, wrote)
	}
	if err == nil {
		fmt.Fprintln(notes, "shoal: "+left)
	}
	return err
}

// joinNetwork joins the network of the job at f.join with a token, as tcp.Join does, and writes a
// warning to notes if tensors travel there without encryption. It waits for the other hosts.
func (f *agentFlags) joinNetwork(ctx context.Context, token string, notes io.Writer,
	unreachable func(attempts int, why error), h fabric.Handler) (*tcp.Network, error) {
	network, err := tcp.Join(ctx, f.join, token,
		tcp.Config{Name: fabric.Host(cli.HostName(f.name)), Listen: f.listen,
			Version: version.Version, Unreachable: unreachable}, h)
	if err == nil && network.PlainData() {
		fmt.Fprintln(notes, plainWarning)
	}
	return network, err
}

// partingLine returns what people are told when this host's part in a job has ended, as OnEnd of
// launcher.ServeConfig gets it.
func partingLine(result *runs.Result, goesOn bool) string {
	if goesOn || result != nil && (result.Drained || result.GoesOn != "") {
		return "this host has left the job"
	}
	return "the job is over, and this host has left it"
}

// describeHost sets what the flags leave open of this host: its kind and its slots.
func (f *agentFlags) describeHost(cmd *cobra.Command) (err error) {
	if !cmd.Flags().Changed("slots") {
		f.slots = DefaultSlots()
	}
	f.kind, err = hostKind(f.kind)
	return err
}

// check returns what is wrong with the flags; nil = nothing.
func (f *agentFlags) check(cmd *cobra.Command) error {
	err := cli.RefuseEmpty(cmd.Flags(), "join", "job", "token-file", "name", "kind", "listen",
		"log-dir")
	if err != nil {
		return err
	}
	byName, badName := f.store.at != "", new(job.Error)
	switch {
	case f.join == "" && !byName || f.tokenFile == "":
		return cli.Usagef("shoal agent needs --join HOST:PORT and --token-file FILE; shoal run " +
			"--listen prints both")
	case f.join != "" && byName:
		return cli.Usagef("--join and --store are two ways to the same job: give one of them")
	case byName != (f.job != ""):
		return cli.Usagef("to join by name give --store URL and --job NAME")
	case byName && errors.As(job.CheckName(f.job), &badName):
		return cli.Usagef("--job: %s", badName.Msg)
	case f.name != "" && tcp.CheckName(fabric.Host(f.name)) != nil:
		return cli.Usagef("--name: %v", tcp.CheckName(fabric.Host(f.name)))
	}
	return cmp.Or(checkSlots(f.slots), cli.CheckJoin(f.join), cli.CheckAddress("listen", f.listen),
		f.store.checkCredentials(cmd.Flags()), f.pod.check(cmd),
		cli.CheckNewFolder("--log-dir", f.logDir))
}

// reportUnreachable returns a function that writes to notes, at each failed attempt to join, what a
// person should know: why nobody answers at the address, again when the reason changes, and now and
// then for how long it was tried. One goroutine uses it.
func reportUnreachable(notes io.Writer, address string) func(attempts int, why error) {
	const often = 8 // the attempts are up to eight seconds apart
	last, began := "", time.Now()
	return func(attempts int, why error) {
		switch {
		case why.Error() != last:
			last = why.Error()
			fmt.Fprintf(notes, "shoal: cannot reach the job at %s yet: %s; trying again until it "+
				"answers, or Ctrl-C\n", address, last)
		case attempts%often == 0:
			fmt.Fprintf(notes, "shoal: still trying to reach %s: %d attempts in %v\n", address,
				attempts, time.Since(began).Round(time.Second))
		}
	}
}
