package act

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// How the Loop asks a policy, and refuses what it may not want. The methods run within
// Loop.Observe, on the goroutine that uses the Loop. A policy that panics has no decision then, and
// the others go on.

// maxFaults is how many faults in a row end a policy.
const maxFaults = 3

// member is a policy of the loop, and what it remembers. It is used as its Loop is.
type member struct {
	decide.Policy
	state  []byte
	faults int // in a row; maxFaults = it is off
}

// CombinePolicies returns the policies of users, and after them those of others whose levers are
// all free.
func CombinePolicies(users, others []decide.Policy) []decide.Policy {
	list := slices.Clone(users)
	for _, p := range others {
		if !slices.ContainsFunc(p.Levers(), func(lever string) bool {
			return slices.ContainsFunc(users, func(u decide.Policy) bool {
				return slices.Contains(u.Levers(), lever)
			})
		}) {
			list = append(list, p)
		}
	}
	return list
}

// mayAsk reports whether a policy is asked. Where the job is not to decide by itself, that of
// shares is where workers average in pairs: what such workers gain is that each takes as many
// samples as it can (Lian et al., Asynchronous Decentralized Parallel SGD, ICML 2018, section 3).
func (l *Loop) mayAsk(m *member) bool {
	return l.mode != Off ||
		slices.Contains(m.Levers(), "shares") && setting.MeetsInPairs(l.now.Setting.Sync)
}

// askPolicy has the policy decide. A fault says what it did wrong, in words, "" if nothing; then
// nothing should change.
func (m *member) askPolicy(o sense.Observation, t decide.Twin) (d decide.Decision, fault string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case error: // as that of a program
			d, fault = decide.Decision{}, r.Error()
		default:
			d, fault = decide.Decision{}, fmt.Sprintf("it panics: %v", r)
		}
	}()
	o.Setting.Shares = slices.Clone(o.Setting.Shares)
	d, state := m.Decide(o, t, slices.Clone(m.state))
	if len(state) > decide.MaxPolicyState {
		return decide.Decision{}, fmt.Sprintf("it wants to remember %d bytes, %d are allowed",
			len(state), decide.MaxPolicyState)
	}
	m.state = state
	if d.Else != nil && d.Else.To != nil {
		if fault := m.whyRefused(o, *d.Else.To); fault != "" {
			return decide.Decision{}, fault
		}
	}
	if d.To == nil {
		return d, ""
	}
	if fault := m.whyRefused(o, *d.To); fault != "" {
		return decide.Decision{}, fault
	}
	return d, ""
}

// whyRefused returns why the policy may not want a target, in words; "" = it may.
func (m *member) whyRefused(o sense.Observation, to decide.Target) string {
	c := setting.Change{}
	c.From, c.To = o.Setting.Diff(to.Setting)
	for _, part := range c.Parts() {
		if !slices.Contains(m.Levers(), part) {
			return fmt.Sprintf("it wants %s, and its levers are %s", setting.CutText(c.To),
				strings.Join(m.Levers(), " and "))
		}
	}
	if err := o.Levers.CheckPolicyChange(o.Setting, to.Setting); err != nil {
		if c.To == "" { // the text form has no such value
			return fmt.Sprintf("it wants what cannot be: %v", err)
		}
		return fmt.Sprintf("it wants %s: %v", setting.CutText(c.To), err)
	}
	n := len(to.Setting.Shares)
	if n > 0 && n != o.Size && c.HasPart("shares") && !c.HasPart("size") {
		return fmt.Sprintf("it wants %s: a job of %s has a share for each", setting.CutText(c.To),
			plural.Of(o.Size, "worker"))
	}
	return ""
}

// recordFault records what a policy did wrong.
func (l *Loop) recordFault(m *member, text string) {
	m.faults++
	l.faults = append(l.faults, Fault{Step: l.now.Step, Policy: m.Name(), Text: text,
		Off: m.faults == maxFaults})
	l.recordWhyNot(m.Name(), text)
}
