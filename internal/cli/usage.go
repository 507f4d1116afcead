package cli

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/spelling"
)

// What is said of command lines that cannot be meant. The functions only read the command, and
// cobra calls those that check arguments, before the command runs.

// usageFault is a command line that cannot be meant.
type usageFault struct{ msg string }

// Error returns the message.
func (e *usageFault) Error() string { return e.msg }

// Usagef returns the error for a command line that is wrong; its exit code is 2.
func Usagef(format string, args ...any) error {
	return &usageFault{fmt.Sprintf(format, args...)}
}

// AsUsage returns err as an error about the command line, with exit code 2; nil for nil.
func AsUsage(err error) error {
	if err == nil {
		return nil
	}
	return &usageFault{err.Error()}
}

// RefuseFlags fails if one of the named flags was given, since these are about something else than
// this form of the command; about says what.
func RefuseFlags(flags *pflag.FlagSet, about string, names ...string) error {
	for _, name := range names {
		if flags.Changed(name) {
			return Usagef("--%s is about %s; leave it out", name, about)
		}
	}
	return nil
}

// RefuseEmpty fails if one of the named flags was given and is empty, as that of a shell's variable
// that is not set: the command would do something else than what is asked for.
func RefuseEmpty(flags *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if f := flags.Lookup(name); f.Changed && f.Value.String() == "" {
			return Usagef("--%s is empty: say what it is to be, or leave it out", name)
		}
	}
	return nil
}

// CheckAddress fails if the text of a flag is not HOST:PORT; text may be empty. flag is its name,
// without the dashes.
func CheckAddress(flag, text string) error {
	if text == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return Usagef("--%s %s is not HOST:PORT, such as :7077 or head:7077", flag, text)
	}
	return nil
}

// CheckJoin fails if the text of --join is not where another host listens; it may be empty.
func CheckJoin(text string) error {
	if text == "" {
		return nil
	}
	err := CheckAddress("join", text)
	if err == nil {
		_, port, _ := net.SplitHostPort(text) // CheckAddress has read it
		if n, _ := net.LookupPort("tcp", port); n > 0 {
			return nil
		}
	}
	return Usagef("--join %s is not HOST:PORT, such as node1:7077; the command that was started "+
		"with --listen prints it", text)
}

// NoArguments fails if there are arguments; it is the check of commands that take flags only.
func NoArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("%s takes no arguments, but got %q; see %[1]s --help", cmd.CommandPath(),
			args[0])
	}
	return nil
}

// FlagError returns an error that explains a flag that does not parse; for an unknown one it names
// the nearest known one.
func FlagError(cmd *cobra.Command, err error) error {
	msg, how, is := strings.Cut(err.Error(), ": strconv.") // how Go parses a number helps nobody
	if is {
		msg += ": it takes " + flagValueKind(how)
	} else if before, _, is := strings.Cut(msg, ": time: "); is {
		msg = before + ": it takes a time, such as 90s, 15m or 24h"
	}
	if name, ok := strings.CutPrefix(msg, "unknown flag: --"); ok {
		name, _, _ = strings.Cut(name, "=")
		msg += spelling.Meant("--"+name, flagNames(cmd))
	}
	return Usagef("%s\nAll flags: %s --help", msg, cmd.CommandPath())
}

// flagValueKind returns which kind of value a flag takes, from the error of package strconv.
func flagValueKind(how string) string {
	switch {
	case strings.HasSuffix(how, strconv.ErrRange.Error()):
		return "a number that is nearer to 0"
	case strings.HasPrefix(how, "ParseBool"):
		return "true or false"
	case strings.HasPrefix(how, "ParseFloat"):
		return "a number"
	case strings.HasPrefix(how, "ParseUint"):
		return "a whole number, 0 or more"
	}
	return "a whole number"
}

// RunGroup is what a command does that has others and does nothing itself: it shows its help, and
// fails where args begin with a name that is none of them.
func RunGroup(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return unknownCommand(cmd, args[0])
}

// unknownCommand returns the error for a name that is not a command; it offers the nearest one.
func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	msg := fmt.Sprintf("unknown command %q", name)
	msg += spelling.Meant(name, names)
	return Usagef("%s\nAll commands: %s --help", msg, cmd.CommandPath())
}

// KnownCommand fails if args name no command; it is the check of help.
func KnownCommand(cmd *cobra.Command, args []string) error {
	found, rest, err := cmd.Root().Find(args)
	if err == nil && len(rest) > 0 {
		err = unknownCommand(found, rest[0])
	}
	return err
}

// flagNames returns the names of all flags of a command.
func flagNames(cmd *cobra.Command) []string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	return names
}

// Arguments returns the check of commands that take from least to most arguments, none of them
// empty.
func Arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return Usagef("%s needs more than %s: %s; %[1]s --help has examples",
				cmd.CommandPath(), plural.Of(len(args), "argument"),
				strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		case len(args) > most:
			return Usagef("%q is too much; %s --help has examples", args[most],
				cmd.CommandPath())
		case slices.Contains(args, ""):
			return Usagef("argument %d is empty, as that of a variable that is not set; %s "+
				"--help has examples", slices.Index(args, "")+1, cmd.CommandPath())
		}
		return nil
	}
}
