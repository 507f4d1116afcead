package lint

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// mdLink finds the target of [text](target) and ![text](target), mdScheme those that lead out of
// the repository, and mdCode what is shown and not linked.
var (
	mdLink   = regexp.MustCompile(`\]\(([^()\s]+)(?:\s+"[^"]*")?\)`)
	mdScheme = regexp.MustCompile(`^([a-z][a-z0-9+.-]*:|//)`)
	mdCode   = regexp.MustCompile("`[^`]*`")
)

// checkLinks asks that the links between the files of the repository lead somewhere.
func checkLinks(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		if path.Ext(f.Path) != ".md" || f.testdata() {
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
				if target := string(m[1]); !t.leads(f, target) {
					found = append(found,
						Finding{f.Path, line,
							fmt.Sprintf(
								"the link to %s leads nowhere: no file or folder lies there",
								target)})
				}
			}
		}
	}
	return sorted(found)
}

// leads reports whether a link in f ends in this tree, or out in the world, which nobody looks
// after.
func (t *Tree) leads(f *File, target string) bool {
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
