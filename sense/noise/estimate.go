package noise

import "github.com/shoal-ml/shoal/setting"

// Estimate is what is known of the noise in a job's gradients. The zero value knows nothing.
type Estimate struct {
	// Scale is the gradient noise scale in samples, Variance / SquaredNorm; zero = it is not known.
	Scale setting.Band
	// Above is whether the estimate was above 8 batches, beyond which a scale cannot be told: then
	// Scale.Mid and Scale.High are 8 batches, and the scale is anything from Scale.Low on.
	Above bool
	// SquaredNorm is the squared norm of the true gradient, |G|². Estimates of it can be negative.
	SquaredNorm float64
	// Variance is the variance of the gradient of one sample: the trace of its covariance, trΣ.
	// Estimates of it can be negative.
	Variance float64
	// Steps is the number of steps that the estimate is of.
	Steps float64
	// Known is whether Scale says anything. Who decides by the noise waits until then.
	Known bool
	// NotFinite is whether nothing is known because the gradients are not finite. What was known
	// before does not count either then.
	NotFinite bool
	// Why says in words why nothing is known; "" = something is.
	Why string
}
