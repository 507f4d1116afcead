package head

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// recovery is the time in which a new head learns what the earlier one may have decided. A commit takes all hosts of the generation, so
// what those that are left have not all executed was never committed, and what they have may be: it is carried on.
type recovery struct {
	reports map[string]Report // nil = it is over
	late    []word            // what was told after a report
	held    []member.Action   // orders that wait
}

// report takes the first word of a host.
func (r *leader) report(host string, rep Report) {
	for _, c := range rep.Cut {
		r.cutOff(host, c)
	}
	if r.reports == nil {
		r.welcome(host, rep)
		r.obey()
		r.advance()
		return
	}
	r.reports[host] = rep
	r.recover()
}

// recover ends the recovery when every host of the job that can be reached has reported.
func (r *leader) recover() {
	for _, h := range r.agent.Record().Hosts {
		if _, has := r.reports[h.Name]; !has && !r.cut[h.Name] {
			return
		}
	}
	reports := r.reports
	r.reports = nil
	for _, rep := range reports {
		r.machine.Numbered(rep.Next)
	}
	r.readLog(reports)
	strays := r.setAside(reports)
	r.matcher = collective.NewMatcher(r.members())
	for _, host := range sorted(reports) {
		if s := reports[host].Shaped; s != nil {
			r.shaped(*s, host)
		}
	}
	if r.state.Elastic {
		r.setElastic()
	}
	if r.state.Shape != nil {
		r.machine.Whole()
	}
	keep := r.carryOn(reports)
	for _, host := range sorted(reports) {
		rep := reports[host]
		r.catchUp(host, rep.Index)
		r.send(host, Begin{keep})
		r.adoptWorkers(host, rep)
	}
	for _, host := range sorted(strays) {
		r.welcome(host, strays[host])
	}
	r.adoptGroups(reports)
	if r.state.Shape != nil { // a step with a loss is void, and some of its calls have failed already: those that are left stand at different places
		r.adoptLosses(reports)
		r.adoptCalls(reports)
	} else {
		r.adoptCalls(reports)
		r.adoptLosses(reports)
	}
	held, late := r.held, r.late
	r.held, r.late = nil, nil
	for _, o := range held {
		r.carryOut(o)
	}
	r.obey()
	r.launch()
	r.advance()
	for _, w := range late {
		r.hear(w.host, w.body)
	}
}

// readLog takes the state of the host that has applied most, and what all hosts remember of the log up to there. Hosts that do not belong
// to the job yet were not needed for anything that was decided, so they may follow a log that nobody else knows.
func (r *leader) readLog(reports map[string]Report) {
	entries := map[uint64]Commit{}
	for _, host := range sorted(reports) {
		rep := reports[host]
		if !r.agent.Record().Belongs(host) {
			continue
		}
		if rep.Index > r.index || len(r.state.View.Members) == 0 { // a host that was told nothing yet has no members either
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

// setAside takes from the reports those of hosts that must begin anew: they do not belong to the job yet, or have not heard that they do.
func (r *leader) setAside(reports map[string]Report) (strays map[string]Report) {
	strays = map[string]Report{}
	for host, rep := range reports {
		if !r.agent.Record().Belongs(host) || rep.Index+uint64(len(r.log)) < r.index {
			strays[host] = rep
			delete(reports, host)
		}
	}
	return strays
}

// carryOn finds the flights that every host of theirs that is left has executed.
func (r *leader) carryOn(reports map[string]Report) (keep []Flight) {
	flights, executed := map[Flight]Exec{}, map[Flight]map[string]bool{}
	for host, rep := range reports {
		for _, s := range rep.Flights {
			if flights[s.Flight] = s.Exec; executed[s.Flight] == nil {
				executed[s.Flight] = map[string]bool{}
			}
			executed[s.Flight][host] = s.Executed
		}
	}
	for _, n := range sorted(flights) {
		e := flights[n]
		left := slices.DeleteFunc(slices.Clone(e.Hosts), func(h string) bool { _, here := reports[h]; return !here })
		missing := slices.ContainsFunc(left, func(h string) bool { return !executed[n][h] })
		missing = missing || slices.ContainsFunc(e.Without, r.agent.Record().Belongs)
		if missing || slices.ContainsFunc(r.log, func(c Commit) bool { return c.Flight == n }) {
			continue
		}
		f := &flight{number: n, hosts: left}
		for _, s := range e.Sets {
			set := collective.Ready{Err: s.failure()}
			for _, c := range s.Calls {
				set.Calls = append(set.Calls, r.agent.shelf.call(c))
			}
			f.sets = append(f.sets, set)
		}
		last := f.sets[len(f.sets)-1]
		f.step = last.Err == nil && last.Calls[0].Call.Step
		r.sees(&last.Calls[0].Call)
		r.flights = append(r.flights, f)
		keep = append(keep, n)
	}
	return keep
}

// catchUp sends a host the entries that it does not have.
func (r *leader) catchUp(host string, index uint64) {
	r.peers[host].index = index
	for _, c := range r.log {
		if c.Index > index {
			r.send(host, c)
		}
	}
}

// adoptWorkers tells the membership of the workers of a host, and of what the log has answered that the host has not heard.
func (r *leader) adoptWorkers(host string, rep Report) {
	entered, away := map[topo.Worker]bool{}, map[topo.Worker]bool{}
	void := false
	for _, c := range r.log {
		for _, w := range c.Entered {
			entered[w] = c.Index > rep.Index
		}
		for _, w := range c.Away {
			away[w] = c.Index > rep.Index
		}
		void = void || c.Void && c.Index > rep.Index
	}
	r.machine.Host(host, rep.Slots)
	for _, w := range rep.Workers {
		id := w.Worker
		if !r.runs(id, host) {
			r.send(host, Stops{Stop{id, stray}})
			continue
		}
		r.home[id] = host
		drops := w.Again && r.state.Shape != nil
		asked := w.Asked && !drops && !entered[id] && !away[id]
		if drops && !void && w.Ended == "" {
			r.voids[id] = true
		}
		_, member := r.machine.View().Rank(id)
		_, told := r.state.View.Rank(id)
		if asked && w.Ended == "" {
			r.asked[id] = true
		}
		switch {
		case w.Done:
			r.machine.Finished(id)
		case w.Ended != "":
			r.machine.Lost(id, w.Ended)
		case member && asked && w.Again:
			r.machine.Asks(id)
		case member:
		case asked:
			r.machine.Started(id, host)
			r.machine.Asks(id)
		case !told && !w.Away && !away[id] && !entered[id]:
			r.machine.Started(id, host)
		}
	}
}

// adoptGroups gives the matcher the groups that workers have, and answers those who wait for one.
func (r *leader) adoptGroups(reports map[string]Report) {
	var groups []GroupReport
	for _, host := range sorted(reports) {
		groups = append(groups, reports[host].Groups...)
	}
	slices.SortStableFunc(groups, func(a, b GroupReport) int { return cmp.Compare(a.ID, b.ID) })
	for _, g := range groups {
		for _, w := range g.Here {
			r.matcher.Adopt(g.ID, g.Members, w)
		}
	}
	for _, host := range sorted(reports) {
		for _, w := range reports[host].Workers {
			for _, list := range w.Groups {
				r.group(WantsGroup{w.Worker, list}, host)
			}
		}
	}
}

// adoptCalls posts again what is open and in no flight that goes on.
func (r *leader) adoptCalls(reports map[string]Report) {
	taken := map[ticket]bool{}
	for _, f := range r.flights {
		for _, s := range f.sets {
			for _, p := range s.Calls {
				taken[ticketOf(p)] = true
			}
		}
	}
	for _, host := range sorted(reports) {
		rep := reports[host]
		for _, s := range rep.Flights {
			if slices.ContainsFunc(r.log, func(c Commit) bool { return c.Flight == s.Flight }) {
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
				case r.voids[c.Worker]:
					r.ready([]collective.Ready{{Calls: []*collective.Posted{r.agent.shelf.call(c)}, Err: &collective.LostError{Why: "has dropped the step", Call: c.String()}}})
				default:
					r.post(c)
				}
			}
		}
		if rep.Stated != nil {
			r.takes(*rep.Stated)
		}
	}
}

// adoptLosses tells the matcher and the membership who is gone.
func (r *leader) adoptLosses(reports map[string]Report) {
	lives := map[topo.Worker]bool{}
	for _, host := range sorted(reports) {
		for _, w := range reports[host].Workers {
			if w.Ended != "" {
				r.dead[w.Worker] = w.Ended
			} else {
				lives[w.Worker] = !(w.Again && r.asked[w.Worker])
			}
		}
	}
	for _, m := range r.machine.View().Members {
		if _, reported := r.home[m.Worker]; !reported {
			r.machine.Lost(m.Worker, "is not known on its host")
		}
	}
	gone := map[topo.Worker]bool{}
	for _, m := range r.state.View.Members {
		_, ended := r.dead[m.Worker]
		begun := r.state.View.Generation > 0 || r.state.Shape != nil && r.machine.View().Generation > 0
		gone[m.Worker] = !lives[m.Worker] && (ended || begun) // before that it may not have started
	}
	for _, rep := range reports {
		for _, g := range rep.Groups {
			for _, w := range g.Members {
				gone[w] = !lives[w]
			}
		}
	}
	maps.DeleteFunc(gone, func(_ topo.Worker, is bool) bool { return !is })
	for _, w := range sorted(gone) {
		how := cmp.Or(r.dead[w], "is lost with its host")
		r.ready(r.matcher.Lost(w, how, nil))
	}
	for _, w := range sorted(r.voids) {
		r.givesUp(w)
	}
}

// welcome takes in a host that comes while the job runs. One that comes with members is too late: the others went on without it. So is
// one with workers that the job was to begin with, which may be in their first step.
func (r *leader) welcome(host string, rep Report) {
	for _, w := range rep.Workers {
		if _, member := rep.State.View.Rank(w.Worker); member || len(w.Open) > 0 {
			r.send(host, Leaves{Leave{Because: "the others went on without it"}})
			r.peers[host].left = true
			return
		}
	}
	r.peers[host].index = r.index
	r.send(host, Snapshot{r.index, r.state, slices.Clone(r.log)})
	r.send(host, Begin{})
	r.machine.Numbered(rep.Next)
	r.adoptWorkers(host, rep)
	if rep.Stated != nil {
		r.stated(Stated{Data: *rep.Stated}, host)
	}
	if rep.Shaped != nil {
		r.shaped(*rep.Shaped, host)
	}
}
