package checkpoint

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/state/layout"
)

// TestPartialIsNoCheckpoint stops moves when all elements are written but nothing is published:
// what lies there then must not read as a checkpoint, in any format, and the same move goes on with
// it.
func TestPartialIsNoCheckpoint(t *testing.T) {
	dir := t.TempDir()
	from := filepath.Join(dir, "model.safetensors")
	writeModel(t, from, rand.New(rand.NewPCG(1, 2)), 3, 16)
	shared := &layout.Spec{Shoal: layout.Version, Mesh: "dp=2",
		Rules: []layout.Rule{{Match: "**", Place: "dp=shard(0)"}}}
	for _, f := range []TargetFormat{
		{Format: "hf"}, {Format: "hf", MaxFileBytes: 1 << 14},
		{Format: "hf", File: "one.safetensors"},
		{Format: "pt", File: "one.pt"}, {Format: "dcp"},
		{Format: "dcp", Spec: shared}, {Format: "ranks", Spec: shared},
		{Format: "shards", Spec: shared},
	} {
		to := filepath.Join(t.TempDir(), max(f.File, "to"))
		c, err := Open(from)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		out, _, err := c.Output(f)
		if err != nil {
			t.Fatal(err)
		}
		stopped := errors.New("stopped")
		ctx, stop := context.WithCancelCause(t.Context())
		ctx = whileMoving(ctx, func(done, all int64) {
			if done == all {
				stop(stopped)
			}
		})
		_, err = Move(ctx, c, out, to, Options{Workers: 1, blockBytes: 4096})
		if !errors.Is(err, stopped) {
			t.Fatalf("%+v: %v", f, err)
		}
		left := filepath.Join(to+PartialSuffix, filesName)
		files, err := filepath.Glob(filepath.Join(left, "*"))
		if err != nil || len(files) != len(out.Files) {
			t.Fatalf("%+v: %q, %v", f, files, err)
		}
		for _, path := range append(files, left) {
			if half, err := Open(path); err == nil {
				t.Errorf("%+v: %s reads as %s with %d tensors", f, path, half.Format,
					len(half.Tensors))
				half.Close()
			}
		}
		if _, err := os.Lstat(to); err == nil {
			t.Errorf("%+v: it is published", f)
		}
		if r, err := Move(t.Context(), c, out, to,
			Options{Workers: 1, blockBytes: 4096}); err != nil ||
			r.Moved != 0 || r.Reused == 0 {
			t.Errorf("%+v: %+v, %v", f, r, err)
		}
	}
}

// TestPartialOfAnotherSource stops a move, and then moves another checkpoint to the same name, with
// the same names, sizes and times: blocks of the first one are none of the second. The first one
// goes on, also if its path is written otherwise.
func TestPartialOfAnotherSource(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name, "model.safetensors") }
	for i, name := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o777); err != nil {
			t.Fatal(err)
		}
		writeModel(t, path(name), rand.New(rand.NewPCG(1, uint64(i))), 3, 16)
		if err := os.Chtimes(path(name), time.Time{}, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	to, stopped := filepath.Join(dir, "to"), errors.New("stopped")
	ctx, stop := context.WithCancelCause(t.Context())
	moveTo := func(ctx context.Context, from string) (*Report, error) {
		c := openCheckpoint(t, from)
		out, _, err := c.Output(TargetFormat{Format: "hf"})
		if err != nil {
			t.Fatal(err)
		}
		return Move(ctx, c, out, to, Options{Workers: 1, blockBytes: 4096})
	}
	if _, err := moveTo(whileMoving(ctx, func(int64, int64) { stop(stopped) }),
		path("a")); !errors.Is(err, stopped) {
		t.Fatal(err)
	}
	if _, err := moveTo(t.Context(), path("b")); err == nil ||
		!strings.Contains(err.Error(), "is what is left of another move") {
		t.Errorf("another source: %v", err)
	}
	t.Chdir(dir)
	if r, err := moveTo(t.Context(), "link/model.safetensors"); err != nil || r.Reused == 0 {
		t.Errorf("the same source: %+v, %v", r, err)
	}
}
