package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/version"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of shoal, and what it was built with",
		Example: "  shoal version",
		Args:    cli.NoArguments,
		Run: func(cmd *cobra.Command, args []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "shoal %s %s/%s %s\n", version.Version, runtime.GOOS,
				runtime.GOARCH, runtime.Version())
		},
	}
}
