package trace

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/shorten"
)

// mostBytes is how many bytes of a file are read, after decompression.
const mostBytes = 1 << 30

// table is a file of comma-separated cells, which the readers of this package stand on. It belongs
// to one call of Read, ReadCurves or a method of Profile.
type table struct {
	head  []string // names of the columns
	rows  []row
	found findings
}

// row is a line of a table after the first.
type row struct {
	line  int    // from 1 on
	text  string // without its end
	cells []string
}

// readTable reads a table. It fails for what has no first line, is too long, or cannot be read.
func readTable(r io.Reader) (*table, error) {
	t := &table{found: findings{}}
	text, err := t.readAll(r)
	if err != nil {
		return nil, err
	}
	if after, had := bytes.CutPrefix(text, []byte("\xef\xbb\xbf")); had {
		text = after
		t.found.add(ByteOrderMark, 1)
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSuffix(line, "\n")
		if strings.HasSuffix(line, "\r") {
			line = line[:len(line)-1]
			t.found.add(CRLF, number)
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		cells, whole := split(line)
		if t.head == nil && !whole {
			return nil, fmt.Errorf("line %d, which has to name the columns, has a quote out of "+
				"place: is it a table of cells with commas between them?", number)
		}
		if t.head == nil {
			for i, cell := range cells {
				cells[i] = strings.TrimSpace(cell)
			}
			t.head = cells
			continue
		}
		if !whole || len(cells) != len(t.head) {
			t.found.add(Cells, number)
			continue
		}
		t.rows = append(t.rows, row{number, line, cells})
	}
	if t.head == nil && t.found[CutGzip] != nil {
		return nil, errors.New("the compressed file is cut or damaged before its first line, " +
			"which has to name the columns, has ended")
	}
	if t.head == nil {
		return nil, errors.New("it is empty: its first line has to name the columns")
	}
	return t, nil
}

// readAll reads a file, which may be compressed by gzip, and notes where that is cut.
func (t *table) readAll(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, mostBytes+1))
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(text, []byte("\x1f\x8b")) {
		packed, err := gzip.NewReader(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("it begins as a gzip file and is none: %w", err)
		}
		text, err = io.ReadAll(io.LimitReader(packed, mostBytes+1))
		if err != nil {
			t.found.add(CutGzip, 0)
			text = text[:bytes.LastIndexByte(text, '\n')+1] // half a line says other things
		}
	}
	if len(text) > mostBytes {
		return nil, fmt.Errorf("it has more than %s, the limit for a table",
			plural.Bytes(mostBytes))
	}
	return text, nil
}

// split returns the cells of a line of comma-separated cells, without their quotes, and whether all
// quotes in it are closed.
func split(line string) (cells []string, whole bool) {
	if !strings.Contains(line, `"`) {
		return strings.Split(line, ","), true
	}
	r := csv.NewReader(strings.NewReader(line))
	cells, err := r.Read()
	return cells, err == nil
}

// column returns the index of the column with one of some names; -1 = there is none.
func (t *table) column(names ...string) int {
	for _, name := range names {
		for i, head := range t.head {
			if head == name {
				return i
			}
		}
	}
	return -1
}

// columns returns the indexes of columns, all of which there must be.
func (t *table) columns(names ...string) ([]int, error) {
	list := make([]int, len(names))
	for i, name := range names {
		if list[i] = t.column(name); list[i] < 0 {
			return nil, t.missingColumn(name)
		}
	}
	return list, nil
}

// missingColumn is the error for a column that there must be.
func (t *table) missingColumn(names ...string) error {
	var quoted []string
	for _, name := range names {
		quoted = append(quoted, strconv.Quote(name))
	}
	head := shorten.Text(strings.Join(t.head, ","), 200)
	return fmt.Errorf("line 1 names no column %s; it has %q. docs/formats/trace.md has all columns",
		strings.Join(quoted, " or "), head)
}

// number returns the number in a cell, which is finite, at least 0 and at most a limit. Where it is
// not, the rule says why.
func number(cell string, most float64) (float64, Rule) {
	x, err := strconv.ParseFloat(strings.TrimSpace(cell), 64)
	switch {
	case err != nil && !math.IsInf(x, 0), math.IsNaN(x):
		return 0, NoNumber
	case x < 0:
		return 0, Negative
	case math.IsInf(x, 0), x > most:
		return 0, TooLarge
	}
	return x, ""
}
