package head

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/state/digest"
)

// The methods of leader in this file run on the thread of the Agent and do no I/O.

// recovery is the time in which a new head learns what the earlier one may have decided. A commit
// takes all hosts of the generation, so what those that are left have not all executed was never
// committed, and what they have may be: it is carried on.
type recovery struct {
	reports map[string]wire.Report // by host; nil = the recovery is over
	late    []received             // payloads that came after a report
	held    []member.Action        // orders that wait for the end of the recovery
	resized bool                   // whether the log has another size than the newest generation
}

// onReport handles the first payload of a host: in a recovery it is kept, later the host is taken
// in.
func (r *leader) onReport(host string, rep wire.Report) {
	for _, c := range rep.LinksLost {
		r.onLinkLost(host, c)
	}
	if r.reports == nil {
		r.takeInHost(host, rep)
		r.carryOutOrders()
		r.advanceLog()
		return
	}
	r.reports[host] = rep
	r.tryRecover()
}

// tryRecover ends the recovery if every host of the job that can be reached has reported; else it
// changes nothing.
func (r *leader) tryRecover() {
	for _, h := range r.agent.Record().Hosts {
		if _, has := r.reports[h.Name]; !has && !r.lostHosts[h.Name] {
			return
		}
	}
	reports := r.reports
	r.reports = nil
	for _, rep := range reports {
		r.machine.ReserveNumbers(rep.Next)
	}
	r.readLog(reports)
	r.adoptSize()
	rejoining := r.removeRejoining(reports)
	r.matcher = collective.NewMatcher(r.memberIDs())
	for _, host := range sortedKeys(reports) {
		r.adoptShaped(reports[host], host)
	}
	if r.state.Elastic {
		r.setElastic()
	}
	if s := r.state.Shape; s != nil {
		mesh := meshes.Parse(cmp.Or(s.Next, s.Mesh))
		r.machine.JoinAllAtOnce(s.RankCount(), mesh.Kinds())
	}
	keep := r.continueBatches(reports)
	for _, host := range sortedKeys(reports) {
		rep := reports[host]
		r.sendMissingEntries(host, rep.Index)
		r.send(host, wire.Begin{Keep: keep})
		r.adoptWorkers(host, rep)
	}
	for _, host := range sortedKeys(rejoining) {
		r.takeInHost(host, rejoining[host])
	}
	r.machine.AllReported()
	r.adoptGroups(reports)
	// A step with a loss is aborted, and some of its calls have failed already. The calls that are
	// left stand at different places.
	if r.state.Shape != nil {
		r.adoptLosses(reports)
		r.adoptCalls(reports)
	} else {
		r.adoptCalls(reports)
		r.adoptLosses(reports)
	}
	held, late := r.held, r.late
	r.held, r.late = nil, nil
	for _, o := range held {
		r.carryOutOrder(o)
	}
	r.orderMissingWorkers()
	r.carryOutOrders()
	r.reportBlockedDrains()
	r.dispatchFree()
	r.advanceLog()
	for _, w := range late {
		r.receive(w.host, w.payload)
		r.agent.pool.Release(w.payload)
	}
}

// readLog sets the state and the log to those of the host that has applied most, and what all hosts
// remember of the log up to there. Hosts that do not belong to the job yet were not needed for
// anything that was decided, so they may follow a log that nobody else knows.
func (r *leader) readLog(reports map[string]wire.Report) {
	entries := map[uint64]wire.Commit{}
	for _, host := range sortedKeys(reports) {
		rep := reports[host]
		if !r.agent.Record().Belongs(host) {
			continue
		}
		// a host that was told nothing yet has no members either
		if rep.Index > r.index || len(r.state.View.Members) == 0 {
			r.state, r.index = rep.State, rep.Index
		}
		for _, c := range rep.Recent {
			entries[c.Index] = c
		}
	}
	for i := r.index; entries[i].Index != 0; i-- {
		r.log = append(r.log, entries[i])
	}
	slices.Reverse(r.log)
}

// removeRejoining removes from the reports those of hosts that must begin anew, and returns them:
// they do not belong to the job yet, or have not heard that they do.
func (r *leader) removeRejoining(
	reports map[string]wire.Report) (rejoining map[string]wire.Report) {
	rejoining = map[string]wire.Report{}
	for host, rep := range reports {
		if !r.agent.Record().Belongs(host) || rep.Index+uint64(len(r.log)) < r.index {
			rejoining[host] = rep
			delete(reports, host)
		}
	}
	return rejoining
}

// continueBatches adds to r.batches those of the reports, by host, that every host of theirs that
// is left has executed, and returns their numbers. Left out are those that the log has, those
// without a host that belongs to the job: its loss was not decided, so that they did not count; and
// a reshape of which all hosts are left, and have not proved together that the state is as it was.
func (r *leader) continueBatches(reports map[string]wire.Report) (keep []BatchID) {
	batches, executed := map[BatchID]wire.Exec{}, map[BatchID]map[string]bool{}
	proofs := map[BatchID]digest.Proof{}
	for host, rep := range reports {
		for _, s := range rep.Batches {
			if batches[s.Batch] = s.Exec; executed[s.Batch] == nil {
				executed[s.Batch] = map[string]bool{}
			}
			executed[s.Batch][host] = s.Executed
			proofs[s.Batch] = proofs[s.Batch].Plus(s.Proof)
		}
	}
	for _, n := range sortedKeys(batches) {
		e := batches[n]
		left := slices.DeleteFunc(slices.Clone(e.Hosts), func(h string) bool {
			_, here := reports[h]
			return !here
		})
		missing := slices.ContainsFunc(left, func(h string) bool { return !executed[n][h] })
		missing = missing || slices.ContainsFunc(e.Without, r.agent.Record().Belongs)
		missing = missing || len(left) == len(e.Hosts) && proofs[n].Old != proofs[n].New
		if missing || slices.ContainsFunc(r.log, func(c wire.Commit) bool { return c.Batch == n }) {
			continue
		}
		b := &batch{number: n, hosts: left}
		for _, s := range e.Sets {
			set := collective.Ready{Err: failureOf(&s)}
			for _, c := range s.Calls {
				set.Calls = append(set.Calls, r.agent.pool.NewCall(c))
			}
			b.sets = append(b.sets, set)
		}
		last := b.sets[len(b.sets)-1]
		b.step = last.Err == nil && last.Calls[0].Call.Step
		r.applyFlags(&last.Calls[0].Call)
		r.batches = append(r.batches, b)
		keep = append(keep, n)
	}
	return keep
}

// sendMissingEntries sends a host, which is a peer, the entries of the log that it does not have:
// those after index.
func (r *leader) sendMissingEntries(host string, index uint64) {
	r.peers[host].index = index
	for _, c := range r.log {
		if c.Index > index {
			r.send(host, &c)
		}
	}
}

// takeInHost takes in a host that comes while the job runs. One that reports members is too late,
// for the others went on without it, and is told to leave. So is one with a worker that has made a
// call (w.Open): the job was to begin with it, and it may be in its first step.
func (r *leader) takeInHost(host string, rep wire.Report) {
	for _, w := range rep.Workers {
		if _, member := rep.State.View.Rank(w.Worker); member || len(w.Open) > 0 {
			r.sendLeave(host, wire.Leaves{Because: "the others went on without it"})
			return
		}
	}
	r.peers[host].index = r.index
	r.send(host, wire.Snapshot{Index: r.index, State: r.state, Recent: slices.Clone(r.log)})
	r.send(host, wire.Begin{})
	r.machine.ReserveNumbers(rep.Next)
	r.adoptWorkers(host, rep)
	if rep.Stated != nil {
		r.onStated(*rep.Stated, host)
	}
	r.adoptShaped(rep, host)
}
