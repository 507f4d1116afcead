package durable_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/durable/durabletest"
)

// TestWriteOnFullDisk checks that an error names the file, and that nothing is left.
func TestWriteOnFullDisk(t *testing.T) {
	disk := durabletest.SmallDisk(t, "64k")
	path := filepath.Join(disk, "file")
	err := durable.Write(path, make([]byte, 1<<20))
	if !durable.Full(err) || !strings.HasPrefix(err.Error(), "write "+path+": ") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(disk); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}
