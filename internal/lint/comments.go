package lint

import (
	"fmt"
	"go/ast"
	"path"
	"strings"
)

// The rule about package comments. It only reads the tree, and so do the functions that it calls.

// checkPackageComments refuses a package without exactly one package comment in the form that go
// doc shows: "Package name …", or for a program "Command name …" or its name with a capital letter.
// The programs under examples start as they like: their comment is the command to run and what it
// prints.
func checkPackageComments(t *Tree) (found []Finding) {
	for dir, files := range t.packages() {
		var comments []*File
		var source *File
		for _, f := range files {
			if f.isTest() {
				continue
			}
			source = f
			if f.AST.Doc != nil && strings.TrimSpace(f.AST.Doc.Text()) != "" {
				comments = append(comments, f)
			}
		}
		switch {
		case source == nil: // tests only
		case len(comments) == 0:
			found = append(found,
				Finding{dir, 0,
					"no file of this package has a package comment; say what it is for"})
		case len(comments) > 1:
			text := fmt.Sprintf("a second package comment, the first is in %s; keep one",
				path.Base(comments[0].Path))
			found = append(found, Finding{comments[1].Path, t.lineOf(comments[1].AST.Doc), text})
		default:
			f := comments[0]
			if want := commentStarts(dir, f.AST); want != nil &&
				!startsWithOne(f.AST.Doc.Text(), want) {
				text := fmt.Sprintf("the package comment starts with none of %q", want)
				found = append(found, Finding{f.Path, t.lineOf(f.AST.Doc), text})
			}
		}
	}
	return sortFindings(found)
}

// commentStarts returns the ways in which the comment of a package may start, nil for any.
func commentStarts(dir string, f *ast.File) []string {
	if f.Name.Name != "main" {
		return []string{"Package " + f.Name.Name + " "}
	}
	if strings.HasPrefix(dir, "examples/") {
		return nil
	}
	name := path.Base(dir)
	return []string{"Command " + name + " ", strings.ToUpper(name[:1]) + name[1:] + " "}
}

// startsWithOne reports whether a text starts with one of several.
func startsWithOne(text string, starts []string) bool {
	for _, s := range starts {
		if strings.HasPrefix(text, s) {
			return true
		}
	}
	return false
}
