package price

import (
	"math"

	"github.com/shoal-ml/shoal/decide/learn"
	"github.com/shoal-ml/shoal/internal/portable"
)

// window is how many of the last slots of time the network of a forecast sees.
const window = 12

// A forecast says how many replicas a stage will need in the next slot of time, from what it needed
// in earlier ones: by exponential smoothing with a trend (Holt, 1957) and by a small network that
// sees the last slots and learns on; the one counts that was off by less lately. It belongs to one
// Learned, and is for the goroutine that uses that.
type forecast struct {
	last         []float64 // up to window of the last needs, the newest last
	level, trend float64   // of the smoothing
	network      *learn.MLP
	// expected is what smoothing and network have said of the next slot. Until the network has seen
	// a whole window, the smoothing without its trend stands in for it.
	expected [2]float64
	off      [2]float64 // means of the squares by which they were off, of late
	scale    float64    // a mean of needs, by which the network's numbers are divided
	seen     int        // slots of time
}

// newForecast returns a forecast that has seen nothing.
func newForecast(r *learn.Random) *forecast {
	return &forecast{network: learn.NewMLP(r, window, 16, 1), scale: 1}
}

// observe takes in how many replicas were needed in the slot of time that is over.
func (f *forecast) observe(need float64) {
	const fast, slow, forget = 0.3, 0.02, 0.01
	if f.seen++; f.seen == 1 {
		f.level = need
	} else {
		before := f.level
		f.level = float64(fast*need) + float64((1-fast)*(f.level+f.trend))
		f.trend = float64(slow*(f.level-before)) + float64((1-slow)*f.trend)
		weight := max(forget, 1/float64(f.seen))
		for i, x := range f.expected {
			f.off[i] += float64(weight * (float64((x-need)*(x-need)) - f.off[i]))
		}
	}
	if len(f.last) == window {
		f.learn(need)
	}
	f.scale += float64(max(forget, 1/float64(f.seen)) * (max(need, 0.1) - f.scale))
	if f.last = append(f.last, need); len(f.last) > window {
		f.last = f.last[1:]
	}
	f.expected = [2]float64{max(0, f.level+f.trend), max(0, f.level)}
	if len(f.last) == window {
		f.expected[1] = max(0, (f.network.Forward(f.input())[0]+1)*f.scale)
	}
}

// learn moves the network by what came after the last slots: so many replicas were needed.
func (f *forecast) learn(need float64) {
	off := f.network.Forward(f.input())[0] - (need/f.scale - 1)
	f.network.Backward([]float64{min(max(off, -1), 1)}) // Huber's loss: rare peaks count less
	f.network.Step(0.002)
}

// input returns the last needs as the network sees them.
func (f *forecast) input() []float64 {
	in := make([]float64, window)
	for i, x := range f.last {
		in[i+window-len(f.last)] = x/f.scale - 1
	}
	return in
}

// next returns how many replicas are expected to be needed in the next slot of time, and the
// standard deviation of that.
func (f *forecast) next() (need, deviation float64) {
	which := 0
	if f.off[1] < f.off[0] {
		which = 1
	}
	return f.expected[which], math.Sqrt(f.off[which])
}

// replicasWorthKeeping returns how many replicas of a stage are worth keeping by a forecast, which
// it only reads: of those, each is so probably needed in the next slot of time that starting it
// again would cost more than keeping it.
func (s Stage) replicasWorthKeeping(f *forecast) int {
	often := s.Run / s.Start // how often a replica must be needed that is worth keeping
	if often >= 1 {
		return 0
	}
	mean, deviation := f.next()
	return int(max(0, math.Round(mean+float64(deviation*portable.NormalQuantile(1-often)))))
}
