package act

import (
	"slices"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// What the Loop remembers of decisions that changed nothing, for shoal explain. WhyNots is called
// as all methods of the Loop, by one goroutine at a time; the Loop itself calls
// recordWhyNot.

// maxWhyNots is how many reasons a loop keeps.
const maxWhyNots = 64

// WhyNot is why a policy did not change anything, from one decision to another.
type WhyNot struct {
	Policy string
	Why    string // in words, of the last decision
	First  uint64 // step of the first decision
	Last   uint64 // step of the last one
	Times  int    // decisions
	kind   string // Why without its numbers
}

// WhyNots returns the newest reasons why nothing was changed, the newest last.
func (l *Loop) WhyNots() []WhyNot { return slices.Clone(l.whyNots) }

// recordWhyNot keeps why a policy does not change anything. What is the same but for its numbers as
// the newest one of the policy takes its place, unless something has changed meanwhile.
func (l *Loop) recordWhyNot(policy, why string) {
	why = setting.CutText(why) // a user's policy may say a lot
	kind := withoutNumbers(why)
	for i := len(l.whyNots) - 1; i >= 0; i-- {
		w := &l.whyNots[i]
		if w.Policy != policy {
			continue
		}
		if w.kind == kind && w.Last >= l.changed {
			w.Why, w.Last, w.Times = why, l.now.Step, w.Times+1
			return
		}
		break
	}
	l.whyNots = sense.AppendNewest(l.whyNots,
		WhyNot{policy, why, l.now.Step, l.now.Step, 1, kind}, maxWhyNots)
}

// withoutNumbers returns a text without its digits, and what stands between two of them.
func withoutNumbers(text string) string {
	var kind []rune
	digit := false
	for _, r := range text {
		is := r >= '0' && r <= '9'
		if !is && !(digit && (r == '.' || r == 'e' || r == '-' || r == '+')) {
			kind = append(kind, r)
		}
		digit = is || digit && (r == '.' || r == 'e' || r == '-' || r == '+')
	}
	return string(kind)
}
