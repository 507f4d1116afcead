// Package decide is the contract of everything that decides for a job. A policy is told what was
// observed, compares its choices by what a predictor says they take, and returns a decision that
// carries its reason in numbers. Policies lie in package policy and below; what applies a decision
// lies above.
//
// Nothing here has a clock or does anything: the same observations give the same decisions on every
// agent, so that any of them can go on where another one stopped.
package decide

import "fmt"

// Measurement is what was measured, as each agent of a job tells its policies of it.
type Measurement[S any] struct {
	Sample S // what was measured

	// Leads is whether this agent decides for the job. The others only learn from the sample, so
	// that whichever of them comes to lead has seen the same.
	Leads bool
}

// Predictor says how many seconds a choice takes.
type Predictor[T any] func(choice T) (seconds float64)

// Estimate is how long a choice takes.
type Estimate struct {
	Seconds   float64
	Predicted bool // by a model; false = measured
}

// Because is the reason of a Choice: how long the choice before takes, and how long the choice
// that replaces it.
type Because struct{ From, To Estimate }

// Choice is that one thing replaces another, and why. From and To are equal in a choice to
// leave things as they are.
type Choice[T any] struct {
	From, To T
	Because  Because
}

// Reason returns the reason in words, in milliseconds.
func (d Choice[T]) Reason() string {
	return fmt.Sprintf("%v %s, %v %s", d.From, d.Because.From, d.To, d.Because.To)
}

// String returns how long the choice takes, such as "took 3.2 ms" or "may take 2.9 ms".
func (e Estimate) String() string {
	verb := "took"
	if e.Predicted {
		verb = "may take"
	}
	return fmt.Sprintf("%s %.3g ms", verb, 1e3*e.Seconds)
}

// Prefer returns the decision between the choice of now and others. The first stays unless another
// takes less than margin times as long: margin is at most 1, and below 1 where predictions are not
// exact or a change has its price. Each of the others must be as much better than the best one
// before it.
func Prefer[T any](now T, others []T, margin float64, predict Predictor[T]) Choice[T] {
	before := Estimate{predict(now), true}
	d := Choice[T]{From: now, To: now, Because: Because{before, before}}
	for _, choice := range others {
		if took := predict(choice); took < margin*d.Because.To.Seconds {
			d.To, d.Because.To.Seconds = choice, took
		}
	}
	return d
}
