package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"unicode"
)

// The rule about comments of declarations. It only reads the tree, and so do the functions that it
// calls.

// wellKnown are methods of the standard library's interfaces, which say nothing of their own.
var wellKnown = []string{"Error", "Unwrap", "Is", "String", "Read", "Write", "Close", "ServeHTTP",
	"MarshalJSON", "UnmarshalJSON", "MarshalText", "UnmarshalText", "Len", "Less", "Swap"}

// checkDocComments refuses what is exported without a comment, tests apart, and a comment that does
// not begin with the name, as go doc shows it; an article may stand before. The names of a group of
// constants or variables may share the comment of the group.
func checkDocComments(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		if f.AST == nil || f.isTest() || f.isTestdata() || f.isGenerated() {
			continue
		}
		for _, d := range f.AST.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				found = append(found, t.checkFirstWord(f, d.Name, d.Doc)...)
				known := d.Recv != nil && slices.Contains(wellKnown, d.Name.Name)
				if d.Name.IsExported() && exportedReceiver(d) && (!known || d.Doc != nil) {
					found = append(found, t.checkComment(f, d.Name, d.Doc)...)
				}
			case *ast.GenDecl:
				found = append(found, t.checkSpecs(f, d)...)
			}
		}
	}
	return found
}

// checkFirstWord refuses a comment that begins with another name than that of what it stands above,
// as one does that a rename has left behind. A comment that begins with a capital letter is a
// sentence. Exported names are left to checkComment.
func (t *Tree) checkFirstWord(f *File, name *ast.Ident, doc *ast.CommentGroup) []Finding {
	first, _, _ := strings.Cut(doc.Text(), " ")
	first = strings.TrimRight(first, ",.:;\n")
	if name.IsExported() || !token.IsIdentifier(first) || first == name.Name ||
		unicode.IsUpper(rune(first[0])) || name.Name == "init" {
		return nil
	}
	return []Finding{{f.Path, t.lineOf(name), fmt.Sprintf("the comment of %s begins with %q",
		name.Name, first)}}
}

// exportedReceiver reports whether a function has no receiver, or one of an exported type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

// checkSpecs is checkDocComments for a declaration of types, constants or variables.
func (t *Tree) checkSpecs(f *File, d *ast.GenDecl) (found []Finding) {
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if !d.Lparen.IsValid() {
				found = append(found, t.checkFirstWord(f, spec.Name, d.Doc)...)
			}
			if spec.Name.IsExported() {
				doc := spec.Doc
				if doc == nil && !d.Lparen.IsValid() {
					doc = d.Doc
				}
				found = append(found, t.checkComment(f, spec.Name, doc)...)
			}
		case *ast.ValueSpec:
			grouped := d.Lparen.IsValid() &&
				(d.Doc != nil || spec.Doc != nil || spec.Comment != nil)
			if !spec.Names[0].IsExported() || grouped || len(spec.Names) > 1 && d.Doc != nil {
				continue
			}
			found = append(found, t.checkComment(f, spec.Names[0], d.Doc)...)
		}
	}
	return found
}

// checkComment refuses a comment of an exported name that is missing or does not begin with the
// name.
func (t *Tree) checkComment(f *File, name *ast.Ident, doc *ast.CommentGroup) []Finding {
	text := doc.Text()
	for _, article := range []string{"A ", "An ", "The "} {
		text = strings.TrimPrefix(text, article)
	}
	if strings.HasPrefix(text, name.Name) && !token.IsIdentifier(text[:min(len(name.Name)+1,
		len(text))]) || strings.HasPrefix(text, "Deprecated: ") {
		return nil
	}
	if text == "" {
		return []Finding{{f.Path, t.lineOf(name), fmt.Sprintf("%s has no comment; say what it is, "+
			"with units and errors", name.Name)}}
	}
	return []Finding{{f.Path, t.lineOf(name), fmt.Sprintf("the comment of %s does not begin with "+
		"its name", name.Name)}}
}
