package plan

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// TestAssign compares with every assignment there is: the total, the certificate, and among the
// best ones the smallest largest load.
func TestAssign(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.IntRange(1, 5).Draw(t, "rows")
		cols := rapid.IntRange(rows, 6).Draw(t, "columns")
		cost, load := make([]int, rows*cols), make([]int, rows*cols)
		for i := range cost {
			cost[i] = rapid.IntRange(-4, 4).Draw(t, "cost")
			load[i] = rapid.IntRange(0, 9).Draw(t, "load")
			if i%cols != i/cols && rapid.IntRange(0, 5).Draw(t, "forbidden") == 0 {
				cost[i] = forbidden
			}
		}
		least, lightest := math.MaxInt, math.MaxInt
		var walk func(r, used, total, most int)
		walk = func(r, used, total, most int) {
			if r == rows {
				if total < least || total == least && most < lightest {
					least, lightest = total, most
				}
				return
			}
			for c := range cols {
				if used>>c&1 == 0 && cost[r*cols+c] != forbidden {
					walk(r+1, used|1<<c, total+cost[r*cols+c], max(most, load[r*cols+c]))
				}
			}
		}
		walk(0, 0, 0, 0)

		home := make([]int, rows)
		for r := range home {
			home[r] = rapid.IntRange(0, cols-1).Draw(t, "home")
		}
		column, u, v := assignColumns(cost, rows, cols, home)
		check := func(column []int) (total, most int) {
			used := map[int]bool{}
			for r, c := range column {
				if used[c] || cost[r*cols+c] == forbidden {
					t.Fatalf("assignment %v", column)
				}
				used[c] = true
				total += cost[r*cols+c]
				most = max(most, load[r*cols+c])
			}
			return total, most
		}
		if total, _ := check(column); total != least || sum(u)+sum(v) != least {
			t.Fatalf("total %d, dual %d, want %d", total, sum(u)+sum(v), least)
		}
		for i, x := range cost {
			if x != forbidden && u[i/cols]+v[i%cols] > x || v[i%cols] > 0 {
				t.Fatalf("the duals %v and %v are no certificate for %v", u, v, cost)
			}
		}
		a := assignment{cost: cost, cols: cols, column: column, u: u, v: v}
		if total, most := check(a.minBottleneck(func(r, c int) int {
			return load[r*cols+c]
		})); total != least || most != lightest {
			t.Fatalf("total %d with load %d, want %d with %d", total, most, least, lightest)
		}
	})
}

// TestAssignPrefersHome pins that nothing moves for nothing.
func TestAssignPrefersHome(t *testing.T) {
	home := []int{2, 0, 3}
	column, _, _ := assignColumns(make([]int, 12), 3, 4, home)
	for r, c := range column {
		if c != home[r] {
			t.Errorf("row %d has column %d, home is %d", r, c, home[r])
		}
	}
}
