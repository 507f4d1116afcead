package format

import (
	"io/fs"
	"path"
	"slices"
	"strings"
)

// This file tells the files that macOS leaves in a folder from those of a checkpoint, so that
// every reader can pass over them.

// IsAppleDouble reports whether a file is one that macOS puts beside another on file systems of
// others, for the attributes of that: ._model.safetensors beside model.safetensors.
func IsAppleDouble(name string) bool { return strings.HasPrefix(path.Base(name), "._") }

// WithoutAppleDouble returns a folder whose lists leave out the files that IsAppleDouble
// tells. They can still be opened by their names.
func WithoutAppleDouble(fsys fs.FS) fs.FS { return plainFolder{fsys} }

// A plainFolder is a folder whose lists leave out the files of macOS. Its methods read the folder,
// and any goroutine may call them if that is so of the folder.
type plainFolder struct{ fs.FS }

// Lstat implements fs.ReadLinkFS.
func (p plainFolder) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(p.FS, name) }

// ReadLink implements fs.ReadLinkFS.
func (p plainFolder) ReadLink(name string) (string, error) { return fs.ReadLink(p.FS, name) }

// Stat implements fs.StatFS.
func (p plainFolder) Stat(name string) (fs.FileInfo, error) { return fs.Stat(p.FS, name) }

// ReadDir implements fs.ReadDirFS.
func (p plainFolder) ReadDir(name string) ([]fs.DirEntry, error) {
	list, err := fs.ReadDir(p.FS, name)
	return slices.DeleteFunc(list, func(e fs.DirEntry) bool { return IsAppleDouble(e.Name()) }), err
}
