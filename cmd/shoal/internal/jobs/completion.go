package jobs

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/pool/keeper"
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
	for _, name := range runs.Names() {
		names = addName(names, name, "")
	}
	return names, directive
}

// addName adds a name with what it is, unless it is among those that there are.
func addName(names []cobra.Completion, name, what string) []cobra.Completion {
	if slices.ContainsFunc(names, func(n cobra.Completion) bool {
		return n == name || strings.HasPrefix(n, name+"\t")
	}) {
		return names
	}
	if what != "" {
		name = cobra.CompletionWithDesc(name, what)
	}
	return append(names, name)
}

// addPooled adds the jobs of the pools of this host, with over also those that are over.
func addPooled(ctx context.Context, names []cobra.Completion, over bool) []cobra.Completion {
	pools, _ := keeper.Names()
	path := keeper.PathQueue
	if over {
		path += "?all"
	}
	for _, pool := range pools {
		var s keeper.State
		_ = keeper.Look(ctx, pool, path, &s) // one that was killed has no jobs here
		for _, j := range s.Jobs {
			names = addName(names, j.ID, fmt.Sprintf("%s in pool %s", j.State, pool))
		}
	}
	return names
}

// completeStop completes the argument of shoal stop and shoal park: jobs that run, and those that
// wait in a pool.
func completeStop(cmd *cobra.Command, args []string, word string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	names, directive := completeJobs(cmd, args, word)
	if len(args) == 0 {
		names = addPooled(cmd.Context(), names, false)
	}
	return names, directive
}

// completeParked completes the argument of shoal resume: jobs of pools that people have parked.
func completeParked(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	var names []cobra.Completion
	pools, _ := keeper.Names()
	for _, pool := range pools {
		var s keeper.State
		_ = keeper.Look(cmd.Context(), pool, keeper.PathQueue, &s)
		for _, j := range s.Jobs {
			if len(args) == 0 && j.ParkedBy != "" {
				names = addName(names, j.ID, "parked by "+j.ParkedBy)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeExplained completes the argument of shoal explain: jobs that run, those of pools, and
// runs that have ended.
func completeExplained(cmd *cobra.Command, args []string, word string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	names, directive := completeJobs(cmd, args, word)
	if len(args) > 0 {
		return names, directive
	}
	names = addPooled(cmd.Context(), names, true)
	for _, name := range runs.Names() {
		names = addName(names, name, "")
	}
	return names, directive
}
