package jobs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/launcher"
)

// Completion of the words of a command line, which the shell asks for. One goroutine runs it, that
// of the command.

// completeJobs completes the first argument of a command with the names of the running jobs, for
// which it asks the launchers of this machine.
func completeJobs(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	var names []cobra.Completion
	if len(args) == 0 {
		jobs, _ := control.List(cmd.Context()) // completion has no place for errors
		for _, j := range jobs {
			names = append(names,
				cobra.CompletionWithDesc(j.Name,
					fmt.Sprintf("%s, %s workers", j.State, sizeText(j.Job))))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeRuns completes a command line with the names of the running jobs and of those that have
// ended.
func completeRuns(cmd *cobra.Command, args []string, word string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	names, directive := completeJobs(cmd, args, word)
	if len(args) > 0 {
		return names, directive
	}
	for _, name := range launcher.RunNames() {
		if !slices.ContainsFunc(names, func(n cobra.Completion) bool {
			return strings.HasPrefix(n, name+"\t")
		}) {
			names = append(names, name)
		}
	}
	return names, directive
}
