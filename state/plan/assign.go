package plan

import "math"

// forbidden is the cost of a pair that is not allowed.
const forbidden = math.MaxInt

// assignColumns gives each row a column of its own at the least total cost: the Hungarian method
// with shortest augmenting paths (Jonker and Volgenant 1987), O(rows² · columns) at worst, and near
// rows · columns where rows agree. cost has the costs row by row, which it does not change. There
// must be at least as many columns as rows, and an assignment without forbidden pairs. Among equal
// assignments it prefers column home[r] for row r. It returns the column of each row.
//
// The duals are its certificate: u[r] + v[c] <= cost of r and c, v <= 0, and the sum of all u and v
// is the total cost.
func assignColumns(cost []int, rows, cols int, home []int) (column, u, v []int) {
	a := assignment{cost: cost, cols: cols, column: repeatInt(rows, -1), row: repeatInt(cols, -1),
		u: make([]int, rows), v: make([]int, cols)}
	for r := range rows {
		a.u[r] = forbidden
		for _, c := range cost[r*cols:][:cols] {
			a.u[r] = min(a.u[r], c)
		}
		if h := home[r]; a.row[h] < 0 && a.slack(r, h) == 0 {
			a.setMatch(r, h)
		}
	}
	for r := range rows {
		for c := 0; c < cols && a.column[r] < 0; c++ {
			if a.row[c] < 0 && a.slack(r, c) == 0 {
				a.setMatch(r, c)
			}
		}
	}
	dist, from, done := make([]int, cols), make([]int, cols), make([]bool, cols)
	for r := range rows {
		if a.column[r] < 0 {
			a.augment(r, dist, from, done)
		}
	}
	return a.column, a.u, a.v
}

// An assignment is a call of assignColumns in progress, or what it has made. It does no I/O and is
// for the goroutine of that call.
type assignment struct {
	cost   []int // cost of each pair, row by row; forbidden = not allowed
	cols   int   // number of columns
	column []int // column of each row, -1 while it has none
	row    []int // row of each column, -1 while it has none
	u, v   []int // duals of rows and columns
}

// setMatch gives row r column c.
func (a *assignment) setMatch(r, c int) { a.column[r], a.row[c] = c, r }

// slack returns by how much the pair of row r and column c costs more than its duals allow. It is 0
// for all pairs of which best assignments consist.
func (a *assignment) slack(r, c int) int {
	if x := a.cost[r*a.cols+c]; x != forbidden {
		return x - a.u[r] - a.v[c]
	}
	return forbidden
}

// augment gives row start a column by the shortest path of slacks to a free one, and updates the
// duals. The other arguments are scratch memory.
func (a *assignment) augment(start int, dist, from []int, done []bool) {
	for c := range dist {
		dist[c], from[c], done[c] = forbidden, -1, false
	}
	r, at := start, 0
	last := -1
	for {
		next := -1
		for c := range dist {
			if done[c] {
				continue
			}
			if s := a.slack(r, c); s != forbidden && at+s < dist[c] {
				dist[c], from[c] = at+s, r
			}
			if next < 0 || dist[c] < dist[next] ||
				dist[c] == dist[next] && a.row[next] >= 0 && a.row[c] < 0 {
				next = c
			}
		}
		at = dist[next]
		if a.row[next] < 0 {
			last = next
			break
		}
		done[next] = true
		r = a.row[next]
	}
	a.u[start] += at
	for c := range dist {
		if done[c] {
			a.v[c] += dist[c] - at
			a.u[a.row[c]] += at - dist[c]
		}
	}
	for c := last; ; {
		r := from[c]
		next := a.column[r]
		a.setMatch(r, c)
		if r == start {
			return
		}
		c = next
	}
}

// repeatInt returns a list of n numbers x.
func repeatInt(n, x int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = x
	}
	return s
}
