package nats

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/store"
)

// childFolder is the variable that makes this test binary a process that writes into a store until it is killed.
const childFolder = "SHOAL_TEST_STORE"

func TestMain(m *testing.M) {
	if folder := os.Getenv(childFolder); folder != "" {
		writeForEver(folder)
	}
	os.Exit(m.Run())
}

// writeForEver prints the number of every write that was acknowledged.
func writeForEver(folder string) {
	s, err := Open(folder)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for n := 0; ; n++ {
		if _, err := s.Create(context.Background(), fmt.Sprintf("n.%d", n), make([]byte, n%3000)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

// writer starts such a process.
func writer(t *testing.T, folder string) (*exec.Cmd, *bufio.Scanner) {
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

func TestKilledInMidWrite(t *testing.T) {
	for _, after := range []int{1, 10, 200} {
		folder := t.TempDir()
		c, out := writer(t, folder)
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
			if e, err := s.Get(t.Context(), fmt.Sprintf("n.%d", n)); err != nil || len(e.Value) != n%3000 {
				t.Fatalf("write %d of %d that were acknowledged: %d bytes (%v)", n, last+1, len(e.Value), err)
			}
		}
		if _, err := s.Create(t.Context(), "more", nil); err != nil {
			t.Error(err)
		}
	}
}

func TestFolderInUse(t *testing.T) {
	folder := t.TempDir()
	c, out := writer(t, folder)
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

func TestBadFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file for a folder: %v", err)
	}
}

// smallDisk mounts a file system of this size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	folder := t.TempDir()
	if err := unix.Mount("none", folder, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("mount:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(folder, 0); err != nil {
			t.Error(err)
		}
	})
	return folder
}

// TestOpenOnFullDisk: the error names the cause, and when there is room it works.
func TestOpenOnFullDisk(t *testing.T) {
	disk := smallDisk(t, "1m")
	folder, ballast := filepath.Join(disk, "store"), filepath.Join(disk, "ballast")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ballast, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if _, err := Open(folder); err == nil || !strings.Contains(err.Error(), "the disk is full: free some space") {
		t.Fatalf("opened on a full disk: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	s := openFolder(t, folder)
	if _, err := s.Create(t.Context(), "a", nil); err != nil {
		t.Error(err)
	}
}

// TestFullDisk fills a small file system of its own, makes room, and does it again. Large values leave room for the server to start.
func TestFullDisk(t *testing.T) {
	for _, value := range []int{30_000, 250_000} {
		t.Run(fmt.Sprint(value), func(t *testing.T) { fillDisk(t, value) })
	}
}

func fillDisk(t *testing.T, value int) {
	t.Helper()
	folder := smallDisk(t, "4m")
	for _, name := range []string{"ballast0", "ballast1"} {
		if err := os.WriteFile(filepath.Join(folder, name), make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := openFiles(t)
	s := openFolder(t, filepath.Join(folder, "store"))
	kept := map[string]int{}
	for round := range 2 {
		failures := 0
		for n := 0; failures < 5; n++ {
			key, size := fmt.Sprintf("full.%d.%d", round, n), value+n
			_, err := s.Create(t.Context(), key, make([]byte, size))
			if err == nil {
				kept[key] = size
				continue
			}
			if failures++; !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "the disk is full: free some space") {
				t.Fatalf("failure %d: %v", failures, err)
			}
		}
		if err := os.Remove(filepath.Join(folder, fmt.Sprintf("ballast%d", round))); err != nil {
			t.Fatal(err)
		}
		for key, size := range kept {
			if e, err := s.Get(t.Context(), key); err != nil || len(e.Value) != size {
				t.Fatalf("%s was acknowledged with %d bytes and has %d (%v)", key, size, len(e.Value), err)
			}
		}
	}
	t.Logf("%d values kept", len(kept))
	if err := s.Close(); err != nil { // or the file system stays
		t.Error(err)
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files are open, %d were before", after, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

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
