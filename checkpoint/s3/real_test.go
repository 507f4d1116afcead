package s3_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/checkpoint/s3/s3test"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/checkpoint/snapshot/snapshottest"
)

// TestRealServer runs the suite against versitygw, which scripts/setup s3 installs: it checks
// signatures, lengths and parts as S3 does.
func TestRealServer(t *testing.T) {
	url, folder := s3test.StartReal(t, "../..")
	s3test.SetEnvironment(t, url)
	n := 0
	snapshottest.Run(t, snapshottest.Kind{
		Open: func(t *testing.T) snapshot.Folder {
			n++
			url := fmt.Sprintf("s3://models/runs/%d", n)
			b, err := s3.Open(url)
			if err != nil {
				t.Fatal(err)
			}
			return snapshot.Folder{Root: url, Keep: 2, Store: b.Unpaced(nil),
				Log: func(line string) {
					t.Log(line)
				}}
		},
		Fetch: fetchSealed,
		Files: func(t *testing.T, f snapshot.Folder) (files []string) {
			if err := filepath.WalkDir(filepath.Join(folder, strings.TrimPrefix(f.Root, "s3://")),
				func(path string, d os.DirEntry, err error) error {
					if err == nil && d.Type().IsRegular() {
						files = append(files, path)
					}
					return nil
				}); err != nil {
				t.Fatal(err)
			}
			return files
		},
	})
	t.Setenv("AWS_SECRET_ACCESS_KEY", "another")
	b, err := s3.Open("s3://models/runs/1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (snapshot.Folder{Store: b}).Sealed(); err == nil ||
		!strings.Contains(err.Error(), "SignatureDoesNotMatch") {
		t.Errorf("a wrong secret: %v", err)
	}
}
