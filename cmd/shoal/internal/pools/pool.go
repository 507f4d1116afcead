// Package pools has the commands about a pool, a set of hosts that many jobs share: pool, submit
// and queue. Each asks the keeper of the pool on this host, but for pool start, which is it.
package pools

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/cmd/shoal/internal/run"
	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/pool/keeper"
)

// shoal pool with start, stop and ls, and what all commands about pools share. The goroutine of the
// command runs what is here; the keeper may call the functions that it is given on others. call and
// inSession wait for a keeper; keeperConfig makes and reads files of the pool.

// defaultName is the name of a pool that nobody has named.
const defaultName = "main"

// NewPoolCommand returns the command shoal pool with its subcommands.
func NewPoolCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pool",
		Short: "Share hosts among many jobs",
		Long: cli.Help(`Share one host or several among many jobs: shoal submit gives the pool a job, and it starts it as
soon as its policy has slots for it. A job that trains in steps gets fewer workers when an urgent
one needs slots, and more when slots are free, at the end of a step, without losing one.`,
			cli.ExitCodes, "pool"),
		Example: `  shoal pool start --slots 4 --background
  shoal pool start --slots 4 --listen :7070          other hosts join
  shoal pool join --join node1:7070 --token-file token
  shoal pool ls
  shoal pool stop`,
		Args: cobra.ArbitraryArgs,
		RunE: cli.RunGroup,
	}
	cmd.AddCommand(newStartCommand(), newJoinCommand(), newStopCommand(), newLsCommand(),
		newDrainCommand(), newForgetCommand())
	return cmd
}

// asUsageError returns err as one about the command line if it is about what was asked.
func asUsageError(err error) error {
	if no := new(pool.UsageError); errors.As(err, &no) {
		return cli.AsUsage(no)
	}
	return err
}

// call asks the keeper of a pool, "" = the only one of this host, as keeper.Call does, and waits
// for the answer. Its errors are for the command line.
func call(ctx context.Context, name, path string, body, into any) error {
	name, err := keeper.Find(name, "--pool NAME")
	if err == nil {
		err = keeper.Call(ctx, name, path, body, into)
	}
	return asUsageError(err)
}

// startFlags are the flags of shoal pool start.
type startFlags struct {
	slots      int      // workers for which this host has room
	host       string   // name of this host; "" = its own
	policy     string   // who gets how many slots; "" = the usual policy
	background bool     // whether to return when the pool answers
	listen     string   // HOST:PORT where other hosts join; "" = nowhere
	token      string   // file that gets the token; "" = the usual one
	bandwidth  cli.Rate // of the card of this host; 0 = not known
}

// policyTable returns a table of all policies, for the help.
func policyTable() string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %-12s %s\n", "policy", "who gets how many slots")
	for _, p := range sched.Policies() {
		fmt.Fprintf(&b, "  %-12s %s\n", p.Name, p.About)
	}
	return b.String()
}

// newStartCommand returns the command shoal pool start.
func newStartCommand() *cobra.Command {
	var f startFlags
	cmd := &cobra.Command{
		Use:   "start [NAME]",
		Short: "Keep a pool on this host",
		Long: cli.Help(`Keep a pool on this host, until Ctrl-C or shoal pool stop. Its jobs are processes of their own:
they train on when the pool ends or is killed, and shoal pool start finds them again.

Under every policy jobs of higher priority come first. With elastic, goodput and deadline, jobs that
train in steps change their size; with the others each has the slots that it asks for, or none.

`+policyTable()+`
shoal replay says how these policies would do on the jobs of a trace.
With --listen other hosts join the pool, and its jobs may have workers on several hosts. Keep the
port the same: the other hosts come back to it when the pool is started again.

The record of the pool is in ~/.local/state/shoal/pools/NAME, with the environment in which each job
was submitted. Only you can read it.`, cli.ExitCodes, "pool"),
		Example: `  shoal pool start --slots 4
  shoal pool start --slots 4 --background
  shoal pool start --slots 4 --listen :7070 --token-file token
  shoal pool start night --policy fifo`,
		Args: cli.Arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := nameAndSlots(cmd, args, &f.slots)
			if err != nil {
				return err
			}
			if err := f.check(cmd); err != nil {
				return err
			}
			if err := keeper.CheckFree(name); err != nil {
				return err
			}
			if f.background {
				return f.inBackground(cmd, name)
			}
			return f.keep(cmd.Context(), cmd.ErrOrStderr(), name)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&f.slots, "slots", 0, slotsUsage)
	flags.StringVar(&f.policy, "policy", "", "who gets how many slots (default elastic)")
	_ = cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions(sched.Names(),
		cobra.ShellCompDirectiveNoFileComp))
	flags.StringVar(&f.host, "name", "", "name of this host (default: its own)")
	addBandwidth(cmd, &f.bandwidth)
	flags.StringVar(&f.listen, "listen", "", "`ADDRESS` at which other hosts join, such as :7070")
	flags.StringVar(&f.token, "token-file", "", "with --listen: write the token with which hosts "+
		"join to this `FILE` (default: token in the folder of the pool)")
	flags.BoolVar(&f.background, "background", false, "return when the pool answers, "+
		"and keep it on")
	return cmd
}

// check fails where the flags are wrong, as far as that shows before the pool is kept.
func (f *startFlags) check(cmd *cobra.Command) error {
	err := cmp.Or(cli.RefuseEmpty(cmd.Flags(), "policy", "name", "listen", "token-file"),
		cli.CheckAddress("listen", f.listen))
	if err != nil || f.token == "" {
		return err
	}
	if f.listen == "" {
		return cli.Usagef("--token-file is for other hosts, and needs --listen")
	}
	return cli.CheckToken(f.token)
}

// addBandwidth adds the flag --bandwidth.
func addBandwidth(cmd *cobra.Command, rate *cli.Rate) {
	cmd.Flags().Var(rate, "bandwidth", "`RATE` that the network card of this host carries, such "+
		"as 10Gbit/s, for jobs on several hosts that share it (default: not known)")
}

// bandwidthArgs returns the arguments of a command line that give a rate; 0 = none.
func bandwidthArgs(rate cli.Rate) []string {
	if rate == 0 {
		return nil
	}
	return []string{"--bandwidth", fmt.Sprintf("%.0fB/s", max(float64(rate), 1))}
}

// slotsUsage is the help of the flag --slots.
const slotsUsage = "workers for which this host has room (default: one for each GPU, or for " +
	"each core if there is none)"

// nameAndSlots returns the name of the pool that the arguments name, and sets the slots of this
// host to those that it has by itself unless the flag is given. It fails where either cannot be.
func nameAndSlots(cmd *cobra.Command, args []string, slots *int) (name string, err error) {
	name = defaultName
	if len(args) > 0 {
		name = args[0]
	}
	if !cmd.Flags().Changed("slots") {
		*slots = run.DefaultSlots()
	}
	if *slots < 1 || *slots > job.MaxWorkers {
		return "", cli.Usagef("--slots %d: a host of a pool has room for 1 to %d workers", *slots,
			job.MaxWorkers)
	}
	return name, checkName(name)
}

// poolName matches the names of pools, which are part of those of files.
var poolName = pattern.New(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// checkName returns what is wrong with the name of a pool; nil = nothing.
func checkName(name string) error {
	if !poolName.MatchString(name) {
		return cli.Usagef("%q cannot name a pool, because files take the name over; use 1 to 32 "+
			"lower-case letters, digits and dashes, with a letter or digit at both ends", name)
	}
	return nil
}

// keeperConfig returns what a keeper of a pool needs on this host, whose folder of the pool is dir.
// host and slots are those of the command line, and notes is where the keeper tells people what
// happens.
func keeperConfig(dir, name, host string, slots int, notes io.Writer) (c keeper.Config, err error) {
	jobs := filepath.Join(dir, "jobs")
	if err := os.MkdirAll(jobs, 0o700); err != nil {
		return c, folderError(err)
	}
	c = keeper.Config{Name: name, Slots: slots, Dir: jobs, Notes: notes,
		Waiters: new(keeper.Waiters)}
	if c.Host, err = hostName(dir, name, host); err != nil {
		return c, err
	}
	if c.Program, err = os.Executable(); err != nil {
		return c, err
	}
	c.Links, err = keeperLinks(dir, c.Host)
	return c, err
}

// keep keeps a pool until ctx ends or somebody ends it.
func (f *startFlags) keep(ctx context.Context, notes io.Writer, name string) error {
	dir, err := makePoolFolder(name)
	if err != nil {
		return err
	}
	c, err := keeperConfig(dir, name, f.host, f.slots, notes)
	c.Link = min(float64(f.bandwidth), keeper.MaxLink)
	if err != nil {
		return err
	}
	host := c.Host
	defer c.Waiters.Close() // last of all
	record, err := openRecord(ctx, dir, name, notes)
	if err != nil {
		return err
	}
	defer record.Close()
	c.Policy, c.Store, c.Listen = f.policy, record, f.listen
	if f.token == "" {
		f.token = filepath.Join(dir, tokenFile)
	}
	c.Invite = inviter(notes, name, f.token)
	err = keeper.Run(ctx, c, func(jobs int) {
		if err := remember(dir, hostFile, host); err != nil {
			fmt.Fprintf(notes, "shoal: %v; when the pool is started again, give it the name of "+
				"this host: --name %s\n", err, host)
		}
		found := ""
		if jobs > 0 {
			found = ", " + plural.Of(jobs, "job")
		}
		fmt.Fprintf(notes, "shoal: pool %s: 1 host, %s%s; give it jobs with shoal submit\n", name,
			plural.Of(f.slots, "slot"), found)
	})
	if ctx.Err() == nil && err != nil {
		return asUsageError(err)
	}
	fmt.Fprintf(notes, "shoal: pool %s ends; its jobs go on\n", name)
	return context.Cause(ctx)
}

// inBackground starts the pool in a session of its own, and returns when it answers.
func (f *startFlags) inBackground(cmd *cobra.Command, name string) error {
	args := []string{"pool", "start", name, "--slots", strconv.Itoa(f.slots)}
	for flag, text := range map[string]string{"--policy": f.policy, "--name": f.host,
		"--listen": f.listen, "--token-file": f.token} {
		if text != "" {
			args = append(args, flag, text)
		}
	}
	args = append(args, bandwidthArgs(f.bandwidth)...)
	s, path, err := inSession(cmd, name, "", args)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "pool %s: %s; its log is %s\n", name, hostsText(s), path)
	return nil
}

// hurry is after which time people read what a keeper says that does not answer yet.
const hurry = 2 * time.Second

// inSession starts a keeper with a command line in a session of its own, which reads input, and
// waits until it answers; meanwhile people read what it says. One that does not answer before the
// context of about ends is ended. It returns the pool as it is then, and the path of the log.
func inSession(about *cobra.Command, name, input string, args []string) (s keeper.State,
	path string, err error) {
	ctx := about.Context()
	dir, err := makePoolFolder(name)
	if err != nil {
		return s, "", err
	}
	program, err := os.Executable()
	if err != nil {
		return s, "", err
	}
	path = filepath.Join(dir, "log")
	log, err := os.CreateTemp(dir, "log-*") // another one may be starting the same pool
	if err != nil {
		return s, "", folderError(err)
	}
	defer os.Remove(log.Name())
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	to, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return s, "", err
	}
	_, _ = io.WriteString(to, input) // one that has ended says why in its log
	_ = to.Close()
	pid := cmd.Process.Pid
	_ = cmd.Process.Release() // it outlives this command
	began, told := time.Now(), 0
	err = cli.Poll(ctx, func() (bool, error) {
		var status syscall.WaitStatus
		ended, _ := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
		text, _ := os.ReadFile(log.Name()) // nothing is shown of what cannot be read
		switch {
		case ended == pid && status.ExitStatus() == 2:
			return false, cli.Usagef("%s", errorFromLog(text, told))
		case ended == pid:
			return false, errors.New(errorFromLog(text, told))
		case keeper.Call(ctx, name, keeper.PathQueue, nil, &s) == nil:
			return true, nil
		case time.Since(began) > hurry:
			if n := bytes.LastIndexByte(text, '\n') + 1; n > told {
				_, _ = about.ErrOrStderr().Write(text[told:n])
				told = n
			}
		}
		return false, nil
	})
	if ctx.Err() != nil {
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
	if err == nil {
		err = os.Rename(log.Name(), path)
	}
	return s, path, err
}

// errorFromLog returns what a keeper that has ended has said in its log, as the text of an error.
// People have read the first bytes, told in number.
func errorFromLog(log []byte, told int) string {
	text := strings.TrimPrefix(strings.TrimSpace(string(log[told:])), "shoal: ")
	switch {
	case text != "":
		return text
	case told > 0:
		return "the keeper of the pool has ended; why stands above"
	}
	return "the keeper of the pool has ended, and its log is empty, as on a disk without room: " +
		"without --background it says why"
}

// newStopCommand returns the command shoal pool stop.
func newStopCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stop [NAME]",
		Short: "End the pool of this host; its jobs go on",
		Long: cli.Help(`End the keeper of a pool. Its jobs go on with the workers that they have, and the next shoal pool
start finds them. To end a job, use shoal stop.`, cli.ExitCodes, "pool"),
		Example: `  shoal pool stop
  shoal pool stop night
  shoal pool start`,
		Args:              cli.Arguments(0, 1),
		ValidArgsFunction: completePools,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			name, err := keeper.Find(name, "shoal pool stop NAME")
			if err != nil {
				return asUsageError(err)
			}
			return keeper.End(cmd.Context(), name, cli.Requester())
		},
	}
}

// newLsCommand returns the command shoal pool ls.
func newLsCommand() *cobra.Command {
	var name string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the hosts of a pool",
		Long: cli.Help(`List the hosts of a pool, with their slots and jobs.`, cli.ExitCodes,
			"pool"),
		Example: `  shoal pool ls
  shoal pool ls --pool night
  shoal pool ls --json`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var s keeper.State
			if err := call(cmd.Context(), name, keeper.PathQueue, nil, &s); err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				return json.NewEncoder(out).Encode(s.Hosts)
			}
			rows := [][]string{{"HOST", "SLOTS", "FREE", "KEEPER", "JOBS"}}
			for _, h := range s.Hosts {
				state := "up"
				switch {
				case !h.Up:
					state = "away since " + clock(h.Since, s.Now)
				case h.Leaving:
					state = "draining"
				}
				rows = append(rows, []string{h.Name, strconv.Itoa(h.Slots), strconv.Itoa(h.Free),
					state, cli.OrDash(strings.Join(h.Jobs, ", "))})
			}
			return cli.Table(out, rows)
		},
	}
	addPool(cmd, &name)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the hosts as JSON")
	return cmd
}

// completePools completes a word of a command line with the pools that are kept on this host.
func completePools(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	var names []cobra.Completion
	if len(args) == 0 || cmd.Name() != "stop" {
		names, _ = keeper.Live() // completion has no place for errors
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// clock returns a time of day as people read it, with its date if that is another one than now's.
// Both are in milliseconds since 1970.
func clock(at, now int64) string {
	t, n := time.UnixMilli(at), time.UnixMilli(now)
	if t.YearDay() == n.YearDay() && t.Year() == n.Year() {
		return t.Format("15:04")
	}
	return t.Format("Jan 2 15:04")
}
