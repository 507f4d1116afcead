package decide

import (
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// Policy decides about some levers of a job. A lever has one policy at most. Decide is a pure
// function: it keeps nothing and changes nothing that it is given, so what it has to remember is
// the state that it returns, MaxPolicyState bytes at most, with which it is called next time. The
// first time state is empty, and also after the job has got another head; a state that a policy
// does not understand counts as empty.
type Policy interface {
	// Name is how people call the policy, such as "batch".
	Name() string
	// Levers are the parts of the setting that the policy may change, by their names in its text
	// form, such as "batch" and "rate".
	Levers() []string
	// Decide decides by what was observed and what the twin predicts.
	Decide(o sense.Observation, twin Twin, state []byte) (Decision, []byte)
}

// MaxPolicyState is the number of bytes that a policy can remember.
const MaxPolicyState = 4 << 10

// Target is how a job could train.
type Target struct {
	Setting setting.Setting // its Number does not count; Size 0 = as many members as there are
}

// Members returns how many members the job has with the target, where it is observed now: as many
// as it has, unless the target is about another size.
func (t Target) Members(o sense.Observation) int {
	if n := t.Setting.Size; n != 0 && n != o.Setting.Size {
		return int(n)
	}
	return o.Size
}

// Decision is what a policy wants changed, and why.
type Decision struct {
	To      *Target // nil = nothing should change, and Because says why not
	Because string  // in words, with the numbers that it rests on
	// Least is by which factor the progress a second must be predicted to grow for this change, or
	// be possible where it was never measured; below 1 where it has another good, as fewer members
	// have. 0 = MinGain, or MinHope.
	Least float64
	// Again is after how many commits the policy wants to be asked again, if nothing should change:
	// it waits for something. 0 = whenever it is asked.
	Again uint64
	// Alternatives are the other targets that were compared, the best first; at most three are
	// kept.
	Alternatives []Scored
	// Else is what the policy wants where this changes nothing, or is not worth a change now; nil =
	// nothing. One of its own does not count.
	Else *Decision
}

// NoChange returns the decision that nothing should change.
func NoChange(because string) Decision { return Decision{Because: because} }

// Scored is a target and what is predicted of it.
type Scored struct {
	Target
	Prediction
}

// Twin predicts what a job will do, by what it has done.
type Twin interface {
	// Predict returns what is predicted of a target, compared with how the job trains now. It is
	// the zero value when nothing can be said, but for a reason in Guess.
	Predict(to Target) Prediction
}

// Prediction is what a twin expects of a target.
type Prediction struct {
	StepSeconds setting.Band // seconds of a step
	// Throughput is by which factor the samples a second grow.
	Throughput setting.Band
	// Efficiency is by which factor what a sample brings grows; below 1 for larger batches.
	Efficiency setting.Band
	// Careful is the factor of the efficiency that a decision rests on; 0 = the low end.
	Careful float64
	// Goodput is by which factor the progress a second grows: throughput times efficiency.
	Goodput setting.Band
	// CostSeconds is how many seconds of training the change itself costs.
	CostSeconds setting.Band
	// Guess says in words what was not measured, so that the bands rest on a guess; "" = they rest
	// on measurements.
	Guess string
	// Untried is whether nothing like the target was ever measured: then to try it tells the twin
	// what it does not know.
	Untried bool
}

const (
	// MinGain is by which factor the progress a second must be predicted to grow for a change.
	MinGain = 1.03
	// MinGuess is MinGain where the prediction is hardly more than a guess.
	MinGuess = 1.1
	// MinHope is by which factor it must at best grow for a change that is made to learn something.
	MinHope = 1.2
	// SameGain is by which factor the progress a second of two sizes of a job differs at most that
	// counts as the same. Then fewer members are better, since hosts cost.
	SameGain = 1.005
)

// Gain returns by which factor the progress a second grows, to compare targets; 0 = it is not
// known. Of the throughput the middle counts, because a trial measures it and the change is taken
// back if it is not there. Of the efficiency SureEfficiency counts, because no trial shows that.
func (p Prediction) Gain() float64 { return p.Throughput.Mid * p.SureEfficiency() }

// SureEfficiency returns the factor of the efficiency that decisions rest on; 0 = it is not known.
func (p Prediction) SureEfficiency() float64 {
	if p.Careful > 0 {
		return p.Careful
	}
	return p.Efficiency.Low
}

// HopedGain is Gain where what was never measured is as good as it may be: to try such a target
// costs a few steps, and not to know it can cost the whole job.
func (p Prediction) HopedGain() float64 {
	if !p.Untried {
		return p.Gain()
	}
	return p.Throughput.High * p.SureEfficiency()
}
