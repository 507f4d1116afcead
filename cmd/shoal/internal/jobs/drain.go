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

func NewDrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "drain JOB HOST",
		Short: "Free a host from the workers of a running job",
		Long: `Free a host from the workers of a running job, without any repeated work.

They are released when the current step ends, and replaced on hosts with free slots; where there is no room the job goes on
with fewer. If these are fewer than --min the host is free all the same, and the others wait behind the step, with the state,
until a slot is free for another worker or a host joins (shoal agent --join). Where no other host has a worker or a free
slot the state would be lost: then the command fails, and nothing changes.

A job with a mesh (shoal.train) goes to the largest mesh that its workers on the other hosts can hold, where spares that
wait count: behind the step their ranks take over the state, without a checkpoint. Where they can hold none, or one of fewer
ranks than --min, the command fails and says so, and the job trains on as it was; shoal reshape gives it more workers.

The host leaves the job when its workers have ended. The same happens when its agent gets SIGTERM. The host names are those
of shoal ps JOB: what shoal run --hosts or shoal agent --name calls a host. What a host calls itself will do, too.`,
		Example:           `  shoal drain train node3`,
		Args:              jobAndHost,
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			j, err := control.Find(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := j.Drain(cmd.Context(), args[1], myself()); errors.Is(err, control.ErrEnded) {
				return fmt.Errorf("job %s has ended", j.Name)
			} else if err != nil {
				return fmt.Errorf("host %s keeps its workers: %w", args[1], err)
			}
			said := "the workers of %s on %s are released when their step ends\n"
			if j.Mesh != "" {
				said = "the workers of %s on %s are released when those on other hosts have the " +
					"state, behind this step\n"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), said, j.Name, args[1])
			return err
		},
	}
}

// jobAndHost asks for both; to who gives one of them it says what the whole command is.
func jobAndHost(cmd *cobra.Command, args []string) error {
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
