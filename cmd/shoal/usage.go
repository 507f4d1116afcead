package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageFault is a command line that cannot be meant.
type usageFault struct{ msg string }

func (e *usageFault) Error() string { return e.msg }

func usageError(format string, args ...any) error { return &usageFault{fmt.Sprintf(format, args...)} }

// noArguments is for commands that take flags only.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError("%s takes no arguments, but got %q; see %[1]s --help", cmd.CommandPath(), args[0])
	}
	return nil
}

// flagError explains a flag that does not parse; for an unknown one it names the nearest known one.
func flagError(cmd *cobra.Command, err error) error {
	msg, _, _ := strings.Cut(err.Error(), ": strconv.") // how Go parses a number helps nobody
	if name, ok := strings.CutPrefix(msg, "unknown flag: --"); ok {
		name, _, _ = strings.Cut(name, "=")
		if near := nearest(name, flagNames(cmd)); near != "" {
			msg += fmt.Sprintf("; did you mean --%s?", near)
		}
	}
	return usageError("%s\nAll flags: %s --help", msg, cmd.CommandPath())
}

func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	msg := fmt.Sprintf("unknown command %q", name)
	if near := nearest(name, names); near != "" {
		msg += fmt.Sprintf("; did you mean %q?", near)
	}
	return usageError("%s\nAll commands: %s --help", msg, cmd.CommandPath())
}

// knownCommand is for help, which explains a command.
func knownCommand(cmd *cobra.Command, args []string) error {
	found, rest, err := cmd.Root().Find(args)
	if err == nil && len(rest) > 0 {
		err = unknownCommand(found, rest[0])
	}
	return err
}

func flagNames(cmd *cobra.Command) []string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// nearest is the name that starts with word, else the one with the smallest edit distance, "" when none is nearer than
// about a third of its letters.
func nearest(word string, names []string) string {
	best, least := "", len(word)/3+2
	for _, name := range names {
		if strings.HasPrefix(name, word) {
			return name
		}
		if d := editDistance(word, name); d < least {
			best, least = name, d
		}
	}
	return best
}

// editDistance counts the letters to insert, delete, replace or swap with their neighbour (optimal string alignment).
func editDistance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
