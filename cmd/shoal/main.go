// Command shoal runs distributed training jobs. The packages below internal have its sub-commands;
// this file wires them together and turns errors into exit codes: 0 ok, 1 failed, 2 usage, 128 + n
// when stopped by signal n.
package main

import (
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/cmd/shoal/internal/bench"
	"github.com/shoal-ml/shoal/cmd/shoal/internal/demo"
	"github.com/shoal-ml/shoal/cmd/shoal/internal/jobs"
	"github.com/shoal-ml/shoal/cmd/shoal/internal/plan"
	"github.com/shoal-ml/shoal/cmd/shoal/internal/pools"
	"github.com/shoal-ml/shoal/cmd/shoal/internal/replay"
	"github.com/shoal-ml/shoal/cmd/shoal/internal/run"
	"github.com/shoal-ml/shoal/cmd/shoal/internal/sim"
	"github.com/shoal-ml/shoal/cmd/shoal/internal/state"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/version"
)

func main() {
	runtime.MemProfileRate = 0 // the table of a profile that nobody reads takes up to 2 MB
	os.Exit(cli.Main(newRootCommand()))
}

// newRootCommand returns the command shoal with all its subcommands. It starts nothing.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:     "shoal",
		Short:   "A self-driving runtime for distributed machine learning",
		Version: version.Version,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return cli.UnknownCommand(cmd, args[0])
		},
	}
	root.SetVersionTemplate("shoal {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(demo.NewCommand(), run.NewCommand(), jobs.NewPsCommand(), jobs.NewLogsCommand(),
		jobs.NewResizeCommand(), jobs.NewLimitCommand(), jobs.NewSetCommand(),
		jobs.NewReshapeCommand(),
		jobs.NewStopCommand(), jobs.NewParkCommand(), jobs.NewResumeCommand(),
		jobs.NewTopCommand(), jobs.NewDashCommand(),
		jobs.NewReportCommand(), jobs.NewExplainCommand(),
		run.NewPolicyCommand(),
		run.NewAgentCommand(), jobs.NewTokenCommand(), jobs.NewDrainCommand(),
		jobs.NewRecoverCommand(),
		state.NewCommand(), bench.NewCommand(), sim.NewCommand(), plan.NewCommand(),
		replay.NewCommand(), pools.NewPoolCommand(), pools.NewSubmitCommand(),
		pools.NewQueueCommand(), newVersionCommand())
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = cli.KnownCommand
	}
	return root
}
