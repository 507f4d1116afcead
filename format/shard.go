package format

import "github.com/shoal-ml/shoal/tensor"

// A Shard is a box of a tensor that a rank writes: what a format that writes a file for each rank
// is given.
type Shard struct {
	Name  string
	DType tensor.DType
	Shape tensor.Shape // shape of the whole tensor
	Box   tensor.Box
}
