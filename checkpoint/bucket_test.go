package checkpoint_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/checkpoint/s3/s3test"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/checkpoint/snapshot/snapshottest"
)

// TestCheckpointInABucket moves a checkpoint of a job in a bucket to a folder and to a bucket.
func TestCheckpointInABucket(t *testing.T) {
	store := s3test.Start(t, nil)
	b, err := s3.Open("s3://models/runs")
	if err != nil {
		t.Fatal(err)
	}
	s, memory := snapshottest.SmallState(5, 2)
	snapshottest.Write(t,
		snapshot.Folder{Root: b.String(), Keep: 1, Store: b, Log: func(line string) {
			t.Log(line)
		}}, s, memory, 55, 0, 1)
	const url = "s3://models/runs/step-000000000005-0000000000000037"
	c, err := checkpoint.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if faults := c.Check(c.Files); len(faults) > 0 || len(c.Tensors) != 1 ||
		c.Tensors[0].Name != "w" {
		t.Errorf("%v: %v", c.Tensors, faults)
	}
	damage, _, err := checkpoint.Verify(t.Context(), url, 2)
	if err != nil || len(damage) > 0 {
		t.Errorf("%v, %v", damage, err)
	}
	out, _, err := c.Output(checkpoint.TargetFormat{Format: "hf", File: "w.safetensors"})
	if err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(t.TempDir(), "w.safetensors")
	if _, err := checkpoint.Move(t.Context(), c, out, dst,
		checkpoint.Options{Workers: 2}); err != nil {
		t.Fatal(err)
	}
	moved, err := checkpoint.Open(dst)
	if err != nil {
		t.Fatal(err)
	}
	defer moved.Close()
	if found, _, err := checkpoint.Compare(t.Context(), c, moved, 2); err != nil || len(found) > 0 {
		t.Errorf("%v, %v", found, err)
	}
	if _, err := checkpoint.Move(t.Context(), c, out, "s3://models/out/w.safetensors",
		checkpoint.Options{Workers: 1}); err != nil {
		t.Error(err)
	}
	if damage, _, err := checkpoint.Verify(t.Context(), "s3://models/out/w.safetensors",
		2); err != nil || len(damage) > 0 {
		t.Errorf("%v, %v", damage, err)
	}
	if _, err := checkpoint.Seal(t.Context(), c, 1); err == nil ||
		!strings.Contains(err.Error(), "is there already") {
		t.Errorf("sealed twice: %v", err)
	}
	for _, key := range store.Keys() {
		if strings.Contains(key, "shard-00002") {
			store.Set(key, append(store.Get(key)[:len(store.Get(key))-1:len(store.Get(key))-1], 9))
		}
	}
	if damage, _, err := checkpoint.Verify(t.Context(), url, 2); err != nil || len(damage) == 0 ||
		!strings.Contains(damage[0].String(), "shard-00002") {
		t.Errorf("%v, %v", damage, err)
	}
	if _, err := checkpoint.Open("s3://models/none"); err == nil {
		t.Error("a folder that is not there is open")
	}
}

// TestBelowASealedURL compares a file in a subfolder of a sealed folder in a bucket with the seal
// of that folder.
func TestBelowASealedURL(t *testing.T) {
	s3test.Start(t, nil)
	b, err := s3.Open("s3://models/top")
	if err != nil {
		t.Fatal(err)
	}
	file := func(last byte) []byte {
		const header = `{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} `
		return append(append([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}, header...), last)
	}
	write := func(name string, last byte) {
		if err := b.WriteFile(t.Context(), name, file(last)); err != nil {
			t.Fatal(err)
		}
	}
	compare := func(path string) error {
		c, err := checkpoint.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _, err = checkpoint.Compare(t.Context(), c, c, 1)
		return err
	}
	write("model.safetensors", 1)
	write("a/b/model.safetensors", 2)
	c, err := checkpoint.Open("s3://models/top")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := checkpoint.Seal(t.Context(), c, 1); err != nil {
		t.Fatal(err)
	}
	const part = "s3://models/top/a/b/model.safetensors"
	if err := compare(part); err != nil {
		t.Error(err)
	}
	if _, _, err := checkpoint.Verify(t.Context(), part, 1); err == nil ||
		!strings.Contains(err.Error(), "shoal state verify s3://models/top compares") {
		t.Error(err)
	}
	write("a/b/model.safetensors", 3)
	if err := compare(part); err == nil || !strings.Contains(err.Error(), "what was sealed") {
		t.Error(err)
	}
}
