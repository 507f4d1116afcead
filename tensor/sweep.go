package tensor

import (
	"cmp"
	"iter"
	"slices"
)

// Overlaps yields the pairs (i, j) for which a[i] and b[j] have an element in common, by a sweep
// over the dimension in which the boxes differ most: with n boxes on each side and k pairs it takes
// O(n log n + k) steps where the boxes are cut along one dimension. All boxes have the same number
// of dimensions. The order of the pairs depends on the boxes alone.
func Overlaps(a, b []Box) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		d := mostCutDimension(a, b)
		if d < 0 { // scalars
			for i := range a {
				for j := range b {
					if !yield(i, j) {
						return
					}
				}
			}
			return
		}
		orderA, orderB := orderByStart(a, d), orderByStart(b, d)
		var openA, openB []int
		for len(orderA)+len(orderB) > 0 {
			if len(orderB) == 0 || len(orderA) > 0 && a[orderA[0]][d].From <= b[orderB[0]][d].From {
				i := orderA[0]
				orderA = orderA[1:]
				openB = slices.DeleteFunc(openB, func(j int) bool {
					return b[j][d].To <= a[i][d].From
				})
				for _, j := range openB {
					if a[i].Overlaps(b[j]) && !yield(i, j) {
						return
					}
				}
				openA = append(openA, i)
				continue
			}
			j := orderB[0]
			orderB = orderB[1:]
			openA = slices.DeleteFunc(openA, func(i int) bool { return a[i][d].To <= b[j][d].From })
			for _, i := range openA {
				if a[i].Overlaps(b[j]) && !yield(i, j) {
					return
				}
			}
			openB = append(openB, j)
		}
	}
}

// mostCutDimension returns the dimension in which the boxes start at the most places, -1 without
// dimensions.
func mostCutDimension(a, b []Box) int {
	best, most := -1, 0
	for _, boxes := range [2][]Box{a, b} {
		if len(boxes) == 0 {
			continue
		}
		for d := range boxes[0] {
			starts := map[int]bool{}
			for _, box := range boxes {
				starts[box[d].From] = true
			}
			if len(starts) > most {
				best, most = d, len(starts)
			}
		}
	}
	return best
}

// orderByStart returns the indices of the boxes that are not empty, by where they start in
// dimension d.
func orderByStart(boxes []Box, d int) []int {
	order := make([]int, 0, len(boxes))
	for i, b := range boxes {
		if !b.Empty() {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Compare(boxes[i][d].From, boxes[j][d].From)
	})
	return order
}
