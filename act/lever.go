package act

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/setting"
)

const (
	// maxPatience is the most steps for which a lever is left after a change.
	maxPatience = 1024
	// frozenFor is for how many patiences a lever is left that went back and forth.
	frozenFor = 8
	// maxBefore is how many values of a lever are remembered.
	maxBefore = 8
	// sameFactor is by which factor two values differ at most that count as the same.
	sameFactor = 1.1
)

// lever is what the loop knows of a part of the setting. It is the Loop's, and used as that is.
type lever struct {
	name     string
	patience uint64   // steps for which it is left after a change that brought little
	until    uint64   // the step up to which it is left; 0 = it is not
	why      string   // why it is left until then, in words
	before   []string // its values before the newest changes that were kept, the newest last
	person   string   // why no policy changes it any more, in words; "" = policies may
}

// lever returns the lever of a part of the setting, which it makes if it is new.
func (l *Loop) lever(name string) *lever {
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

// held returns why the parts that a change is about are left alone; "" = they are not.
func (l *Loop) held(c setting.Change) string {
	for _, part := range c.Parts() {
		if v := l.lever(part); v.person != "" {
			return v.person
		} else if l.now.Step < v.until {
			return fmt.Sprintf("%s, so %s waits until step %d", v.why, v.name, v.until)
		}
	}
	return ""
}

// delay leaves the lever alone for a while, after a change that brought little, and longer the next
// time.
func (v *lever) delay(step uint64) {
	v.patience = min(2*v.patience, maxPatience)
	v.until, v.why = step+v.patience, "the last change brought little"
}

// kept takes in that a change was kept. When the lever is back where it has been before, it
// oscillates: it is left alone for long.
func (v *lever) kept(c setting.Change, step uint64) (oscillates bool) {
	to := partOf(c.To, v.name)
	oscillates = slices.ContainsFunc(v.before, func(old string) bool { return isSame(to, old) })
	if len(v.before) == maxBefore {
		v.before = slices.Delete(v.before, 0, 1)
	}
	v.before = append(v.before, partOf(c.From, v.name))
	if !oscillates && c.Measured < minGain {
		v.delay(step)
		return false
	}
	if !oscillates {
		v.patience = interval
		return false
	}
	v.patience = min(2*v.patience, maxPatience)
	v.until = step + frozenFor*v.patience
	v.why = fmt.Sprintf("%s oscillates: it was at %s before", v.name, to)
	return true
}

// partOf returns the value of a part in the text form of a setting; "" = it is not there.
func partOf(text, name string) string {
	for _, word := range strings.Split(text, ",") {
		if value, is := strings.CutPrefix(word, name+"="); is {
			return value
		}
	}
	return ""
}

// release ends what levers wait for: the job has become another one, and what changes brought
// before says nothing any more.
func (l *Loop) release() {
	for _, v := range l.levers {
		v.patience, v.until, v.before = interval, 0, nil
	}
}

// isSame reports whether two values of a part are about the same.
func isSame(a, b string) bool {
	x, err := strconv.ParseFloat(a, 64)
	y, err2 := strconv.ParseFloat(b, 64)
	if err != nil || err2 != nil {
		return a != "" && a == b
	}
	return math.Max(x, y) < sameFactor*math.Min(x, y)
}
