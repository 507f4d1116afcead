package lint

import (
	"regexp"
	"slices"
	"strings"
)

// mapRow finds the first column of a table's rows, mapFolder the folders named there, and mapFile
// the files named anywhere on the page.
var (
	mapRow    = regexp.MustCompile(`(?m)^\|[^|]*\|`)
	mapFolder = regexp.MustCompile("`([a-z0-9/_]+)/`")
	mapFile   = regexp.MustCompile("`([a-z0-9_]+/[a-z0-9/_]+\\.(?:go|py|txt))`")
)

// checkCodeMap asks for a line about every package in ARCHITECTURE.md, and that what is named there
// exists.
func checkCodeMap(t *Tree) (found []Finding) {
	const page = "ARCHITECTURE.md"
	f := t.file(page)
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
		if t.file(m[1]) == nil {
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
	return sorted(found)
}
