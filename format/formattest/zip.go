package formattest

import (
	"archive/zip"
	"bytes"
	"io/fs"
	"testing"
)

// This file alters files of torch.save for the tests of the readers.

// ReplaceInZip returns the zip archive b with a text replaced by another in all of its members. It
// leaves b as it is, and stops the test t, on its goroutine, if b is no archive.
func ReplaceInZip(t testing.TB, b []byte, old, new string) []byte {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	var to bytes.Buffer
	w := zip.NewWriter(&to)
	for _, f := range r.File {
		data, err := fs.ReadFile(r, f.Name)
		if err != nil {
			t.Fatal(err)
		}
		member, err := w.CreateHeader(&zip.FileHeader{Name: f.Name}) // not compressed
		if err != nil {
			t.Fatal(err)
		}
		if _, err := member.Write(bytes.ReplaceAll(data, []byte(old), []byte(new))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return to.Bytes()
}
