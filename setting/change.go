package setting

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/shoal-ml/shoal/internal/shorten"
)

// What a change has at most besides MaxText.
const (
	maxSetting      = 2 << 10 // bytes of From and of To
	maxAlternatives = 3
)

// Phase is how far a change has come.
type Phase string

// The phases of a change. The last three are ends.
const (
	// Entered means that the job trains by the new setting, and that it is measured.
	Entered Phase = "entered"
	// Kept means that the new setting stays.
	Kept Phase = "kept"
	// Reverted means that the job trains by the setting before the change again.
	Reverted Phase = "reverted"
	// Void means that nothing was learnt, since something else has changed the job meanwhile. The
	// new setting stays.
	Void Phase = "void"
)

// IsEnd reports whether a change is over in this phase.
func (p Phase) IsEnd() bool { return p != Entered }

// Band is an estimate with its uncertainty: the true value lies from Low to High in 80 of 100
// cases. The zero value says nothing.
type Band struct {
	Low  float64 `json:"low"`
	Mid  float64 `json:"mid"`
	High float64 `json:"high"`
}

// Contains reports whether x is in the band.
func (b Band) Contains(x float64) bool { return b.Low <= x && x <= b.High }

// IsKnown reports whether the band says anything.
func (b Band) IsKnown() bool { return b != Band{} }

// Change is one change of a job's setting, as its log and its ledger have it. All hosts have the
// same. Its texts are cut to MaxText bytes each, so that it stays small.
type Change struct {
	// Number counts the changes of the job, from 1.
	Number uint64 `json:"number"`
	Phase  Phase  `json:"phase"`
	// Policy names the policy that has decided; "" = a person has, see Who.
	Policy string `json:"policy,omitempty"`
	// Who asked, such as "ada@host"; "" = a policy did.
	Who string `json:"who,omitempty"`
	// Step is the number of committed steps when the change was entered.
	Step uint64 `json:"step"`
	// OptimizerSteps is the number of optimizer steps then, those before a checkpoint too; 0 = as
	// many as Step.
	OptimizerSteps uint64 `json:"optimizer_steps,omitempty"`
	// From and To are settings, in the text form of Setting, of which only what differs is there.
	From string `json:"from"`
	To   string `json:"to"`
	// Because is the reason, in words.
	Because string `json:"because,omitempty"`
	// Alternatives are the other targets that were compared, the best first, each with its
	// prediction, in words; at most three.
	Alternatives []string `json:"alternatives,omitempty"`
	// Rate is samples a second before the change; 0 = it was not measured.
	Rate float64 `json:"rate,omitempty"`
	// Predicted is by which factor the goodput was to grow.
	Predicted Band `json:"predicted,omitzero"`
	// Measured is by which factor the goodput has grown; 0 = it was not measured.
	Measured float64 `json:"measured,omitempty"`
	// Steps is how many steps were measured; 0 = none yet.
	Steps uint64 `json:"steps,omitempty"`
	// Why says in words why the change ended as it did; "" = by what was measured.
	Why string `json:"why,omitempty"`
}

// Routes is the policy of changes of routes. They are no entries of the log, since they alter
// nothing of what is learned: the host that leads decides on them, tells of them and counts them by
// themselves, and their factors are of the speed of some all-reduces.
const Routes = "routes"

// MaxText is the number of bytes of a text in a Change at most.
const MaxText = 400

// Diff returns the parts in which two settings differ, in text form: as s has them, and as o has
// them. A part that one of them leaves as the program states is in the text of the other alone.
func (s Setting) Diff(o Setting) (before, after string) {
	a, b := s.parts(), o.parts()
	// both reports whether both settings have a word.
	both := func(word string) bool { return slices.Contains(a, word) && slices.Contains(b, word) }
	return strings.Join(slices.DeleteFunc(slices.Clone(a), both), ","),
		strings.Join(slices.DeleteFunc(slices.Clone(b), both), ",")
}

// DiffRequested returns what Diff does, where next is WithRequested by a person. A part that
// policies may change again is in after with Auto as its value. Where nothing else differs, one
// that they may change no more, and that stays as it is, is in both.
func (s Setting) DiffRequested(next Setting) (before, after string) {
	now, then := s.String(), next.String()
	var a, b, kept []string
	for _, name := range names {
		from, to := PartOf(now, name), PartOf(then, name)
		_, was := s.People[name]
		_, is := next.People[name]
		switch {
		case was && !is:
			to = Auto
		case from == to && is && !was:
			kept = append(kept, name+"="+to)
			continue
		case from == to:
			continue
		}
		if from != "" {
			a = append(a, name+"="+from)
		}
		if to != "" {
			b = append(b, name+"="+to)
		}
	}
	if len(a)+len(b) == 0 {
		a, b = kept, kept
	}
	return strings.Join(a, ","), strings.Join(b, ",")
}

// Parts returns the names of the parts of the setting whose values the change has changed, in the
// order of the text form.
func (c Change) Parts() (list []string) {
	for _, name := range c.named() {
		if to := PartOf(c.To, name); to != Auto && to != PartOf(c.From, name) {
			list = append(list, name)
		}
	}
	return list
}

// named returns the names of the parts in the texts of the change.
func (c Change) named() (list []string) {
	for _, name := range append(slices.Clip(names), "route") {
		if slices.ContainsFunc(strings.Split(c.From+","+c.To, ","), func(word string) bool {
			return strings.HasPrefix(word, name+"=")
		}) {
			list = append(list, name)
		}
	}
	return list
}

// HasPart reports whether the change changes a part of the setting.
func (c Change) HasPart(name string) bool { return slices.Contains(c.Parts(), name) }

// IsAtOnce reports whether the change begins and ends with the same entry of the log, in Phase
// Kept, because there is nothing to be measured: that of a policy which changes the rate alone,
// which changes nothing of how fast a job is, and that of a person which only changes what policies
// may change.
func (c Change) IsAtOnce() bool {
	if c.Policy != "" {
		return slices.Equal(c.Parts(), []string{"rate"})
	}
	return len(c.named()) > 0 && len(c.Parts()) == 0
}

// IsRequest reports whether a person has asked for the change, and it is no end of one.
func (c Change) IsRequest() bool {
	return c.Policy == "" && c.Who != TheWorkers && (!c.Phase.IsEnd() || c.IsAtOnce())
}

// TheWorkers is who asks for a change by which the setting names how workers synchronise already.
const TheWorkers = "the workers"

// EnteredBy returns the setting, to which a job goes from another one by a change, with what that
// brings beside the parts: the number, and which parts people have set.
func (s Setting) EnteredBy(c Change, from Setting) Setting {
	asked := s.People
	s.Number, s.People = max(c.Number, from.Number), from.People
	if !c.IsRequest() {
		return s
	}
	people := map[string]uint64{}
	maps.Copy(people, from.People)
	for _, name := range names {
		_, is := asked[name]
		if _, was := people[name]; is && !was || c.HasPart(name) {
			people[name] = c.Number
		}
		if PartOf(c.To, name) == Auto {
			delete(people, name)
		}
	}
	s.People = people
	return s
}

// Undo returns the setting before the change, where s is the one after it. An error says that the
// texts of the change are none of settings.
func (c Change) Undo(s Setting) (Setting, error) {
	for _, name := range c.named() {
		switch name {
		case "batch":
			s.Batch = 0
		case "round":
			s.Round = 0
		case "shares":
			s.Shares = nil
		case "sync":
			s.Sync = ""
		case "rate":
			s.Rate = 0
		case "save":
			s.Save = 0
		case "size":
			s.Size = 0
		}
	}
	if c.From == "" {
		return s, nil
	}
	return s.With(c.From)
}

// EndWithJob returns the end of a change that was measured when its job ended; left says that the
// job may go on, on other hosts, and that it ended on this one alone.
func (c Change) EndWithJob(left bool) Change {
	c.Phase, c.Why = Void, "the job ended in its trial"
	if left {
		c.Why = "this host left the job in its trial"
	}
	return c
}

// WithShortTexts returns the change with its texts as short as they must be, at the end of a
// character, and without characters that control a terminal, and with as many alternatives as it
// may have; From and To stay.
func (c Change) WithShortTexts() Change {
	for _, text := range []*string{&c.Policy, &c.Who, &c.Because, &c.Why} {
		*text = CutText(*text)
	}
	list := c.Alternatives[:min(len(c.Alternatives), maxAlternatives)]
	c.Alternatives = nil
	for _, text := range list {
		c.Alternatives = append(c.Alternatives, CutText(text))
	}
	return c
}

// CutText returns a text of MaxText bytes at most, with "…" in the place of what is too much. What
// cannot be printed becomes a space: programs of users write reasons, which people read as a line.
func CutText(text string) string {
	return shorten.Text(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?")), MaxText)
}

// Validate returns what is wrong with a change that no job can have; nil = nothing.
func (c Change) Validate() error {
	switch c.Phase {
	case Entered, Kept, Reverted, Void:
	default:
		return fmt.Errorf("%q is no phase of a change: there are entered, kept, reverted, void",
			c.Phase)
	}
	for _, x := range []float64{c.Rate, c.Measured, c.Predicted.Low, c.Predicted.Mid,
		c.Predicted.High} {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return fmt.Errorf("change %d has a number that is none: rate %v, predicted %v, "+
				"measured %v", c.Number, c.Rate, c.Predicted, c.Measured)
		}
	}
	for _, text := range append([]string{c.Policy, c.Who, c.Because, c.Why}, c.Alternatives...) {
		if len(text) > MaxText {
			return fmt.Errorf("change %d has a text of %d bytes; it takes up to %d", c.Number,
				len(text), MaxText)
		}
	}
	if n := max(len(c.From), len(c.To)); n > maxSetting || len(c.Alternatives) > maxAlternatives {
		return fmt.Errorf("change %d has a setting of %d bytes and %d alternatives; it takes up "+
			"to %d and %d", c.Number, n, len(c.Alternatives), maxSetting, maxAlternatives)
	}
	return nil
}
