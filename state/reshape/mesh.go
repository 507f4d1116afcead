package reshape

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/state/layout"
)

// This file finds meshes for fewer workers. Its functions are pure where holds is.

// ShrinkAxis returns the mesh with the largest degree of an axis, but no larger one than it has,
// that so many workers can hold, other axes unchanged. A mesh without the axis stays as it is. It
// reports false if the workers can hold none; then the text means nothing.
func ShrinkAxis(mesh, axis string, workers int) (string, bool) {
	m, err := layout.ParseMesh(mesh)
	if err != nil {
		return "", false
	}
	others := 1
	for _, a := range m {
		if a.Name != axis {
			others *= a.Size
		}
	}
	for i := range m {
		if m[i].Name == axis {
			m[i] = m[i].WithSize(min(m[i].Size, workers/others))
			return m.String(), m[i].Size > 0
		}
	}
	return m.String(), others <= workers
}

// LargestMesh returns the largest mesh that a number of workers can hold: the mesh with a smaller
// degree of an axis, as ShrinkAxis says; and only if not even degree 1 fits, the mesh of most ranks
// among those without a higher degree of any axis that holds accepts. Among several it has the
// least degree of that axis. It reports false if there is none; then the text means nothing.
func LargestMesh(mesh, axis string, workers int, holds func(mesh string) bool) (string, bool) {
	if next, ok := ShrinkAxis(mesh, axis, workers); ok {
		return next, true
	}
	m, err := layout.ParseMesh(mesh)
	if err != nil {
		return "", false
	}
	meshes := smallerMeshes(m, workers)
	slices.SortStableFunc(meshes, func(a, b layout.Mesh) int {
		return cmp.Or(cmp.Compare(b.Ranks(), a.Ranks()),
			cmp.Compare(axisSize(a, axis), axisSize(b, axis)))
	})
	for _, next := range meshes {
		if holds(next.String()) {
			return next.String(), true
		}
	}
	return "", false
}

// smallerMeshes lists the meshes of the same axes with at most so many ranks and no higher degree
// of any axis; higher degrees of the first axes come first.
func smallerMeshes(m layout.Mesh, ranks int) []layout.Mesh {
	if len(m) == 0 {
		return []layout.Mesh{nil}
	}
	var all []layout.Mesh
	for n := min(m[0].Size, ranks); n > 0; n-- {
		for _, rest := range smallerMeshes(m[1:], ranks/n) {
			all = append(all, append(layout.Mesh{m[0].WithSize(n)}, rest...))
		}
	}
	return all
}

// axisSize returns the size of an axis of a mesh; 1 where the mesh does not have it.
func axisSize(m layout.Mesh, axis string) int {
	for _, a := range m {
		if a.Name == axis {
			return a.Size
		}
	}
	return 1
}
