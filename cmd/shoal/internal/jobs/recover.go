package jobs

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
)

// shoal recover. One goroutine runs what is here, that of the command, so nothing is locked.

// NewRecoverCommand returns the command shoal recover.
func NewRecoverCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "recover JOB --force",
		Short: "Go on with a job whose other hosts are gone for good",
		Long: cli.Help(`Go on, on this host, with a job whose other hosts are gone for good.
Without --force the command refuses, because only a person can know that they are.

When hosts are lost, a majority of hosts goes on by itself, and so does half of them with the host
that led the job. Fewer hosts wait, and shoal ps says stuck: the others may be alive behind a broken
cable. If they are, both sides train on after this command, and their results differ.`, cli.ExitCodes, "several-hosts"),
		Example: `  shoal ps                                 shows which job is stuck
  shoal recover train --force
  shoal explain train                      shows what followed`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !force {
				return cli.Usagef("shoal recover needs --force: only a person can know that the " +
					"other hosts are gone for good")
			}
			j, err := findRunning(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := j.Recover(cmd.Context(), cli.Requester()); errors.Is(err, control.ErrEnded) {
				return fmt.Errorf("job %s has ended", j.Name)
			} else if err != nil {
				return fmt.Errorf("job %s is as it was: %w", j.Name, err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s goes on with %s\n", j.Name,
				plural.Of(j.Size, "worker"))
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "yes, the other hosts are gone for good")
	return cmd
}
