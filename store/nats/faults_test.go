package nats

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// childFolder is the variable that makes this test binary a process that writes into a store until
// it is killed.
const childFolder = "SHOAL_TEST_STORE"

// TestMain has this program write for ever if the environment asks for that, and run the tests
// otherwise.
func TestMain(m *testing.M) {
	if folder := os.Getenv(childFolder); folder != "" {
		writeForever(folder)
	}
	os.Exit(m.Run())
}

// writeForever writes to the store in a folder, and prints the number of every write that was
// acknowledged, a line each. It returns never: an error is printed, and ends the process.
func writeForever(folder string) {
	s, err := Open(folder)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for n := 0; ; n++ {
		if _, err := s.Create(context.Background(), fmt.Sprintf("n.%d", n),
			make([]byte, n%3000)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

// startWriting starts a process that runs writeForever, and returns it with its output. The process
// is killed at the end of the test, if it is not before.
func startWriting(t *testing.T, folder string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), childFolder+"="+folder)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c, bufio.NewScanner(out)
}

// TestKilledInMidWrite kills a process that writes: every acknowledged write is there.
func TestKilledInMidWrite(t *testing.T) {
	for _, after := range []int{1, 10, 200} {
		folder := t.TempDir()
		c, out := startWriting(t, folder)
		last := -1
		for out.Scan() { // to the end of what it said before it died
			if _, err := fmt.Sscan(out.Text(), &last); err != nil {
				t.Fatalf("the writer says %q", out.Text())
			}
			if last == after {
				c.Process.Kill()
			}
		}
		c.Wait()
		s := openFolder(t, folder)
		for n := range last + 1 {
			if e, err := s.Get(t.Context(), fmt.Sprintf("n.%d", n)); err != nil ||
				len(e.Value) != n%3000 {
				t.Fatalf("write %d of %d that were acknowledged: %d bytes (%v)", n, last+1,
					len(e.Value), err)
			}
		}
		if _, err := s.Create(t.Context(), "more", nil); err != nil {
			t.Error(err)
		}
	}
}

// TestFolderInUse opens a folder that another process has open: the error names that.
func TestFolderInUse(t *testing.T) {
	folder := t.TempDir()
	c, out := startWriting(t, folder)
	if !out.Scan() {
		t.Fatal("the writer says nothing")
	}
	_, err := Open(folder)
	if err == nil {
		t.Fatal("two processes have one folder open")
	}
	for _, want := range []string{folder, "in use by another process", fmt.Sprint(c.Process.Pid)} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

// TestBadFolder: the error about a file in place of a folder names it.
func TestBadFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file for a folder: %v", err)
	}
}

// BenchmarkOpenAndClose opens and closes the store in a folder.
func BenchmarkOpenAndClose(b *testing.B) {
	folder := b.TempDir()
	for b.Loop() {
		s, err := Open(folder)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreate writes values of 1000 bytes.
func BenchmarkCreate(b *testing.B) {
	s := openFolder(b, b.TempDir())
	value := make([]byte, 1000)
	for n := 0; b.Loop(); n++ {
		if _, err := s.Create(b.Context(), fmt.Sprintf("n.%d", n), value); err != nil {
			b.Fatal(err)
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.Sys)/1e6, "MB-from-system")
}
