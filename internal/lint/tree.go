package lint

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// The files of the repository, read once for all rules. Nothing changes what was read, so several
// goroutines may use it.

// Module is the import path of the repository's root.
const Module = "github.com/shoal-ml/shoal"

// Tree is the repository as the rules see it. Once read it is never changed, so several goroutines
// may use it.
type Tree struct {
	Files   []*File         // in the order of their paths
	modules map[string]bool // folders below the root that have a go.mod
	fset    *token.FileSet
}

// File is one text file. AST is nil unless it is a Go file that parses. It is never changed once it
// is read.
type File struct {
	Path string // with slashes, relative to the root of the repository
	Text []byte
	AST  *ast.File
	err  error // why a Go file does not parse
}

// Load reads the files named by paths. A name without a file is passed over: it was deleted and not
// yet committed. They are relative to the root of fsys, and have slashes. A Go file that does not
// parse is no error here.
func Load(fsys fs.FS, paths []string) (*Tree, error) {
	t := &Tree{fset: token.NewFileSet(), modules: map[string]bool{}}
	for _, p := range slices.Compact(slices.Sorted(slices.Values(paths))) {
		text, err := fs.ReadFile(fsys, p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading the tree: %w", err)
		}
		f := &File{Path: p, Text: text}
		if path.Base(p) == "go.mod" && p != "go.mod" {
			t.modules[path.Dir(p)] = true
		}
		if path.Ext(p) == ".go" {
			f.AST, f.err = parser.ParseFile(t.fset, p, text,
				parser.ParseComments|parser.SkipObjectResolution)
			if f.err != nil {
				f.AST = nil
			}
		}
		t.Files = append(t.Files, f)
	}
	return t, nil
}

// fileAt returns the file at a path; nil if there is none.
func (t *Tree) fileAt(p string) *File {
	for _, f := range t.Files {
		if f.Path == p {
			return f
		}
	}
	return nil
}

// lineOf returns the number of the line on which a node begins.
func (t *Tree) lineOf(n ast.Node) int { return t.fset.Position(n.Pos()).Line }

// packages returns, by folder, the Go files of each folder of the main module that has some,
// without test data. The lists are the caller's, the files the tree's.
func (t *Tree) packages() map[string][]*File {
	pkgs := map[string][]*File{}
	for _, f := range t.Files {
		if f.AST != nil && !f.isTestdata() && !t.isOfOtherModule(f) {
			pkgs[path.Dir(f.Path)] = append(pkgs[path.Dir(f.Path)], f)
		}
	}
	return pkgs
}

// imports returns what the source files, without tests, of each package of the main module import:
// packages of this module by their folder, all others by their import path.
func (t *Tree) imports() map[string][]string {
	graph := map[string][]string{}
	for dir, files := range t.packages() {
		set := map[string]bool{}
		for _, f := range files {
			if f.isTest() {
				continue
			}
			for _, spec := range f.AST.Imports {
				p := strings.Trim(spec.Path.Value, `"`)
				if own, ok := strings.CutPrefix(p, Module+"/"); ok {
					p = own
				}
				set[p] = true
			}
		}
		graph[dir] = slices.Sorted(maps.Keys(set))
	}
	return graph
}

// isTest reports whether the file is a test of Go.
func (f *File) isTest() bool { return strings.HasSuffix(f.Path, "_test.go") }

// isTestdata reports whether the file lies in a folder testdata.
func (f *File) isTestdata() bool { return slices.Contains(strings.Split(f.Path, "/"), "testdata") }

// isOfOtherModule reports whether the file lies in a folder that has its own go.mod (deploy/kube),
// or that the go command passes over (kernel/_asm).
func (t *Tree) isOfOtherModule(f *File) bool {
	if strings.HasPrefix(f.Path, "_") || strings.Contains(f.Path, "/_") {
		return true
	}
	for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
		if t.modules[dir] {
			return true
		}
	}
	return false
}

// isGenerated reports whether a program wrote the file: the name starts with z, or the text says so
// in the form that Go defines.
func (f *File) isGenerated() bool {
	if strings.HasPrefix(path.Base(f.Path), "z") && path.Ext(f.Path) == ".go" {
		return true
	}
	for line := range bytes.Lines(f.Text) {
		if bytes.HasPrefix(line, []byte("// Code generated ")) &&
			bytes.HasSuffix(bytes.TrimSpace(line), []byte(" DO NOT EDIT.")) {
			return true
		}
	}
	return false
}

// checkSyntax refuses Go files that do not parse.
func checkSyntax(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		if f.err != nil && !f.isTestdata() {
			found = append(found,
				Finding{f.Path, 0,
					fmt.Sprintf("does not parse, so no rule can read it: %v", f.err)})
		}
	}
	return found
}
