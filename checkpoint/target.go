package checkpoint

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path"
	"path/filepath"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/state/move"
	"github.com/shoal-ml/shoal/state/plan"
)

// Where a move writes: what is the same for a folder (staging.go) and a bucket (upload.go). The
// goroutine of Move calls these functions; only newTarget touches the disk or the store.

// A target is where a checkpoint is written: a folder or a bucket. The goroutine of Move alone
// calls the methods, which wait for the disk or the store, but for plan, which computes; the last
// is publish, and where anything has failed, publish too, cleanUpFailed.
type target interface {
	// plan plans the move to the target, from replicas of the source files that are dead.
	plan(from *layout.Layout, dead map[int]bool) (*plan.Plan, error)
	// prepare completes a job, whose source is known, so that it writes to the target.
	prepare(ctx context.Context, job *move.Job) error
	// close closes what the jobs have opened.
	close() error
	// publish makes everything visible. The manifest is complete but for its files.
	publish(ctx context.Context, m *manifest.Manifest, o Options) error
	// cleanUpFailed leaves nothing that reads as a checkpoint. void says that what was moved is of
	// no use to a later run.
	cleanUpFailed(ctx context.Context, void bool) error
}

// newTarget returns the target that dst names: a bucket for a URL, or else a folder. It makes the
// folder, or writes the mark, so that no other move can begin. The error is errFinished when an
// earlier run of the same move had published everything.
func newTarget(ctx context.Context, dst string, out *format.Output, id move.Identity) (target,
	error) {
	if snapshot.IsURL(dst) {
		return newUpload(ctx, dst, out, id)
	}
	return newStaging(dst, isSingleFile(out, dst), out, id)
}

// isSingleFile reports whether an output is one file that is published under the name dst.
func isSingleFile(out *format.Output, dst string) bool {
	return len(out.Files) == 1 && out.Files[0].Name == path.Base(dst)
}

// fileNames returns the names of the files of an output.
func fileNames(o *format.Output) (names []string) {
	for _, f := range o.Files {
		names = append(names, f.Name)
	}
	return names
}

// moveIdentity returns the identity of a move of c as o: a hash of what it reads and writes, by
// paths, sizes, times and places, without the elements. Times alone do not tell two sources apart:
// what a bucket, an archive or an image has stored can have the same times everywhere.
func moveIdentity(c *Checkpoint, o *format.Output) move.Identity {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q\n", c.realDir(), c.file)
	for _, name := range c.tensorFiles() {
		fmt.Fprintf(h, "%q %d %d\n", name, c.stamps[name].size, c.stamps[name].mtime.UnixNano())
	}
	for i := range c.Tensors {
		fmt.Fprintf(h, "%q %v %v %v\n", c.Tensors[i].Name, c.Tensors[i].DType, c.Tensors[i].Shape,
			c.asStored(&c.Tensors[i]).Pieces)
	}
	for _, f := range o.Files {
		fmt.Fprintf(h, "%q %d\n", f.Name, f.Size)
	}
	for i := range o.Tensors {
		fmt.Fprintf(h, "%q %v %v\n", o.Tensors[i].Name, o.Tensors[i].Pieces, o.Tensors[i].Replicas)
	}
	for _, f := range o.Frames {
		fmt.Fprintf(h, "%q %d %x\n", f.File, f.Offset, sha256.Sum256(f.Bytes))
	}
	return move.Identity(h.Sum(nil))
}

// realDir returns where the folder of the checkpoint is, however its path was written: absolute and
// without links as far as that can be found out, or the URL. It asks the file system.
func (c *Checkpoint) realDir() string {
	if c.bucket != nil {
		return c.dir
	}
	dir := c.dir
	if absolute, err := filepath.Abs(dir); err == nil {
		dir = absolute
	}
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	return dir
}
