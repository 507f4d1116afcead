package senselog

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/sense/history"
)

// row returns a row whose steps end with a number.
func row(step uint64) history.Row {
	return history.Row{Step: step, Steps: 1, Size: 1, Span: 10}
}

// read returns the rows of a file, or fails the test.
func read(t *testing.T, path string) (rows []history.Row) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range bytes.SplitAfter(text, []byte("\n")) {
		if r, err := history.Parse(line); err == nil {
			rows = append(rows, r)
		}
	}
	return rows
}

// The file comes with the first row, stays below its limit, and has all steps.
func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sense.jsonl")
	l := New(path)
	l.limit = 4096
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a file of no rows: %v", err)
	}
	for i := range uint64(200) {
		if err := l.Append(row(i+1), time.Unix(int64(i), 0)); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() > 4096 {
			t.Fatalf("%v bytes, %v", info.Size(), err)
		}
	}
	rows := read(t, path)
	if last := rows[len(rows)-1]; last.Step != 200 || last.Time != "1970-01-01T00:03:19Z" {
		t.Errorf("the last row is %+v", last)
	}
	steps := uint64(0)
	for _, r := range rows {
		steps += r.Steps
	}
	if steps < 100 {
		t.Errorf("%d rows are of %d steps", len(rows), steps)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(row(201), time.Unix(0, 0)); err != nil || len(read(t, path)) != len(rows) {
		t.Errorf("a row after the end: %v", err)
	}
}

// On a full disk people are told once, what was written in part is taken back, and rows are kept
// again when there is room.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sense.jsonl")
	l := New(path)
	full, errFull := false, errors.New("no space left on device")
	l.open = func(path string) (*file, error) {
		f, err := openFile(path)
		if err != nil {
			return nil, err
		}
		write := f.write
		f.write = func(b []byte) (int, error) {
			if full {
				n, _ := write(b[:len(b)/2])
				return n, errFull
			}
			return write(b)
		}
		return f, nil
	}
	var said []string
	for i := range uint64(9) {
		full = i >= 3 && i < 6
		if err := l.Append(row(i+1), time.Unix(0, 0)); err != nil {
			said = append(said, err.Error())
		}
	}
	if len(said) != 1 || !strings.Contains(said[0], "no space left on device; the job goes on") {
		t.Errorf("people are told %q", said)
	}
	if rows := read(t, path); len(rows) != 6 || rows[5].Step != 9 {
		t.Errorf("the file has %+v", rows)
	}
	if text, _ := os.ReadFile(path); bytes.Count(text, []byte("\n")) != 6 {
		t.Errorf("a part of a line is left: %q", text)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// Where the file cannot be made, or not be made smaller, people are told once, and the file stays
// below its limit.
func TestNoRoom(t *testing.T) {
	dir := t.TempDir()
	missing := New(filepath.Join(dir, "none", "sense.jsonl"))
	if err := missing.Append(row(1), time.Unix(0, 0)); err == nil {
		t.Error("a file in no folder")
	}
	if err := errors.Join(missing.Append(row(2), time.Unix(0, 0)), missing.Close()); err != nil {
		t.Errorf("people are told twice: %v", err)
	}
	l := New(filepath.Join(dir, "sense.jsonl"))
	l.limit = 1000
	if err := os.Mkdir(l.path+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	told := 0
	for i := range uint64(100) {
		if l.Append(row(i+1), time.Unix(0, 0)) != nil {
			told++
		}
	}
	if info, err := os.Stat(l.path); told != 1 || err != nil || info.Size() > 1000 {
		t.Errorf("told %d times, %v bytes, %v", told, info.Size(), err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
