package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// IndexName is the usual name of the index of a sharded checkpoint.
const IndexName = "model.safetensors.index.json"

// Index tells which file of a sharded checkpoint holds which tensor (Hugging Face's model.safetensors.index.json).
type Index struct {
	Files map[string]string // tensor -> file in the folder of the index
}

// ParseIndex reads an index. A file in it is a plain name: an index cannot point out of its folder.
func ParseIndex(name string, text []byte) (*Index, error) {
	ix, r := &Index{}, newReader(text)
	err := r.object(func(key string) error {
		if key != "weight_map" {
			return r.skip()
		}
		ix.Files = map[string]string{}
		return r.object(func(tensor string) error {
			file, err := r.text("the file of " + tensor)
			if err == nil && !plain(file) {
				err = r.errorf("tensor %q: the file %q is no plain file name; an index names files in its own folder", tensor, file)
			}
			ix.Files[tensor] = file
			return err
		})
	})
	switch {
	case err != nil:
	case !utf8.Valid(text):
		err = errors.New("it is not UTF-8")
	case ix.Files == nil:
		err = errors.New("it has no weight_map; this is no index of a sharded checkpoint")
	default:
		err = r.end(text, " \t\r\n")
	}
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", name, err)
	}
	return ix, nil
}

// skip passes over one value, however deep: without recursion.
func (r *reader) skip() error {
	for depth := 0; ; {
		t, err := r.token()
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

func plain(file string) bool {
	return fs.ValidPath(file) && file != "." && !strings.ContainsAny(file, `/\:`+"\x00")
}

// AppendJSON appends the index as Hugging Face's writers do; bytes is the size of all tensors.
func (ix *Index) AppendJSON(b []byte, bytes int64) []byte {
	b = fmt.Appendf(b, "{\n  \"metadata\": {\n    \"total_size\": %d\n  },\n  \"weight_map\": {", bytes)
	for i, name := range slices.Sorted(maps.Keys(ix.Files)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(append(b, "\n    "...), name), ": "...)
		b = appendString(b, ix.Files[name])
	}
	return append(b, "\n  }\n}\n"...)
}

// ShardName is the usual name of shard i of n, counted from 0.
func ShardName(i, n int) string { return fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, n) }

// Split spreads tensors over files of at most most bytes of data each, in the order given; a tensor that is larger has a
// file of its own. Begin and End are not looked at.
func Split(tensors []Tensor, most int64) (files [][]Tensor, err error) {
	var filled int64
	for _, t := range tensors {
		n, err := bytes(t.DType, t.Shape)
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
