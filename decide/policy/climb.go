package policy

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/sense"
)

// Two published rules that find a size by adding workers as long as that pays. They are here to be
// compared with Size: they take one step after another, predict nothing, and never begin again.

const (
	// wagenlanderSteps and wagenlanderAlpha are the numbers of the rule, as its experiments had
	// them.
	wagenlanderSteps, wagenlanderAlpha = 100, 0.33
	// learnersSteps and learnersGain are those of Crossbow, but that it compares single steps.
	learnersSteps, learnersGain = 20, 1.1
	// anyGain is a factor by which the goodput grows at least whatever is changed.
	anyGain = 1e-3
)

// Wagenlander is the rule by which KungFu finds the size of a cluster (Wagenländer; its branch
// osdi20-artifact, policy/scaling.py): as long as n workers have (1 + α/n) times the throughput of
// n − 1, one more is added; else the newest is taken back, and that is the end.
type Wagenlander struct{}

// Name implements decide.Policy.
func (Wagenlander) Name() string { return "wagenlander" }

// Levers implements decide.Policy.
func (Wagenlander) Levers() []string { return []string{"size"} }

// Decide implements decide.Policy.
func (Wagenlander) Decide(o sense.Observation, _ decide.Twin,
	state []byte) (decide.Decision, []byte) {
	return climb(o, state, wagenlanderSteps, 1, func(members int) float64 {
		return 1 + wagenlanderAlpha/float64(members)
	})
}

// Learners is the rule by which Crossbow finds how many learners share a GPU (Koliousis et al.,
// VLDB 2019, §4.4), where a learner is a worker: as long as the throughput grows by more than a
// tenth, each host gets one more; else each loses one, and that is the end.
type Learners struct{}

// Name implements decide.Policy.
func (Learners) Name() string { return "learners" }

// Levers implements decide.Policy.
func (Learners) Levers() []string { return []string{"size"} }

// Decide implements decide.Policy.
func (Learners) Decide(o sense.Observation, _ decide.Twin,
	state []byte) (decide.Decision, []byte) {
	hosts := slices.Clone(o.Hosts)
	slices.Sort(hosts)
	return climb(o, state, learnersSteps, max(len(slices.Compact(hosts)), 1),
		func(int) float64 { return learnersGain })
}

// climbed is what such a rule remembers. In the zero value nothing was measured.
type climbed struct {
	Members int     `json:"members"` // that are measured; 0 = none are yet
	Since   uint64  `json:"since"`   // committed steps when that began
	Before  int     `json:"before"`  // members before them; 0 = there were none
	Rate    float64 `json:"rate"`    // samples a second of these
	Now     float64 `json:"now"`     // samples a second of Members, when others were asked for
	Asked   int     `json:"asked"`   // members that were asked for; 0 = none are now
	Change  uint64  `json:"change"`  // number of the newest change then
	Over    bool    `json:"over"`    // the search is; where Asked is not 0, the job is to go back
}

// climb decides by such a rule: it waits for so many steps, measures the newer half of them, and
// adds `each` workers as long as the samples a second have grown by at least the factor that a
// function of the members returns.
func climb(o sense.Observation, state []byte, steps uint64, each int,
	enough func(members int) float64) (decide.Decision, []byte) {
	var s climbed
	if json.Unmarshal(state, &s) != nil {
		s = climbed{}
	}
	d := s.decide(o, steps, each, enough)
	state, err := json.Marshal(s)
	if err != nil { // a number is not finite
		state = nil
	}
	return d, state
}

// decide is climb by what is remembered in s, which it updates.
func (s *climbed) decide(o sense.Observation, steps uint64, each int,
	enough func(members int) float64) decide.Decision {
	if why := sizeWaits(o); why != "" {
		return decide.NoChange(why)
	}
	switch n := o.Size; {
	case s.Asked != 0 && n == s.Members && o.TakenBack > s.Change:
		asked := s.Asked
		s.Over, s.Asked = true, 0
		return decide.NoChange(fmt.Sprintf("%s %s taken back", plural.Of(asked, "member"),
			plural.Verb(asked, "was", "were")))
	case s.Over && s.Asked != 0 && n == s.Members: // it was not done yet
		to := withSize(o, s.Asked)
		return decide.Decision{To: &to, Because: fmt.Sprintf("%d members bring too little, and "+
			"the search ends at %d", n, s.Asked), Least: anyGain}
	case s.Over:
		s.Asked = 0
		return decide.NoChange("the search has ended at " + plural.Of(n, "member"))
	case s.Asked != 0 && n == s.Asked:
		*s = climbed{Members: n, Since: o.Step, Before: s.Members, Rate: s.Now}
	case n != s.Members, s.Asked != 0 && o.Setting.Number > s.Change: // something else has changed
		*s = climbed{Members: n, Since: o.Step}
	}
	if o.Step < s.Since+steps {
		d := decide.NoChange(fmt.Sprintf("%s %s measured until step %d",
			plural.Of(o.Size, "member"), plural.Verb(o.Size, "is", "are"), s.Since+steps))
		d.Again = s.Since + steps - o.Step
		return d
	}
	list := slices.DeleteFunc(o.Steps.Between(o.Step-steps/2, o.Step),
		func(x sense.StepSample) bool { return x.Size != o.Size })
	rate, n := sense.Rate(list)
	if n == 0 {
		return decide.NoChange("no step of " + plural.Of(o.Size, "member") + " was measured")
	}
	next, why := o.Size+each, "each number of members is tried until one brings too little"
	if s.Before > 0 {
		grown := rate.Mid / s.Rate
		why = fmt.Sprintf("%d members train %.3g times as fast as %d, and %.3g are enough", o.Size,
			grown, s.Before, enough(o.Size))
		if grown < enough(o.Size) {
			s.Over, next = true, s.Before
		}
	}
	if uint64(next) > o.Levers.Size.To || uint64(next) < o.Levers.Size.From {
		s.Over, s.Asked = true, 0
		return decide.NoChange(why + "; there is no room for others")
	}
	s.Now, s.Asked, s.Change = rate.Mid, next, o.Setting.Number
	to := withSize(o, next)
	return decide.Decision{To: &to, Because: why, Least: anyGain}
}
