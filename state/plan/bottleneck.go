package plan

import "slices"

// minBottleneck returns, among the assignments of least total cost, one whose largest load is
// least, as the column of each row: the receiver of most bytes gets as few as possible. All of
// them, and only they, consist of pairs without slack and leave no column free whose dual is below
// 0. load(r, c) is the load of row r in column c; rows beyond the real ones stand for columns that
// stay free. It changes nothing of a, which assignColumns has made for the same goroutine.
func (a *assignment) minBottleneck(load func(r, c int) int) []int {
	rows := len(a.column)
	tight := func(r, c int) bool {
		if r < rows {
			return a.slack(r, c) == 0
		}
		return a.v[c] == 0
	}
	largest, least := 0, 0
	for r := range rows {
		largest = max(largest, load(r, a.column[r]))
		smallest := forbidden
		for c := range a.cols {
			if tight(r, c) {
				smallest = min(smallest, load(r, c))
			}
		}
		least = max(least, smallest)
	}
	if least == largest {
		return a.column
	}
	loads := []int{least}
	for r := range rows {
		for c := range a.cols {
			if tight(r, c) && load(r, c) > least {
				loads = append(loads, load(r, c))
			}
		}
	}
	slices.Sort(loads)
	loads = slices.Compact(loads)
	low := 0
	high, _ := slices.BinarySearch(loads, largest)
	best := slices.Clone(a.column)
	// The least load comes first, because it is usually possible.
	for try := low; low < high; try = (low + high) / 2 {
		limit := loads[try]
		m := matching{allowed: func(r, c int) bool {
			return tight(r, c) && (r >= rows || load(r, c) <= limit)
		}}
		if m.findPerfect(best, a.cols) {
			high = try
			best = m.column[:rows]
		} else {
			low = try + 1
		}
	}
	return best
}

// A matching pairs rows and columns one to one among the pairs that are allowed. It does no I/O and
// is for one goroutine at a time.
type matching struct {
	allowed func(r, c int) bool
	column  []int  // column of each row, -1 while it has none
	row     []int  // row of each column, -1 while it has none
	seen    []bool // columns that the present search has visited
}

// findPerfect looks for a matching of n rows and n columns (Kuhn's method), beginning with a known
// matching of the first rows. It reports whether there is one, which column and row then have.
func (m *matching) findPerfect(known []int, n int) bool {
	m.column, m.row, m.seen = repeatInt(n, -1), repeatInt(n, -1), make([]bool, n)
	for r, c := range known {
		if m.allowed(r, c) {
			m.column[r], m.row[c] = c, r
		}
	}
	for r := range n {
		if m.column[r] >= 0 {
			continue
		}
		clear(m.seen)
		if !m.augment(r) {
			return false
		}
	}
	return true
}

// augment gives a row a column by moving other rows to other columns; false if there is none.
func (m *matching) augment(r int) bool {
	for c := range m.row {
		if m.row[c] < 0 && !m.seen[c] && m.allowed(r, c) {
			m.column[r], m.row[c] = c, r
			return true
		}
	}
	for c := range m.row {
		if m.seen[c] || !m.allowed(r, c) {
			continue
		}
		m.seen[c] = true
		if m.augment(m.row[c]) {
			m.column[r], m.row[c] = c, r
			return true
		}
	}
	return false
}
