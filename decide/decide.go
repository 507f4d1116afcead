// Package decide is the contract of everything that decides for a job. A policy is told what was
// observed, compares its choices by what a predictor says they take, and returns a decision that
// carries its reason in numbers. Policies lie in package policy and below; what applies a decision
// lies above.
//
// Nothing here has a clock or does anything: the same observations give the same decisions on every
// agent, so that any of them can go on where another one stopped.
package decide

// Measurement is what was measured, as each agent of a job tells its policies of it.
type Measurement[S any] struct {
	Sample S // what was measured

	// Leads is whether this agent decides for the job. The others only learn from the sample, so
	// that whichever of them comes to lead has seen the same.
	Leads bool
}

// Predictor says how many seconds a choice takes.
type Predictor[T any] func(choice T) (seconds float64)

// Choice is that one thing replaces another, and why. From and To are equal in a choice to leave
// things as they are.
type Choice[T any] struct {
	From, To T
	// Before and After are how many seconds From and To are predicted to take.
	Before, After float64
}

// Prefer returns the decision between the choice of now and others. The first stays unless another
// takes less than margin times as long: margin is at most 1, and below 1 where predictions are not
// exact or a change has its price. Each of the others must be as much better than the best one
// before it.
func Prefer[T any](now T, others []T, margin float64, predict Predictor[T]) Choice[T] {
	before := predict(now)
	d := Choice[T]{From: now, To: now, Before: before, After: before}
	for _, choice := range others {
		if took := predict(choice); took < margin*d.After {
			d.To, d.After = choice, took
		}
	}
	return d
}
