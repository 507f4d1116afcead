package lint

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// update has the tests write what they else compare.
var update = flag.Bool("update", false,
	"write the dependency list of the binary and regenerate the assembly")

// root is the root of the repository, from the folder of this package.
const root = "../.."

// TestHouse runs every rule on this repository.
func TestHouse(t *testing.T) {
	list := runCommand(t, root, nil, "git", "ls-files", "--cached", "--others",
		"--exclude-standard")
	tree, err := Load(os.DirFS(root), strings.Fields(list))
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range Rules {
		t.Run(rule.Name, func(t *testing.T) {
			for _, f := range rule.Check(tree) {
				t.Error(f)
			}
		})
	}
}

// TestBinaryDependencies compares the packages that are linked into the binary with the list that
// is checked in, so that a new one is seen in review.
func TestBinaryDependencies(t *testing.T) {
	const file = root + "/cmd/shoal/deps.txt"
	env := []string{"GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0"}
	got := runCommand(t, root, env, "go", "list", "-deps", "-f",
		"{{if not .Standard}}{{.ImportPath}}{{end}}", "./cmd/shoal")
	got = strings.Join(slices.Sorted(strings.Lines(got)), "")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("cmd/shoal/deps.txt is not what the binary links (-file +binary):\n%s\nIf the "+
			"change is meant, run: go test ./internal/lint -update", diff)
	}
}

// TestAssembly generates package kernel once more, away from the repository, and compares.
func TestAssembly(t *testing.T) {
	src, tmp := filepath.Join(root, "kernel"), t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		copyFile(t, filepath.Join(root, name), filepath.Join(tmp, name))
	}
	if err := os.CopyFS(filepath.Join(tmp, "kernel"), os.DirFS(src)); err != nil {
		t.Fatal(err)
	}
	generated, err := filepath.Glob(filepath.Join(tmp, "kernel", "z*"))
	if err != nil || len(generated) == 0 {
		t.Fatalf("found no generated file in kernel: %v", err)
	}
	for _, name := range generated {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	runCommand(t, tmp, nil, "go", "generate", "./kernel")
	for _, name := range generated {
		committed := filepath.Join(src, filepath.Base(name))
		if *update {
			copyFile(t, name, committed)
		}
		if !bytes.Equal(readFile(t, name), readFile(t, committed)) {
			t.Errorf("kernel/%s is not what kernel/_asm generates; run: go generate ./kernel",
				filepath.Base(name))
		}
	}
}

// runCommand runs a program in a folder with additions to the environment, waits for it, and
// returns what it prints on standard output. It ends the test when the program fails, and the end
// of the test kills the program.
func runCommand(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, stderr.String())
	}
	return string(out)
}

// readFile returns the content of a file, and ends the test where it cannot be read.
func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// copyFile copies a file over another one, with mode 0644. A failure ends the test.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	if err := os.WriteFile(to, readFile(t, from), 0o644); err != nil {
		t.Fatal(err)
	}
}
