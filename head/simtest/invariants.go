package simtest

import (
	"fmt"
	"iter"
	"slices"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// invariants remembers what happened anywhere, on hosts that were lost too, and finds what must not
// happen:
//
//   - a generation is decided once (G1);
//   - a step is committed once: with the same contributors, the same result and the same place in
//     the data on every host that commits it, at whatever time (C1);
//   - a host that has members applies the log entry by entry (C2);
//   - every sample of an epoch is trained on once, in the steps that the state has been through
//     (D1);
//   - the members of a generation are not all new while one of the generation before lives on a
//     host that stays (C3);
//   - the log of two hosts of the job is the same (L1);
//   - a call is in one batch at a time, and in none when it is complete; who leads goes on with no
//     batch of a host that it has lost (E1);
//   - no worker sees an error in a collective of the world (W1); on a mesh, none but that a worker
//     is lost.
//
// What holds for settings besides is in setting.go, and for meshes in invariants_mesh.go. One
// goroutine uses it, that of its Cluster.
type invariants struct {
	records map[topo.Generation]member.Record  // the decided generations
	steps   map[uint64]*step                   // by number, from 1: the committed steps
	claims  map[topo.WorkerID]map[uint64]claim // by worker and step
	logs    map[string]map[uint64]entry        // by host and number of the entry
	state   map[topo.WorkerID]bool             // who has begun a step, and so has the job's state
	at      map[string]place                   // by host
	set     map[string]setAt                   // by host
	newest  uint64                             // the newest step that is committed
	broken  error                              // the first invariant that was broken; nil = none
	meshes  meshRecord
}

// step is a committed step.
type step struct {
	host         string          // that was the first to commit it
	contributors []topo.WorkerID // the workers whose calls are in it
	digest       []uint64        // by part: its result
	data         *cursor.Cursor  // the place after it; nil = the job has no data
	follows      uint64          // the step of which the state was, from which it was made
}

// entry is what must be the same in the logs of all hosts.
type entry struct {
	batch head.BatchID
	steps uint64          // that have counted
	made  uint64          // as place.made
	view  topo.Generation // of the members
	shape string          // as shapeText writes it
	set   string          // as settingText writes it
}

// place is how far a host is in the log.
type place struct {
	index   uint64
	members bool   // it has some
	steps   uint64 // that have counted
	made    uint64 // of which step the state is: the last one, or one that the job has gone back to
}

// reset forgets all that has happened.
func (l *invariants) reset() {
	*l = invariants{records: map[topo.Generation]member.Record{}, steps: map[uint64]*step{},
		claims: map[topo.WorkerID]map[uint64]claim{},
		logs:   map[string]map[uint64]entry{}, at: map[string]place{},
		set:   map[string]setAt{},
		state: map[topo.WorkerID]bool{}}
	l.meshes.reset()
}

// fail records that an invariant is broken, the first time.
func (l *invariants) fail(format string, args ...any) {
	if l.broken == nil {
		l.broken = fmt.Errorf(format, args...)
	}
}

// addClaim records what a worker trains on in a step.
func (l *invariants) addClaim(w topo.WorkerID, step uint64, c cursor.Cursor, spans []cursor.Span) {
	if l.claims[w] == nil {
		l.claims[w] = map[uint64]claim{}
	}
	l.claims[w][step] = claim{c.Epoch, fmt.Sprint(c.Batch, c.Round, c.Shares), spans}
}

// checkDecision checks a generation that a host knows to be decided (G1), and records it.
func (l *invariants) checkDecision(h *host, r member.Record) {
	g := r.View.Generation
	if other, ok := l.records[g]; ok && !other.Equal(r) {
		l.fail("generation %d is decided twice: %+v and, on %s, %+v", g, other, h.name, r)
	}
	if _, known := l.records[g]; !known && r.Done == 0 {
		l.checkStateStays(h.cluster, r)
		l.checkReleases(h.cluster, r)
	}
	l.records[g] = r
	if g == 1 {
		for _, m := range r.View.Members {
			l.state[m.Worker] = true
		}
	}
}

// checkEntry checks an entry of the log that a host applies, with the batch that it counts, and
// records it (C1, C2). run is nil where there is no batch.
func (l *invariants) checkEntry(h *host, a *head.Apply, run *execution) {
	if l.logs[h.name] == nil {
		l.logs[h.name] = map[uint64]entry{}
	}
	before, made := l.at[h.name], l.stepOfState(h, a)
	// who does not may follow a log that nobody else knows, and begins anew
	if h.agent.Record().Belongs(h.name) {
		l.logs[h.name][a.Index] = entry{a.Batch, a.Steps, made, a.View.Generation,
			shapeText(a.Shape), settingText(a)}
	}
	if before.members && a.Index != before.index+1 {
		l.fail("%s goes from entry %d of the log to %d", h.name, before.index, a.Index)
	}
	l.checkMeshEntry(h, a, run, made)
	members := a.View.HasHost(h.name)
	l.checkSetting(h, a, before, members && before.members)
	follows := l.stepBefore(h, a)
	l.at[h.name] = place{a.Index, members, a.Steps, made}
	if run == nil || !slices.ContainsFunc(a.Parts, func(p head.Part) bool {
		return p.Err == nil && isStep(p.Calls[0])
	}) {
		return
	}
	s := &step{host: h.name, digest: run.result, data: a.Data, follows: follows}
	for i, part := range a.Parts {
		var who []topo.WorkerID
		for _, p := range part.Calls {
			who = append(who, p.Worker)
		}
		if i > 0 && !slices.Equal(who, s.contributors) {
			l.fail("the calls of step %d have different contributors: %v and %v", a.Steps,
				s.contributors, who)
		}
		s.contributors = who
	}
	l.checkContributors(h, a, s.contributors)
	other := l.steps[a.Steps]
	if other == nil {
		l.steps[a.Steps] = s
		l.newest = max(l.newest, a.Steps)
		h.cluster.print("step %d is committed by %s with %v", a.Steps, h.name, s.contributors)
		l.checkSamplesOnce(a.Steps)
		l.checkBatches(a.Steps, s)
		return
	}
	if other.follows != s.follows {
		l.fail("step %d follows step %d on %s, and step %d on %s", a.Steps, other.follows,
			other.host, s.follows, h.name)
	}
	if !slices.Equal(other.contributors, s.contributors) || !slices.Equal(other.digest, s.digest) {
		l.fail("step %d is committed twice: on %s with %v (%x), on %s with %v (%x)", a.Steps,
			other.host, other.contributors, other.digest, h.name, s.contributors, s.digest)
	}
	if diff := cmp.Diff(withoutSetting(other.data), withoutSetting(s.data)); diff != "" {
		l.fail("after step %d %s and %s are at different places in the data: %s", a.Steps,
			other.host, h.name, diff)
	}
}

// stepBefore returns the step of which the state of the job is before an entry of the log. A host
// whose workers were no members yet may come to lead, and goes on from the log of another host.
func (l *invariants) stepBefore(h *host, a *head.Apply) uint64 {
	before := l.at[h.name]
	if a.Index == before.index+1 {
		return before.made
	}
	for _, other := range h.cluster.livingHosts() {
		e, has := l.logs[other.name][a.Index-1]
		if has && h.agent.Record().Belongs(other.name) {
			return e.made
		}
	}
	return before.made
}

// withoutSetting returns a place but for its setting: a change that only a lost head has entered,
// with a step that counts for the others too, is none.
func withoutSetting(c *cursor.Cursor) *cursor.Cursor {
	if c == nil {
		return nil
	}
	place := c.WithBatch(1).WithShares(nil).WithRound(0)
	return &place
}

// checkStateStays checks that the state of the job stays with its members, unless it is lost: that
// is for checkBoxMissing to check.
func (l *invariants) checkStateStays(c *Cluster, r member.Record) {
	if s := l.meshes.shape[r.Head]; s != nil && s.Lost != "" {
		return
	}
	has := func(m topo.Member) bool { return l.state[m.Worker] || c.isBrought(m) }
	lives := func(m topo.Member) bool { return c.memberOnHost(m) != nil }
	before := l.records[r.View.Generation-1].View.Members
	if slices.ContainsFunc(before, func(m topo.Member) bool {
		return has(m) && lives(m) && r.Belongs(m.Host)
	}) && slices.ContainsFunc(r.View.Members, lives) && !slices.ContainsFunc(r.View.Members, has) {
		l.fail("the state of the job is with %v and with none of %v", before, r.View)
	}
}

// trained is what a worker was trained on in a step.
type trained struct {
	step uint64
	by   topo.WorkerID
	claim
}

// lineage yields what the state of the job has been trained on, from a step back: for each step
// that is in it, the newest first, what each of its contributors was trained on.
func (l *invariants) lineage(step uint64) iter.Seq[trained] {
	return func(yield func(trained) bool) {
		for s := l.steps[step]; s != nil; step, s = s.follows, l.steps[s.follows] {
			for _, w := range s.contributors {
				if !yield(trained{step, w, l.claims[w][step]}) {
					return
				}
			}
		}
	}
}

// checkSamplesOnce checks that no sample of a step counts in it twice, or in a step before.
func (l *invariants) checkSamplesOnce(step uint64) {
	var now []trained
	for before := range l.lineage(step) {
		for _, t := range now {
			l.checkNoSharedSample(t, before)
		}
		if before.step == step {
			now = append(now, before)
		}
	}
}

// checkNoSharedSample checks that no sample was trained on by both.
func (l *invariants) checkNoSharedSample(a, b trained) {
	if a.epoch != b.epoch {
		return
	}
	for _, x := range a.spans {
		for _, y := range b.spans {
			if at := max(x.From, y.From); at < min(x.To, y.To) {
				l.fail(
					"sample %d of epoch %d is trained on in step %d by w%d, and in step %d by w%d",
					at, a.epoch, a.step, a.by, b.step, b.by)
			}
		}
	}
}

// shapeText returns a shape as text, to be compared; "" for none.
func shapeText(s *head.Shape) string {
	if s == nil {
		return ""
	}
	return fmt.Sprint(*s)
}

// checkAtEnd checks what must hold among the hosts that are left, and between the data and what was
// trained on. A step whose contributors ran all on one host that was lost before it could apply it
// is in the log, but not here; then the samples cannot be counted.
func (l *invariants) checkAtEnd(c *Cluster) {
	l.checkBrokenIsKnown(c)
	logs := map[uint64]entry{}
	from := map[uint64]string{}
	for _, h := range c.livingHosts() {
		if r := h.agent.Record(); !r.Belongs(h.name) || !r.Equal(c.newestRecord()) {
			continue
		}
		for i, e := range l.logs[h.name] {
			if other, ok := logs[i]; ok && other != e {
				l.fail("entry %d of the log is %+v on %s and %+v on %s", i, other, from[i], e,
					h.name)
			}
			logs[i], from[i] = e, h.name
		}
	}
	if s := l.steps[l.newest]; s != nil && s.data != nil && uint64(len(l.steps)) == l.newest {
		total, by := uint64(0), map[uint64]uint64{} // by epoch; none counts twice
		for t := range l.lineage(l.newest) {
			for _, span := range t.spans {
				total += span.To - span.From
				by[t.epoch] += span.To - span.From
			}
		}
		for epoch, n := range by {
			if epoch < s.data.Epoch && n != s.data.Samples {
				l.fail("epoch %d had %d of %d samples", epoch, n, s.data.Samples)
			}
		}
		if total != s.data.Committed() {
			l.fail("%d samples were trained on, and the data stands at %d", total,
				s.data.Committed())
		}
	}
}

// newestRecord returns the newest generation that a living host knows.
func (c *Cluster) newestRecord() (best member.Record) {
	for _, h := range c.livingHosts() {
		if r := h.agent.Record(); r.View.Generation >= best.View.Generation {
			best = r
		}
	}
	return best
}
