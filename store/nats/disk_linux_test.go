package nats

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/store"
)

// smallDisk mounts a file system of this size, such as "4m", until the test ends, and returns its
// folder; without the right to mount it skips the test. No file may be open there at the end.
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
	if _, err := Open(folder); err == nil ||
		!strings.Contains(err.Error(), "the disk is full: free some space") {
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

// TestFullDisk fills a small file system of its own, makes room, and does it again. Large values
// leave room for the server to start.
func TestFullDisk(t *testing.T) {
	for _, value := range []int{30_000, 250_000} {
		t.Run(fmt.Sprint(value), func(t *testing.T) { fillDisk(t, value) })
	}
}

// fillDisk writes values of about so many bytes until the disk is full, makes room, and checks that
// everything acknowledged is there, and that no file stays open. It does that twice, on a disk that
// smallDisk makes.
func fillDisk(t *testing.T, value int) {
	t.Helper()
	folder := smallDisk(t, "4m")
	for _, name := range []string{"ballast0", "ballast1"} {
		if err := os.WriteFile(filepath.Join(folder, name), make([]byte, 1<<20),
			0o600); err != nil {
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
			if failures++; !errors.Is(err, store.ErrUnavailable) ||
				!strings.Contains(err.Error(), "the disk is full: free some space") {
				t.Fatalf("failure %d: %v", failures, err)
			}
		}
		if err := os.Remove(filepath.Join(folder, fmt.Sprintf("ballast%d", round))); err != nil {
			t.Fatal(err)
		}
		for key, size := range kept {
			if e, err := s.Get(t.Context(), key); err != nil || len(e.Value) != size {
				t.Fatalf("%s was acknowledged with %d bytes and has %d (%v)", key, size,
					len(e.Value), err)
			}
		}
	}
	t.Logf("%d values kept", len(kept))
	if err := s.Close(); err != nil { // or the file system stays
		t.Error(err)
	}
	if after := openFiles(t); after > before { // those of a test before this one may be closed late
		t.Errorf("%d files are open, %d were before", after, before)
	}
}

// openFiles returns how many files this process has open, in all of its tests.
func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
