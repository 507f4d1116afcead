package jobs

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/launcher"
)

// shoal token. One goroutine runs what is here, that of the command, so nothing is locked.

// tokenFlags are the flags of shoal token.
type tokenFlags struct {
	life time.Duration // for how long hosts can join with the token
	file string        // where the token goes; "" or "-" = standard output
}

// NewTokenCommand returns the command shoal token.
func NewTokenCommand() *cobra.Command {
	var f tokenFlags
	cmd := &cobra.Command{
		Use:   "token JOB",
		Short: "Make a token with which another host joins a running job",
		Long: cli.Help(`Make a token with which other hosts join a running job until it expires.
Whoever has the token can join, so keep it secret.

shoal run --listen writes a token that is valid for 24 hours. This command makes another one. It
also works for a job that was started with --hosts. Run it on the host that leads the job.`, cli.ExitCodes, "several-hosts"),
		Example: `  shoal token train --token-file token
  shoal token train --for 1h               to standard output
  shoal token train --for 1h | ssh node9 shoal agent --join node1:7077 --token-file -`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := cli.RefuseEmpty(cmd.Flags(), "token-file")
			if err == nil && f.file != "" && f.file != "-" {
				err = cli.CheckToken(f.file)
			}
			if err != nil {
				return err
			}
			if f.life < time.Second {
				return cli.Usagef(
					"--for %v: a token is good for a second at least, such as --for 1h", f.life)
			}
			if f.life > launcher.LongestToken {
				return cli.Usagef("--for %v: a token is good for %.0f hours at most", f.life,
					launcher.LongestToken.Hours())
			}
			j, err := findRunning(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return f.run(cmd, j)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.DurationVar(&f.life, "for", cli.TokenLife, "for how long hosts can join with it")
	flags.StringVar(&f.file, "token-file", "",
		"write it to this `FILE`, which only you can read, and not to standard output")
	return cmd
}

// run asks the launcher of a job for a token, and writes it to standard output or to the file of
// --token-file. It waits for the launcher's answer.
func (f *tokenFlags) run(cmd *cobra.Command, j *control.Job) error {
	i, err := j.Invite(cmd.Context(), f.life, cli.Requester())
	if errors.Is(err, control.ErrEnded) {
		return fmt.Errorf("job %s has ended", j.Name)
	} else if err != nil {
		return fmt.Errorf("there is no token for job %s: %w", j.Name, err)
	}
	file := f.file
	if file == "" || file == "-" {
		file = "-"
		_, err = io.WriteString(cmd.OutOrStdout(), i.Token+"\n")
	} else {
		err = cli.WriteToken(file, i.Token)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(),
		"shoal: other hosts join with it until %s: shoal agent --join %s --token-file %s\n",
		i.Expires.Local().Format(time.DateTime), i.Join, file)
	return nil
}
