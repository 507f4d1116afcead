package lint

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The rules about links between pages. They only read the tree.

// mdLink finds the target of [text](target) and ![text](target), mdScheme those that lead out of
// the repository, and mdCode what is shown and not linked.
var (
	mdLink   = regexp.MustCompile(`\]\(([^()\s]+)(?:\s+"[^"]*")?\)`)
	mdScheme = regexp.MustCompile(`^([a-z][a-z0-9+.-]*:|//)`)
	mdCode   = regexp.MustCompile("`[^`]*`")
)

// checkLinks refuses links between the files of the repository whose target does not exist.
func checkLinks(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		if path.Ext(f.Path) != ".md" || f.isTestdata() {
			continue
		}
		line, code := 0, false
		for text := range bytes.Lines(f.Text) {
			line++
			if bytes.HasPrefix(bytes.TrimSpace(text), []byte("```")) {
				code = !code
			}
			if code {
				continue
			}
			for _, m := range mdLink.FindAllSubmatch(mdCode.ReplaceAll(text, nil), -1) {
				if target := string(m[1]); !t.hasTarget(f, target) {
					found = append(found,
						Finding{f.Path, line,
							fmt.Sprintf(
								"the link to %s leads nowhere: no file or folder lies there",
								target)})
				}
			}
		}
	}
	return sortFindings(found)
}

// hasTarget reports whether the target of a link in f exists in this tree. A target outside the
// repository counts as one that does.
func (t *Tree) hasTarget(f *File, target string) bool {
	target, _, _ = strings.Cut(target, "#")
	if target == "" || mdScheme.MatchString(target) {
		return true
	}
	place := path.Join(path.Dir(f.Path), target)
	if strings.HasPrefix(target, "/") {
		place = path.Join(".", target)
	}
	return place == "." || slices.ContainsFunc(t.Files, func(g *File) bool {
		return g.Path == place || strings.HasPrefix(g.Path, place+"/")
	})
}

// checkContents refuses a page beside a README.md below docs/ to which that has no link.
func checkContents(t *Tree) (found []Finding) {
	for _, list := range t.Files {
		folder, name := path.Split(list.Path)
		if name != "README.md" || !strings.HasPrefix(folder, "docs/") || list.isTestdata() {
			continue
		}
		for _, f := range t.Files {
			in, page := path.Split(f.Path)
			if in != folder || path.Ext(page) != ".md" || page == name {
				continue
			}
			if !bytes.Contains(list.Text, []byte("]("+page)) {
				found = append(found, Finding{list.Path, 0, fmt.Sprintf(
					"there is no link to %s: list every page of the folder", page)})
			}
		}
	}
	return sortFindings(found)
}
