// Package noise estimates the gradient noise scale of a job: how many samples a step can have until
// more of them hardly make its gradient better (McCandlish et al., "An Empirical Model of
// Large-Batch Training", 2018). It is pure, as package sense is.
package noise

import "github.com/shoal-ml/shoal/setting"

// Estimate is what is known of the noise in a job's gradients. The zero value knows nothing.
type Estimate struct {
	// Scale is the gradient noise scale in samples, Variance / SquaredNorm.
	Scale setting.Band
	// SquaredNorm is the squared norm of the true gradient.
	SquaredNorm float64
	// Variance is the variance of the gradient of one sample: the trace of its covariance.
	Variance float64
	// Known is whether the numbers above say anything. Who decides by the noise waits until then.
	Known bool
	// Why says in words why nothing is known; "" = something is.
	Why string
}
