package lint

import (
	"regexp"
	"slices"
	"strings"
)

// The rule about the map of the code in ARCHITECTURE.md. It only reads the tree.

// mapRow finds the first column of a table's rows, and the rest; mapFolder finds the folders in the
// first, and mapBare the files in the rest that are named without a folder. mapPath finds the files
// and folders named anywhere on the page.
var (
	mapRow    = regexp.MustCompile(`(?m)^(\|[^|]*\|)(.*)`)
	mapFolder = regexp.MustCompile("`([a-z0-9/_]+)/`")
	mapBare   = regexp.MustCompile("`([a-z0-9_]+\\.[a-z]+)`")
	mapPath   = regexp.MustCompile("`([a-z0-9_]+(?:/[a-z0-9_]+)*/[a-z0-9_]+(?:\\.[a-z]+)?)/?`")
)

// checkCodeMap refuses a package without a line in ARCHITECTURE.md, and names there of what does
// not exist.
func checkCodeMap(t *Tree) (found []Finding) {
	const page = "ARCHITECTURE.md"
	f := t.fileAt(page)
	if f == nil {
		return []Finding{{page, 0, "is missing"}}
	}
	named := map[string]bool{}
	for _, row := range mapRow.FindAllStringSubmatch(string(f.Text), -1) {
		var folders []string
		for _, m := range mapFolder.FindAllStringSubmatch(row[1], -1) {
			named[m[1]] = true
			folders = append(folders, m[1])
			if !t.has(m[1]) {
				found = append(found,
					Finding{page, 0, m[1] + "/ is on the map of the code but not in the tree"})
			}
		}
		for _, m := range mapBare.FindAllStringSubmatch(row[2], -1) {
			if !slices.ContainsFunc(folders, func(dir string) bool {
				return t.has(dir + "/" + m[1])
			}) {
				found = append(found,
					Finding{page, 0, m[1] + " is named and not in " + strings.Join(folders, ", ")})
			}
		}
	}
	for _, m := range mapPath.FindAllStringSubmatch(string(f.Text), -1) {
		if !t.has(m[1]) && !named[m[1]] {
			found = append(found, Finding{page, 0, m[1] + " is named and not in the tree"})
		}
	}
	for dir := range t.packages() {
		if !named[dir] {
			found = append(found,
				Finding{page, 0, dir +
					"/ is not on the map of the code; say in a line what is in it"})
		}
	}
	return sortFindings(found)
}

// has reports whether there is a file at a path, or one below it.
func (t *Tree) has(p string) bool {
	return slices.ContainsFunc(t.Files, func(f *File) bool {
		return f.Path == p || strings.HasPrefix(f.Path, p+"/")
	})
}
