package checkpoints_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/agent/checkpoints"
)

// A folder for what is fetched that cannot be locked, as on a disk without locks, is an error that
// says what to do, and does not stay.
func TestFolderThatCannotBeLocked(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0 // more files than are open
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, err := checkpoints.NewStores().Fetch(checkpoints.Source{})
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err == nil || !strings.Contains(err.Error(), "cannot be locked; have TMPDIR name") {
		t.Errorf("the error is %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
