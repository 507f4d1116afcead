package cli

import "strings"

// The long help of commands, put together when they are made. The function is pure.

// guide is where the pages of the guide are.
const guide = "https://github.com/shoal-ml/shoal/blob/main/docs/guide/"

// ExitCodes is the line about exit codes in the help of most commands.
const ExitCodes = "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C."

// Help returns the long help of a command: its text, the exit codes, and a link to a page of the
// guide.
func Help(text, codes, page string) string {
	return strings.TrimSpace(text) + "\n\n" + codes + "\nGuide: " + guide + page + ".md"
}
