package zoo

import (
	"fmt"
	"strconv"

	"github.com/shoal-ml/shoal/decide/planner/model"
)

// What a parameter takes in mixed precision: the weight and what goes from layer to layer has two
// bytes, the gradient four, as it is added up over micro-batches, and so have the weight that the
// optimizer changes and the two moments of Adam (Narayanan et al. 2021). The optimizer reads all of
// them but the first, and writes all but the gradient.
const (
	wordBytes     = 2
	gradientBytes = 4
	stateBytes    = 18
	updateBytes   = 30
)

// Parameters returns how many parameters the model has.
func (s Shape) Parameters() int64 {
	n := s.embedding() + int64(s.Blocks)*s.block() + s.head()
	if s.Tied {
		n -= int64(s.Vocabulary) * int64(s.Width)
	}
	return n
}

// embedding returns the parameters of the first layer.
func (s Shape) embedding() int64 { return int64(s.Vocabulary+s.Positions) * int64(s.Width) }

// block returns the parameters of a block.
func (s Shape) block() int64 { return s.matrices() + int64(s.Vectors)*int64(s.Width) }

// matrices returns the parameters of a block that are in matrices.
func (s Shape) matrices() int64 {
	attention := 2*s.Heads*s.HeadWidth + 2*s.KeyHeads*s.HeadWidth
	return int64(s.Width) * int64(attention+s.perceptron()*s.Inner)
}

// perceptron returns how many matrices the perceptron of a block has.
func (s Shape) perceptron() int {
	if s.Gated {
		return 3
	}
	return 2
}

// head returns the parameters of the last layer.
func (s Shape) head() int64 { return int64(s.Vocabulary+s.Last) * int64(s.Width) }

// operations returns the floating-point operations of a block's forward pass for a sample: two for
// each parameter in a matrix and each token, and as many for the products of queries with keys, and
// of those with values, of all pairs of tokens (Narayanan et al. 2021, appendix).
func (s Shape) operations() float64 {
	tokens := float64(s.Context)
	pairs := float64(4 * tokens * tokens * float64(s.Heads*s.HeadWidth))
	return float64(2*tokens*float64(s.matrices())) + pairs
}

// Operations returns the floating-point operations of a step for a sample: forward, and twice as
// many backward.
func (s Shape) Operations() float64 {
	return 3 * (float64(float64(s.Blocks)*s.operations()) + float64(s.headOperations()))
}

// headOperations returns those of the head's forward pass for a sample.
func (s Shape) headOperations() float64 {
	return 2 * float64(s.Context) * float64(s.Vocabulary) * float64(s.Width)
}

// keptByBlock returns the bytes that a block keeps of a sample for its backward pass, with
// attention that keeps no scores (Korthikanti et al. 2022, section 4; Dao et al. 2022): the inputs
// of both norms and of all matrices, queries, keys and values, the inside of the perceptron, and a
// byte for each element of both masks of dropout.
func (s Shape) keptByBlock() int64 {
	inputs := 4 * s.Width // two norms, and the first matrices of attention and of the perceptron
	// Queries, keys, values, and the input of the last matrix of attention.
	attention := 2*s.Heads*s.HeadWidth + 2*s.KeyHeads*s.HeadWidth
	inside := 2 * s.Inner // before and after the function
	if s.Gated {
		inside = 4 * s.Inner // gate, its function, what it lets through, and their product
	}
	bytes := wordBytes * (inputs + attention + inside)
	if s.Dropout {
		bytes += 2 * s.Width
	}
	return int64(s.Context) * int64(bytes)
}

// keptByHead returns those of the head: the input of the norm and of the matrix, and scores of four
// bytes.
func (s Shape) keptByHead() int64 {
	return int64(s.Context) * int64(2*wordBytes*s.Width+4*s.Vocabulary)
}

// Spread is by which part what was not measured may differ: kernels reach between half and all of
// what a device does at its best here.
const Spread = 0.5

// Model returns the model with a point for each device and micro-batch.
func (s Shape) Model(devices []Device, micros []int) *model.Model {
	m := &model.Model{Shoal: model.Version, Name: s.Name,
		Source: fmt.Sprintf("%s, by formula, with samples of %d tokens", s.Title, s.Context)}
	out := int64(s.Context) * int64(wordBytes*s.Width)
	add := func(id, kind string, parameters int64) {
		m.Layers = append(m.Layers, model.Layer{ID: id, Kind: kind, Out: out,
			Params: gradientBytes * parameters, State: stateBytes * parameters})
	}
	add("embedding", "Embedding", s.embedding())
	for b := range s.Blocks {
		add("block."+strconv.Itoa(b), "Block", s.block())
	}
	add("head", "Head", s.head())
	for _, d := range devices {
		for _, micro := range micros {
			m.Points = append(m.Points, s.point(d, micro))
		}
	}
	return m
}

// point returns what the layers take on a device for a micro-batch.
func (s Shape) point(d Device, micro int) model.Point {
	n := float64(micro)
	p := model.Point{Device: d.Kind, Micro: micro, Spread: Spread, Formula: d.String(),
		Layers: map[string]model.Cost{}}
	// cost returns what a layer takes that makes so many operations, or reads and writes so many
	// bytes, whichever takes longer, and twice as many backward.
	cost := func(operations, bytes float64, parameters, kept int64) model.Cost {
		forward := float64(n * max(operations/(d.Flops*d.Efficiency), bytes/d.Bandwidth))
		return model.Cost{Forward: forward, Backward: 2 * forward,
			Update: updateBytes * float64(parameters) / d.Bandwidth, Kept: int64(micro) * kept}
	}
	tokens := float64(s.Context)
	moved := 2 * wordBytes * tokens * float64(s.Width) // a row is read and written for each token
	p.Layers["embedding"] = cost(0, moved, s.embedding(), 8*int64(s.Context))
	for b := range s.Blocks {
		p.Layers["block."+strconv.Itoa(b)] = cost(s.operations(), 0, s.block(), s.keptByBlock())
	}
	p.Layers["head"] = cost(s.headOperations(), 0, s.head(), s.keptByHead())
	return p
}
