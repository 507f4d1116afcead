package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"
)

// Rules about how long files, functions and packages may grow. Each rule only reads the tree and
// waits for nothing; what it returns is its caller's.

// Limits of sizes, in lines where nothing else is said.
const (
	FileLines     = 500
	FunctionLines = 70
	PackageLines  = 6000 // of the files that are not tests
	FolderFiles   = 40   // source files that are not tests, of one language
	StructFields  = 25   // fields of a struct
)

// sourceSuffixes are the files that people read as program text.
var sourceSuffixes = []string{".go", ".py", ".c", ".h", ".sh"}

// lines returns the number of lines of the file.
func (f *File) lines() int { return bytes.Count(f.Text, []byte("\n")) }

// checkFileSize refuses written source files of more than FileLines lines.
func checkFileSize(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		if !slices.Contains(sourceSuffixes, path.Ext(f.Path)) || f.isTestdata() || f.isGenerated() {
			continue
		}
		if n := f.lines(); n > FileLines {
			found = append(found,
				Finding{f.Path, 0,
					fmt.Sprintf("%d lines, the limit is %d; one concept a file, split it", n,
						FileLines)})
		}
	}
	return found
}

// checkFunctionSize refuses functions of more than FunctionLines lines.
func checkFunctionSize(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		if f.AST == nil || f.isTest() || f.isTestdata() || f.isGenerated() {
			continue
		}
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := t.fset.Position(fn.End()).Line - t.lineOf(fn) + 1; n > FunctionLines {
				text := fmt.Sprintf("func %s has %d lines, the limit is %d; give its parts names",
					fn.Name.Name, n, FunctionLines)
				found = append(found, Finding{f.Path, t.lineOf(fn), text})
			}
		}
	}
	return found
}

// checkPackageSize refuses packages of more than PackageLines lines and folders of more than
// FolderFiles source files, tests and generated files apart.
func checkPackageSize(t *Tree) (found []Finding) {
	lines, files := map[string]int{}, map[string]int{}
	for _, f := range t.Files {
		if !slices.Contains(sourceSuffixes, path.Ext(f.Path)) || f.isTest() || f.isTestdata() ||
			f.isGenerated() || strings.HasPrefix(path.Base(f.Path), "test_") {
			continue
		}
		lines[path.Dir(f.Path)] += f.lines()
		files[path.Dir(f.Path)]++
	}
	for dir, n := range lines {
		if n > PackageLines {
			found = append(found, Finding{dir, 0, fmt.Sprintf("%d lines, the limit of a package "+
				"is %d; a part of it is a room of its own", n, PackageLines)})
		}
		if n := files[dir]; n > FolderFiles {
			found = append(found, Finding{dir, 0, fmt.Sprintf("%d source files, the limit of a "+
				"folder is %d; a part of it is a room of its own", n, FolderFiles)})
		}
	}
	return sortFindings(found)
}

// checkStructSize refuses structs of more than StructFields fields.
func checkStructSize(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		if f.AST == nil || f.isTestdata() || f.isGenerated() {
			continue
		}
		ast.Inspect(f.AST, func(node ast.Node) bool {
			spec, ok := node.(*ast.TypeSpec)
			if !ok {
				return true
			}
			s, ok := spec.Type.(*ast.StructType)
			if ok && s.Fields.NumFields() > StructFields {
				found = append(found,
					Finding{f.Path, t.lineOf(spec), fmt.Sprintf("struct %s has %d "+
						"fields, the limit is %d; some of them belong together", spec.Name.Name,
						s.Fields.NumFields(), StructFields)})
			}
			return true
		})
	}
	return found
}
