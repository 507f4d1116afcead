package lint

import (
	"fmt"
	"regexp"
	"strings"
)

// Rules about go.mod and docs/dependencies.md. Each rule only reads the tree and waits for nothing;
// what it returns is its caller's.

// MaxDirectDependencies is how many modules the main module may require directly.
const MaxDirectDependencies = 18

// goDirective is the language version that the house is built with; a dependency that wants more is
// refused.
var goDirective = regexp.MustCompile(`^go 1\.26(\.\d+)?$`)

// ownReplace is the line by which another module of this repository has the main one.
var ownReplace = regexp.MustCompile(`^replace ` + regexp.QuoteMeta(Module) + ` => (\.\./)*\.\.$`)

// checkGoDirective refuses a go.mod with another language version, or with a toolchain or replace
// line, but for one that points to the main module.
func checkGoDirective(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		if f.Path != "go.mod" && !strings.HasSuffix(f.Path, "/go.mod") || f.isTestdata() {
			continue
		}
		ok := false
		for i, line := range strings.Split(string(f.Text), "\n") {
			ok = ok || goDirective.MatchString(line)
			if word, _, _ := strings.Cut(line, " "); word == "toolchain" ||
				word == "replace" && !ownReplace.MatchString(line) {
				found = append(found,
					Finding{f.Path, i + 1, "a " + word +
						" line: others who build this do not have what it points to"})
			}
		}
		if !ok {
			found = append(found,
				Finding{f.Path, 0,
					"the go directive is not 1.26: a dependency or a hand raised it; go back"})
		}
	}
	return found
}

// directDependencies lists the modules that go.mod requires without the mark that they are
// indirect.
func directDependencies(gomod string) (modules []string) {
	inside := false
	for line := range strings.Lines(gomod) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "require ("):
			inside = true
			continue
		case line == ")":
			inside = false
		}
		rest, single := strings.CutPrefix(line, "require ")
		if (inside || single) && !strings.HasSuffix(line, "// indirect") && rest != "" &&
			!strings.HasPrefix(rest, "//") {
			modules = append(modules, strings.Fields(rest)[0])
		}
	}
	return modules
}

// checkDependencies refuses too many direct dependencies, and any without a section in
// docs/dependencies.md that gives its reason.
func checkDependencies(t *Tree) (found []Finding) {
	gomod, reasons := t.fileAt("go.mod"), t.fileAt("docs/dependencies.md")
	if gomod == nil || reasons == nil {
		return []Finding{{"docs/dependencies.md", 0, "this file or go.mod is missing"}}
	}
	modules := directDependencies(string(gomod.Text))
	if len(modules) > MaxDirectDependencies {
		text := fmt.Sprintf("%d direct dependencies, the budget is %d; write the few lines instead",
			len(modules), MaxDirectDependencies)
		found = append(found, Finding{"go.mod", 0, text})
	}
	for _, m := range modules {
		heading := regexp.MustCompile(`(?m)^#+ .*` + regexp.QuoteMeta(m) + `(\W|$)`)
		if !heading.Match(reasons.Text) {
			found = append(found,
				Finding{"docs/dependencies.md", 0, "no section about " + m +
					": why, what instead, what it costs"})
		}
	}
	return found
}
