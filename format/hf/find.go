package hf

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format/safetensors"
)

// This file finds out which files of a folder are those of a model. IsModelFolder and find read the
// list of the folder.

// weights are the files of a folder that hold a model: those that an index names, or these.
type weights struct {
	index string   // name of the index; "" = there is none
	files []string // names of the files, if there is no index
}

const indexSuffix = ".index.json"

// IsIndex reports whether a file is an index by its name, such as
// model.safetensors.index.json, pytorch_model.bin.index.json or model.safetensors.index.fp16.json.
func IsIndex(name string) bool {
	return strings.HasSuffix(name, ".json") && strings.Contains(name, ".index.")
}

// IsModelFolder reports whether a folder holds a model in files as this package reads them. Where
// find fails it is true, so that the reader tells why.
func IsModelFolder(fsys fs.FS) bool {
	w, err := find(fsys)
	return err != nil || w.index != "" || len(w.files) > 0
}

// find finds the model of a folder. Files of safetensors go before those of torch.save, of which
// libraries leave the same model beside them. A folder without one gives the zero value.
func find(fsys fs.FS) (w weights, err error) {
	names := map[string][]string{}
	for _, pattern := range []string{"*.safetensors" + indexSuffix, "*.safetensors",
		"*.bin" + indexSuffix, "*pytorch_model*.bin", "adapter_model.bin"} {
		if names[pattern], err = fs.Glob(fsys, pattern); err != nil {
			return w, err
		}
	}
	if w.index, err = chooseIndex(names["*.safetensors"+indexSuffix],
		safetensors.IndexName); w.index != "" || err != nil {
		return w, err
	}
	if len(names["*.safetensors"]) > 0 {
		return weights{files: names["*.safetensors"]}, nil
	}
	if w.index, err = chooseIndex(names["*.bin"+indexSuffix],
		"pytorch_model.bin"+indexSuffix); w.index != "" || err != nil {
		return w, err
	}
	if len(names["*pytorch_model*.bin"]) > 0 {
		return weights{files: names["*pytorch_model*.bin"]}, nil
	}
	return weights{files: names["adapter_model.bin"]}, nil
}

// chooseIndex returns which of the indexes of a folder counts: the one of the usual name, or else
// the only one; "" = there is none. Of several others none counts, as each is of a model.
func chooseIndex(indexes []string, usual string) (string, error) {
	switch {
	case slices.Contains(indexes, usual):
		return usual, nil
	case len(indexes) == 1:
		return indexes[0], nil
	case len(indexes) > 1:
		return "", fmt.Errorf("the folder has the indexes %s; give the path of one of them",
			strings.Join(indexes, ", "))
	}
	return "", nil
}
