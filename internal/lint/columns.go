package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// The rule about the width of lines. It only reads the tree, and so do the functions that it calls.

// Columns is the greatest width of a line of program text or prose. A tab counts as TabColumns.
const (
	Columns    = 100
	TabColumns = 4
)

// widthSuffixes are the files whose lines people read side by side with others.
var widthSuffixes = append([]string{".md", ".ts", ".tsx"}, sourceSuffixes...)

// unbreakable finds what has no place to break: an address, a link and the text in it, or a line
// for the go command.
var unbreakable = regexp.MustCompile(`https?://\S{40,}|\]\([^)]{50,}\)|^//go:`)

// checkColumns refuses lines of more than Columns columns. It passes over generated files, test
// data, the tables and code blocks of Markdown, raw strings of Go that hold what a test reads, and
// addresses.
func checkColumns(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		if !slices.Contains(widthSuffixes, path.Ext(f.Path)) || f.isTestdata() || f.isGenerated() {
			continue
		}
		apart := t.keptLines(f)
		n := 0
		for text := range bytes.Lines(f.Text) {
			n++
			text = bytes.TrimRight(text, "\n")
			if w := columnCount(text); w > Columns && !apart[n] && !unbreakable.Match(text) {
				found = append(found, Finding{f.Path, n,
					fmt.Sprintf("%d columns, the limit is %d", w, Columns)})
			}
		}
	}
	return found
}

// columnCount returns the width of a line, in which a tab counts as TabColumns.
func columnCount(line []byte) int {
	return utf8.RuneCount(line) + bytes.Count(line, []byte("\t"))*(TabColumns-1)
}

// keptLines returns the numbers, from 1 on, of the lines of a file that may have any width.
func (t *Tree) keptLines(f *File) map[int]bool {
	if path.Ext(f.Path) == ".md" {
		return tablesAndCode(f.Text)
	}
	lines := map[int]bool{}
	if f.AST == nil {
		return lines
	}
	ast.Inspect(f.AST, func(n ast.Node) bool {
		s, ok := n.(*ast.BasicLit)
		if !ok || s.Kind != token.STRING || !strings.HasPrefix(s.Value, "`") {
			return true
		}
		first, last := t.fset.Position(s.Pos()).Line, t.fset.Position(s.End()).Line
		if !f.isTest() && first == last {
			return true
		}
		for l := first; l <= last; l++ {
			lines[l] = true
		}
		return true
	})
	return lines
}

// tablesAndCode returns the numbers of the lines of Markdown that are a row of a table or lie in a
// block of code.
func tablesAndCode(text []byte) map[int]bool {
	lines, n, code := map[int]bool{}, 0, false
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimSpace(line)
		fence := bytes.HasPrefix(line, []byte("```"))
		lines[n] = code || fence || bytes.HasPrefix(line, []byte("|"))
		code = code != fence
	}
	return lines
}
