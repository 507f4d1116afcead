package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Tables that commands print, on their own goroutine.

// Table prints rows to out, of which the first are the heads, without the columns that have nothing
// but dashes; nothing where there are no others. All rows are of the same length.
func Table(out io.Writer, rows [][]string) error {
	if len(rows) == 1 {
		return nil
	}
	tab := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	told := make([]bool, len(rows[0]))
	for _, row := range rows[1:] {
		for i, cell := range row {
			told[i] = told[i] || cell != "-"
		}
	}
	for _, row := range rows {
		var cells []string
		for i, cell := range row {
			if told[i] {
				cells = append(cells, cell)
			}
		}
		fmt.Fprintln(tab, strings.Join(cells, "\t"))
	}
	return tab.Flush()
}

// OrDash returns s, or a dash if it is empty, for a cell of a table.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
