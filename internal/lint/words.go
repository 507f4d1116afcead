package lint

import (
	"bytes"
	_ "embed"
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// The rule about retired words. It only reads the tree, and so do the functions that it calls.

// wordsFile is where the retired words stand; findings and errors name it.
const wordsFile = "internal/lint/words.txt"

//go:embed words.txt
var wordsText string

// A retired word or identifier, and what stands in its place.
type retired struct {
	// where an identifier must not be declared; "" for a word, which is banned everywhere
	folder string
	old    string // a word in lower case, or an identifier with a small first letter
	now    string
}

// parseWords reads the lines "old -> new" and "folder: old -> new" of words.txt.
func parseWords(text string) (words []retired, err error) {
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		left, now, ok := strings.Cut(line, " -> ")
		if !ok {
			return nil, fmt.Errorf("%s:%d: %q is not \"old -> new\"", wordsFile, i+1, line)
		}
		folder, olds, scoped := strings.Cut(left, ": ")
		if !scoped {
			folder, olds = "", left
		}
		for _, old := range strings.Split(olds, ", ") {
			words = append(words, retired{folder, old, now})
		}
	}
	return words, nil
}

// checkWords refuses retired words, by words.txt.
func checkWords(t *Tree) []Finding { return checkWordsText(t, wordsText) }

// checkWordsText is checkWords with the given text for words.txt: it refuses retired words in every
// text of the repository, in names too, and retired identifiers in the folders that had them. It
// passes over the history and the pages that tell of old names.
func checkWordsText(t *Tree, text string) (found []Finding) {
	words, err := parseWords(text)
	if err != nil {
		return []Finding{{wordsFile, 0, err.Error()}}
	}
	everywhere := map[string]string{}
	for _, w := range words {
		if w.folder == "" {
			everywhere[w.old] = w.now
		}
	}
	for _, f := range t.Files {
		if tellsOldNames(f.Path) || bytes.IndexByte(f.Text, 0) >= 0 {
			continue
		}
		for _, name := range strings.FieldsFunc(f.Path, notLetter) {
			found = append(found, retiredIn(name, f.Path, 0, everywhere)...)
		}
		n := 0
		for line := range bytes.Lines(f.Text) {
			n++
			for _, name := range letters.FindAllString(string(line), -1) {
				found = append(found, retiredIn(name, f.Path, n, everywhere)...)
			}
		}
		found = append(found, t.retiredNames(f, words)...)
	}
	return found
}

// letters finds what stands between two characters that are no letters.
var letters = regexp.MustCompile(`[A-Za-z]+`)

// notLetter reports whether r is no letter.
func notLetter(r rune) bool { return !unicode.IsLetter(r) }

// tellsOldNames reports whether a file may hold retired words, because it tells what became of
// them.
func tellsOldNames(p string) bool {
	return strings.HasPrefix(p, "changelog/") || p == "docs/guide/upgrade.md" ||
		strings.HasPrefix(p, path.Dir(wordsFile)+"/")
}

// retiredIn returns a finding for each retired word in a name, which stands on a line of a file.
// words has, by retired word, what stands in its place; line 0 is the name of the file.
func retiredIn(name, file string, line int, words map[string]string) (found []Finding) {
	for _, w := range camelWords(name) {
		if now, ok := words[w]; ok {
			found = append(found, Finding{file, line, fmt.Sprintf("%q is a retired word: say %s", w,
				now)})
		}
	}
	return found
}

// camelWords cuts a name into its words, in lower case: stallDetector is stall and detector.
func camelWords(name string) (words []string) {
	begin := 0
	for i := 1; i < len(name); i++ {
		upper := name[i] < 'a'
		if upper && (name[i-1] >= 'a' || i+1 < len(name) && name[i+1] >= 'a') {
			words = append(words, strings.ToLower(name[begin:i]))
			begin = i
		}
	}
	return append(words, strings.ToLower(name[begin:]))
}

// retiredNames returns findings for what a Go file declares, and what a Python file has, under a
// retired identifier of its folder.
func (t *Tree) retiredNames(f *File, words []retired) (found []Finding) {
	here := map[string]string{}
	for _, w := range words {
		if w.folder != "" && (path.Dir(f.Path) == w.folder ||
			strings.HasPrefix(f.Path, w.folder+"/")) {
			here[w.old] = w.now
		}
	}
	if len(here) == 0 {
		return nil
	}
	// say adds a finding if the name is retired here.
	say := func(line int, name string) {
		old := strings.ToLower(name[:1]) + name[1:]
		if now, ok := here[old]; ok {
			found = append(found, Finding{f.Path, line,
				fmt.Sprintf("%s is a retired name: say %s", name, now)})
		}
	}
	switch {
	case f.AST != nil:
		for _, id := range declared(f.AST) {
			say(t.lineOf(id), id.Name)
		}
	case path.Ext(f.Path) == ".py":
		for i, line := range strings.Split(string(f.Text), "\n") {
			if m := pythonDeclares.FindStringSubmatch(line); m != nil {
				say(i+1, m[1])
			}
		}
	}
	say(0, strings.TrimLeft(strings.TrimSuffix(path.Base(f.Path), path.Ext(f.Path)), "_"))
	return slices.Compact(found)
}

// pythonDeclares finds the name of a function or class, without underscores before it.
var pythonDeclares = regexp.MustCompile(`^\s*(?:def|class)\s+_*(\w+)`)

// declared returns the names of all functions, types, fields, constants and package variables.
func declared(file *ast.File) (ids []*ast.Ident) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			ids = append(ids, n.Name)
		case *ast.TypeSpec:
			ids = append(ids, n.Name)
		case *ast.StructType:
			for _, field := range n.Fields.List {
				ids = append(ids, field.Names...)
			}
		case *ast.ValueSpec:
			ids = append(ids, n.Names...)
		}
		return true
	})
	return ids
}
