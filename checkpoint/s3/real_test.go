package s3_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint/jobs"
	"github.com/shoal-ml/shoal/checkpoint/jobs/placetest"
	"github.com/shoal-ml/shoal/checkpoint/s3"
)

// TestRealServer runs the suite against versitygw, which scripts/setup s3 installs: it checks signatures, lengths and parts as S3 does.
func TestRealServer(t *testing.T) {
	binary, err := filepath.Abs("../../build/tools/versitygw")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skip("scripts/setup s3 installs the server for this test")
	}
	endpoint := serve(t, binary)
	environment(t, endpoint.url)
	n := 0
	placetest.Run(t, placetest.Kind{
		Open: func(t *testing.T) jobs.Folder {
			n++
			url := fmt.Sprintf("s3://models/runs/%d", n)
			b, err := s3.Open(url)
			if err != nil {
				t.Fatal(err)
			}
			return jobs.Folder{Root: url, Keep: 2, Place: b.Quick(nil), Say: func(line string) { t.Log(line) }}
		},
		Fetch: fetch,
		Files: func(t *testing.T, f jobs.Folder) (files []string) {
			if err := filepath.WalkDir(filepath.Join(endpoint.folder, strings.TrimPrefix(f.Root, "s3://")), func(path string, d os.DirEntry, err error) error {
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
	if _, err := (jobs.Folder{Place: b}).Sealed(); err == nil || !strings.Contains(err.Error(), "SignatureDoesNotMatch") {
		t.Errorf("a wrong secret: %v", err)
	}
}

type endpoint struct{ url, folder string }

// serve starts the server on a free port, with an empty bucket.
func serve(t *testing.T, binary string) endpoint {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	e := endpoint{"http://" + address, t.TempDir()}
	if err := os.Mkdir(filepath.Join(e.folder, "models"), 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "--port", address, "--access", "someone", "--secret", "secret", "--quiet", "posix", "--sidecar", t.TempDir(), e.folder)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	for t.Context().Err() == nil {
		if r, err := http.Get(e.url); err == nil {
			_ = r.Body.Close()
			return e
		}
	}
	t.Fatal("the server does not answer")
	return e
}
