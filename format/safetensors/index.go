package safetensors

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// This file reads and writes the index of a checkpoint of several safetensors files. Only ReadIndex
// does I/O.

// IndexName is the usual name of the index of a sharded checkpoint.
const IndexName = "model.safetensors.index.json"

// Index tells which file of a sharded checkpoint holds which tensor (Hugging Face's
// model.safetensors.index.json).
type Index struct {
	Files map[string]string // file of each tensor, in the folder of the index
}

const (
	maxEntry  = 1 << 16 // bytes of a name
	costEntry = 96      // bytes of memory for an entry, beside the name
)

// ReadIndex reads an index of size bytes. A file in it is a plain name, so an index cannot point
// out of its folder. An index of 1.8 million tensors takes some hundred MB; one that would take
// more than 512 MiB is refused. It blocks on r, and keeps it no longer. name is the file's, for
// errors.
func ReadIndex(name string, r io.ReaderAt, size int64) (*Index, error) {
	p := indexParser{scanner: newScanner(r, 0, size, maxEntry), files: map[string]string{}}
	err := p.readObject(func() error {
		if string(p.text) != "weight_map" {
			return p.skipValue(1)
		}
		if p.Files != nil {
			return p.errorf("the key %q stands twice", p.text)
		}
		p.Files = map[string]string{}
		return p.readObject(p.readEntry)
	})
	switch {
	case err != nil:
	case p.Files == nil:
		err = errors.New("it has no weight_map; this is no index of a sharded checkpoint")
	default:
		err = p.expectEnd(" \t\r\n")
	}
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", name, err)
	}
	return &p.Index, nil
}

// An indexParser reads an index, on one goroutine. Only readEntry reads from the file.
type indexParser struct {
	*scanner
	Index
	files map[string]string // names of files, so that each is in memory once
	bytes int               // bytes of memory that the index takes so far
}

// readEntry reads the file of the tensor whose name is the last text, and adds both to the index.
func (p *indexParser) readEntry() error {
	tensor := string(p.text)
	if err := p.countText(); err != nil {
		return err
	}
	if _, twice := p.Files[tensor]; twice {
		return p.errorf("the key %q stands twice", tensor)
	}
	if err := p.readString("the file of " + tensor); err != nil {
		return err
	}
	file, known := p.files[string(p.text)]
	if !known {
		file = string(p.text)
		p.files[file] = file
		if err := p.countText(); err != nil {
			return err
		}
		if !isPlainName(file) {
			return p.errorf("tensor %q: the file %q is no plain file name; an index names files "+
				"in its own folder: put them there, and their names alone into the index", tensor,
				file)
		}
	}
	p.Files[tensor] = file
	return nil
}

// countText counts the last text as memory in use, and fails when that is too much.
func (p *indexParser) countText() error {
	if p.size > maxEntry {
		return p.errorf("a name of more than %d bytes, which is the limit", maxEntry)
	}
	if p.bytes += p.size + costEntry; p.bytes > maxMemory {
		return p.errorf("the index would take more than %d bytes of memory, which is the limit",
			maxMemory)
	}
	return nil
}

// isPlainName reports whether a name is that of a file in the same folder.
func isPlainName(file string) bool {
	return fs.ValidPath(file) && file != "." && !strings.ContainsAny(file, `/\:`+"\x00")
}

// AppendJSON appends the index as Hugging Face's writers do. bytes is the size of all tensors. The
// names in the index are UTF-8, as the headers of its files see to.
func (ix *Index) AppendJSON(b []byte, bytes int64) []byte {
	b = fmt.Appendf(b, "{\n  \"metadata\": {\n    \"total_size\": %d\n  },\n  \"weight_map\": {",
		bytes)
	for i, name := range slices.Sorted(maps.Keys(ix.Files)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendQuoted(append(b, "\n    "...), name), ": "...)
		b = appendQuoted(b, ix.Files[name])
	}
	return append(b, "\n  }\n}\n"...)
}

// ShardName returns the usual name of shard i of n, counted from 0.
func ShardName(i, n int) string { return fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, n) }

// SplitFiles spreads tensors over files of at most most bytes of data each, in the order given; a
// larger tensor has a file of its own. Begin and End are ignored.
func SplitFiles(tensors []Tensor, most int64) (files [][]Tensor, err error) {
	var filled int64
	for _, t := range tensors {
		n, err := elementBytes(t.DType, t.Shape)
		if err != nil {
			return nil, fmt.Errorf("safetensors: tensor %q: %w", t.Name, err)
		}
		if len(files) == 0 || filled > 0 && n > most-filled {
			files, filled = append(files, nil), 0
		}
		files[len(files)-1] = append(files[len(files)-1], t)
		filled += n
	}
	return files, nil
}
