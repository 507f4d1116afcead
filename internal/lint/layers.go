package lint

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The rule about which package may import which. It only reads the tree; a lattice is of the one
// call that has parsed it.

//go:embed layers.txt
var layersText string

// layers is the import lattice: who may import whom, and who may never reach whom.
type layers struct {
	// package -> packages of this module that it may import, transitively closed
	allowed map[string]map[string]bool
	never   []ban // in the order of their lines
}

// ban says that no package that matches to may reach a package that matches from.
type ban struct {
	from, to string // a name, or a folder and everything below it written as name/*
	reason   string
	line     int // of layers.txt
}

// parseLayers reads the two kinds of line of layers.txt:
//
//	a, b < c, d          c and d may import a, b and what those may import;
//	                     a and b stand on earlier lines, or NONE
//	a, b !< c: reason    c may not import a or b, nor reach them through other packages
func parseLayers(text string) (*layers, error) {
	l := &layers{allowed: map[string]map[string]bool{}}
	var errs []error
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := l.addLine(line, i+1); err != nil {
			errs = append(errs, fmt.Errorf("layers.txt:%d: %w", i+1, err))
		}
	}
	return l, errors.Join(errs...)
}

// addLine adds line n of layers.txt to the lattice, of which the lines before are part.
func (l *layers) addLine(line string, n int) error {
	if below, rest, ok := strings.Cut(line, "!<"); ok {
		above, reason, _ := strings.Cut(rest, ":")
		if strings.TrimSpace(reason) == "" {
			return errors.New("a ban without a reason: write «a !< b: why»")
		}
		for _, from := range splitNames(below) {
			for _, to := range splitNames(above) {
				l.never = append(l.never, ban{from, to, strings.TrimSpace(reason), n})
			}
		}
		return nil
	}
	below, above, ok := strings.Cut(line, "<")
	if !ok {
		return fmt.Errorf("%q is neither «a < b» nor «a !< b: why»", line)
	}
	for _, to := range splitNames(above) {
		if l.allowed[to] != nil {
			return fmt.Errorf("%s stands on two lines; put all that it may import on one", to)
		}
		may := map[string]bool{}
		for _, from := range splitNames(below) {
			if from == "NONE" {
				continue
			}
			if l.allowed[from] == nil {
				return fmt.Errorf(
					"%s is used before the line that places it; lower floors come first", from)
			}
			may[from] = true
			maps.Copy(may, l.allowed[from])
		}
		l.allowed[to] = may
	}
	return nil
}

// splitNames returns the names of a list with commas or spaces between them.
func splitNames(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// matchesPattern reports whether a package is the one that a pattern names, or with "folder/*" the
// folder or below it.
func matchesPattern(pattern, name string) bool {
	if folder, ok := strings.CutSuffix(pattern, "/*"); ok {
		return name == folder || strings.HasPrefix(name, folder+"/")
	}
	return pattern == name
}

// checkLayers refuses imports that layers.txt does not allow.
func checkLayers(t *Tree) []Finding { return checkLayersText(t, layersText) }

// checkLayersText is checkLayers with the given text for layers.txt.
func checkLayersText(t *Tree, text string) []Finding {
	l, err := parseLayers(text)
	if err != nil {
		return []Finding{{"internal/lint/layers.txt", 0, err.Error()}}
	}
	graph := t.imports()
	var found []Finding
	for pkg, imports := range graph {
		may, placed := l.allowed[pkg]
		if !placed {
			found = append(found,
				Finding{pkg, 0,
					"no floor of its own: say in internal/lint/layers.txt what it may import"})
			continue
		}
		for _, p := range imports {
			if _, own := graph[p]; own && !may[p] {
				found = append(found,
					Finding{pkg, 0, fmt.Sprintf(
						"imports %s, which does not lie below it in internal/lint/layers.txt", p)})
			}
		}
	}
	for pkg := range l.allowed {
		if _, ok := graph[pkg]; !ok {
			found = append(found,
				Finding{"internal/lint/layers.txt", 0,
					"places " + pkg + ", which does not exist; take it out"})
		}
	}
	return sortFindings(append(found, l.checkBans(graph)...))
}

// checkBans refuses a package that reaches another, also through others of this module, in spite of
// a ban.
func (l *layers) checkBans(graph map[string][]string) (found []Finding) {
	for pkg := range graph {
		for _, b := range l.never {
			if !matchesPattern(b.to, pkg) {
				continue
			}
			if route := importRoute(graph, pkg, b.from, map[string]bool{}); route != nil {
				text := fmt.Sprintf("imports %s, which layers.txt:%d bans: %s",
					strings.Join(route, ", which imports "), b.line, b.reason)
				found = append(found, Finding{pkg, 0, text})
			}
		}
	}
	return found
}

// importRoute returns the imports that lead from pkg to a package that matches target; nil if there
// are none. It adds the packages that it visits to seen.
func importRoute(graph map[string][]string, pkg, target string, seen map[string]bool) []string {
	if seen[pkg] {
		return nil
	}
	seen[pkg] = true
	for _, p := range graph[pkg] {
		if matchesPattern(target, p) {
			return []string{p}
		}
		if route := importRoute(graph, p, target, seen); route != nil {
			return slices.Insert(route, 0, p)
		}
	}
	return nil
}
