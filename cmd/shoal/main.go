// Command shoal runs distributed training jobs. Each sub-command has a file of its own; this one
// wires them together and turns errors into exit codes: 0 ok, 1 failed, 2 usage, 128 + n when
// stopped by signal n.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
)

func main() {
	os.Exit(execute())
}

func execute() int {
	ctx, release := interruptible(context.Background())
	defer release()
	err := newRootCommand().ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "shoal:", visible(err.Error(), true))
	}
	return exitCode(err)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "shoal",
		Short:         "A self-driving runtime for distributed machine learning",
		Version:       version.Version,
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		},
	}
	root.SetVersionTemplate("shoal {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newDemoCommand(), newRunCommand(), newPsCommand(), newLogsCommand(),
		newResizeCommand(), newReshapeCommand(), newStopCommand(), newExplainCommand(),
		newAgentCommand(), newTokenCommand(), newDrainCommand(), newRecoverCommand(),
		newStateCommand(), newBenchCommand(), newVersionCommand())
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = knownCommand
	}
	return root
}

func exitCode(err error) int {
	var (
		stopped *stopSignal
		usage   *usageFault
		spec    *job.Error
		command *proc.CommandError
	)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &stopped):
		return 128 + int(stopped.signal)
	case errors.As(err, &usage), errors.As(err, &spec), errors.As(err, &command):
		return 2
	}
	return 1
}
