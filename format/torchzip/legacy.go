package torchzip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
)

// What torch.save wrote before version 1.6, and still writes when it is asked to: five pickles, one
// after the other, and then the elements of all storages.

// legacyMagic is the value of the first pickle of a file.
var legacyMagic, _ = new(big.Int).SetString("1950a86a20f9469cfc6c", 16)

// legacyVersion is the value of the second pickle of a file.
const legacyVersion = 1001

// A legacyReader reads one pickle after the other. It is for one goroutine, that of openLegacy.
// nextPickle and locateStorages read from the file; resolveStorage does not.
type legacyReader struct {
	file    *format.File
	at, end int64 // what is not read yet: a range of the file, in bytes
	more    pickle.Globals
	roots   map[string]*storage // storages that the pickle mentions, by key
}

// IsLegacy reports whether a file that begins with these bytes, of which there should be 64, was
// written by torch.save in the form before torch 1.6.
func IsLegacy(head []byte) bool {
	v, _, err := pickle.LoadFirst(head, pickle.Options{})
	return err == nil && isMagic(v)
}

// isMagic reports whether v is the value of the first pickle of such a file.
func isMagic(v any) bool {
	x, is := v.(*big.Int)
	return is && x.Cmp(legacyMagic) == 0
}

// openLegacy is openAt for the form before torch 1.6. It has no checksums. It blocks on the file.
func openLegacy(file *format.File, at, size int64, more pickle.Globals) (*File, error) {
	l := &legacyReader{file: file, at: at, end: at + size, more: more}
	first, err := l.nextPickle(nil)
	if err != nil {
		return nil, err
	}
	if !isMagic(first) {
		return nil, errors.New("it is a pickle, and torch.save did not write it; load it with " +
			"what wrote it, and save its tensors with torch.save")
	}
	version, err := l.nextPickle(nil)
	if err != nil {
		return nil, err
	}
	if version != int64(legacyVersion) {
		return nil, fmt.Errorf("version %v of torch.save's form before torch 1.6; shoal reads %d",
			version, legacyVersion)
	}
	system, err := l.nextPickle(nil)
	if err != nil {
		return nil, err
	}
	if little, err := pickle.Get[bool](system, "little_endian"); err != nil || !little {
		return nil, errors.New("it is not of a little-endian machine; shoal reads only such files")
	}
	root, err := l.nextPickle(l.resolveStorage)
	if err != nil {
		return nil, err
	}
	return &File{Name: file.Name, Root: root}, l.locateStorages()
}

// nextPickle reads the next pickle. persistent resolves its references to storages; nil = there are
// none.
func (l *legacyReader) nextPickle(persistent func(any) (any, error)) (any, error) {
	// Elements follow after the pickles, so how long one is turns out when it has been read.
	for most := int64(64 << 10); ; most *= 8 {
		b := make([]byte, min(most, maxPickle, l.end-l.at))
		if err := l.file.ReadFull(b, l.at); err != nil {
			return nil, err
		}
		l.roots = map[string]*storage{}
		v, n, err := pickle.LoadFirst(b,
			pickle.Options{File: l.file.Name, Offset: l.at, Globals: Globals, More: l.more,
				Persistent: persistent})
		if err == nil {
			l.at += int64(n)
			return v, nil
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) || int64(len(b)) < most {
			return nil, err
		}
	}
}

// resolveStorage resolves the reference ("storage", class, key, device, elements, part), where part
// is nil or (key, offset, elements).
func (l *legacyReader) resolveStorage(id any) (any, error) {
	t, ok := id.(pickle.Tuple)
	if ok && len(t) > 0 && t[0] == "module" {
		return nil, errors.New("it holds a module itself, with its source; save its state_dict " +
			"instead")
	}
	if !ok || len(t) != 6 && len(t) != 5 || t[0] != "storage" {
		return nil, errors.New("a reference to data that is no storage")
	}
	s, key, err := newStorage(l.file.Name, t)
	if err != nil {
		return nil, err
	}
	root := l.roots[key]
	if root == nil {
		root = &storage{dtype: s.dtype, file: s.file, bytes: s.bytes}
		l.roots[key] = root
	}
	if root.bytes != s.bytes {
		return nil, fmt.Errorf("storage %q has %d bytes in one place, and %d in another", key,
			root.bytes, s.bytes)
	}
	s.root = root
	if len(t) == 5 || t[5] == nil {
		return s, nil
	}
	part, ok := t[5].(pickle.Tuple)
	if !ok || len(part) != 3 {
		return nil, fmt.Errorf("a part of storage %q that is no tuple of three", key)
	}
	size := int64(1)
	if s.dtype != 0 {
		size = int64(s.dtype.Size())
	}
	from, isFrom := part[1].(int64)
	n, isCount := part[2].(int64)
	if !isFrom || !isCount || from < 0 || n < 0 || from > root.bytes/size ||
		n > root.bytes/size-from {
		return nil, fmt.Errorf("a part of %v elements of storage %q, from element %v on, which "+
			"has %d bytes", part[2], key, part[1], root.bytes)
	}
	s.within, s.bytes = from*size, n*size
	return s, nil
}

// locateStorages reads the list of storages, and finds where each lies in the rest of the file.
func (l *legacyReader) locateStorages() error {
	roots := l.roots
	list, err := l.nextPickle(nil)
	if err != nil {
		return err
	}
	keys, ok := list.(*pickle.List)
	if !ok {
		return fmt.Errorf("%s where the keys of storages are due", pickle.KindWithArticle(list))
	}
	for _, x := range keys.Items {
		key, _ := x.(string)
		s := roots[key]
		if s == nil || s.at > 0 {
			return fmt.Errorf("the storages that follow are to be %v, of which no tensor is a "+
				"view, or which stands twice", x)
		}
		var count [8]byte
		if err := l.file.ReadFull(count[:], l.at); err != nil {
			return fmt.Errorf("storage %q: %w; the file is cut off", key, err)
		}
		n := int64(binary.LittleEndian.Uint64(count[:]))
		due := s.bytes
		if s.dtype != 0 {
			due /= int64(s.dtype.Size())
		}
		if n != due {
			return fmt.Errorf("byte %d: storage %q has %d elements here, and %d by its tensors",
				l.at, key, n, due)
		}
		l.at += int64(len(count))
		if s.bytes > l.end-l.at {
			return fmt.Errorf("storage %q has %d bytes from byte %d on, and the file ends at %d; "+
				"it is cut off", key, s.bytes, l.at, l.end)
		}
		s.at = l.at
		l.at += s.bytes
	}
	var missing []string
	for key, s := range roots {
		if s.at == 0 {
			missing = append(missing, key)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("storage %q is not in the file", slices.Min(missing))
	}
	if l.at != l.end {
		return fmt.Errorf("byte %d: %d bytes after the last storage; shoal reads files with one "+
			"call of torch.save", l.at, l.end-l.at)
	}
	return nil
}
