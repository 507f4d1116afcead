// Package framework has tests ask PyTorch, DeepSpeed and Megatron-Core what they find in files, and
// keeps the answers.
//
// A framework takes seconds to import and more to run, and its answer depends on nothing but what
// it is asked. So an answer that was given once is kept in testdata/answers beside the test, under
// a hash of the question: the scripts, the words, the bytes of all files, and the versions in
// scripts/torch2.txt. A test that asks the same again gets the answer from there, and compares it
// as if it came from the framework. Another question starts the framework.
//
// The variable FRAMEWORKS of the environment says what happens:
//
//	(unset)   kept answers are taken; for others the framework is started, or the test skipped
//	          where there is none
//	never     kept answers are taken; for others the test is skipped
//	fresh     the framework is always started, and must be there
//	record    the same, and its answers are kept
package framework

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Ask returns what a program of a framework prints, from an answer that was kept, or else by
// running it, for which it waits. module is the folder of the framework below site-packages. words
// are the arguments of Python. folders are all folders that the words name; those that do not exist
// yet are written by the program, or from the kept answer, and are the test's. The test is skipped
// where there is no answer to be had, and fails where the program does. Its own goroutine calls it.
func Ask(t *testing.T, module string, words []string, folders ...string) []byte {
	t.Helper()
	q := &question{module: module, words: words, folders: folders}
	q.hash(t)
	mode := os.Getenv("FRAMEWORKS")
	if mode == "" || mode == "never" {
		if out, ok := q.readAnswer(t); ok {
			return out
		}
		if mode == "never" {
			t.Skip("no kept answer to this question, and FRAMEWORKS=never")
		}
		t.Logf("no kept answer to this question: %s is started", module) // counted by scripts/test
	} else if mode != "fresh" && mode != "record" {
		t.Fatalf("FRAMEWORKS=%s: it is never, fresh, record or unset", mode)
	}
	out := q.runFramework(t, mode != "")
	if mode == "record" {
		q.writeAnswer(t, out)
	}
	return out
}

// question is what a framework is asked. The goroutine of one test uses it; hash reads files, and
// runFramework waits for a process.
type question struct {
	module  string   // the folder of the framework below site-packages
	words   []string // the arguments of Python
	folders []string // the folders that the words name
	writes  []int    // the indexes of the folders that the program writes
	key     string   // the hash of all that the answer depends on, in hex
}

// hash sets which folders the program writes, and the key of the question; it reads all files that
// the answer depends on. A file that cannot be read ends the test.
func (q *question) hash(t *testing.T) {
	t.Helper()
	h := sha256.New()
	versions, err := os.ReadFile(RepositoryPath(t, "scripts/torch2.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(versions)) {
		if !strings.HasPrefix(line, "#") {
			fmt.Fprint(h, line)
		}
	}
	scripts, err := filepath.Glob(RepositoryPath(t, "format/*/testdata/*.py"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts under format/: %v", err)
	}
	for _, script := range scripts {
		b, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(h, "script %s %x\n", filepath.Base(script), sha256.Sum256(b))
	}
	fmt.Fprintf(h, "MODEL=%q %q\n", os.Getenv("MODEL"), q.maskFolders(q.words))
	for i, folder := range q.folders {
		if _, err := os.Stat(folder); os.IsNotExist(err) {
			q.writes = append(q.writes, i)
			continue
		}
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			name, _ := filepath.Rel(folder, path)
			fmt.Fprintf(h, "file %d %q %x\n", i, filepath.ToSlash(name), sha256.Sum256(b))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	q.key = hex.EncodeToString(h.Sum(nil))[:16]
}

// maskFolders returns the words with a mark in place of each folder, which has another path the
// next time. A folder inside another one must be replaced first.
func (q *question) maskFolders(words []string) (list []string) {
	r := strings.NewReplacer(q.folderMarks(false)...)
	for _, w := range words {
		list = append(list, r.Replace(w))
	}
	return list
}

// folderMarks returns pairs for strings.NewReplacer: each folder and its mark, or with back each
// mark and its folder; longer folders come first.
func (q *question) folderMarks(back bool) (list []string) {
	order := make([]int, len(q.folders))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(
		order,
		func(a, b int) int { return len(q.folders[b]) - len(q.folders[a]) },
	)
	for _, i := range order {
		if mark := fmt.Sprintf("«%d»", i); back {
			list = append(list, mark, q.folders[i])
		} else {
			list = append(list, q.folders[i], mark)
		}
	}
	return list
}

// runFramework runs the program and returns what it prints. If the framework is not installed, it
// skips the test, or with must fails it. A program that fails ends the test; the end of the test
// kills it.
func (q *question) runFramework(t *testing.T, must bool) []byte {
	t.Helper()
	python := RepositoryPath(t, ".venv-torch2/bin/python")
	installed, _ := filepath.Glob(
		RepositoryPath(t, ".venv-torch2/lib/python*/site-packages/"+q.module))
	switch {
	case installed == nil && must:
		t.Fatalf("no %s; scripts/setup torch2 installs it", q.module)
	case installed == nil:
		t.Skipf(
			"no kept answer to this question, and no %s; scripts/setup torch2 installs it",
			q.module,
		)
	}
	out, err := exec.CommandContext(t.Context(), python,
		append([]string{"-W", "ignore"}, q.words...)...).
		Output()
	if failed, ok := err.(*exec.ExitError); ok {
		t.Fatalf("%v: %s", err, failed.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	return out
}

// RepositoryPath returns the path of a file of the repository, in whichever folder the test runs.
// name has slashes and is relative to the root of the repository. It looks for go.mod in the
// folders above, and ends the test where there is none. The goroutine of the test calls it.
func RepositoryPath(t testing.TB, name string) string {
	t.Helper()
	at, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return filepath.Join(at, name)
		}
		above := filepath.Dir(at)
		if above == at {
			t.Fatal("no go.mod above the test")
		}
		at = above
	}
}
