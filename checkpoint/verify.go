package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/format"
	"github.com/shoal-ml/shoal/state/manifest"
)

// Verify compares the checkpoint at a path with its manifest: every block of every file, and the fingerprint of every
// tensor. Files that the manifest does not list are passed over. A checkpoint of which not even the headers can be read is
// damage too; an error says that it could not be compared.
func Verify(ctx context.Context, path string, workers int) ([]Damage, *manifest.Manifest, error) {
	at, err := locate(path)
	if err != nil {
		return nil, nil, err
	}
	m, err := at.readManifest()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s was not sealed: there is no %s; shoal state seal makes one", path, at.manifestPath())
	}
	if err != nil {
		return nil, nil, err
	}
	damage, err := at.files(ctx, m, workers)
	if err != nil {
		return nil, nil, err
	}
	c, err := Open(path)
	if err != nil {
		return append(damage, Damage{What: fmt.Sprintf("the checkpoint cannot be read: %v", err)}), m, nil
	}
	defer c.Close()
	c.locateDamage(damage)
	tensors, err := c.tensors(ctx, m, workers)
	return append(damage, tensors...), m, err
}

// files compares sizes and blocks.
func (c *Checkpoint) files(ctx context.Context, m *manifest.Manifest, workers int) (damage []Damage, err error) {
	var names []string
	var sealed []manifest.File
	for _, f := range m.Files {
		info, err := fs.Stat(c.fsys, f.Name)
		switch {
		case err != nil:
			damage = append(damage, Damage{File: f.Name, To: f.Size, What: fmt.Sprintf("the file cannot be read: %v", err)})
		case info.Size() != f.Size:
			damage = append(damage, Damage{File: f.Name, From: min(f.Size, info.Size()), To: max(f.Size, info.Size()),
				What: fmt.Sprintf("the file has %d bytes, and had %d when it was sealed", info.Size(), f.Size)})
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
				damage = append(damage, Damage{File: f.Name, From: from, To: min(from+manifest.BlockBytes, f.Size), What: "not what was sealed"})
			}
		}
	}
	return damage, nil
}

// locateDamage says which tensors have elements where files are damaged.
func (c *Checkpoint) locateDamage(damage []Damage) {
	for i := range damage {
		d := &damage[i]
		d.Tensors = append(d.Tensors, c.within(d.File, d.From, d.To)...)
	}
}

// tensors compares fingerprints.
func (c *Checkpoint) tensors(ctx context.Context, m *manifest.Manifest, workers int) (damage []Damage, err error) {
	structure := format.Checkpoint{Tensors: c.Tensors}
	if faults := structure.Check(c.Files); len(faults) > 0 {
		return []Damage{{What: faults[0].String()}}, nil
	}
	found, err := fingerprints(ctx, c, digest.NewKey(m.Seed), workers)
	if err != nil {
		return nil, err
	}
	type id struct{ name, place string }
	now := map[id]manifest.Tensor{}
	for _, t := range found {
		now[id{t.Name, t.Place}] = t
	}
	for _, s := range m.Tensors {
		t, ok := now[id{s.Name, s.Place}]
		delete(now, id{s.Name, s.Place})
		what := ""
		switch {
		case !ok:
			what = "missing"
		case t.DType != s.DType || !t.Shape.Equal(s.Shape):
			what = fmt.Sprintf("%v %v, and was %v %v when it was sealed", t.DType, t.Shape, s.DType, s.Shape)
		case t.Sum != s.Sum:
			what = fmt.Sprintf("fingerprint %v, not %v", t.Sum, s.Sum)
		}
		if what != "" {
			damage = append(damage, Damage{Tensors: []string{s.Name}, What: what})
		}
	}
	for _, t := range found {
		if _, left := now[id{t.Name, t.Place}]; left {
			damage = append(damage, Damage{Tensors: []string{t.Name}, What: "was not there when it was sealed"})
		}
	}
	return damage, nil
}
