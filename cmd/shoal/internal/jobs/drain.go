package jobs

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
)

// shoal drain. One goroutine runs what is here, that of the command, so nothing is locked.

// NewDrainCommand returns the command shoal drain.
func NewDrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "drain JOB HOST",
		Short: "Free a host from the workers of a running job",
		Long: cli.Help(`Free a host of the workers of a running job, at the end of a step, so that no work is repeated.
Where other hosts have free slots, new workers start there; else the job goes on with fewer.

HOST is a name that shoal ps JOB shows, or the name that the host has for itself.

  the other hosts hold    what happens
  all workers             the workers of HOST are replaced
  fewer than --min        HOST becomes free, and the job waits until another host joins
  nothing                 the command fails, because the state would be lost
  a smaller mesh          a job with a mesh (shoal.train) goes to the largest that fits`, cli.ExitCodes, "several-hosts"),
		Example: `  shoal drain train node3
  shoal ps train                           shows the hosts of the job
  shoal drain ~/.local/state/shoal/runs/train node3`,
		Args:              requireJobAndHost,
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			j, err := findChangeable(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := j.Drain(cmd.Context(), args[1], cli.Requester()); errors.Is(err,
				control.ErrEnded) {
				return fmt.Errorf("job %s has ended", j.Name)
			} else if err != nil {
				return fmt.Errorf("host %s keeps its workers: %w",
					cli.Visible(args[1], false), err)
			}
			said := "the workers of %s on %s are released when their step ends\n"
			if j.Mesh != "" {
				said = "the workers of %s on %s are released when those on other hosts have the " +
					"state, after this step\n"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), said, j.Name, args[1])
			return err
		},
	}
}

// requireJobAndHost fails unless args are a job and a host. Where one of them is missing, it asks
// the launchers of this machine which jobs run, and its error shows the whole command.
func requireJobAndHost(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		jobs, _ := control.List(cmd.Context()) // without an answer the general words do
		for _, j := range jobs {
			switch {
			case j.Name == args[0] && len(j.Hosts) > 0:
				return cli.Usagef(
					"which host of %s? shoal drain %[1]s HOST, where HOST is one of %s", j.Name,
					strings.Join(j.Hosts, ", "))
			case slices.Contains(j.Hosts, args[0]):
				return cli.Usagef(
					"%s is a host: shoal drain %s %[1]s frees it from the workers of %[2]s",
					args[0], j.Name)
			}
		}
	}
	return cli.Arguments(2, 2)(cmd, args)
}
