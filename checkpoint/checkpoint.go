// Package checkpoint works on checkpoints that are files: it moves one to another layout or format,
// seals it, verifies a seal, and compares two. It is the shell around the pure packages below
// state: it opens files, and decides what is durable when.
package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/detect"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/tensor"
)

// A Checkpoint is one that is open: what its headers say, and its files. It is for one goroutine;
// Move and the others share the work out themselves.
type Checkpoint struct {
	*format.Checkpoint
	Files  *format.Files
	path   string     // as it was given
	dir    string     // the folder in which a manifest lists files, or its URL
	file   string     // in it, when the checkpoint is a single file
	fsys   fs.FS      // the folder itself
	bucket *s3.Bucket // that the folder is in, or nil
	seen   map[string]stamp

	sealed  *manifest.Manifest // nil without one
	renamed map[string]string  // what renamed tensors are called in it
	apart   bool               // whether there are tensors that it has only joined
	strange map[string]bool    // tensors that it does not list, by name
	lacking bool               // whether it lists some that are not in the files
	chosen  bool               // whether only some of the tensors are wanted
}

// A stamp tells whether a file was changed. The number of its inode is no part: on disks of a
// network that may change by itself.
type stamp struct {
	size  int64
	mtime time.Time
}

// Open reads the headers of a checkpoint: path is its folder, or a file, or the URL of a folder in
// a bucket. Errors name files as they stand below path.
func Open(path string) (*Checkpoint, error) {
	c, err := locate(path)
	if err != nil {
		return nil, err
	}
	c.Checkpoint, c.Files, err = detect.Open(c.fsys, c.file)
	if err != nil && c.dir != "." {
		err = fmt.Errorf("%s: %w", c.dir, err)
	}
	if err != nil {
		return nil, err
	}
	if c.sealed, err = c.readManifest(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, c.Close())
	}
	if c.sealed != nil {
		c.strange, c.lacking = c.unlisted(c.sealed)
	}
	c.seen, c.renamed = map[string]stamp{}, map[string]string{}
	for _, name := range c.names() {
		if c.seen[name], err = c.stamp(name); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// unlisted are the tensors that a manifest does not list as they are, by name, place, type and
// shape, and whether it lists others.
func (c *Checkpoint) unlisted(m *manifest.Manifest) (strange map[string]bool, lacking bool) {
	text := func(name, place string, d tensor.DType, s tensor.Shape) string {
		return fmt.Sprintf("%q %s %v %v", name, place, d, s)
	}
	sealed := map[string]bool{}
	for _, t := range m.Tensors {
		sealed[text(t.Name, t.Place, t.DType, t.Shape)] = true
	}
	strange = map[string]bool{}
	for i := range c.Tensors {
		t := &c.Tensors[i]
		if key := text(t.Name, t.At.String(), t.DType, t.Shape); sealed[key] {
			delete(sealed, key)
		} else {
			strange[t.Name] = true
		}
	}
	return strange, len(sealed) > 0
}

// foreign tells whether tensors are wanted that the manifest does not list, or not all that it
// lists are there.
func (c *Checkpoint) foreign() bool {
	return c.lacking && !c.chosen || slices.ContainsFunc(c.Tensors, func(t format.Tensor) bool {
		if old, renamed := c.renamed[t.Name]; renamed {
			return c.strange[old]
		}
		return c.strange[t.Name]
	})
}

// locate splits a path into folder and file.
func locate(path string) (*Checkpoint, error) {
	if snapshot.IsURL(path) {
		return locateURL(path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{path: path, dir: path}
	if !info.IsDir() {
		c.dir, c.file = filepath.Split(path)
		c.dir = filepath.Clean(c.dir)
	}
	c.fsys = durable.Folder(c.dir)
	return c, nil
}

// locateURL is locate in a bucket, where it fails on what is not whole.
func locateURL(url string) (*Checkpoint, error) {
	ctx := context.Background()
	b, parent, name, err := openURL(url)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{path: url, bucket: b}
	if parent != nil {
		is, err := parent.Has(ctx, name)
		if err != nil {
			return nil, err
		}
		if is {
			c.bucket, c.file = parent, name
		}
	}
	if partial, err := c.bucket.Has(ctx, c.file+PartialSuffix); err != nil || partial {
		return nil, cmp.Or(err, fmt.Errorf("%s is not whole, which its %s says: a command "+
			"writes there, or was stopped; run that again, or remove both", url,
			c.file+PartialSuffix))
	}
	c.dir, c.fsys = c.bucket.String(), c.bucket.FS(ctx)
	return c, nil
}

// Close closes the files.
func (c *Checkpoint) Close() error { return c.Files.Close() }

// names returns the files in which tensors lie, and what proves their names, ascending.
func (c *Checkpoint) names() (names []string) {
	found := map[string]bool{}
	for _, p := range c.pieces() {
		if !found[p.File] {
			found[p.File] = true
			names = append(names, p.File)
		}
	}
	slices.Sort(names)
	return names
}

func (c *Checkpoint) stamp(name string) (stamp, error) {
	info, err := fs.Stat(c.Files.FS(), name)
	if err != nil {
		return stamp{}, err
	}
	return stamp{info.Size(), info.ModTime()}, nil
}

// unchanged fails when a file is not as it was when the checkpoint was opened.
func (c *Checkpoint) unchanged() error {
	for _, name := range c.names() {
		now, err := c.stamp(name)
		if err != nil {
			return err
		}
		if before := c.seen[name]; now.size != before.size || !now.mtime.Equal(before.mtime) {
			return fmt.Errorf("%s: %s was changed while it was read; nothing of the result is "+
				"kept as good: wait until its writer is done, and start again", c.path, name)
		}
	}
	return nil
}

// Select leaves only the tensors of which keep says so. It fails when none is left.
func (c *Checkpoint) Select(keep func(name string) bool) error {
	c.chosen = true
	c.Tensors = slices.DeleteFunc(slices.Clone(c.Tensors), func(t format.Tensor) bool {
		return !keep(t.Name)
	})
	if len(c.Tensors) == 0 {
		return fmt.Errorf("%s: no tensor is left of those that it has", c.path)
	}
	return nil
}

// Rename gives tensors whose names begin with from another beginning. It fails when two then have
// one name.
func (c *Checkpoint) Rename(from, to string) error {
	c.Tensors = slices.Clone(c.Tensors)
	n := 0
	for i := range c.Tensors {
		t := &c.Tensors[i]
		rest, ok := strings.CutPrefix(t.Name, from)
		if !ok {
			continue
		}
		old, before := c.renamed[t.Name]
		if !before {
			old = t.Name
		}
		t.Name = to + rest
		c.renamed[t.Name] = old
		n++
	}
	if n == 0 {
		return fmt.Errorf("%s: no tensor has a name that begins with %q", c.path, from)
	}
	return c.Finish()
}

// Named fails when a tensor has no name, as one that torch.save was given by itself: in a
// checkpoint of other formats it needs one.
func (c *Checkpoint) Named() error {
	for i := range c.Tensors {
		if c.Tensors[i].Name == "" {
			return fmt.Errorf("%s holds a tensor without a name, as torch.save writes one that "+
				"it is given alone; name it: --rename =weight", c.path)
		}
	}
	return nil
}

// whole fails when the format does not say how the parts of a tensor fit together, or something is
// wrong with its structure.
func (c *Checkpoint) whole() error {
	for i := range c.Tensors {
		if t := &c.Tensors[i]; t.At != nil {
			return fmt.Errorf("%s: of tensor %q there is the part of rank %v, and %s; leave it "+
				"out with --only, or convert the checkpoint with the framework that wrote it",
				c.path, t.Name, t.At, cmp.Or(t.Apart, "nobody says how the parts fit together"))
		}
	}
	structure := format.Checkpoint{Tensors: c.Tensors}
	if faults := structure.Check(c.Files); len(faults) > 0 {
		return fmt.Errorf("%s: %v; shoal state check lists all that is wrong with it", c.path,
			faults[0])
	}
	return nil
}
