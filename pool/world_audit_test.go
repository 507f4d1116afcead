package pool

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"strings"
)

// audit checks that a head that starts from the record has the history of all jobs and the memory
// of the policy as the one that is about to be killed has them, when that finds all hosts away, and
// that both decide the same when the hosts are back.
func (w *world) audit() {
	old, store := w.m, maps.Clone(w.store)
	for _, name := range w.names() {
		old.HostDown(w.now, name)
	}
	for _, x := range old.TakeWrites() {
		store[x.Key] = x.Value
	}
	restored, err := Restore(w.cfg, w.now, store)
	if err != nil {
		w.fail("restore: %v", err)
		return
	}
	for _, id := range old.order {
		e := old.jobs[id]
		h, _ := old.core.History(jobID(e))
		if k, _ := restored.core.History(jobID(e)); h != k {
			w.fail("a head that starts again has of %s\n%+v\nand the one before\n%+v", id, k, h)
		}
	}
	if !bytes.Equal(old.core.Memory(), restored.core.Memory()) {
		w.fail("a head that starts again remembers\n%s\nand the one before\n%s",
			restored.core.Memory(), old.core.Memory())
	}
	w.auditDecisions(old, restored)
}

// auditDecisions checks that two heads know the same and decide the same when all hosts come back.
// Of jobs that have processes both are told how far and how fast they are, as by a report; all else
// is in the record. The keepers do not report what lives: what a head has not sent, another must
// take for sent.
func (w *world) auditDecisions(old, restored *Machine) {
	for _, id := range old.order {
		if e := old.jobs[id]; e.started() {
			x := restored.jobs[id]
			x.Steps, x.Goal, x.Speeds = e.Steps, e.Goal, maps.Clone(e.Speeds)
		}
	}
	for name, h := range restored.hosts { // how long a host is away counts for a minute only
		h.Since = old.hosts[name].Since
	}
	heads := []*Machine{old, restored}
	for _, m := range heads {
		m.at(w.now)
		for _, id := range m.order {
			if e := m.jobs[id]; e.started() {
				e.speedAt = 0
				m.coreProgress(e)
			}
		}
	}
	know := ""
	for _, id := range old.order {
		a, _ := old.core.Job(jobID(old.jobs[id]))
		b, _ := restored.core.Job(jobID(old.jobs[id]))
		a.Waited, b.Waited = 0, 0 // those of the last decision
		if !reflect.DeepEqual(a, b) {
			know += fmt.Sprintf("%+v\n%+v\n", b, a)
		}
	}
	for _, m := range heads {
		for _, name := range w.names() {
			if h := w.hosts[name]; !h.lost {
				m.HostUp(w.now, name, h.slots, "")
			} else if known := m.hosts[name]; known != nil && !known.Forgot {
				m.coreHost(known) // so that both decide now
			}
		}
		m.Settle(w.now)
	}
	for _, id := range old.order {
		if a, b := old.jobs[id], restored.jobs[id]; !a.Want.equal(b.Want) {
			know += fmt.Sprintf("%s wants %v, and %v\n", id, b.Want, a.Want)
		}
	}
	if know != "" {
		w.fail("a head that starts again and the one before differ:\n%s", know)
	}
}

// settle has the machine decide, and takes what it wants done.
func (w *world) settle() {
	w.m.Settle(w.now)
	for _, note := range w.m.TakeNotes() {
		if strings.HasPrefix(note, "policy ") {
			w.fail("%s", note)
		}
	}
	w.writes = append(w.writes, w.m.TakeWrites()...)
	for _, o := range w.m.TakeOrders() {
		if h := w.hosts[o.Host]; h.linked {
			h.in = append(h.in, o)
		}
	}
}
