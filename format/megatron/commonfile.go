package megatron

// This file reads the part of torch_dist that package dcp does not know; it blocks on files.
import (
	"errors"
	"io/fs"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
)

// CommonName is the file in which Megatron-Core keeps what all ranks have alike in a checkpoint of
// its format torch_dist: arguments, iteration, learning rates. From version 0.20 on it is an object
// of the checkpoint instead, under commonKey; those versions read the file too.
const CommonName = "common.pt"

const (
	commonKey = "common_state"
	// commonStep ends the path of the number of steps that all parameters have made.
	commonStep = ".state.common_step"
)

// readCommon adds the content of the file CommonName, if it exists, to what package dcp has read. A
// file whose pickle mentions unknown globals becomes a value that could not be read.
func readCommon(files *format.Files, c *format.Checkpoint) error {
	f, err := torchzip.Open(files, CommonName, globals)
	var unknown *pickle.UnknownGlobal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.As(err, &unknown):
		c.Values = append(c.Values, format.Value{Path: CommonName, Data: format.Unread{Why: err}})
		return nil
	case err != nil:
		return err
	}
	return f.Flatten(c, "", f.Root)
}
