// Package checkpoint works on checkpoints in files: it moves one to another layout or format, seals
// it, verifies a seal, and compares two. It is the shell around the pure packages below state: it
// opens files, and decides when bytes are durable.
package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	gopath "path"
	"path/filepath"
	"slices"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/detect"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/tensor"
)

// How a checkpoint is opened and closed. The functions without a receiver keep nothing, so any
// goroutine may call them; they read headers, and wait for the disk or the store.

// A Checkpoint is an open checkpoint: what its headers say, and its files. One goroutine uses it at
// a time; Move and the other methods share work among goroutines themselves.
type Checkpoint struct {
	*format.Checkpoint
	Files *format.Files
	path  string // path or URL as the caller gave it
	dir   string // folder, or URL of one, whose manifest lists the files
	// file is the name in dir of a checkpoint that is a single file; "" = a folder.
	file   string
	fsys   fs.FS            // contents of dir
	bucket *s3.Bucket       // bucket that holds dir; nil = a local folder
	stamps map[string]stamp // size and time of each of tensorFiles when the checkpoint was opened

	sealed   *manifest.Manifest // what readSeal has returned; nil = not sealed
	sealedIn string             // path or URL of the folder whose manifest that is
	// renamed maps the new name of each renamed tensor to its name in the manifest.
	renamed map[string]string
	// derived says that some tensors were only joined or split here, and are in no manifest.
	derived       bool
	unlistedNames map[string]bool // names of tensors that the manifest does not list
	missing       bool            // whether the manifest lists tensors that the files lack
	selected      bool            // whether Select has left out tensors
	job           *snapshot.State // description of a job's state; nil = none that can be read
	cast          *castFolder     // files of tensors that Cast rounds; nil = there are none
	notesFault    error           // why the notes of a job's state cannot be read; nil = they can
}

// A stamp tells whether a file was changed. It leaves the inode number out, because network file
// systems may change that by themselves.
type stamp struct {
	size  int64
	mtime time.Time
}

// Open reads the headers of a checkpoint: path is its folder, or a file, or the URL of a folder in
// a bucket. The caller closes it. Errors name files as they stand below path.
func Open(path string) (*Checkpoint, error) {
	c, err := newFromPath(path)
	if err != nil {
		return nil, err
	}
	c.Checkpoint, c.Files, err = detect.Open(c.fsys, c.file)
	if err != nil {
		if one := c.oneOfJob(); one != "" {
			err = fmt.Errorf("the folder has the checkpoints of a job, and is none itself; give "+
				"one of them, such as %s/%s", c.dir, one)
		}
	}
	if err != nil && c.dir != "." {
		err = fmt.Errorf("%s: %w", c.dir, err)
	}
	if err != nil {
		return nil, err
	}
	if c.sealed, err = c.readSeal(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if c.sealed != nil {
		c.unlistedNames, c.missing = c.diffManifest(c.sealed)
	}
	c.stamps, c.renamed = map[string]stamp{}, map[string]string{}
	for _, name := range c.tensorFiles() {
		if c.stamps[name], err = c.currentStamp(name); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	c.addJobValues()
	return c, nil
}

// oneOfJob returns the name of one of the checkpoints in the folder of a job; "" if it is none. It
// reads the lists of folders.
func (c *Checkpoint) oneOfJob() string {
	if c.file != "" {
		return ""
	}
	found, err := fs.Glob(c.fsys, "step-*/"+snapshot.StateName)
	if err != nil || len(found) == 0 {
		return ""
	}
	return gopath.Dir(slices.Max(found))
}

// diffManifest returns the set of names of the tensors that a manifest does not list with the same
// name, place, type and shape (strange), and whether the manifest lists tensors that the checkpoint
// lacks.
func (c *Checkpoint) diffManifest(m *manifest.Manifest) (strange map[string]bool, lacking bool) {
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
		if key := text(t.Name, t.Coords.String(), t.DType, t.Shape); sealed[key] {
			delete(sealed, key)
		} else {
			strange[t.Name] = true
		}
	}
	return strange, len(sealed) > 0
}

// hasUnlisted reports whether a tensor is not in the manifest, or, as long as Select has left none
// out, the manifest lists a tensor that the files lack.
func (c *Checkpoint) hasUnlisted() bool {
	return c.missing && !c.selected || slices.ContainsFunc(c.Tensors, func(t format.Tensor) bool {
		if old, renamed := c.renamed[t.Name]; renamed {
			return c.unlistedNames[old]
		}
		return c.unlistedNames[t.Name]
	})
}

// newFromPath returns a Checkpoint that knows its folder and file, from a path or URL, and whose
// headers are not read yet.
func newFromPath(path string) (*Checkpoint, error) {
	if snapshot.IsURL(path) {
		return newFromURL(path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, explainLink(path, err)
	}
	c := &Checkpoint{path: path, dir: path}
	if !info.IsDir() {
		c.dir, c.file = filepath.Split(path)
		c.dir = filepath.Clean(c.dir)
	}
	c.fsys = durable.Folder(c.dir)
	return c, nil
}

// explainLink returns err, which says that there is nothing at a path, or a better error if a link
// is there. It asks the file system.
func explainLink(path string, err error) error {
	dir, name := filepath.Split(path)
	dir = filepath.Clean(dir)
	files := format.NewFiles(durable.Folder(dir))
	if !errors.Is(err, fs.ErrNotExist) || !files.IsLink(name) {
		return err
	}
	if _, what := files.Open(name); what != nil {
		err = fmt.Errorf("%s: %w", dir, what)
	}
	return errors.Join(err, files.Close())
}

// newFromURL is newFromPath for a URL. It asks the store, and fails when the checkpoint there is
// not complete.
func newFromURL(url string) (*Checkpoint, error) {
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

// Close closes the files. It is called once, when nobody reads the checkpoint any more.
func (c *Checkpoint) Close() error {
	err := c.Files.Close()
	if c.cast != nil {
		err = errors.Join(err, c.cast.source.Close())
	}
	return err
}

// tensorFiles returns the names of the files that hold tensors or what proves their names, in
// ascending order.
func (c *Checkpoint) tensorFiles() (names []string) {
	found := map[string]bool{}
	for _, p := range c.allPieces() {
		if !found[p.File] {
			found[p.File] = true
			names = append(names, p.File)
		}
	}
	slices.Sort(names)
	return names
}

// currentStamp asks the file system for the present stamp of a file.
func (c *Checkpoint) currentStamp(name string) (stamp, error) {
	info, err := fs.Stat(c.Files.FS(), name)
	if err != nil {
		return stamp{}, err
	}
	return stamp{info.Size(), info.ModTime()}, nil
}

// checkUnchanged asks the file system for the stamps of all tensorFiles, and fails when one has
// changed since the checkpoint was opened.
func (c *Checkpoint) checkUnchanged() error {
	for _, name := range c.tensorFiles() {
		now, err := c.currentStamp(name)
		if err != nil {
			return err
		}
		if before := c.stamps[name]; now.size != before.size || !now.mtime.Equal(before.mtime) {
			return fmt.Errorf("%s: %s was changed while it was read; nothing of the result is "+
				"kept as good: wait until its writer is done, and start again", c.path, name)
		}
	}
	return nil
}

// CheckNames fails when a tensor has no name, as when torch.save was given a tensor alone. Other
// formats need a name.
func (c *Checkpoint) CheckNames() error {
	for i := range c.Tensors {
		switch {
		case c.Tensors[i].Name != "":
		case len(c.Tensors) > 1:
			return fmt.Errorf("%s: one of its %d tensors has the name \"\", which other formats "+
				"do not take; save it under another one, or leave it out with --only", c.path,
				len(c.Tensors))
		default:
			return fmt.Errorf("%s holds a tensor without a name, as when torch.save is given "+
				"the tensor alone; name it: --rename =weight", c.path)
		}
	}
	return nil
}

// checkStructure fails when the format does not say how the parts of a tensor fit together, or the
// structure has a fault. It reads no elements.
func (c *Checkpoint) checkStructure() error {
	for i := range c.Tensors {
		if t := &c.Tensors[i]; t.Coords != nil {
			return fmt.Errorf("%s: of tensor %q there is the part of rank %v, and %s; leave it "+
				"out with --only, or convert the checkpoint with the framework that wrote it",
				c.path, t.Name, t.Coords,
				cmp.Or(t.WhyPart, "nobody says how the parts fit together"))
		}
	}
	structure := format.Checkpoint{Tensors: c.Tensors}
	if faults := structure.Check(c.Files); len(faults) > 0 {
		return fmt.Errorf("%s: %v; shoal state check lists all that is wrong with it", c.path,
			faults[0])
	}
	return nil
}
