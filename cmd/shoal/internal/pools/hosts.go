package pools

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/pool/keeper"
)

// shoal pool drain and forget: hosts that are to be without jobs, or will never be back. One
// goroutine runs what is here, that of the command.

// newDrainCommand returns the command shoal pool drain.
func newDrainCommand() *cobra.Command {
	var name string
	var undo bool
	cmd := &cobra.Command{
		Use:   "drain HOST",
		Short: "Move the jobs of a host elsewhere, and start none there",
		Long: cli.Help(`Move the jobs of a host elsewhere, and start none there, such as before it is switched off. Jobs
that train in steps move when other hosts have slots for them, at the end of a step; the others stay
until they end. shoal pool ls shows which are left. The host gets jobs again with --undo, or when
its keeper is started again.`, cli.ExitCodes, "pool"),
		Example: `  shoal pool drain node2
  shoal pool drain node2 --undo
  shoal pool drain node2 --pool night && shoal pool ls --pool night`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeHosts,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := call(cmd.Context(), name, keeper.PathDrain, keeper.Ask{Host: args[0],
				Who: cli.Requester(), Undo: undo}, &struct{}{})
			if err != nil {
				return err
			}
			text := "gets no new jobs, and its jobs move when there are slots elsewhere; shoal " +
				"pool ls shows what is left"
			if undo {
				text = "gets jobs again"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "host %s %s\n", args[0], text)
			return err
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "start jobs there again")
	addPool(cmd, &name)
	return cmd
}

// newForgetCommand returns the command shoal pool forget.
func newForgetCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "forget HOST",
		Short: "Say that a host is gone for good, so that its jobs start elsewhere",
		Long: cli.Help(`Say that a host is gone for good. A host whose keeper does not answer may be cut off while its jobs
train on, so the pool leaves their slots and names to them for any length of time. Only you can know
that it will not be back: then the jobs that ran there alone start again on other hosts, at their
last checkpoints, and the others go on without it.

Be sure that the host is off: else its jobs run twice. If it comes back after all, the pool ends
what is left there before it starts anything.`, cli.ExitCodes, "pool"),
		Example: `  shoal pool forget node2
  shoal pool forget node2 --pool night
  shoal pool ls && shoal pool forget node2`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeHosts,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := call(cmd.Context(), name, keeper.PathForget, keeper.Ask{Host: args[0],
				Who: cli.Requester()}, &struct{}{})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "host %s is forgotten: what ran there alone "+
				"waits for slots elsewhere\n", args[0])
			return err
		},
	}
	addPool(cmd, &name)
	return cmd
}

// addPool defines the flag --pool of a command, which is not empty where it is given.
func addPool(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "pool", "", "`NAME` of the pool (default: the only one of this "+
		"host)")
	_ = cmd.RegisterFlagCompletionFunc("pool", completePools)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		return cli.RefuseEmpty(cmd.Flags(), "pool")
	}
}

// completeHosts completes a word of a command line with the hosts of a pool.
func completeHosts(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	var names []cobra.Completion
	var s keeper.State
	name, _ := cmd.Flags().GetString("pool")
	_ = call(cmd.Context(), name, keeper.PathQueue, nil, &s) // completion has no place for errors
	for _, h := range s.Hosts {
		if len(args) == 0 {
			names = append(names, h.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
