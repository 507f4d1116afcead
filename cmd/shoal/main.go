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
		Use:   "shoal",
		Short: "A self-driving runtime for distributed machine learning",
		Example: `  shoal demo                               train here, lose a worker, gain two, and watch
  shoal run -n 4 -- python3 train.py       four workers of one job`,
		Version: version.Version,
		Args:    cobra.ArbitraryArgs,
		RunE:    cli.RunGroup,
	}
	root.SetVersionTemplate("shoal {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	cobra.EnableCommandSorting = false // what is used most comes first
	for _, s := range newSections() {
		root.AddGroup(&cobra.Group{ID: s.title, Title: s.title})
		for _, c := range s.commands {
			c.GroupID = s.title
			root.AddCommand(c)
		}
	}
	root.AddCommand(newVersionCommand())
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = cli.KnownCommand
	}
	return root
}

// section is commands that the help of shoal lists together, below a title.
type section struct {
	title    string
	commands []*cobra.Command
}

// newSections returns the commands, as the help lists them.
func newSections() []section {
	return []section{
		{"Train:", []*cobra.Command{demo.NewCommand(), run.NewCommand(), run.NewAgentCommand(),
			jobs.NewTokenCommand()}},
		{"See what a job does:", []*cobra.Command{jobs.NewPsCommand(), jobs.NewTopCommand(),
			jobs.NewDashCommand(), jobs.NewLogsCommand(), jobs.NewExplainCommand(),
			jobs.NewReportCommand()}},
		{"Change or end a running job:", []*cobra.Command{jobs.NewResizeCommand(),
			jobs.NewSetCommand(), jobs.NewReshapeCommand(), jobs.NewLimitCommand(),
			jobs.NewDrainCommand(), jobs.NewStopCommand(), jobs.NewParkCommand(),
			jobs.NewRecoverCommand()}},
		{"Share hosts among many jobs:", []*cobra.Command{pools.NewPoolCommand(),
			pools.NewSubmitCommand(), pools.NewQueueCommand(), jobs.NewResumeCommand()}},
		{"Plan and predict:", []*cobra.Command{plan.NewCommand(), sim.NewCommand(),
			replay.NewCommand(), run.NewPolicyCommand()}},
		{"Files and this machine:", []*cobra.Command{state.NewCommand(), bench.NewCommand()}},
	}
}
