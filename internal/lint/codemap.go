package lint

import (
	"regexp"
	"slices"
	"strings"
)

// The rule about the map of the code in ARCHITECTURE.md. It only reads the tree.

// mapRow finds the first column of a table's rows, mapFolder the folders named there, and mapFile
// the files named anywhere on the page.
var (
	mapRow    = regexp.MustCompile(`(?m)^\|[^|]*\|`)
	mapFolder = regexp.MustCompile("`([a-z0-9/_]+)/`")
	mapFile   = regexp.MustCompile("`([a-z0-9_]+/[a-z0-9/_]+\\.(?:go|py|txt))`")
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
	for _, cell := range mapRow.FindAllString(string(f.Text), -1) {
		for _, m := range mapFolder.FindAllStringSubmatch(cell, -1) {
			named[m[1]] = true
			if !slices.ContainsFunc(t.Files, func(f *File) bool {
				return strings.HasPrefix(f.Path, m[1]+"/")
			}) {
				found = append(found,
					Finding{page, 0, m[1] + "/ is on the map of the code but not in the tree"})
			}
		}
	}
	for _, m := range mapFile.FindAllStringSubmatch(string(f.Text), -1) {
		if t.fileAt(m[1]) == nil {
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
