package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckOverlap demands that what is read and what is written lie in no folder of each other, by
// whatever paths.
func TestCheckOverlap(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "src", "deep"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("src", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, c := range []struct{ src, dst, err string }{
		{"src", "out", ""}, {"src", "src2", ""}, {"src", "../out", ""},
		{"src", "s3://b/src/out", ""}, {"s3://b/src", "s3://b/src2", ""},
		{"src", "src", "src is what is read"}, {"src", "./src/", "is what is read"},
		{"link", "src", "is what is read"}, {"s3://b/src", "s3://b/src/", "is what is read"},
		{"src", "src/out", "src/out lies in src, which is read"},
		{"src", filepath.Join(dir, "src", "deep", "out"), "lies in src, which is read"},
		{"src", "link/new/out", "lies in src, which is read"},
		{"src/deep", "src", "src/deep lies in src, which is to be written"},
		{"s3://b/src", "s3://b/src/out", "lies in s3://b/src, which is read"},
	} {
		err := (&Checkpoint{path: c.src}).checkOverlap(c.dst)
		if c.err == "" && err != nil || c.err != "" &&
			(err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s to %s: %v, want %q", c.src, c.dst, err, c.err)
		}
	}
}
