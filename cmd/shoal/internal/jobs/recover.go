package jobs

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
)

func NewRecoverCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "recover JOB --force",
		Short: "Go on with a job whose other hosts are gone for good",
		Long: `Go on, on this host, with a job whose other hosts are gone for good.

When hosts are lost, those that are left go on by themselves if they are a majority, or half of them with the one that led the
job. Fewer wait, because the others may well be alive on the other side of a broken cable, and a job that goes on twice is
worse than one that waits: shoal ps then says stuck. Only a person can know that the others are gone. --force says so. If they
are not, both sides train on, and their results differ.`,
		Example:           `  shoal recover train --force`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !force {
				return cli.Usagef("shoal recover needs --force: only a person can know that the " +
					"other hosts are gone for good")
			}
			j, err := control.Find(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := j.Recover(cmd.Context(), myself()); errors.Is(err, control.ErrEnded) {
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
