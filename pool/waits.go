package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/plural"
)

// For what jobs wait, in words, for the views that people and tools get. The methods change nothing
// of the Machine. They run on the goroutine that uses it.

// taken is who has the slots of a pool, for those who wait.
type taken struct {
	free, all int    // slots
	holders   string // who has how many of the others, the first few; "" = nobody
	rigid     bool   // whether the policy gives jobs what they ask for, or nothing
	away      string // hosts whose keepers do not answer; "" = none
}

// takenSlots returns who has the slots.
func (m *Machine) takenSlots() taken {
	var holders, away []string
	for _, e := range m.busy {
		if n := e.Held.total(); n > 0 {
			holders = append(holders, fmt.Sprintf("%s has %d", e.ID, n))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.ending)) {
		if n := m.jobs[id].Held.total(); n > 0 {
			holders = append(holders, fmt.Sprintf("%s is over and still has %d", id, n))
		}
	}
	const most = 5
	if n := len(holders) - most; n > 0 {
		holders = append(holders[:most], plural.Of(n, "other job"))
	}
	t := taken{all: m.capacity()}
	for _, name := range slices.Sorted(maps.Keys(m.hosts)) {
		switch h := m.hosts[name]; {
		case h.Forgot || h.Leaving:
		case !h.Up:
			away = append(away, name)
		default:
			t.free += m.free(name)
		}
	}
	policy, err := sched.Named(m.Policy())
	t.rigid = err == nil && policy.Share == nil
	t.holders, t.away = strings.Join(holders, ", "), strings.Join(away, ", ")
	return t
}

// waitsFor says for what a job waits that has no slots; "" = it has some, or is over.
func (m *Machine) waitsFor(e *entry, t taken) string {
	if e.started() || e.State.Over() {
		return ""
	}
	if e.ParkBy != "" {
		return "shoal resume " + e.ID + " lets it go on"
	}
	if n := e.Held.total(); n > 0 {
		return fmt.Sprintf("processes of it are still in %s", plural.Of(n, "slot"))
	}
	need := cmp.Or(e.Want.total(), m.needs(e, t))
	text := fmt.Sprintf("it needs %s, and %d of %d are free", plural.Of(need, "slot"), t.free,
		t.all)
	switch {
	case e.Want.total() > 0:
		text = "its slots are decided, and it starts when they are free: " + text
	case t.free >= need:
		return text + ", which the policy keeps for others"
	}
	if t.holders != "" {
		text += ": " + t.holders
	}
	if t.away != "" {
		text += "; no keeper answers on " + t.away
	}
	return text
}

// needs returns the slots without which the policy does not start a job that waits.
func (m *Machine) needs(e *entry, t taken) int {
	j, _ := m.core.Job(jobID(e))
	if t.rigid {
		return j.Asked
	}
	return j.Smallest()
}
