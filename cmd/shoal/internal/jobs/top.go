package jobs

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/rundir"
	"github.com/shoal-ml/shoal/watch"
	"github.com/shoal-ml/shoal/watch/follow"
)

// shoal top. One goroutine runs what is here, that of the command. It reads files of the run, asks
// its launcher, and waits for keys of the terminal.

// NewTopCommand returns the command shoal top.
func NewTopCommand() *cobra.Command {
	var once, asJSON bool
	cmd := &cobra.Command{
		Use:   "top JOB",
		Short: "Watch a job in the terminal",
		Long: cli.Help(`Show how a job trains, updated every second: its steps and where their time goes, loss and samples
per second, workers, the latest events, and changes with what was predicted and measured. The key q
ends the command, and the job goes on. If the output is not a terminal, all is shown once.

JOB is the name of a running job, else of its newest run, or the directory of a run. All that can
be read of the directory is shown, with a note of what is missing.`, cli.ExitCodes, "watch"),
		Example: `  shoal top train
  shoal top train --once
  shoal top train --json | jq .state.word
  shoal top ~/.local/state/shoal/runs/train-3`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := openWatched(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				if err := f.Poll(cmd.Context(), time.Now()); err != nil {
					return err
				}
				text := json.NewEncoder(out)
				text.SetEscapeHTML(false)
				return text.Encode(f.Run.View(watch.Seconds(time.Now())))
			}
			var screen *terminal
			if !once {
				screen = openTerminal(out, os.Stdin)
			}
			if screen == nil {
				if err := f.Poll(cmd.Context(), time.Now()); err != nil {
					return err
				}
				_, err := io.WriteString(out,
					screenText(f.Run.View(watch.Seconds(time.Now())), 0, 0))
				return err
			}
			defer screen.close()
			return watchRun(cmd.Context(), f, screen)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "show all once, and end")
	cmd.Flags().BoolVar(&asJSON, "json", false,
		"print all that is known as one JSON object, and end")
	return cmd
}

// openWatched finds a run, which may be over, torn or of another version. It asks the launchers of
// this machine.
func openWatched(ctx context.Context, name string) (*follow.Follower, error) {
	dir, live, silent, err := findRun(ctx, name)
	switch {
	case err == nil:
		return follow.Open(dir, live, silent)
	case ctx.Err() == nil && rundir.IsPath(name):
		return follow.Open(name, nil, nil)
	}
	return nil, err
}

// watchRun shows a run on the terminal anew each second, until the key q, Ctrl-C or the end of the
// run; what was shown last stays on the terminal.
func watchRun(ctx context.Context, f *follow.Follower, screen *terminal) error {
	for {
		if err := f.Poll(ctx, time.Now()); err != nil {
			return err
		}
		view := f.Run.View(watch.Seconds(time.Now()))
		width, height := screen.size()
		text := screenText(view, width, height-1)
		if view.State.Over {
			screen.close()
			_, err := io.WriteString(screen.out, screenText(view, width, 0))
			return err
		}
		screen.draw(text + "q quits")
		quit, err := screen.waitKey(ctx, time.Second)
		if quit || err != nil {
			return err
		}
	}
}
