package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/version"
)

// shoal version. The goroutine of the command runs what is here.

// newVersionCommand returns the command shoal version.
func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of shoal, and what it was built with",
		Long: cli.Help(`Print the version of shoal, the platform, and the version of Go that it was built with.
All hosts of a job, and the Python package, need the same version of shoal.`, cli.ExitCodes, "upgrade"),
		Example: `  shoal version
  shoal --version                          the version only
  shoal version | cut -d ' ' -f 2          the same, for scripts`,
		Args: cli.NoArguments,
		Run: func(cmd *cobra.Command, args []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "shoal %s %s/%s %s\n", version.Version, runtime.GOOS,
				runtime.GOARCH, runtime.Version())
		},
	}
}
