package checkpoint

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/boxes"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/state/move"
)

// How a checkpoint is sealed: where its manifest is, and how the fingerprints and hashes in it are
// computed. One goroutine at a time uses a checkpoint; workers is the number of goroutines among
// which a function shares the reading, and for which it waits.

// manifestName returns the name of the checkpoint's manifest in its folder.
func (c *Checkpoint) manifestName() string { return manifestName(c.file) }

// manifestName returns the name of the manifest of a file, or of a folder where file is "".
func manifestName(file string) string {
	if file != "" {
		return file + "." + manifest.Name
	}
	return manifest.Name
}

// manifestPath returns where the manifest of the checkpoint is, or would be.
func (c *Checkpoint) manifestPath() string { return c.pathOf(c.manifestName()) }

// pathOf returns the path or URL of a file in the folder of the checkpoint.
func (c *Checkpoint) pathOf(name string) string { return c.joined(c.dir, name) }

// joined returns the path or URL of a file in a folder, whose path or URL is dir.
func (c *Checkpoint) joined(dir, name string) string {
	if c.bucket != nil {
		return dir + "/" + name
	}
	return filepath.Join(dir, name)
}

// readManifest reads the manifest of a file in the folder or bucket of the checkpoint, or of the
// folder where file is "". The error is fs.ErrNotExist when there is none.
func (c *Checkpoint) readManifest(file string) (*manifest.Manifest, error) {
	m, err := readManifestIn(c.fsys, c.pathOf(manifestName(file)), manifestName(file))
	if err == nil && file != "" && len(m.Files) == 1 {
		m.Files[0].Name = file // both were renamed, or copied, since it was sealed
	}
	return m, err
}

// readManifestIn reads the manifest that has a name in a folder, and in errors the path or URL at.
// The error is fs.ErrNotExist when there is none.
func readManifestIn(fsys fs.FS, at, name string) (*manifest.Manifest, error) {
	files := format.NewFiles(fsys)
	text, err := files.ReadAll(name, manifest.MaxBytes)
	if err = errors.Join(err, files.Close()); err != nil {
		return nil, err
	}
	m, err := manifest.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; restore it from another copy, or remove it, and seal "+
			"anew what shoal state check --read finds whole", at, err)
	}
	return m, nil
}

// readSeal returns what the checkpoint is compared with: its manifest, or, if it has none, what
// that of a folder in which it lies says of its files. nil means that the checkpoint is not sealed.
// The headers have been read by then.
func (c *Checkpoint) readSeal() (*manifest.Manifest, error) {
	c.sealedIn = c.dir
	m, err := c.readManifest(c.file)
	if errors.Is(err, fs.ErrNotExist) {
		return c.readSealAbove()
	}
	return m, err
}

// mostAbove is how many folders above that of the checkpoint can have its seal: no format has more
// folders in each other.
const mostAbove = 3

// readSealAbove returns what the nearest manifest of a folder in which the checkpoint lies, and
// that lists some of its files, says of them, with their names in c.dir. It has no fingerprints,
// because that folder can have the tensors of its files in another form. nil means that there is
// none.
func (c *Checkpoint) readSealAbove() (*manifest.Manifest, error) {
	fsys, below := c.fsys, "" // below leads from the folder c.sealedIn to c.dir
	for above := range mostAbove + 1 {
		var err error
		if above > 0 {
			var name string
			if fsys, name, err = c.goUp(); err != nil || fsys == nil {
				return nil, err
			}
			below = name + "/" + below
		} else if c.file == "" {
			continue // that was readManifest
		}
		m, err := readManifestIn(fsys, c.joined(c.sealedIn, manifest.Name), manifest.Name)
		switch {
		case errors.Is(err, fs.ErrNotExist), above > 0 && errors.Is(err, fs.ErrPermission):
		case err != nil:
			return nil, err
		default:
			if m.Tensors, m.Files = nil, c.keepOwn(m.Files, below); len(m.Files) > 0 {
				return m, nil
			}
		}
	}
	return nil, nil
}

// goUp makes c.sealedIn the folder above, and returns that and the name that c.sealedIn had there;
// nil if there is none above. It reads no file.
func (c *Checkpoint) goUp() (above fs.FS, name string, err error) {
	if c.bucket != nil {
		_, parent, name, err := openURL(c.sealedIn)
		if err != nil || parent == nil {
			return nil, "", err
		}
		c.sealedIn = parent.String()
		return parent.FS(context.Background()), name, nil
	}
	full, err := filepath.Abs(c.sealedIn)
	if err != nil || filepath.Dir(full) == full {
		return nil, "", err
	}
	c.sealedIn = filepath.Join(c.sealedIn, "..")
	return durable.Folder(c.sealedIn), filepath.Base(full), nil
}

// keepOwn returns those of the files of a manifest that are of the checkpoint, with their names in
// c.dir, to which below leads from the folder of the manifest: all that are there, or, if it was
// opened by a file, those that it is read from.
func (c *Checkpoint) keepOwn(files []manifest.File, below string) (own []manifest.File) {
	var names []string
	if c.file != "" {
		names = c.ownFiles()
	}
	for _, f := range files {
		name, here := strings.CutPrefix(f.Name, below)
		if here && (c.file == "" || slices.Contains(names, name)) {
			f.Name = name
			own = append(own, f)
		}
	}
	return own
}

// ownFiles returns the names of the files that a checkpoint which was opened by a file is read
// from: that file, and those that have the tensors and values.
func (c *Checkpoint) ownFiles() []string {
	names := slices.Concat([]string{c.file}, c.tensorFiles(), c.archiveFiles())
	slices.Sort(names)
	return slices.Compact(names)
}

// writeManifest writes a manifest to a path of the file system durably, and whole or not at all.
func writeManifest(path string, m *manifest.Manifest) error {
	text, err := m.Append(nil)
	if err == nil {
		err = durable.Write(path, text)
	}
	if err != nil {
		return err
	}
	return durable.Sync(filepath.Dir(path))
}

// Seal writes the manifest of a checkpoint, and returns it. It fails when there is one already, or
// the checkpoint has a fault.
func Seal(ctx context.Context, c *Checkpoint, workers int) (*manifest.Manifest, error) {
	if _, err := fs.Stat(c.fsys, c.manifestName()); err == nil {
		return nil, fmt.Errorf(
			"%s is there already; shoal state verify compares, and to seal anew remove it",
			c.manifestPath())
	}
	names, err := c.filesToSeal()
	if err != nil {
		return nil, err
	}
	if faults := c.Faults(); len(faults) > 0 {
		return nil, fmt.Errorf(
			"%s: %v; what is not whole is not sealed: shoal state check lists all that is wrong",
			c.path, faults[0])
	}
	if r, err := c.Records(ctx, workers); err != nil {
		return nil, err
	} else if len(r.Faults) > 0 {
		return nil, fmt.Errorf("%s: %v; what is damaged is not sealed: restore the file from "+
			"another copy; shoal state check --read lists all that is damaged", c.path, r.Faults[0])
	}
	if err := c.checkSealedFiles(ctx, workers); err != nil {
		return nil, err
	}
	if err := c.checkProofs(ctx, workers); err != nil {
		return nil, err
	}
	var seed [8]byte
	rand.Read(seed[:])
	key := digest.NewKey(binary.LittleEndian.Uint64(seed[:]))
	tensors, shown, err := computeFingerprints(ctx, c, key, workers)
	if err != nil {
		return nil, err
	}
	files, err := hashFiles(ctx, c.fsys, names, workers)
	if err != nil {
		return nil, err
	}
	if err := c.checkUnchanged(); err != nil {
		return nil, err
	}
	m := &manifest.Manifest{Seed: key.Seed(), Tensors: tensors, Files: files, Shown: shown}
	if c.bucket == nil {
		return m, writeManifest(c.manifestPath(), m)
	}
	text, err := m.Append(nil)
	if err == nil {
		err = c.bucket.WriteFile(ctx, c.manifestName(), text)
	}
	return m, err
}

// filesToSeal returns the names of the files that a manifest lists: all files of the folder but the
// manifest itself and those that macOS leaves beside others; or, of a checkpoint that was opened by
// a file such as an index, that file and those that have the tensors and values. It fails for a
// name that no manifest can have. A link to a folder counts where tensors are below it: others may
// lead anywhere.
func (c *Checkpoint) filesToSeal() (names []string, err error) {
	if c.file != "" {
		names = c.ownFiles()
		return names, checkSealNames(names...)
	}
	var visit fs.WalkDirFunc
	visit = func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == manifest.Name || format.IsAppleDouble(name) {
			return err
		}
		if err := checkSealNames(name); err != nil && !d.IsDir() {
			return err
		}
		info, err := fs.Stat(c.fsys, name) // a link is what it leads to
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w; a link that leads nowhere is not sealed: remove it, or "+
				"bring back what it led to", filepath.Join(c.dir, name), err)
		case info.Mode().IsRegular():
			names = append(names, name)
		case info.IsDir() && !d.IsDir() && c.hasTensorsBelow(name):
			return fs.WalkDir(c.fsys, name, visit)
		}
		return nil
	}
	err = fs.WalkDir(c.fsys, ".", visit)
	slices.Sort(names)
	return names, err
}

// hasTensorsBelow reports whether a file of tensors is below a folder in that of the checkpoint.
func (c *Checkpoint) hasTensorsBelow(folder string) bool {
	return slices.ContainsFunc(c.tensorFiles(), func(file string) bool {
		return strings.HasPrefix(c.pathInDir(file), folder+"/")
	})
}

// checkSealNames fails for names of files that no manifest can have.
func checkSealNames(names ...string) error {
	for _, name := range names {
		if manifest.CheckName(name) != nil {
			return fmt.Errorf("%q is no name of a file that a seal can list: it has a backslash "+
				"or a colon in it, or is not UTF-8; give it another one", name)
		}
	}
	return nil
}

// hashFiles reads files and returns their sizes and the hashes of their blocks, in the order of
// names. It closes what it opens.
func hashFiles(ctx context.Context, fsys fs.FS, names []string, workers int) ([]manifest.File,
	error) {
	type item struct{ file, block int }
	files := make([]manifest.File, len(names))
	var items []item
	for i, name := range names {
		info, err := fs.Stat(fsys, name)
		if err != nil {
			return nil, err
		}
		files[i] = manifest.File{Name: name, Size: info.Size()}
		files[i].Blocks = make([]manifest.Hash,
			(info.Size()+manifest.BlockBytes-1)/manifest.BlockBytes)
		for b := range files[i].Blocks {
			items = append(items, item{i, b})
		}
	}
	m := fileSet{names: names, open: func(name string) (handle, error) {
		return openFrom(fsys, name)
	}}
	size := func(i int) int64 {
		return min(manifest.BlockBytes,
			files[items[i].file].Size-int64(items[i].block)*manifest.BlockBytes)
	}
	err := shareItems(ctx, "hashing files", workers, len(items), size, func() func(int) error {
		buffer := make([]byte, manifest.BlockBytes)
		return func(i int) error {
			f := &files[items[i].file]
			at, b := int64(items[i].block)*manifest.BlockBytes, buffer[:size(i)]
			if err := m.Read(items[i].file, b, at); err != nil {
				return err
			}
			f.Blocks[items[i].block] = sha256.Sum256(b)
			return nil
		}
	})
	return files, errors.Join(err, m.Close())
}

// computeFingerprints reads a checkpoint and returns the fingerprint of each tensor, and of the
// part of each rank where the parts are not joined, under key; and as shown that of all of them
// under digest.ShownSeed, which people see.
func computeFingerprints(ctx context.Context, c *Checkpoint, key *digest.Key,
	workers int) (list []manifest.Tensor, shown digest.Sum, err error) {
	keys := [2]*digest.Key{key, digest.NewKey(digest.ShownSeed)}
	list = make([]manifest.Tensor, len(c.Tensors))
	for i := range c.Tensors {
		t := &c.Tensors[i]
		list[i] = manifest.Tensor{Name: t.Name, Place: t.Coords.String(), DType: t.DType,
			Shape: t.Shape}
	}
	work, names := splitIntoChunks(c), c.tensorFiles()
	index := map[string]int{}
	for i, name := range names {
		index[name] = i
	}
	m := fileSet{names: names, open: func(name string) (handle, error) {
		return openFrom(c.Files.FS(), name)
	}}
	sums := make([][2]digest.Sum, len(work))
	size := func(i int) int64 {
		x := &work[i]
		return int64(x.to-x.from) * int64(max(c.Tensors[x.tensor].DType.Size(), 1))
	}
	err = shareItems(ctx, "reading tensors", workers, len(work), size, func() func(int) error {
		var buffer []byte
		return func(i int) error {
			x := &work[i]
			t := &c.Tensors[x.tensor]
			read := func(b []byte, at int64) error { return m.Read(index[x.piece.File], b, at) }
			var err error
			buffer, sums[i], err = x.fingerprint(t, keys, read, buffer)
			if err != nil {
				return fmt.Errorf("%s: tensor %q: %w", c.path, t.Name, err)
			}
			return nil
		}
	})
	people := manifest.Manifest{Tensors: slices.Clone(list)}
	for i := range work {
		t := work[i].tensor
		list[t].Sum = list[t].Sum.Plus(sums[i][0])
		people.Tensors[t].Sum = people.Tensors[t].Sum.Plus(sums[i][1])
	}
	return list, people.StateSum(keys[1]), errors.Join(err, m.Close())
}

// A chunk is a part of a piece that is read at once.
type chunk struct {
	tensor int           // number of the tensor in the checkpoint
	piece  *format.Piece // piece of that tensor
	// from and to are positions among the elements of the piece in row-major order, or byte
	// positions for an element type of less than one byte.
	from, to int
}

// splitIntoChunks splits the pieces of a checkpoint into chunks of up to move.BlockBytes.
func splitIntoChunks(c *Checkpoint) (list []chunk) {
	for i := range c.Tensors {
		t := &c.Tensors[i]
		size := max(t.DType.Size(), 1)
		for k := range t.Pieces {
			p := &t.Pieces[k]
			n := int(format.BytesOf(t.DType, p.Box.Elements())) / size
			for from := 0; from < n; from += move.BlockBytes / size {
				list = append(list, chunk{i, p, from, min(from+move.BlockBytes/size, n)})
			}
		}
	}
	return list
}

// fingerprint reads a chunk of tensor t with read, into a buffer that it makes larger if need be,
// and returns the buffer for the next call, and the fingerprints of the chunk under two keys.
// Several goroutines may call it, each with a buffer of its own.
func (x *chunk) fingerprint(t *format.Tensor, keys [2]*digest.Key,
	read func([]byte, int64) error, buffer []byte) ([]byte, [2]digest.Sum, error) {
	var sums [2]digest.Sum
	size := t.DType.Size()
	if size == 0 { // one packed piece
		buffer = slices.Grow(buffer[:0], x.to-x.from)[:x.to-x.from]
		err := read(buffer, x.piece.Offset+int64(x.from))
		for i, key := range keys {
			sums[i] = key.RunSum(x.from, buffer)
		}
		return buffer, sums, err
	}
	for _, box := range x.piece.Box.Range(x.from, x.to) {
		n := box.Elements() * size
		buffer = slices.Grow(buffer[:0], n)[:n]
		if err := boxes.ReadBox(read, x.piece.Offset, size, box, x.piece.View(), buffer,
			box.Packed(0)); err != nil {
			return buffer, sums, err
		}
		for i, key := range keys {
			sums[i] = sums[i].Plus(key.BoxSum(box, t.Shape, size, buffer, box.Packed(0)))
		}
	}
	return buffer, sums, nil
}

// Damage describes what differs from what was sealed.
type Damage struct {
	File string `json:"file,omitempty"` // damaged file; "" = a tensor differs, or the whole
	From int64  `json:"from"`           // first damaged byte
	To   int64  `json:"to"`             // byte after the last damaged one
	// Tensors names the tensors that have elements there, or another fingerprint.
	Tensors []string `json:"tensors,omitempty"`
	// What says in words what differs.
	What string `json:"what"`
}

// maxNamed is the number of tensors that a message names.
const maxNamed = 8

// String says in a line what is damaged, and where.
func (d Damage) String() string {
	s := d.What
	if d.File != "" {
		s = fmt.Sprintf("%s, bytes %d to %d: %s", d.File, d.From, d.To, d.What)
	}
	if n := min(len(d.Tensors), maxNamed); n > 0 {
		s += "; in tensor " + strings.Join(d.Tensors[:n], ", ")
		if n < len(d.Tensors) {
			s += fmt.Sprintf(", and %d more", len(d.Tensors)-n)
		}
	}
	return s
}
