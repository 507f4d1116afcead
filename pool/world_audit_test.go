package pool

import (
	"bytes"
	"maps"
)

// audit checks that a head that starts from the record has the history of all jobs and the memory
// of the policy as the one that is about to be killed has them, when that finds all hosts away.
// Jobs that were to start, and have not begun to, wait again.
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
		if !e.started() && e.Want.total() > 0 {
			continue // it is decided anew
		}
		h, _ := old.core.History(jobID(e))
		if k, _ := restored.core.History(jobID(e)); h != k {
			w.fail("a head that starts again has of %s\n%+v\nand the one before\n%+v", id, k, h)
		}
	}
	if !bytes.Equal(old.core.Memory(), restored.core.Memory()) {
		w.fail("a head that starts again remembers\n%s\nand the one before\n%s",
			restored.core.Memory(), old.core.Memory())
	}
}
