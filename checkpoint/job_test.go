package checkpoint

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/state/manifest"
)

// copyReleaseBefore copies a checkpoint that the release before wrote into a folder of the test,
// and returns that.
func copyReleaseBefore(t *testing.T, path string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "checkpoint")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata/before", path))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// jobs are the checkpoints of jobs that the release before wrote: without a mesh, and with one.
var jobs = []string{"job/step-000000000005", "mesh/step-000000000004"}

// TestJobDescription damages the description of a job's checkpoint in all ways in which it can be
// no description: Faults, Seal and Verify must notice.
func TestJobDescription(t *testing.T) {
	for _, job := range jobs {
		text, err := os.ReadFile(filepath.Join("testdata/before", job, snapshot.StateName))
		if err != nil {
			t.Fatal(err)
		}
		damages := map[string][]byte{"missing": nil, "empty": {}, "null": []byte("null"),
			"object": []byte("{}"), "list": []byte("[]"), "number": []byte("7"),
			"text": []byte(`"job/1"`), "true": []byte("true"), "zeros": make([]byte, len(text)),
			"truncated": text[:len(text)-1], "half": text[:len(text)/2],
			"doubled":         bytes.Repeat(text, 2),
			"another version": bytes.Replace(text, []byte("job/1"), []byte("job/9"), 1),
			"another tensor":  bytes.Replace(text, []byte(`"seen"`), []byte(`"sean"`), -1),
			"another type":    bytes.Replace(text, []byte(`"F64"`), []byte(`"I64"`), -1),
			"no tensors": slices.Concat(text[:bytes.Index(text, []byte(`"tensors"`))],
				[]byte(`"tensors": []}`)),
		}
		if job != jobs[0] {
			delete(damages, "another tensor")
		}
		for name, damage := range damages {
			for _, sealed := range []bool{true, false} {
				dir := copyReleaseBefore(t, job)
				path := filepath.Join(dir, snapshot.StateName)
				if damage == nil {
					err = os.Remove(path)
				} else {
					err = os.WriteFile(path, damage, 0o666)
				}
				if err != nil {
					t.Fatal(err)
				}
				if !sealed {
					if err := os.Remove(filepath.Join(dir, manifest.Name)); err != nil {
						t.Fatal(err)
					}
				}
				checkNoticed(t, job+", "+name, dir, sealed)
			}
		}
	}
}

// checkNoticed fails the test unless the damaged description of the checkpoint in dir is noticed;
// sealed says that its manifest is there. name is what errors call the damage.
func checkNoticed(t *testing.T, name, dir string, sealed bool) {
	t.Helper()
	c, err := Open(dir)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	defer c.Close()
	faults := c.Faults()
	if len(faults) != 1 || faults[0].Name != snapshot.StateName ||
		!strings.Contains(faults[0].What, "no job can resume from this checkpoint") {
		t.Errorf("%s: faults %v", name, faults)
	}
	if !sealed {
		if _, err := Seal(context.Background(), c, 1); err == nil ||
			!strings.Contains(err.Error(), snapshot.StateName) {
			t.Errorf("%s: Seal says %v", name, err)
		}
		return
	}
	damage, _, err := Verify(context.Background(), dir, 1)
	if err != nil || len(damage) == 0 || damage[0].File != snapshot.StateName {
		t.Errorf("%s: Verify says %v, %v", name, damage, err)
	}
}

// TestReleaseBefore opens, checks and verifies what the release before has written, and reads a
// job's checkpoint as a job that resumes does.
func TestReleaseBefore(t *testing.T) {
	for _, path := range append([]string{"sealed"}, jobs...) {
		dir := filepath.Join("testdata/before", path)
		c := openCheckpoint(t, dir)
		if faults := c.Faults(); len(faults) > 0 {
			t.Errorf("%s: %v", path, faults)
		}
		if damage, _, err := Verify(context.Background(), dir, 1); err != nil || len(damage) > 0 {
			t.Errorf("%s: %v, %v", path, damage, err)
		}
	}
	a, b := openCheckpoint(t, "testdata/before/sealed"),
		openCheckpoint(t, filepath.Join("testdata/before", jobs[1]))
	if found, _, err := Compare(context.Background(), a, b, 1); err != nil || len(found) > 0 {
		t.Errorf("the mesh job's checkpoint and what was made of it differ: %v, %v", found, err)
	}
	root, err := filepath.Abs("testdata/before/job")
	if err != nil {
		t.Fatal(err)
	}
	folder := snapshot.Folder{Root: root, Keep: 1, Log: func(line string) { t.Error(line) }}
	newest, found, err := folder.Newest(0)
	if err != nil || !found || newest.Step != 5 {
		t.Fatalf("the newest checkpoint is %v, %v, %v", newest, found, err)
	}
	s, err := folder.Open(newest.Step)
	if err != nil {
		t.Fatal(err)
	}
	var memory [][]byte
	for _, x := range s.State.Tensors {
		memory = append(memory, make([]byte, x.Bytes()))
	}
	if n, err := s.Read(context.Background(), memory, 0, 1); err != nil || n != s.Blocks {
		t.Errorf("%d of %d blocks are compared: %v", n, s.Blocks, err)
	}
	if len(s.Own) != 2 || s.State.Step != 5 {
		t.Errorf("step %d, and what %d workers have for themselves", s.State.Step, len(s.Own))
	}
}
