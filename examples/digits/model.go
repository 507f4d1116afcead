package digits

import (
	"math"
	"math/rand/v2"
)

// The model, and its gradient. The functions without a receiver change nothing but the memory that
// they are given.

// Hidden is the width of the hidden layer, Params the number of parameters.
const (
	Hidden = 256
	Params = Pixels*Hidden + Hidden + Hidden*Classes + Classes
)

// layers are views into one flat slice of Params numbers; weights are stored input by input.
type layers[T Float] struct{ w1, b1, w2, b2 []T }

// splitLayers returns views of the Params numbers of flat.
func splitLayers[T Float](flat []T) (l layers[T]) {
	for _, part := range []struct {
		view *[]T
		n    int
	}{{&l.w1, Pixels * Hidden}, {&l.b1, Hidden}, {&l.w2, Hidden * Classes}, {&l.b2, Classes}} {
		*part.view, flat = flat[:part.n:part.n], flat[part.n:]
	}
	return l
}

// Model is a perceptron with one hidden layer: softmax(W2·relu(W1·x + b1) + b2). One goroutine at a
// time may use a model.
type Model[T Float] struct {
	Weights []T // all Params of them, flat

	at             layers[T]  // views of Weights
	hidden, deltas [Hidden]T  // activations and their gradient, for the image at hand
	scores, errors [Classes]T // the same of the outputs
}

// NewModel returns a model with weights drawn from the seed (He et al. 2015), so that every rank
// starts from the same ones.
func NewModel[T Float](seed uint64) *Model[T] {
	m := &Model[T]{Weights: make([]T, Params)}
	m.at = splitLayers(m.Weights)
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range m.at.w1 {
		m.at.w1[i] = T(rng.NormFloat64() * math.Sqrt(2.0/Pixels))
	}
	for i := range m.at.w2 {
		m.at.w2[i] = T(rng.NormFloat64() * math.Sqrt(2.0/Hidden))
	}
	return m
}

// Gradient writes the mean gradient of the cross-entropy over the given images into grad (Params
// numbers) and returns their mean loss.
func (m *Model[T]) Gradient(grad []T, set *Set[T], images []int64) (loss T) {
	clear(grad)
	g := splitLayers(grad)
	for _, i := range images {
		x, label := set.Image(int(i)), set.Label[i]
		m.forward(x)
		loss += m.softmax(label) / T(len(images))
		for c := range m.errors {
			m.errors[c] /= T(len(images))
		}
		m.backward(g, x)
	}
	return loss
}

// Accuracy returns the share of images whose digit the model gets right.
func (m *Model[T]) Accuracy(set *Set[T]) float64 {
	right := 0
	for i, label := range set.Label {
		m.forward(set.Image(i))
		best := 0
		for c, score := range m.scores {
			if score > m.scores[best] {
				best = c
			}
		}
		if best == label {
			right++
		}
	}
	return float64(right) / float64(set.Len())
}

// forward computes the activations and scores of an image, in the model.
func (m *Model[T]) forward(x []T) {
	copy(m.hidden[:], m.at.b1)
	for p, v := range x {
		addScaled(m.hidden[:], v, m.at.w1[p*Hidden:])
	}
	copy(m.scores[:], m.at.b2)
	for h := range m.hidden {
		m.hidden[h] = max(m.hidden[h], 0)
		addScaled(m.scores[:], m.hidden[h], m.at.w2[h*Classes:])
	}
}

// softmax sets m.errors to the gradient of the cross-entropy at m.scores and returns the
// cross-entropy. label is the digit of the image whose forward came before.
func (m *Model[T]) softmax(label int) T {
	top, sum := m.scores[0], T(0)
	for _, score := range m.scores[1:] {
		top = max(top, score)
	}
	for c, score := range m.scores {
		m.errors[c] = T(math.Exp(float64(score - top)))
		sum += m.errors[c]
	}
	for c := range m.errors {
		m.errors[c] /= sum
	}
	m.errors[label]--
	return T(math.Log(float64(sum))) - (m.scores[label] - top)
}

// backward adds to g the gradient of the image x, whose forward and softmax came before; it changes
// m.deltas.
func (m *Model[T]) backward(g layers[T], x []T) {
	addScaled(g.b2, 1, m.errors[:])
	for h, v := range m.hidden {
		addScaled(g.w2[h*Classes:(h+1)*Classes], v, m.errors[:])
		m.deltas[h] = 0
		if v > 0 {
			for c, e := range m.errors {
				m.deltas[h] += e * m.at.w2[h*Classes+c]
			}
		}
	}
	addScaled(g.b1, 1, m.deltas[:])
	for p, v := range x {
		addScaled(g.w1[p*Hidden:(p+1)*Hidden], v, m.deltas[:])
	}
}

// addScaled does dst += a·src. Half of the pixels and of the activations are 0, which costs nothing
// here.
func addScaled[T Float](dst []T, a T, src []T) {
	if a == 0 {
		return
	}
	src = src[:len(dst)]
	for i := range dst {
		dst[i] += a * src[i]
	}
}
