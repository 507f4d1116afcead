package collective

import "github.com/shoal-ml/shoal/topo"

// Abort, which the goroutine that uses m calls, records in m that a worker drops the step that it
// is in, because a loss has made the step void. Its calls that are not complete fail, and so do
// those that wait for it, until Advance makes it a member again. So all members come to drop the
// step, whichever of them waits for which. It appends the failed calls to out and returns it.
func (m *Matcher) Abort(w topo.WorkerID, why string, out []Ready) []Ready {
	for _, g := range m.sortedGroups() {
		if self := g.index(w); self >= 0 {
			g.dropCallsOf(self, func(p *Posted) {
				out = append(out, Ready{[]*Posted{p},
					&LostError{m.rank(w), why, m.rank(w), p.Call.String()}})
			})
		}
	}
	return m.LoseWorker(w, why, out)
}
