package deepspeed

// This file opens parts of the package to its tests, which are in another package.
import (
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed/patterns"
	"github.com/shoal-ml/shoal/format/deepspeed/stages"
)

// Globals are what the files of DeepSpeed mention.
var Globals = globals

// Balanced and Uniform are the layers with which stages begin.
var (
	Balanced = stages.BalancedStarts
	Uniform  = stages.UniformStarts
)

// JoinTiedValues joins what two stages say of a tied layer, and returns the values that stay. It
// fails where the two do not say the same.
func JoinTiedValues(values []format.Value) ([]format.Value, error) {
	r := &reader{Checkpoint: format.Checkpoint{Values: values}, pp: 2}
	err := r.joinTied()
	return r.Values, err
}

// MatchPattern reports whether a pattern matches a name, as package patterns does. It fails for a
// pattern that is refused.
func MatchPattern(pattern, name string) (bool, error) {
	l := patterns.NewList("list", patterns.NewEffort("checkpoint"))
	if err := l.Add(pattern); err != nil {
		return false, err
	}
	fitting, err := l.Match(name)
	return len(fitting) > 0, err
}
