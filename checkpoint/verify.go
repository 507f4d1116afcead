package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	gopath "path"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/manifest"
)

// How a checkpoint is compared with its manifest. One goroutine at a time uses a checkpoint;
// workers is the number of goroutines among which a function shares the reading, and for which it
// waits.

// Verify compares the checkpoint at a path with its manifest: every block of every file, and the
// fingerprint of every tensor. It does not compare checksums in the files: Seal has compared them,
// and the hashes cover the same bytes. It passes over files that the manifest does not list. A
// checkpoint whose headers cannot be read is damage too; an error says that it could not be
// compared.
func Verify(ctx context.Context, path string, workers int) ([]Damage, *manifest.Manifest, error) {
	at, err := newFromPath(path)
	if err != nil {
		return nil, nil, err
	}
	m, err := at.readManifest(at.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, at.notSealedError()
	}
	if err != nil {
		return nil, nil, err
	}
	damage, err := at.compareFiles(ctx, m, workers)
	if err != nil {
		return nil, nil, err
	}
	c, err := Open(path)
	if err != nil {
		return append(damage, Damage{What: fmt.Sprintf("the checkpoint cannot be read: %v", err)}),
			m, nil
	}
	defer c.Close()
	c.locateDamage(damage)
	tensors, err := c.compareTensors(ctx, m, damage, workers)
	return append(damage, tensors...), m, err
}

// notSealedError says that a checkpoint which is not open has no manifest of its own, and what to
// do; or why it cannot be opened.
func (c *Checkpoint) notSealedError() error {
	open, err := Open(c.path)
	if err != nil {
		return err
	}
	defer open.Close()
	if open.sealed != nil {
		return fmt.Errorf("%s is sealed with its folder: shoal state verify %s compares all of it",
			c.path, open.sealedIn)
	}
	return fmt.Errorf("%s was not sealed: there is no %s; shoal state seal makes one", c.path,
		c.manifestPath())
}

// compareFiles compares sizes and blocks of files with what m lists. It reads all bytes, and
// returns what differs.
func (c *Checkpoint) compareFiles(ctx context.Context, m *manifest.Manifest,
	workers int) (damage []Damage,
	err error) {
	var names []string
	var sealed []manifest.File
	for _, f := range m.Files {
		info, err := fs.Stat(c.fsys, f.Name)
		switch {
		case err != nil:
			damage = append(damage,
				Damage{File: f.Name, To: f.Size,
					What: fmt.Sprintf("the file cannot be read: %v", err)})
		case info.Size() != f.Size:
			damage = append(damage,
				Damage{File: f.Name, From: min(f.Size, info.Size()), To: max(f.Size, info.Size()),
					What: fmt.Sprintf("the file has %d bytes, and had %d when it was sealed",
						info.Size(), f.Size)})
		default:
			names, sealed = append(names, f.Name), append(sealed, f)
		}
	}
	now, err := hashFiles(ctx, c.fsys, names, workers)
	if err != nil {
		return damage, err
	}
	for i, f := range now {
		if f.Size != sealed[i].Size {
			return damage, fmt.Errorf("%s was changed while it was compared", f.Name)
		}
		for b := range f.Blocks {
			if f.Blocks[b] != sealed[i].Blocks[b] {
				from := int64(b) * manifest.BlockBytes
				damage = append(damage,
					Damage{File: f.Name, From: from, To: min(from+manifest.BlockBytes, f.Size),
						What: fmt.Sprintf("not what was sealed: SHA-256 %.6x…, and %.6x… is due",
							f.Blocks[b], sealed[i].Blocks[b])})
			}
		}
	}
	return damage, nil
}

// locateDamage adds to each damage the tensors that have elements there. It reads no file.
func (c *Checkpoint) locateDamage(damage []Damage) {
	for i := range damage {
		d := &damage[i]
		file, here := d.File, true
		if c.Files.Dir != "" {
			file, here = strings.CutPrefix(d.File, c.Files.Dir+"/")
		}
		if here {
			d.Tensors = append(d.Tensors, c.tensorsIn(file, d.From, d.To)...)
		}
	}
}

// pathInDir returns the name that the manifest has for a file with tensors; "" for "".
func (c *Checkpoint) pathInDir(file string) string {
	if file == "" {
		return ""
	}
	return gopath.Join(c.Files.Dir, file)
}

// compareTensors reads all tensors, compares their fingerprints with those in m, and sets m.Shown.
// It locates tensors that differ where the files are damaged.
func (c *Checkpoint) compareTensors(ctx context.Context, m *manifest.Manifest, files []Damage,
	workers int) (damage []Damage, err error) {
	structure := format.Checkpoint{Tensors: c.Tensors}
	if faults := structure.Check(c.Files); len(faults) > 0 {
		f := faults[0]
		return []Damage{{File: c.pathInDir(f.File), From: f.Offset, To: f.Offset,
			Tensors: []string{f.Name}, What: f.What}}, nil
	}
	found, shown, err := computeFingerprints(ctx, c, digest.NewKey(m.Seed), workers)
	if err != nil {
		return nil, err
	}
	m.Shown = shown
	type id struct{ name, place string }
	now := map[id]int{}
	for i, t := range found {
		now[id{t.Name, t.Place}] = i
	}
	for _, s := range m.Tensors {
		i, ok := now[id{s.Name, s.Place}]
		if delete(now, id{s.Name, s.Place}); !ok {
			damage = append(damage,
				Damage{Tensors: []string{s.Name},
					What: fmt.Sprintf("missing: it was %v %v when it was sealed", s.DType,
						s.Shape)})
			continue
		}
		switch t := &found[i]; {
		case t.DType != s.DType || !t.Shape.Equal(s.Shape):
			damage = append(damage,
				c.tensorDamage(i, files, "%v %v, and was %v %v when it was sealed", t.DType,
					t.Shape,
					s.DType, s.Shape))
		case t.Sum != s.Sum:
			damage = append(damage,
				c.tensorDamage(i, files, "fingerprint %v, and %v is due", t.Sum, s.Sum))
		}
	}
	for i, t := range found {
		if _, left := now[id{t.Name, t.Place}]; left {
			damage = append(damage, c.tensorDamage(i, nil, "was not there when it was sealed"))
		}
	}
	return damage, nil
}

// tensorDamage describes damage of the tensor with a number, in the words that what and args give
// as in fmt.Sprintf, and locates it in the first of its pieces that overlaps a damaged range of a
// file, or else in its first piece.
func (c *Checkpoint) tensorDamage(tensor int, files []Damage, what string, args ...any) Damage {
	t := &c.Tensors[tensor]
	d := Damage{Tensors: []string{t.Name}, What: fmt.Sprintf(what, args...)}
	for i := range t.Pieces {
		p := &t.Pieces[i]
		file, from, to := c.pathInDir(p.File), p.Offset, p.Offset+p.SpanBytes(t.DType)
		hit := slices.ContainsFunc(files, func(f Damage) bool {
			return f.File == file && f.From < to && from < f.To
		})
		if i == 0 || hit {
			d.File, d.From, d.To = file, from, to
		}
		if hit {
			break
		}
	}
	return d
}
