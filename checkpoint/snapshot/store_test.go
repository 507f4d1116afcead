package snapshot_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/checkpoint/snapshot/snapshottest"
)

// A folder of the file system is a place like others.
func TestFolder(t *testing.T) {
	snapshottest.Run(t, snapshottest.Kind{
		Open: func(t *testing.T) snapshot.Folder {
			return snapshot.Folder{Root: t.TempDir(), Keep: 2}
		},
		Fetch: func(_ *testing.T, f snapshot.Folder, _ snapshot.Attempt) snapshot.Folder {
			return f
		},
		Files: func(t *testing.T, f snapshot.Folder) (files []string) {
			if err := filepath.WalkDir(f.Root, func(path string, d fs.DirEntry, err error) error {
				if d.Type().IsRegular() {
					files = append(files, path)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return files
		},
	})
}

// A place that takes no files is named before anything is written.
func TestFolderThatTakesNoFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{file, filepath.Join(file, "below"), "/proc/shoal"} {
		err := snapshot.Folder{Root: root, Keep: 2}.TryWrite()
		if err == nil || !strings.Contains(err.Error(), "no checkpoint can be written to "+root) {
			t.Errorf("%s: %v", root, err)
		}
	}
}
