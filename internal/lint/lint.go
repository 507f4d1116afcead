// Package lint states the rules of the house and checks them: which package may import which, how
// long files and functions may grow, what may not appear at all, and that what is generated is up
// to date. Its tests run every rule on this repository, and every rule on a small tree that breaks
// it, so that no rule can fall asleep.
package lint

import (
	"cmp"
	"fmt"
	"slices"
)

// Finding is one place where the repository breaks a rule. It is a value.
type Finding struct {
	Path string // slash-separated, relative to the root of the repository
	Line int    // 0: the finding is about the whole file or folder
	Text string // what is wrong, why, and what to do
}

// String returns the finding in the file:line form that editors understand.
func (f Finding) String() string {
	if f.Line == 0 {
		return f.Path + ": " + f.Text
	}
	return fmt.Sprintf("%s:%d: %s", f.Path, f.Line, f.Text)
}

// Rule is one rule of the house. Its Check only reads the tree, and may run beside others; the
// findings are its caller's.
type Rule struct {
	Name  string                // as tests are called
	Check func(*Tree) []Finding // returns what breaks the rule; nil = nothing does
}

// Rules are the rules that need the files of the repository and nothing else.
var Rules = []Rule{
	{"syntax", checkSyntax},
	{"format", checkFormat},
	{"layers", checkLayers},
	{"folder-cycles", checkFolderCycles},
	{"folder-names", checkFolderNames},
	{"stray-files", checkStrayFiles},
	{"package-comments", checkPackageComments},
	{"doc-comments", checkDocComments},
	{"code-map", checkCodeMap},
	{"walks", checkWalks},
	{"links", checkLinks},
	{"contents", checkContents},
	{"file-size", checkFileSize},
	{"function-size", checkFunctionSize},
	{"package-size", checkPackageSize},
	{"struct-size", checkStructSize},
	{"columns", checkColumns},
	{"words", checkWords},
	{"goroutines", checkGoroutines},
	{"sleep", checkSleep},
	{"leftovers", checkLeftovers},
	{"pickle", checkPickle},
	{"go-directive", checkGoDirective},
	{"dependencies", checkDependencies},
}

// sortFindings sorts findings by place, in fs itself, so that two runs print the same text, and
// returns them. Rules call it on what they have found.
func sortFindings(fs []Finding) []Finding {
	slices.SortFunc(fs, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Text, b.Text))
	})
	return fs
}
