package main

import (
	"io"
	"strings"
	"testing"
)

// TestEmptyFlags: what a shell's variable that is not set leaves of a flag is refused, by commands
// that would do something else without it, such as write nothing.
func TestEmptyFlags(t *testing.T) {
	for command, flags := range map[string]string{
		"plan model.json":       "cluster job mesh from out trace",
		"plan check plan.json":  "job model cluster",
		"plan import msr graph": "out cluster-out name hosts",
		"replay trace.csv":      "curves costs csv html data experiment",
		"sim scenario.txt":      "run python",
	} {
		for _, flag := range strings.Fields(flags) {
			root := newRootCommand()
			root.SetArgs(append(strings.Fields(command), "--"+flag, ""))
			root.SetOut(io.Discard)
			root.SetErr(io.Discard)
			root.SilenceErrors, root.SilenceUsage = true, true
			err := root.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), "--"+flag+" is empty") {
				t.Errorf("shoal %s --%s: %v", command, flag, err)
			}
		}
	}
}
