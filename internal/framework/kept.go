package framework

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Kept answers: a zip file each, beside the test. The goroutine of the test calls the methods,
// which read and write files.

const (
	answers = "testdata/answers"
	// printed is the entry of a kept answer with what the program printed; the others are files
	// that it wrote.
	printed = "printed"
)

// asked counts the questions of each test, so that an answer has a name that does not change with
// the question.
var asked struct {
	sync.Mutex                // guards of
	of         map[string]int // by name of the test; nil = none was counted
}

// answerFile returns the file in which the answer is kept, and as before the part of its name that
// says which question of which test it is. It counts the questions of the test, so each question
// calls it once. Any goroutine may call it.
func (q *question) answerFile(t *testing.T) (before, name string) {
	asked.Lock()
	defer asked.Unlock()
	if asked.of == nil {
		asked.of = map[string]int{}
	}
	asked.of[t.Name()]++
	before = fmt.Sprintf(
		"%s/%s-%d-",
		answers,
		strings.ReplaceAll(t.Name(), "/", "-"),
		asked.of[t.Name()],
	)
	return before, before + q.key + ".zip"
}

// readAnswer returns what the program printed when it was asked before, and writes the files that
// it wrote then into q.folders; false if no answer is kept. q.hash came before. A broken file ends
// the test.
func (q *question) readAnswer(t *testing.T) ([]byte, bool) {
	t.Helper()
	_, name := q.answerFile(t)
	b, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return nil, false
	} else if err != nil {
		t.Fatal(err)
	}
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var out []byte
	for _, e := range z.File {
		b, err := fs.ReadFile(z, e.Name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if e.Name == printed {
			out = b
			continue
		}
		var i int
		number, inside, _ := strings.Cut(e.Name, "/")
		if _, err := fmt.Sscan(number, &i); err != nil || i >= len(q.folders) {
			t.Fatalf("%s: no folder for %s", name, e.Name)
		}
		to := filepath.Join(q.folders[i], inside)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []byte(strings.NewReplacer(q.folderMarks(true)...).Replace(string(out))), true
}

// writeAnswer keeps an answer, and removes those to earlier forms of the question. A failure to
// write ends the test.
func (q *question) writeAnswer(t *testing.T, out []byte) {
	t.Helper()
	before, name := q.answerFile(t)
	old, _ := filepath.Glob(before + "*.zip")
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	// add writes a file of the answer; a failure ends the test.
	add := func(name string, content []byte) {
		w, err := z.Create(name)
		if err == nil {
			_, err = io.Copy(w, bytes.NewReader(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	add(printed, []byte(strings.NewReplacer(q.folderMarks(false)...).Replace(string(out))))
	for _, i := range q.writes {
		err := fs.WalkDir(
			os.DirFS(q.folders[i]),
			".",
			func(p string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				content, err := os.ReadFile(filepath.Join(q.folders[i], p))
				add(path.Join(fmt.Sprint(i), p), content)
				return err
			},
		)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(answers, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
