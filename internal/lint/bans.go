package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"path"
	"regexp"
	"strings"
)

// Rules about what may not appear in a file. Each rule only reads the tree and waits for nothing;
// what it returns is its caller's.

// checkFormat refuses Go files that are not in the form of gofmt.
func checkFormat(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		if f.AST == nil || f.isTestdata() {
			continue
		}
		if tidy, err := format.Source(f.Text); err == nil && !bytes.Equal(tidy, f.Text) {
			found = append(found, Finding{f.Path, 0, "not in gofmt's form; run gofmt -w on it"})
		}
	}
	return found
}

// checkGoroutines keeps goroutines in internal/group, where each has a name, an owner that waits
// and an error that is not lost. A sync.WaitGroup starts them too.
func checkGoroutines(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		if f.AST == nil || f.isTestdata() || path.Dir(f.Path) == "internal/group" {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			what := ""
			if _, ok := n.(*ast.GoStmt); ok {
				what = "a go statement"
			} else if isSelector(n, "sync.WaitGroup") {
				what = "a sync.WaitGroup"
			}
			if what != "" {
				found = append(found,
					Finding{f.Path, t.lineOf(n), what + " outside internal/group: use " +
						"group.New(ctx).Go(name, f), which waits for it"})
			}
			return true
		})
	}
	return found
}

// checkSleep refuses time.Sleep in tests.
func checkSleep(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		if f.AST == nil || !f.isTest() {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if isSelector(n, "time.Sleep") {
				found = append(found, Finding{f.Path, t.lineOf(n), "time.Sleep in a test: it is " +
					"slow on a fast machine and wrong on a slow one; wait for the event itself"})
			}
			return true
		})
	}
	return found
}

// isSelector reports whether n is the selector with this name, such as time.Sleep.
func isSelector(n ast.Node, name string) bool {
	s, ok := n.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name+"."+s.Sel.Name == name
}

// leftover finds the marks of notes to oneself.
var leftover = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)

// checkLeftovers refuses notes to oneself: what is worth doing later is worth an issue.
func checkLeftovers(t *Tree) []Finding {
	return findLines(t, func(f *File) bool {
		return !f.isTestdata()
	}, leftover, "%s: do it now or file an issue")
}

// pickling finds imports and calls that execute what they read.
var pickling = regexp.MustCompile(
	`^\s*(import|from)\s+_?(c?[pP]ickle|dill|cloudpickle|shelve|marshal)\b|\btorch\.load\(`)

// checkPickle refuses whatever executes what it reads in the Python code.
func checkPickle(t *Tree) []Finding {
	python := func(f *File) bool {
		return path.Ext(f.Path) == ".py" &&
			(strings.HasPrefix(f.Path, "python/") || strings.HasPrefix(f.Path, "examples/"))
	}
	return findLines(t, python, pickling,
		"%q can run code that a file or a peer brings along; use "+
			"safetensors, JSON or plain buffers")
}

// findLines returns a finding for every line of the chosen files that the expression matches; text
// has one verb, for the match.
func findLines(t *Tree, choose func(*File) bool, what *regexp.Regexp,
	text string) (found []Finding) {
	for _, f := range t.Files {
		if !choose(f) || bytes.IndexByte(f.Text, 0) >= 0 {
			continue
		}
		for i, line := range strings.Split(string(f.Text), "\n") {
			if m := what.FindString(line); m != "" {
				found = append(found, Finding{f.Path, i + 1, fmt.Sprintf(text, m)})
			}
		}
	}
	return found
}
