package act

import (
	"math"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
)

const (
	// staleSteps is after how many steps what is remembered of the noise may be smaller by the
	// factor staleLow or larger by staleHigh; noise grows as a job trains. As in a random walk, the
	// factors grow with the root of the steps, and are bounded by maxStale roots.
	staleSteps = 1000.0
	staleLow   = 0.7
	staleHigh  = 2.0
	maxStale   = 4.0
)

// memory is what was known of the noise of gradients last. It is its Loop's, and used as that is.
// The zero value knows nothing.
type memory struct {
	noise noise.Estimate
	made  uint64 // optimizer steps when it was known
}

// restoreNoise replaces what an observation says of the noise: by nothing where that is no
// estimate, and where nobody sees noise, since a worker is left alone or workers make local steps,
// by what was known before. It also remembers what is known now, and sets o.Measured. made is how
// many optimizer steps the job has made, as Loop.countSteps has them.
func (m *memory) restoreNoise(o *sense.Observation, made uint64) {
	if o.Noise.Known && !isSound(o.Noise) {
		o.Noise = noise.Estimate{Why: "what was told of it is no estimate"}
	}
	o.Measured = o.Noise
	seen := o.Noise.Known && !(setting.KeepsReplicas(o.Setting.Sync) && m.noise.Known)
	switch {
	case o.Noise.NotFinite:
		m.noise = noise.Estimate{}
	case seen:
		m.noise, m.made = o.Noise, made
	case (o.Size == 1 || setting.IsLocal(o.Setting.Sync)) && m.noise.Known && made >= m.made:
		known := m.noise
		roots := min(math.Sqrt(float64(made-m.made)/staleSteps), maxStale)
		known.Scale.Low *= portable.Pow(staleLow, roots)
		known.Scale.High *= portable.Pow(staleHigh, roots)
		o.Noise = known
	}
}

// isSound reports whether the numbers of an estimate can be those of noise.
func isSound(n noise.Estimate) bool {
	s := n.Scale
	return s.Low > 0 && s.Low <= s.Mid && s.Mid <= s.High && s.High <= math.MaxFloat32
}
