// Package cli has what the command lines of this repository share: usage errors, signals, exit
// codes, tables, and the texts of sizes, rates and times. What does not say otherwise is called on
// the goroutine of the command.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/spf13/cobra"
)

// Main runs a program with the arguments of this process, until its command ends, and returns its
// exit code. It takes the signals, and writes an error to stderr after the name of the program.
func Main(root *cobra.Command) int {
	ctx, release := interruptible(context.Background())
	defer release()
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(FlagError)
	err := root.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s\n", root.Name(), Visible(err.Error(), true))
	}
	return exitCode(err)
}

// exitCode returns 0 for success, 2 for a wrong command line or job, 128 + n for a command that
// signal n has stopped, and 1 for any other failure.
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
