package simtest

import (
	"errors"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/store/record"
	"github.com/shoal-ml/shoal/topo"
)

// recorded is what the invariants knows of the record:
//
//   - a generation is recorded once, and as the hosts have decided it (J1);
//   - the owner in the store is a head by decision; in a run it never goes back to an earlier one,
//     and an end stays told. Another run follows one that has ended, or by force (J2);
//   - what a host holds for recorded is there, unless it has told that it is not (J3), and when the
//     store answers and the head lives, everything that the head knows is there, with itself as the
//     owner, or with the end of the job (J4);
//   - a head that begins again numbers its generations on, and does not when others can go on with
//     the job, as far as it is recorded (J5).
//
// That nothing waits for the store (C5) is for a test: a schedule is the same without it.
//
// One goroutine uses it, that of its Cluster. A check that fails is recorded in the invariants.
// Generations are numbered from the begin of the run, unless they are in the store: there after is
// added.
type recorded struct {
	owner record.Owner    // as which the job has begun
	run   string          // the run of the job that goes on now
	after topo.Generation // the last generation recorded before the job began, or began again
	lives int             // how often a job has tried to begin
	// foreign are the generations that were written by a part of the job that a person has split
	// from it
	foreign map[topo.Generation]bool
	over    bool // the job has ended
}

// checkWrite checks a value that is written now, over what was there before (J1, J2).
func (s *store) checkWrite(c *Cluster, e storeCall, before []byte) {
	if strings.HasPrefix(e.Key, "owner.") {
		s.checkOwner(c, e, before)
		return
	}
	if before != nil {
		c.invariants.fail("%s writes %s again", e.by, e.Key)
		return
	}
	r, err := record.DecodeGeneration(e.Key, e.Value)
	if err != nil || !strings.HasPrefix(e.Key, record.GenerationPrefix(jobName, s.run)+".") ||
		r.View.Generation <= s.after {
		c.invariants.fail("%s writes %s in run %s after generation %d: %v", e.by, e.Key, s.run,
			s.after,
			err)
		return
	}
	r.View.Generation -= s.after
	r.Since -= s.after
	is := c.invariants.records[r.View.Generation]
	// whoever begins again has another log, of which no record is behind, and other hosts
	r.Sized, r.Allotment, r.Growth = is.Sized, is.Allotment, is.Growth
	if !is.Equal(r) {
		c.invariants.fail("%s records generation %+v, and decided is %+v", e.by, r, is)
	}
	c.printStore("generation %d is recorded by %s", r.View.Generation+s.after, e.by)
}

// checkOwner checks who becomes the owner by a value that is written now (J2).
func (s *store) checkOwner(c *Cluster, e storeCall, before []byte) {
	o, err := record.DecodeOwner(e.Key, e.Value)
	if err != nil {
		c.invariants.fail("%s writes an owner that cannot be read: %v", e.by, err)
		return
	}
	if before != nil {
		was, err := record.DecodeOwner(e.Key, before)
		switch {
		case err != nil || e.force:
		case was.Run != o.Run && was.Ended == 0:
			c.invariants.fail("%s takes the name from %+v, which has not ended", e.by, was)
		case was.Run == o.Run && (o.Generation < was.Generation || was.Ended != 0 && o.Ended == 0):
			c.invariants.fail("%s makes %+v the owner, after %+v", e.by, o, was)
		}
	}
	switch {
	case o.Run != s.run:
	case o.Ended != 0 && !s.over:
		c.invariants.fail("%s tells of the end of the job, which goes on", e.by)
	case o.Generation > s.after && c.invariants.records[o.Generation-s.after].Head != o.Host:
		c.invariants.fail("%s makes %+v the owner, and by decision it is %s", e.by, o,
			c.invariants.records[o.Generation-s.after].Head)
	}
	if o.Ended != 0 {
		c.printStore("the job has ended, says %s", e.by)
	} else {
		c.printStore("%s leads run %s from generation %d, says %s", o.Host, o.Run, o.Generation,
			e.by)
	}
}

// writeForeign writes another record of generation g, as a part of the job that was split from it
// would.
func (s *store) writeForeign(c *Cluster, g topo.Generation) {
	key := record.GenerationKey(jobName, s.run, g+s.after)
	if _, there := s.held[key]; there {
		return
	}
	r := c.newestRecord()
	r.View.Generation, r.Since, r.Head = g+s.after, g+s.after, "elsewhere"
	task, err := record.Write(jobName, s.run, r)
	if err != nil {
		c.invariants.fail("a generation that cannot be written: %v", err)
		return
	}
	s.last++
	s.held[key] = held{task.Value, s.last}
	s.foreign[g] = true
}

// checkReports checks what the host's writer has to tell a person, and what it holds for recorded
// (J3), and has it ask for what follows.
func (h *host) checkReports() {
	c, s := h.cluster, &h.cluster.store
	for _, r := range h.writer.Reports() {
		var diverged *record.DivergedError
		var taken *record.TakenError
		switch {
		case r.Unreachable != nil:
			c.printStore("%s: %v", h.name, r.Unreachable)
		case r.Back:
			c.printStore("%s: it answers again, %d generations are late", h.name, r.Late)
		case errors.As(r.Refused, &diverged) && s.foreign[diverged.Wants.View.Generation-s.after]:
			h.diverged = append(h.diverged, diverged.Wants.View.Generation-s.after)
			c.printStore("%s: generation %d is recorded otherwise, led by %s", h.name,
				diverged.Wants.View.Generation, diverged.Have.Head)
		case errors.As(r.Refused, &taken) && taken.Owner.Run != s.run:
			c.printStore("%s: %v", h.name, r.Refused)
		default:
			c.invariants.fail("%s is told of the record: %+v", h.name, r)
		}
	}
	if left, _ := h.writer.Unwritten(); h.isWriter() && left < min(record.MaxKept, len(h.told)) {
		h.checkRecorded(h.told[len(h.told)-left-1])
	}
	h.writer.Next() // what follows is asked for at once
}

// checkRecorded checks a generation that a host has no longer to record (J3).
func (h *host) checkRecorded(g topo.Generation) {
	c, s := h.cluster, &h.cluster.store
	if _, there := s.held[record.GenerationKey(jobName, s.run, g+s.after)]; !there {
		c.invariants.fail("%s holds generation %d for recorded, and it is not", h.name, g)
	} else if s.foreign[g] && !slices.Contains(h.diverged, g) {
		c.invariants.fail("generation %d is recorded otherwise, and %s has not told", g, h.name)
	}
}

// checkComplete lets the store answer everybody, and checks that the record is complete (J3, J4).
func (s *store) checkComplete(c *Cluster) {
	if s.kind == "" || c.invariants.broken != nil {
		return
	}
	s.down = false
	clear(s.away)
	for len(s.late) > 0 {
		c.performStoreEvent("deliver-call", "0", "")
	}
	for _, x := range slices.Clone(s.apart) {
		for i := 0; s.findStarter(x.name) != nil && i < patience; i++ {
			c.resolveCall("serve", x.name)
		}
	}
	for _, h := range c.livingHosts() {
		if h.writer != nil {
			h.writer.PauseOver()
			c.serveAll(h)
		}
	}
	for _, h := range c.livingHosts() {
		s.checkHostRecorded(c, h)
	}
}

// serveAll has the store do all that a host asks for.
func (c *Cluster) serveAll(h *host) {
	if h.writer == nil {
		return
	}
	for range mostWrites {
		if _, asks := h.writer.Next(); !asks {
			return
		}
		c.resolveCall("serve", h.name)
	}
}

// mostWrites is how many calls to the store a host can want to make: two for each generation that
// it keeps, and some for the owner.
const mostWrites = 3 * record.MaxKept

// checkHostRecorded checks what a host has recorded, when the store has answered all (J3, J4).
func (s *store) checkHostRecorded(c *Cluster, h *host) {
	if h.writer == nil {
		return
	}
	owner, err := record.DecodeOwner(record.OwnerKey(jobName),
		s.held[record.OwnerKey(jobName)].value)
	if err != nil {
		c.invariants.fail("the owner cannot be read: %v", err)
		return
	}
	r := h.agent.Record()
	leads := r.Head == h.name && r.Equal(c.invariants.latestRecord())
	if changes, end := h.writer.Unwritten(); changes > 0 || end {
		c.invariants.fail(
			"the store answers, and %s has %d changes to record; the end of the job: %v",
			h.name, changes, end)
	}
	switch {
	case owner.Run != s.run: // the name was taken over, or the job has ended and another has begun
	case leads && (owner.Host != h.name || owner.Generation != s.after+r.Since):
		c.invariants.fail("%s leads by %+v, and the store says that %+v does", h.name, r, owner)
	case leads && h.ended && owner.Ended == 0:
		c.invariants.fail("the job has ended, as %s knows, and the store does not", h.name)
	}
	if !h.isWriter() {
		return
	}
	for _, g := range h.told[max(0, len(h.told)-record.MaxKept):] {
		h.checkRecorded(g)
	}
}

// isWriter reports whether a host writes what it knows: it leads, or has led.
func (h *host) isWriter() bool {
	return h.cluster.hosts[0] == h || slices.ContainsFunc(h.told, func(g topo.Generation) bool {
		return h.cluster.invariants.records[g].Head == h.name
	})
}

// latestRecord returns the newest generation that is decided. Who is left may not have heard of it,
// and cannot decide otherwise.
func (l *invariants) latestRecord() (newest member.Record) {
	for _, r := range l.records {
		if r.View.Generation >= newest.View.Generation {
			newest = r
		}
	}
	return newest
}

// checkResume checks that a head that begins again may (J5): a job that has not ended goes on in
// its run, after all that is recorded, and nobody else can go on with it, as far as is recorded.
// run, after and over are what s had before.
func (s *store) checkResume(c *Cluster, run string, after topo.Generation, over bool) {
	if s.run != run {
		if !over {
			c.invariants.fail("%s begins run %s, and run %s has not ended", s.owner.Host, s.run,
				run)
		}
		return
	}
	newest := c.invariants.latestRecord()
	var left []string
	for _, h := range c.livingHosts() {
		left = append(left, h.name)
	}
	if _, there := s.held[record.GenerationKey(jobName, run,
		newest.View.Generation+after)]; there &&
		newest.IsQuorum(left) {
		c.invariants.fail("%s begins again, and %v can go on from %+v", s.owner.Host, left, newest)
	}
	for key := range s.held {
		if strings.HasPrefix(key, record.GenerationPrefix(jobName, run)+".") &&
			key > record.GenerationKey(jobName, run, s.after) {
			c.invariants.fail("%s numbers its generations on after %d, and there is %s",
				s.owner.Host,
				s.after, key)
		}
	}
}
