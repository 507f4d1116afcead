package jobs

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
)

// shoal limit. One goroutine runs what is here, that of the command, so nothing is locked.

// NewLimitCommand returns the command shoal limit.
func NewLimitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "limit JOB RATE",
		Short: "Limit the rate at which the hosts of a running job send",
		Long: cli.Help(`Limit the rate at which each host of a running job sends to the others, so that jobs share a network
as you say. The limit holds from now on, and for hosts that join later. RATE is what one host sends
to all others together, such as 100Mbit/s or 12.5MB/s; none ends the limit.

The limit counts gradients and the state of new workers. The messages by which the hosts agree on
who is in the job, and on what counts, are free. The job must run on several hosts, or be open to
others.`, cli.ExitCodes,
			"several-hosts"),
		Example: `  shoal limit train 100Mbit/s
  shoal limit train none
  shoal ps train                           shows the limit`,
		Args:              cli.Arguments(2, 2),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var rate cli.Rate
			if args[1] != "none" {
				if err := rate.Set(args[1]); err != nil {
					return cli.Usagef("%q: %v, or none", args[1], err)
				}
				if rate > api.MaxLimit {
					return cli.Usagef("%q: a limit is at most %dTiB/s, more than a network "+
						"carries; give a lower rate, or none", args[1], api.MaxLimit>>40)
				}
				rate = max(rate, 1) // 0 would be no limit
			}
			j, err := findRunning(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := j.Limit(cmd.Context(), uint64(rate), cli.Requester()); errors.Is(err,
				control.ErrEnded) {
				return fmt.Errorf("job %s has ended", j.Name)
			} else if err != nil {
				return fmt.Errorf("job %s sends as before: %w", j.Name, err)
			}
			text := "what the hosts of " + j.Name + " send is not limited"
			if j.Job.Limit > 0 {
				text = limitText(j.Job)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
}

// limitText says how much the hosts of a job that has a limit send.
func limitText(j api.Job) string {
	return fmt.Sprintf("each host of %s sends at most %s/s to the others", j.Name,
		plural.Bytes(int64(j.Limit)))
}
