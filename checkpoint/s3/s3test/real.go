package s3test

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// StartReal starts versitygw, which scripts/setup s3 installs in build/tools below root, the folder
// of the repository, on a free port, with an empty bucket "models", until the test ends. It checks
// signatures, lengths and parts as S3 does; the key is "someone", the secret "secret". It blocks
// until the server answers, and returns its URL and the folder in which buckets are. Without the
// program the test is skipped; a server that cannot be started fails it.
func StartReal(t *testing.T, root string) (url, folder string) {
	t.Helper()
	binary, err := filepath.Abs(filepath.Join(root, "build/tools/versitygw"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skip("scripts/setup s3 installs the server for this test")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	url, folder = "http://"+address, t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "models"), 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "--port", address, "--access", "someone",
		"--secret", "secret", "--quiet", "posix", "--sidecar", t.TempDir(), folder)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	for t.Context().Err() == nil {
		if r, err := http.Get(url); err == nil {
			_ = r.Body.Close()
			return url, folder
		}
	}
	t.Fatal("the server does not answer")
	return "", ""
}
