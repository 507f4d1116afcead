package head

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/topo"
)

// What a new head takes from the reports of the hosts, at the end of its recovery: their workers,
// groups and calls, and who is gone. The methods run on the thread of the Agent and do no I/O.

// adoptWorkers takes over the workers of a host: it sets r.home, r.asked and r.aborted, and tells
// the membership of them, and of what the host hears with the entries of the log that it is sent.
func (r *leader) adoptWorkers(host string, rep wire.Report) {
	entered, released := map[topo.WorkerID]bool{}, map[topo.WorkerID]bool{}
	aborted, heard := false, r.peers[host].index
	for _, c := range r.log {
		for _, w := range c.Entered {
			entered[w] = c.Index > heard
		}
		for _, w := range c.Released {
			released[w] = c.Index > heard
		}
		aborted = aborted || c.Aborted && c.Index > heard
	}
	r.machine.HostReports(host, rep.Slots, rep.Kind)
	for _, w := range rep.Workers {
		id := w.Worker
		rank, member := r.machine.View().Rank(id)
		_, told := r.state.View.Rank(id)
		// An earlier head gave the number to a host that is none of the job, and the next again.
		s, foreign := r.state.Shape, !r.agent.Record().Belongs(host)
		twice := foreign && (told || s != nil && slices.Contains(s.Workers, id))
		if member && r.machine.View().Members[rank].Host != host || !r.runsOn(id, host) || twice {
			r.stopDuplicate(id, host, w.Ended != "")
			continue
		}
		r.home[id] = host
		drops := w.Again && r.state.Shape != nil
		asked := w.Asked && !drops && !entered[id] && !released[id]
		if drops && !aborted && w.Ended == "" {
			r.aborted[id] = true
		}
		if asked && w.Ended == "" {
			r.asked[id] = true
		}
		switch {
		case w.Done:
			r.machine.WorkerFinished(id)
		case w.Ended != "":
			r.machine.WorkerLost(id, w.Ended)
		case member && asked && w.Again:
			r.machine.WorkerAsks(id)
		case member:
		case asked:
			r.machine.WorkerStarted(id, host)
			r.machine.WorkerAsks(id)
		case !told && !w.Released && !released[id] && !entered[id]:
			r.machine.WorkerStarted(id, host)
		default:
			r.machine.WorkerLeaves(id, host)
		}
	}
	r.machine.HostReported(host, rep.Ordered)
}

// adoptGroups gives the matcher the groups that workers have, and answers those who wait for one.
func (r *leader) adoptGroups(reports map[string]wire.Report) {
	var groups []wire.GroupReport
	for _, host := range sortedKeys(reports) {
		groups = append(groups, reports[host].Groups...)
	}
	slices.SortStableFunc(groups, func(a, b wire.GroupReport) int {
		return cmp.Compare(a.ID, b.ID)
	})
	for _, g := range groups {
		for _, w := range g.Here {
			r.matcher.AdoptGroup(g.ID, g.Members, w, slices.Contains(g.Free, w))
		}
	}
	for _, host := range sortedKeys(reports) {
		for _, w := range reports[host].Workers {
			for _, list := range w.Groups {
				r.onWantsGroup(wire.WantsGroup{Worker: w.Worker, Members: list}, host)
			}
		}
	}
}

// adoptCalls posts again the calls that are open and in no batch that goes on or is committed. It
// also accepts a place in the data that a worker has stated.
func (r *leader) adoptCalls(reports map[string]wire.Report) {
	taken := map[ticket]bool{}
	for _, b := range r.batches {
		for _, s := range b.sets {
			for _, p := range s.Calls {
				taken[ticketOf(p)] = true
			}
		}
	}
	for _, host := range sortedKeys(reports) {
		rep := reports[host]
		for _, s := range rep.Batches {
			if slices.ContainsFunc(r.log, func(c wire.Commit) bool { return c.Batch == s.Batch }) {
				for _, set := range s.Sets {
					for _, c := range set.Calls {
						taken[ticket{c.Worker, c.Ticket}] = true
					}
				}
			}
		}
		for _, w := range rep.Workers {
			for _, c := range w.Open {
				switch {
				case taken[ticket{c.Worker, c.Ticket}]:
				case r.aborted[c.Worker]:
					rank, _ := r.state.View.Rank(c.Worker)
					r.addBatches([]collective.Ready{
						{Calls: []*collective.Posted{r.agent.pool.NewCall(c)},
							Err: &collective.LostError{Lost: rank, Why: droppedStep, Rank: rank,
								Call: c.String()}}})
				default:
					r.postCall(c)
				}
			}
		}
		if rep.Stated != nil {
			_ = r.acceptPlace(*rep.Stated) // the worker's own host has told it what the log has
		}
	}
}

// adoptLosses tells the matcher and the membership who is gone.
func (r *leader) adoptLosses(reports map[string]wire.Report) {
	lives := map[topo.WorkerID]bool{}
	for _, host := range sortedKeys(reports) {
		for _, w := range reports[host].Workers {
			switch {
			case !r.runsOn(w.Worker, host): // another one has its number, and lives elsewhere
			case w.Ended != "":
				r.dead[w.Worker] = w.Ended
			default:
				lives[w.Worker] = !(w.Again && r.asked[w.Worker])
			}
		}
	}
	for _, m := range r.machine.View().Members {
		if _, reported := r.home[m.Worker]; !reported {
			r.machine.WorkerLost(m.Worker, "is not known on its host")
		}
	}
	r.endWithoutState()
	gone := map[topo.WorkerID]bool{}
	for _, m := range r.state.View.Members {
		_, ended := r.dead[m.Worker]
		begun := r.state.View.Generation > 0 ||
			r.state.Shape != nil && r.machine.View().Generation > 0
		gone[m.Worker] = !lives[m.Worker] && (ended || begun) // before that it may not have started
	}
	for _, rep := range reports {
		for _, g := range rep.Groups {
			for _, w := range g.Members {
				gone[w] = !lives[w]
			}
		}
	}
	maps.DeleteFunc(gone, func(_ topo.WorkerID, is bool) bool { return !is })
	for _, w := range sortedKeys(gone) {
		how := cmp.Or(r.dead[w], "is lost with its host")
		r.addBatches(r.matcher.LoseWorker(w, how, nil))
	}
	for _, w := range sortedKeys(r.aborted) {
		r.dropStepOf(w)
	}
}

// endWithoutState ends a job of which nobody that is left has the state: its members were let in by
// a generation, and no host that is left has the entry of the log with which they are told. Who had
// the state is lost, and may have committed that entry, and made more steps. A job with a mesh can
// go back to a checkpoint.
func (r *leader) endWithoutState() {
	told := r.state.View
	entered := func(m topo.Member) bool {
		_, is := told.Rank(m.Worker)
		_, reported := r.home[m.Worker]
		_, ended := r.dead[m.Worker]
		return is && reported && !ended
	}
	members := r.machine.View().Members
	if told.Generation == 0 || r.state.Shape != nil || slices.ContainsFunc(members, entered) {
		return
	}
	r.machine.StateLost("has not got the state of the job")
}
