package lint

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Rules about the folders of the repository. Each rule only reads the tree and waits for nothing;
// what it returns is its caller's.

// transparent folders are not rooms of their own: what lies in them counts as if it stood one floor
// up.
var transparent = []string{"internal/"}

// checkFolderCycles refuses a folder whose direct children, each with the packages below it, import
// each other in a circle. Go forbids that for packages only.
func checkFolderCycles(t *Tree) (found []Finding) {
	levels := map[string]map[string]map[string]bool{} // folder -> child -> children that it imports
	graph := t.imports()
	for pkg, imports := range graph {
		for _, p := range imports {
			if _, own := graph[p]; !own {
				continue
			}
			folder, a, b := diverge(roomOf(pkg), roomOf(p))
			if levels[folder] == nil {
				levels[folder] = map[string]map[string]bool{}
			}
			if levels[folder][a] == nil {
				levels[folder][a] = map[string]bool{}
			}
			levels[folder][a][b] = true
		}
	}
	for folder, children := range levels {
		if circle := findCircle(children); circle != nil {
			text := fmt.Sprintf("folders import each other in a circle: %s; data flows one way, "+
				"move what is shared down", strings.Join(circle, " -> "))
			found = append(found, Finding{folder, 0, text})
		}
	}
	return sortFindings(found)
}

// roomOf returns the path of a package without the transparent folders.
func roomOf(pkg string) string {
	for _, t := range transparent {
		pkg = strings.TrimPrefix(pkg, t)
	}
	return pkg
}

// diverge returns the deepest folder that holds both packages, and the child of it in which each
// lies ("." for the folder's own package). They are paths of packages, as roomOf returns them.
func diverge(a, b string) (folder, childA, childB string) {
	as, bs := strings.Split(a, "/"), strings.Split(b, "/")
	n := 0
	for n < len(as) && n < len(bs) && as[n] == bs[n] {
		n++
	}
	// child returns the part of a path below the folder.
	child := func(s []string) string {
		if n == len(s) {
			return "."
		}
		return s[n]
	}
	return path.Join(append([]string{"."}, as[:n]...)...), child(as), child(bs)
}

// findCircle returns one circle of the graph, its first node repeated at the end; nil if there is
// none. It has, by node, the nodes that it leads to.
func findCircle(graph map[string]map[string]bool) []string {
	done := map[string]bool{}
	var walk func(node string, trail []string) []string
	// walk looks for a circle from a node to which trail has led.
	walk = func(node string, trail []string) []string {
		if i := slices.Index(trail, node); i >= 0 {
			return append(slices.Clone(trail[i:]), node)
		}
		if done[node] {
			return nil
		}
		trail = append(trail, node)
		for _, next := range slices.Sorted(maps.Keys(graph[node])) {
			if circle := walk(next, trail); circle != nil {
				return circle
			}
		}
		done[node] = true
		return nil
	}
	for _, node := range slices.Sorted(maps.Keys(graph)) {
		if circle := walk(node, nil); circle != nil {
			return circle
		}
	}
	return nil
}

// grabBags are names that say nothing about what is inside, so everything ends up there.
var grabBags = []string{"util", "utils", "common", "helper", "helpers", "pkg", "misc"}

// checkFolderNames refuses files and folders with a name that says nothing.
func checkFolderNames(t *Tree) (found []Finding) {
	seen := map[string]bool{}
	for _, f := range t.Files {
		parts := strings.Split(f.Path, "/")
		for i, part := range parts {
			name := strings.TrimSuffix(part, path.Ext(part))
			p := strings.Join(parts[:i+1], "/")
			if slices.Contains(grabBags, name) && !seen[p] {
				seen[p] = true
				found = append(found,
					Finding{p, 0, fmt.Sprintf(
						"%q says nothing about what is inside; name it after what it does", name)})
			}
		}
	}
	return found
}

// binaryHomes are the folders in which a file may be binary: what tests read, data and pictures.
var binaryHomes = []string{"testdata", "data", "docs"}

// checkStrayFiles refuses hidden files below the root and binary files beside sources, which is
// what a test leaves in its package's folder if it fails at the wrong moment.
func checkStrayFiles(t *Tree) (found []Finding) {
	for _, f := range t.Files {
		folders := strings.Split(path.Dir(f.Path), "/")
		inHome := slices.ContainsFunc(folders, func(folder string) bool {
			return slices.Contains(binaryHomes, folder)
		})
		switch {
		case strings.Contains(f.Path, "/.") && !inHome:
			found = append(found, Finding{f.Path, 0,
				"a hidden file below the root: nobody sees it; delete it, or give it a name"})
		case bytes.IndexByte(f.Text, 0) >= 0 && !inHome:
			found = append(found, Finding{f.Path, 0, fmt.Sprintf("a binary file among sources: "+
				"delete it, or move it into one of %s", strings.Join(binaryHomes, ", "))})
		}
	}
	return found
}
