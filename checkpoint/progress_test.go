package checkpoint

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"
)

// whileMoving returns a context under which Move calls f with how many of all bytes are moved.
func whileMoving(ctx context.Context, f func(done, all int64)) context.Context {
	return WithProgress(ctx, func(what string, done, all int64) {
		if what == "moving" {
			f(done, all)
		}
	})
}

// Whatever reads or writes all bytes of a checkpoint tells how far it is, up to the end.
func TestProgress(t *testing.T) {
	dir := t.TempDir()
	from := filepath.Join(dir, "model.safetensors")
	writeModel(t, from, rand.New(rand.NewPCG(1, 2)), 3, 16)
	type state struct{ done, all int64 }
	seen := map[string]state{}
	ctx := WithProgress(t.Context(), func(what string, done, all int64) {
		if before := seen[what]; done <= before.done && all == before.all || done > all {
			t.Errorf("%s: %d of %d bytes after %d", what, done, all, before.done)
		}
		seen[what] = state{done, all}
	})
	expect := func(after string, whats ...string) {
		t.Helper()
		for _, what := range whats {
			if s := seen[what]; s.done == 0 || s.done != s.all {
				t.Errorf("%s, %s: %d of %d bytes", after, what, s.done, s.all)
			}
		}
		clear(seen)
	}
	c := openCheckpoint(t, from)
	out, _, err := c.Output(TargetFormat{Format: "hf"})
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "to")
	if _, err := Move(ctx, c, out, to, Options{Workers: 2}); err != nil {
		t.Fatal(err)
	}
	expect("Move", "moving")
	d := openCheckpoint(t, to)
	if _, err := Seal(ctx, d, 2); err != nil {
		t.Fatal(err)
	}
	expect("Seal", "reading tensors", "hashing files")
	if _, _, err := Verify(ctx, to, 2); err != nil {
		t.Fatal(err)
	}
	expect("Verify", "reading tensors", "hashing files")
	if _, _, err := Compare(ctx, c, d, 2); err != nil {
		t.Fatal(err)
	}
	expect("Compare", "comparing")
}
