package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestCommitted makes the assembly anew and compares it with what lies in package kernel, headers
// apart: these hold the names of the files.
func TestCommitted(t *testing.T) {
	for name := range isas {
		dir := t.TempDir()
		asm, stubs := "z"+name+"_amd64.s", "z"+name+"_amd64.go"
		out, err := exec.Command("go", "run", ".", "-isa", name, "-pkg", "kernel",
			"-out", filepath.Join(dir, asm), "-stubs", filepath.Join(dir, stubs)).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		for _, file := range []string{asm, stubs} {
			if afterHeader(t, filepath.Join(dir, file)) != afterHeader(t,
				filepath.Join("..", file)) {
				t.Errorf("%s is not what the generator makes: run go generate in kernel", file)
			}
		}
	}
}

// afterHeader returns a generated file without its first line, or fails the test.
func afterHeader(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(text, []byte("\n"))
	return string(rest)
}
