package policy

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

const (
	// adaptiveEvery is how many commits pass from one look at the noise to the next: about the half
	// life of an estimate, so that what is looked at is mostly new.
	adaptiveEvery = 50
	// adaptiveFirst is how many looks make the mean and the deviation that later ones are compared
	// with.
	adaptiveFirst = 8
	// adaptiveSlack and adaptiveAlarm are the numbers of the test in standard deviations: what a
	// look may be above the mean without a trace, and the sum of the excesses that is a change.
	// With noise that stays and is normal there is an alarm in 930 looks.
	adaptiveSlack, adaptiveAlarm = 0.5, 5.0
	// adaptiveLeast is the smallest standard deviation of the logarithm that is believed.
	adaptiveLeast = 0.05
	// adaptiveSlow is to which part of its fastest fall the fall of the loss comes at the change
	// point, where the noise cannot be measured.
	adaptiveSlow = 0.1
	// bandDeviations is how many standard deviations half of a band is that holds 80 %.
	bandDeviations = 1.2816
)

// Adaptive is the rule of KungFu's AdaptiveSGDOptimizer (Mai et al., OSDI 2020; its file
// ada_sgd.py): a training begins with synchronous model averaging (Crossbow: Koliousis et al., VLDB
// 2019, §4.1), and goes over to synchronous SGD once. There a person states the step. Here it is
// the change point of the logarithm of the gradient noise scale, by the cumulative sum of Page
// (Continuous Inspection Schemes, Biometrika 1954): the noise has grown, so the replicas are near
// to a minimum, and averages of gradients bring more than replicas that search. Of replicas that
// differ the scale is too large, but it grows with the noise. Where the noise cannot be measured,
// as where it is most of a gradient, it is when the loss falls by a tenth of what it fell by at
// most. The rule predicts nothing, and begins only where a training does of which nothing was
// changed.
type Adaptive struct{}

// watched is what the rule remembers. In the zero value nothing was done.
type watched struct {
	Began bool    `json:"began"` // the job was seen to train by sma
	Over  bool    `json:"over"`  // there is nothing more to decide
	Next  uint64  `json:"next"`  // commits at the next look
	Looks int     `json:"looks"` // that Mean and Square are of, adaptiveFirst at most
	Mean  float64 `json:"mean"`  // of the logarithm of the noise scale in the first looks
	Sum2  float64 `json:"sum2"`  // sum of the squared distances to Mean
	Band  float64 `json:"band"`  // the largest standard deviation that an estimate said of itself
	Above float64 `json:"above"` // the cumulative sum, in standard deviations

	Seen    uint64    `json:"seen,omitempty"`    // commits at the next look at the loss
	Losses  []float64 `json:"losses,omitempty"`  // of the newest looks, adaptiveFirst at most
	Fastest float64   `json:"fastest,omitempty"` // the largest fall in so many looks
}

// Name implements decide.Policy.
func (Adaptive) Name() string { return "adaptive" }

// Levers implements decide.Policy.
func (Adaptive) Levers() []string { return []string{"sync", "round"} }

// Decide implements decide.Policy.
func (Adaptive) Decide(o sense.Observation, _ decide.Twin,
	state []byte) (decide.Decision, []byte) {
	var s watched
	if json.Unmarshal(state, &s) != nil {
		s = watched{}
	}
	d := s.decide(o)
	state, err := json.Marshal(s)
	if err != nil { // a number is not finite
		state = nil
	}
	return d, state
}

// decide is Decide by what is remembered, which it updates.
func (s *watched) decide(o sense.Observation) decide.Decision {
	to := decide.Target{Setting: o.Setting}
	averages := setting.KeepsReplicas(o.Setting.Sync) && o.Setting.Sync != "pair"
	switch {
	case !o.Levers.Auto:
		return decide.NoChange(o.Levers.WhyNotAuto())
	case s.Over:
		return decide.NoChange("the job has gone over to synchronous SGD, or somebody has chosen")
	case !averages && (s.Began || o.Setting.Number > 0 || !isNewTraining(o)):
		s.Over = true
		return decide.NoChange("the job does not train by sma any more, or does not begin now")
	case o.Size < 2:
		return decide.NoChange("a worker that is alone averages nothing")
	case !averages:
		to.Setting.Sync, to.Setting.Round = "sma", max(o.Levers.Round, 1)
		return decide.Decision{To: &to, Because: "a training begins with model averaging",
			Least: anyGain}
	}
	s.Began = true
	s.lookAtNoise(o)
	s.lookAtLoss(o)
	to.Setting.Sync, to.Setting.Round = setting.Ssgd, 1
	if fall, known := s.lossDrop(); known && s.Looks < adaptiveFirst && s.Fastest > 0 &&
		fall < adaptiveSlow*s.Fastest {
		return decide.Decision{To: &to, Least: anyGain, Because: fmt.Sprintf("the loss fell by "+
			"%.2g in %d commits, and by %.2g when it fell fastest; of noise there are %d looks",
			fall, adaptiveFirst/2*adaptiveEvery, s.Fastest, s.Looks)}
	}
	if s.Above <= adaptiveAlarm {
		why := fmt.Sprintf("noise is %.2g standard deviations above its first %d looks together; "+
			"%.2g are a change point", s.Above, adaptiveFirst, adaptiveAlarm)
		if s.Looks < adaptiveFirst {
			why = fmt.Sprintf("%d of the first %d looks at the noise are made", s.Looks,
				adaptiveFirst)
		}
		if !o.Measured.Known {
			why = "the gradient noise scale is unknown: " + o.Measured.Why
			if len(s.Losses) == 0 {
				why += "; and workers tell no loss (job.report(loss=…))"
			}
		}
		d := decide.NoChange(why)
		d.Again = max(min(s.Next, s.Seen), o.Step+1) - o.Step
		return d
	}
	return decide.Decision{To: &to, Least: anyGain,
		Because: fmt.Sprintf("%s, and was %s when the training began: a change point by %.3g "+
			"standard deviations", describeNoise(o.Measured), formatSamples(portable.Exp(s.Mean)),
			s.Above)}
}

// isNewTraining reports whether a training begins: whether in the epochs before this one there are
// no more steps than the first looks take. Those of a job that goes on from a checkpoint count too.
func isNewTraining(o sense.Observation) bool {
	over := float64(o.Epoch) * float64(o.Samples)
	return over <= adaptiveFirst*adaptiveEvery*float64(o.Setting.Batch)
}

// lookAtNoise takes in the noise, if it is known and time for it.
func (s *watched) lookAtNoise(o sense.Observation) {
	n := o.Measured
	if !n.Known || o.Step < s.Next || !(n.Scale.Low > 0) {
		return
	}
	s.Next = o.Step + adaptiveEvery
	x := portable.Log(n.Scale.Mid)
	band := (portable.Log(n.Scale.High) - portable.Log(n.Scale.Low)) / (2 * bandDeviations)
	if s.Looks < adaptiveFirst {
		s.Looks++
		off := x - s.Mean
		s.Mean += off / float64(s.Looks)
		s.Sum2 += float64(off * (x - s.Mean))
		s.Band = max(s.Band, band)
		return
	}
	deviation := max(math.Sqrt(s.Sum2/(adaptiveFirst-1)), s.Band, adaptiveLeast)
	s.Above = max(0, s.Above+(x-s.Mean)/deviation-adaptiveSlack)
}

// lookAtLoss takes in the loss, if it is told and time for it.
func (s *watched) lookAtLoss(o sense.Observation) {
	if o.Step < s.Seen || o.Loss == 0 || math.IsNaN(o.Loss) || math.IsInf(o.Loss, 0) {
		return
	}
	s.Seen = o.Step + adaptiveEvery
	s.Losses = append(s.Losses[max(0, len(s.Losses)-adaptiveFirst+1):], o.Loss)
	if fall, known := s.lossDrop(); known {
		s.Fastest = max(s.Fastest, fall)
	}
}

// lossDrop returns by how much the loss has fallen from the older half of the newest looks to the
// newer one, in the mean; false = there are too few.
func (s *watched) lossDrop() (float64, bool) {
	if len(s.Losses) < adaptiveFirst {
		return 0, false
	}
	fall := 0.0
	for i, loss := range s.Losses {
		if i >= adaptiveFirst/2 {
			loss = -loss
		}
		fall += loss
	}
	return fall / (adaptiveFirst / 2), true
}
