package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"path"
	"slices"
)

// Sizes in lines. Above the soft limit a file is mentioned, above the hard one it is refused.
const (
	SoftFileLines = 500
	HardFileLines = 800
	FunctionLines = 70
)

// sourceSuffixes are the files that people read as program text.
var sourceSuffixes = []string{".go", ".py", ".c", ".h", ".sh"}

func (f *File) lines() int { return bytes.Count(f.Text, []byte("\n")) }

// longFiles lists the written source files of more than limit lines.
func longFiles(t *Tree, limit int) (found []Finding) {
	for _, f := range t.Files {
		if !slices.Contains(sourceSuffixes, path.Ext(f.Path)) || f.testdata() || f.generated() {
			continue
		}
		if n := f.lines(); n > limit {
			found = append(found,
				Finding{f.Path, 0,
					fmt.Sprintf("%d lines, the limit is %d; one concept a file, split it", n,
						limit)})
		}
	}
	return found
}

func checkFileSize(t *Tree) []Finding { return longFiles(t, HardFileLines) }

// Mentions are the files that are longer than they should be but not yet refused.
func Mentions(t *Tree) []Finding { return longFiles(t, SoftFileLines) }

func checkFunctionSize(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		if f.AST == nil || f.test() || f.testdata() || f.generated() {
			continue
		}
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := t.fset.Position(fn.End()).Line - t.line(fn) + 1; n > FunctionLines {
				text := fmt.Sprintf("func %s has %d lines, the limit is %d; give its parts names",
					fn.Name.Name, n, FunctionLines)
				found = append(found, Finding{f.Path, t.line(fn), text})
			}
		}
	}
	return found
}
