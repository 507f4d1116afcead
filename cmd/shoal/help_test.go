package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// guideLink finds the page of the guide that a help names.
var guideLink = regexp.MustCompile(`docs/guide/[a-z-]+\.md`)

// TestHelp looks at the help of every command: it has a description, three examples, the exit
// codes and a link to a page that exists, in lines of up to 100 columns.
func TestHelp(t *testing.T) {
	root := newRootCommand()
	var walk func(cmd *cobra.Command)
	// walk looks at a command and all below it; what is wrong is an error of the test.
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			if !c.Hidden && c.Name() != "help" && c.Name() != "completion" {
				walk(c)
			}
		}
		if cmd == root {
			return
		}
		name := cmd.CommandPath()
		if cmd.Long == "" {
			t.Errorf("%s: no description", name)
		}
		examples := 0
		for line := range strings.Lines(cmd.Example) {
			if strings.HasPrefix(line, "  shoal ") {
				examples++
			}
		}
		if examples < 3 {
			t.Errorf("%s: %d examples, want 3", name, examples)
		}
		if !strings.Contains(cmd.Long, "Exit codes: 0 ") {
			t.Errorf("%s: no exit codes", name)
		}
		page := guideLink.FindString(cmd.Long)
		if _, err := os.Stat(filepath.Join("../..", page)); page == "" || err != nil {
			t.Errorf("%s: no link to a page of docs/guide: %q, %v", name, page, err)
		}
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			line = strings.TrimSuffix(line, "\n")
			if n := utf8.RuneCountInString(line); n > 100 {
				t.Errorf("%s: %d columns, the limit is 100: %s", name, n, line)
			}
		}
	}
	walk(root)
}
