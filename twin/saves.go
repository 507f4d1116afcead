package twin

import (
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/setting"
)

// What a change of the steps between checkpoints saves and costs, as a part of a prediction of the
// Twin.

// withSaves returns the prediction p where checkpoints are made as the setting `to` says too; one
// that says nothing but why, where that is not known.
// Twin.Predict calls it last; what checkpoints cost is counted with steps as they are now.
func (t *Twin) withSaves(p decide.Prediction, to setting.Setting) decide.Prediction {
	from := t.now.Setting
	gain := decide.SaveGain(t.now, from, to, float64(from.Batch)/t.rate.Mid)
	if !gain.IsKnown() {
		return decide.Prediction{Guess: "what a checkpoint costs is not known"}
	}
	p.Throughput, p.Goodput = bandProduct(p.Throughput, gain), bandProduct(p.Goodput, gain)
	return p
}
