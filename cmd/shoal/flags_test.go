package main

import (
	"io"
	"path/filepath"
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
			err := executeQuietly(t, append(strings.Fields(command), "--"+flag, "")...)
			if err == nil || !strings.Contains(err.Error(), "--"+flag+" is empty") {
				t.Errorf("shoal %s --%s: %v", command, flag, err)
			}
		}
	}
}

// TestOutputsThatCannotBe: a folder in the place of a file that is written, or none to write it in,
// is refused before a command does its work.
func TestOutputsThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	for _, command := range []string{
		"plan none.json --cluster none.json --batch 8 -o",
		"plan none.json --cluster none.json --batch 8 --trace",
		"plan import msr none.txt -o",
		"plan import msr none.txt -o model.json --cluster-out",
		"replay none.csv --gpus 8 --csv",
		"replay none.csv --gpus 8 --html",
		"report none -o",
	} {
		for path, want := range map[string]string{
			dir:                             " is a folder: name a file in it",
			filepath.Join(dir, "none", "x"): "there is no folder " + filepath.Join(dir, "none"),
		} {
			err := executeQuietly(t, append(strings.Fields(command), path)...)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("shoal %s %s: %v", command, path, err)
			}
		}
	}
}

// executeQuietly runs shoal with these arguments in this process, and returns what is wrong.
func executeQuietly(t *testing.T, args ...string) error {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	root.SilenceErrors, root.SilenceUsage = true, true
	return root.ExecuteContext(t.Context())
}
