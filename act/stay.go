package act

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/setting"
)

// What the Loop does when workers keep their way to synchronise though the setting names another
// one. agent/loop calls WorkersStayed, as all exported methods of the Loop with a lock held;
// Loop.Observe and Loop.EntryApplied call the others.

// Stay is that workers have not gone over to the way to synchronise that a change of the setting
// names, and go on by the one that they had. The zero value says nothing.
type Stay struct {
	Number uint64 // of the newest change when they were to go over
	Sync   string // how they synchronise, as a setting has it
	Why    string // in words
}

// staying is the newest Stay to which the setting was not brought yet. The zero value is none.
type staying struct {
	Stay
	ordered uint64 // step at which a change of its own was ordered; 0 = none was
	// switched is the newest change of how workers synchronise that was entered, also while there
	// is no Stay.
	switched setting.Change
}

// WorkersStayed tells the loop that workers go on by another way to synchronise than the setting
// has. The setting then goes back to theirs: by the end of the change that is measured, whoever has
// asked for it, and by a change of its own where that was replaced by another one meanwhile.
func (l *Loop) WorkersStayed(s Stay) {
	if s.Sync != "" && s.Number >= l.stay.Number {
		l.stay = staying{Stay: s, switched: l.stay.switched}
	}
}

// Staying returns what the workers have said, as long as the setting does not go by it; the zero
// value = nothing. On an agent that does not lead, it is for the one that does.
func (l *Loop) Staying() Stay { return l.stay.Stay }

// forgetStay forgets what the workers have said once the setting has their way, or another change
// of it was entered: of that they tell anew.
func (l *Loop) forgetStay(e Entry) {
	newer := e.Change != nil && e.Change.Number > l.stay.Number &&
		slices.Contains(e.Change.Parts(), "sync")
	if newer || e.Setting.Number >= l.stay.Number && e.Setting.Sync == l.stay.Sync {
		l.stay = staying{switched: l.stay.switched}
	}
}

// orderSyncOfWorkers orders that the setting names the way by which the workers synchronise; nil =
// it does, or that was ordered lately, or another change is measured, whose end comes first.
func (l *Loop) orderSyncOfWorkers() []Order {
	s, now := l.stay, l.entry.Setting
	if s.Sync == "" || now.Number < s.Number || now.Sync == s.Sync {
		return nil
	}
	if t := l.trial; t != nil && t.change.Number == s.Number {
		if t.ordered > 0 && l.now.Step < t.ordered+reorder {
			return nil
		}
		c := t.change
		c.Why = setting.CutText(s.Why)
		return l.orderTrialEnd(c, setting.Reverted)
	}
	if l.entry.Trial != nil || s.ordered > 0 && l.now.Step < s.ordered+reorder {
		return nil
	}
	l.stay.ordered = l.now.Step
	next := now
	if next.Sync = s.Sync; s.Sync == setting.Ssgd {
		next.Round = 1
	} else if was := l.stay.switched; was.Number == s.Number && was.HasPart("round") {
		if back, err := was.Undo(now); err == nil {
			next.Round = back.Round
		}
	}
	because := fmt.Sprintf("change %d of how they synchronise is void: %s", s.Number, s.Why)
	return []Order{{Next: next, Change: setting.Change{Phase: setting.Entered,
		Who: setting.TheWorkers, Because: setting.CutText(because)}}}
}
