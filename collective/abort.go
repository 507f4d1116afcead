package collective

import (
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// Abort, which the goroutine that uses m calls, records in m that a worker drops the step that it
// is in, because a loss has made the step void. Its calls that are not complete fail, and so do
// those that wait for it, until Advance makes it a member again. So all members come to drop the
// step, whichever of them waits for which. It appends the failed calls to out and returns it.
func (m *Matcher) Abort(w topo.WorkerID, why string, out []Ready) []Ready {
	fail := func(p *Posted) {
		out = append(out, Ready{[]*Posted{p},
			&LostError{m.rank(w), why, m.rank(w), p.Call.String()}})
	}
	mine := func(p *Posted) bool {
		if p.Worker == w {
			fail(p)
		}
		return p.Worker == w
	}
	for _, g := range m.sortedGroups() {
		self := g.index(w)
		if self < 0 {
			continue
		}
		for _, pos := range slices.Concat(g.held, g.open) {
			if p := pos.calls[self]; p != nil {
				pos.calls[self] = nil
				fail(p)
			}
		}
		for _, key := range g.sortedAddresses() {
			box := g.mailboxes[key]
			box.sends, box.recvs = slices.DeleteFunc(box.sends, mine),
				slices.DeleteFunc(box.recvs, mine)
			g.dropIfEmpty(key)
		}
	}
	return m.LoseWorker(w, why, out)
}
