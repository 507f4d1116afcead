package deepspeed

import "github.com/shoal-ml/shoal/state/format"

// Globals are what the files of DeepSpeed mention.
var Globals = globals

// Once makes one of what two stages say of a tied layer.
func Once(values []format.Value) ([]format.Value, error) {
	r := &reader{Checkpoint: format.Checkpoint{Values: values}, pp: 2}
	err := r.once()
	return r.Values, err
}
