// Package durabletest has what tests of files on full disks share.
package durabletest

import (
	"syscall"
	"testing"
)

// SmallDisk returns an empty folder on a disk of its own, which has room for so much, such as 64k,
// until the test ends. The test is skipped where it may not mount one.
func SmallDisk(t *testing.T, size string) string {
	t.Helper()
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("mounting takes root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return disk
}
