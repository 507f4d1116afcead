package zoo

// The formulas: how many parameters a model of a Shape has, what they take in memory, and how much
// a step computes. A Shape is a value, which nothing here changes.

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
	n := int64(0)
	for _, l := range s.layers() {
		n += l.shared + l.whole
	}
	if s.Tied {
		n -= int64(s.Vocabulary) * int64(s.Width)
	}
	return n
}

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

// keptByBlock returns the bytes that a block keeps of a sample on each of some ranks, with
// attention that keeps no scores (Korthikanti et al. 2022, section 4; Dao et al. 2022): the inputs
// of both norms and of all matrices, queries, keys and values, the inside of the perceptron, and a
// byte for each element of both masks of dropout. Ranks share what is between the first matrix and
// the last of attention, and of the perceptron.
func (s Shape) keptByBlock(ranks int) int64 {
	whole := 4 * s.Width // inputs of both norms and of both first matrices
	// Queries, keys, values, and the input of the last matrix of attention.
	shared := 2*s.Heads*s.HeadWidth + 2*s.KeyHeads*s.HeadWidth
	if s.Gated {
		shared += 4 * s.Inner // gate, its function, what it lets through, and their product
	} else {
		shared += 2 * s.Inner // before and after the function
	}
	bytes := wordBytes * (whole + shared/ranks)
	if s.Dropout {
		bytes += 2 * s.Width
	}
	return int64(s.Context) * int64(bytes)
}

// keptByHead returns the bytes that the head keeps of a sample on each of some ranks: the input of
// the norm and of the matrix, and scores of four bytes, which ranks share.
func (s Shape) keptByHead(ranks int) int64 {
	return int64(s.Context) * int64(2*wordBytes*s.Width+4*s.Vocabulary/ranks)
}
