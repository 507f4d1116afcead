package act

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// When a part of the setting is left alone: after a change that brought little, after one that was
// taken back, and while it goes back and forth. The methods of Loop run within its exported ones,
// on the goroutine that uses it.

const (
	// maxPatience is the most steps for which a lever is left after a change.
	maxPatience = 1024
	// wayPatience is for how many steps a change is not made again that was taken back; it doubles
	// each time up to maxWayPatience. Changes count as the same where their ends are less apart
	// than wayFactor.
	wayPatience, maxWayPatience = 128, 8192
	wayFactor                   = 1.3
	// frozenFor is for how many patiences a lever is left that went back and forth, and within how
	// many it must have; a patience counts as leastFrozen steps at least.
	frozenFor, leastFrozen = 8, 64
	// maxBefore is how many values and ways of a lever are remembered.
	maxBefore = 8
	// sameFactor is by which factor two values differ at most that count as the same.
	sameFactor = 1.1
	// leastStep is as how much time a step counts at least where something waits for steps.
	leastStep = sense.Second / 50
	// minCalm and maxCalm bound for how many steps after a release there is no other one.
	minCalm, maxCalm = 256, 4096
)

// lever is what the loop knows of a part of the setting. It is the Loop's, and used as that is.
type lever struct {
	name     string
	patience uint64  // steps for which it is left after a change that brought little
	until    moment  // up to which it is left; zero = it is not
	why      string  // why it is left until then, in words
	before   []value // before the newest changes that were kept, the newest last
	reverted []way   // changes that were taken back, the newest last
	learnt   string  // the value that was tried to learn something; "" = none was
}

// value is a value that a lever had.
type value struct {
	text string
	left uint64 // optimizer steps until it was changed, as countSteps has them
}

// way is a change of a lever that was taken back.
type way struct {
	from, to string
	patience uint64
	until    moment // up to which it is not made again
}

// moment is a moment in the life of a job: both must have come.
type moment struct {
	made uint64 // optimizer steps, as countSteps has them
	at   sense.Duration
}

// isAhead reports whether a moment has not come in what is observed.
func (l *Loop) isAhead(m moment) bool {
	return l.countSteps(l.now.Step) < m.made || l.now.Now < m.at
}

// stepAt returns after how many commits a moment will have come, if rounds stay as they are.
func (l *Loop) stepAt(m moment) uint64 {
	made := l.countSteps(l.now.Step)
	return l.now.Step + (max(m.made, made)-made+roundOf(l.entry)-1)/roundOf(l.entry)
}

// momentAfter returns the moment that is so many optimizer steps from now; each of them counts as
// leastStep at least.
func (l *Loop) momentAfter(steps uint64) moment {
	return moment{l.countSteps(l.now.Step) + steps, l.now.Now + sense.Duration(steps)*leastStep}
}

// commitsForSteps returns in how many commits of the job so many optimizer steps are made, where a
// round has so many steps and ends with a commit; at least one.
func commitsForSteps(steps uint64, round uint32) uint64 {
	return max(steps/uint64(max(round, 1)), 1)
}

// rounds are rounds of the same length, in which a job has trained for a while.
type rounds struct {
	step uint64 // commits when they began
	made uint64 // optimizer steps then, as far as they were counted
	each uint64 // optimizer steps of a round
}

// maxRounds is how many changes of the length of rounds are remembered.
const maxRounds = 16

// roundOf returns of how many optimizer steps a round is after an entry of the log.
func roundOf(e Entry) uint64 { return uint64(max(e.Setting.WithStated(0, e.Levers).Round, 1)) }

// countSteps returns how many optimizer steps the job had made after so many commits. What has
// lasted for some optimizer steps is known by it: commits of other rounds are of more of them, or
// of fewer.
func (l *Loop) countSteps(commits uint64) uint64 {
	for i := len(l.rounds) - 1; i >= 0; i-- {
		if r := l.rounds[i]; commits >= r.step {
			return r.made + (commits-r.step)*r.each
		}
	}
	return commits
}

// valueOf returns the value of a part in the text form of a setting; that of the round with how
// workers synchronise, where both change: they are one lever.
func valueOf(text, name string) string {
	value := setting.PartOf(text, name)
	if sync := setting.PartOf(text, "sync"); name == "round" && sync != "" {
		value = sync + "/" + value
	}
	return value
}

// findOrAddLever returns the lever of a part of the setting, which it makes if it is new.
func (l *Loop) findOrAddLever(name string) *lever {
	for _, v := range l.levers {
		if v.name == name {
			return v
		}
	}
	l.levers = append(l.levers, &lever{name: name, patience: interval})
	return l.levers[len(l.levers)-1]
}

// mainPart returns the part of the setting that a change is about: the first one, since others go
// with it, as the rate does with the batch; "" if it changes nothing.
func mainPart(c setting.Change) string {
	for _, part := range c.Parts() {
		return part
	}
	return ""
}

// whyLeftAlone returns why the parts that a change is about are left alone; "" = they are not, or
// it has none. Parts that are new get their levers. That the rate waits holds up only a change of
// the rate alone: with others it goes. learns is whether the change is only made to learn
// something.
func (l *Loop) whyLeftAlone(c setting.Change, learns bool) string {
	if len(c.Parts()) == 0 {
		return ""
	}
	for _, part := range c.Parts() {
		if when := l.entry.Setting.WhenSet(part); when != "" {
			return fmt.Sprintf("a person has set %s (%s), and it stays until one sets %[1]s=%[3]s",
				part, when, setting.Auto)
		}
		v := l.findOrAddLever(part)
		if l.isAhead(v.until) && (part != "rate" || isRateChange(c)) {
			return fmt.Sprintf("%s, so %s waits until step %d", v.why, v.name, l.stepAt(v.until))
		}
	}
	v := l.findOrAddLever(mainPart(c))
	if w := v.findTakenBack(c); w != nil && l.isAhead(w.until) {
		return fmt.Sprintf("%s %s -> %s was taken back, so it waits until step %d", v.name, w.from,
			w.to, l.stepAt(w.until))
	}
	if learns && v.learnt != "" {
		return fmt.Sprintf("%s=%s was tried to learn what a sample takes, and that is known now",
			v.name, v.learnt)
	}
	return ""
}

// findTakenBack returns the newest change of the lever that was taken back and is about the same as
// change c; nil = there is none.
func (v *lever) findTakenBack(c setting.Change) *way {
	from, to := valueOf(c.From, v.name), valueOf(c.To, v.name)
	factor := wayFactor
	if v.name == "size" { // the next one can be much better
		factor = 1 + 1e-9
	}
	for i := len(v.reverted) - 1; i >= 0; i-- {
		w := &v.reverted[i]
		if isWithinFactor(from, w.from, factor) && isWithinFactor(to, w.to, factor) {
			return w
		}
	}
	return nil
}

// recordTakenBack records that a change was taken back: it is not made again for long, and for
// longer the next time.
func (l *Loop) recordTakenBack(v *lever, c setting.Change) {
	w := v.findTakenBack(c)
	if w == nil {
		v.reverted = sense.AppendNewest(v.reverted, way{from: valueOf(c.From, v.name),
			to: valueOf(c.To, v.name), patience: wayPatience / 2}, maxBefore)
		w = &v.reverted[len(v.reverted)-1]
	}
	w.patience = min(2*w.patience, maxWayPatience)
	w.until = l.momentAfter(w.patience)
}

// delayLever leaves a lever alone for a while, after a change that brought little, and longer the
// next time.
func (l *Loop) delayLever(v *lever) {
	v.patience = min(2*v.patience, maxPatience)
	v.until, v.why = l.momentAfter(v.patience), "the last change brought little"
}

// recordKept records that a change was kept. When the lever is back where it has been shortly
// before, it oscillates: it is left alone for long.
func (l *Loop) recordKept(v *lever, c setting.Change) (oscillates bool) {
	to, patience := valueOf(c.To, v.name), max(v.patience, leastFrozen)
	made := l.countSteps(l.entry.Step)
	oscillates = slices.ContainsFunc(v.before, func(old value) bool {
		return isSameValue(to, old.text) && made <= old.left+frozenFor*patience
	})
	left := value{valueOf(c.From, v.name), l.countSteps(c.Step)}
	v.before = sense.AppendNewest(v.before, left, maxBefore)
	switch {
	case oscillates:
		v.patience = min(2*patience, maxPatience)
		v.until = l.momentAfter(frozenFor * v.patience)
		v.why = fmt.Sprintf("%s oscillates: it was at %s before", v.name, to)
	case c.Measured < minGain:
		l.delayLever(v)
	default:
		v.patience = max(v.patience/2, interval)
	}
	return oscillates
}

// releaseLevers ends what levers wait for: the job has become another one, and what changes brought
// before says nothing any more. Where that happens again and again, it is done ever more rarely; it
// returns whether it was done. AsOrdered is whether the members are as many as the setting says:
// then what is known of their number still holds.
func (l *Loop) releaseLevers(asOrdered bool) bool {
	made := l.countSteps(l.now.Step)
	if made < l.released+l.calm {
		return false
	}
	if made > l.released+4*l.calm {
		l.calm = 0
	}
	l.released, l.calm = made, min(max(2*l.calm, minCalm), maxCalm)
	for _, v := range l.levers {
		if v.name == "size" && asOrdered {
			continue
		}
		*v = lever{name: v.name, patience: interval}
	}
	return true
}

// isSameValue reports whether two values of a part of the setting, in the text form of a setting,
// are about the same.
func isSameValue(a, b string) bool { return isWithinFactor(a, b, sameFactor) }

// isWithinFactor reports whether two values of a part of the setting, in its text form, differ by
// less than a factor above 1, or not at all where they are no numbers.
func isWithinFactor(a, b string, factor float64) bool {
	x, err := strconv.ParseFloat(a, 64)
	y, err2 := strconv.ParseFloat(b, 64)
	if err != nil || err2 != nil {
		return a != "" && a == b
	}
	return math.Max(x, y) < factor*math.Min(x, y)
}
