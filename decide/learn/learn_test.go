package learn_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/decide/learn"
)

// The gradient that Backward collects is how much the loss changes when a parameter does.
func TestGradient(t *testing.T) {
	m := learn.NewMLP(learn.NewRandom(rand.Uint64()), 3, 5, 4, 2)
	input, target := []float64{0.3, -1.2, 0.7}, []float64{1, -2}
	// loss is half the square of the distance from the target.
	loss := func() (sum float64) {
		for i, x := range m.Forward(input) {
			sum += (x - target[i]) * (x - target[i]) / 2
		}
		return sum
	}
	before := loss()
	parameter := func(layer, i int) *float64 { return &m.Layer[layer].Weights.Value[i] }
	for layer, n := range []int{15, 20, 8} {
		for i := range n {
			const little = 1e-5
			x := *parameter(layer, i)
			*parameter(layer, i) = x + little
			more := loss()
			*parameter(layer, i) = x - little
			less := loss()
			*parameter(layer, i) = x
			numeric := (more - less) / (2 * little)
			// One step of Adam on a fresh copy goes against the sign of the gradient.
			text, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			var c learn.MLP
			if err := json.Unmarshal(text, &c); err != nil {
				t.Fatal(err)
			}
			out := c.Forward(input)
			c.Backward([]float64{out[0] - target[0], out[1] - target[1]})
			c.Step(1e-3)
			moved := c.Layer[layer].Weights.Value[i] - x
			if math.Abs(numeric) > 1e-4 && moved*numeric >= 0 {
				t.Errorf("layer %d, weight %d: gradient %v, moved by %v", layer, i, numeric, moved)
			}
		}
	}
	if loss() != before {
		t.Error("the network has changed")
	}
}

// A network learns a function of two numbers that no plane comes near.
func TestFits(t *testing.T) {
	r := learn.NewRandom(5)
	m := learn.NewMLP(r, 2, 16, 16, 1)
	wrong := 0.0
	for step := range 3000 {
		wrong = 0
		for range 16 {
			x, y := 2*r.Float()-1, 2*r.Float()-1
			off := m.Forward([]float64{x, y})[0] - x*y
			m.Backward([]float64{off / 16})
			wrong += off * off / 16
		}
		m.Step(0.01 / (1 + float64(step)/500))
	}
	if wrong > 0.002 {
		t.Errorf("off by %v on average of squares", wrong)
	}
}

// An actor learns to go right where the state says so and left where not, when what it is worth
// comes a moment later.
func TestActorLearns(t *testing.T) {
	a := learn.NewActorCritic(3, 1, 2, 8)
	a.Rate = 0.01
	r := learn.NewRandom(4)
	for range 150 {
		var episode []learn.Moment
		owed := 0.0
		for range 32 {
			s := float64(r.IntN(2))
			m := learn.Moment{State: []float64{s}, Action: a.Draw([]float64{s}), Reward: owed}
			owed = 0
			if m.Action == int(s) {
				owed = 1
			}
			episode = append(episode, m)
		}
		a.Learn(episode, 32)
	}
	if a.Best([]float64{0}) != 0 || a.Best([]float64{1}) != 1 {
		t.Error("it does not go where the state says")
	}
}

// Numbers of a seed are the same every time, in their ranges, and normal ones are.
func TestRandom(t *testing.T) {
	a, b := learn.NewRandom(7), learn.NewRandom(7)
	sum, square := 0.0, 0.0
	for range 10000 {
		if a.Uint64() != b.Uint64() {
			t.Fatal("another number with the same seed")
		}
		if x := a.IntN(3); x < 0 || x > 2 {
			t.Fatal(x)
		}
		x := a.Normal()
		b.Uint64()
		b.Uint64()
		sum, square = sum+x, square+x*x
	}
	if math.Abs(sum/10000) > 0.05 || math.Abs(square/10000-1) > 0.06 {
		t.Error(sum, square)
	}
}
