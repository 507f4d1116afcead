// Package learn has what policies learn with. Seeds come in, so the same input gives the same
// output. Nothing here does I/O, and each value is for one goroutine at a time.
package learn

import (
	"math"

	"github.com/shoal-ml/shoal/internal/portable"
)

// MLP is a multi-layer perceptron with tanh between its layers and none after the last, which Adam
// trains (Kingma and Ba, ICLR 2015). Its fields are exported so that it can be kept as JSON. One
// goroutine uses it at a time, also for Forward, which keeps what Backward needs.
type MLP struct {
	Sizes []int       // of the layers, that of the input first
	Layer []layer     // one fewer than Sizes
	Times int         // steps of Adam so far
	acts  [][]float64 // of the last Forward: the output of each layer, after the input
}

// layer is what a layer multiplies its input with and adds, and what Adam remembers of it.
type layer struct {
	Weights, Biases parameters
}

// parameters are some numbers that are learned: their values, the gradient that was collected since
// the last step, and the means of gradients and of their squares.
type parameters struct {
	Value, Mean, Square []float64
	gradient            []float64
}

// newParameters returns n parameters with normal values of a standard deviation.
func newParameters(n int, deviation float64, r *Random) parameters {
	p := parameters{Value: make([]float64, n), Mean: make([]float64, n), Square: make([]float64, n)}
	for i := range p.Value {
		p.Value[i] = deviation * r.Normal()
	}
	return p
}

// NewMLP returns a network with random weights. Sizes are those of the input, of hidden layers and
// of the output.
func NewMLP(r *Random, sizes ...int) *MLP {
	m := &MLP{Sizes: sizes}
	for i, n := range sizes[1:] {
		in := sizes[i]
		deviation := 1 / math.Sqrt(float64(in))
		if i == len(sizes)-2 {
			deviation *= 0.1 // so that outputs begin near 0
		}
		m.Layer = append(m.Layer, layer{newParameters(in*n, deviation, r), newParameters(n, 0, r)})
	}
	return m
}

// Forward returns the output for an input, in memory that the next call uses again.
func (m *MLP) Forward(input []float64) []float64 {
	if m.acts == nil {
		for _, n := range m.Sizes {
			m.acts = append(m.acts, make([]float64, n))
		}
	}
	copy(m.acts[0], input)
	for k, l := range m.Layer {
		in, out := m.acts[k], m.acts[k+1]
		for j := range out {
			sum := l.Biases.Value[j]
			for i, w := range l.Weights.Value[j*len(in) : (j+1)*len(in)] {
				sum += float64(w * in[i])
			}
			if k < len(m.Layer)-1 {
				sum = Tanh(sum)
			}
			out[j] = sum
		}
	}
	return m.acts[len(m.Layer)]
}

// Backward adds to the gradients of the parameters what they are for the input of the last Forward,
// where gradient is that of the loss by each number of the output.
func (m *MLP) Backward(gradient []float64) {
	up := gradient
	for k := len(m.Layer) - 1; k >= 0; k-- {
		in, l := m.acts[k], &m.Layer[k]
		l.Weights.prepare()
		l.Biases.prepare()
		down := make([]float64, len(in))
		for j, g := range up {
			if k < len(m.Layer)-1 {
				y := m.acts[k+1][j]
				g *= 1 - float64(y*y)
			}
			l.Biases.gradient[j] += g
			from := j * len(in)
			for i, x := range in {
				l.Weights.gradient[from+i] += float64(g * x)
				down[i] += float64(g * l.Weights.Value[from+i])
			}
		}
		up = down
	}
}

// prepare makes memory for the gradient where there is none, as after a network was read from JSON.
func (p *parameters) prepare() {
	if p.gradient == nil {
		p.gradient = make([]float64, len(p.Value))
	}
}

// Step moves the parameters against the gradients that were collected, by a step of Adam with a
// learning rate, and sets the gradients to 0.
func (m *MLP) Step(rate float64) {
	m.Times++
	for k := range m.Layer {
		for _, p := range []*parameters{&m.Layer[k].Weights, &m.Layer[k].Biases} {
			p.prepare()
			p.step(rate, float64(m.Times))
		}
	}
}

// step does for some parameters what MLP.Step says, as the step of Adam with the number times.
func (p *parameters) step(rate, times float64) {
	const decay, decaySquare, small = 0.9, 0.999, 1e-8
	unbias, unbiasSquare := 1-portable.Pow(decay, times), 1-portable.Pow(decaySquare, times)
	for i, g := range p.gradient {
		p.Mean[i] = float64(decay*p.Mean[i]) + float64((1-decay)*g)
		p.Square[i] = float64(decaySquare*p.Square[i]) + float64((1-decaySquare)*float64(g*g))
		p.Value[i] -= rate * (p.Mean[i] / unbias) / (math.Sqrt(p.Square[i]/unbiasSquare) + small)
		p.gradient[i] = 0
	}
}

// Tanh is the hyperbolic tangent, the same on every processor.
func Tanh(x float64) float64 {
	if x > 20 {
		return 1
	} else if x < -20 {
		return -1
	}
	e := portable.Exp(2 * x)
	return (e - 1) / (e + 1)
}
