package agent

import (
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/topo"
)

// What workers see of a batch that counts: results, and a new view of the job.

// All functions of this file run on the engine's thread, and write the control blocks of workers.

// applyBatch lets a batch count: workers get their results, and a new view of the job if it has
// changed.
func (d *driver) applyBatch(a *head.Apply) {
	d.recordView(a.View)
	d.deliverResults(a)
	if a.Changed {
		for _, m := range d.engine.members {
			entering := slices.Contains(a.Entered, m.id)
			if rank, member := a.View.Rank(m.id); member && (m.entered || entering) {
				m.entered, m.fresh = true, entering
				d.writeView(m, arena.View{Rank: int(rank), Size: a.View.Size(), Joined: a.Joined,
					New: entering, Park: a.Park != ""}, a.State)
				if a.Aborted {
					d.answerEnter(m)
				}
			}
		}
	}
	released := d.workersHere(a.Released)
	var gone []*worker // workers that are to be alone at once
	for _, m := range released {
		v := arena.View{Rank: int(m.id), Size: 1, Released: true} // as turnAway says
		if rank, member := a.View.Rank(m.id); member && m.entered && a.AllReleased != "" {
			// They end the step together, and write a last checkpoint.
			v.Rank, v.Size, v.Stopped = int(rank), a.View.Size(), true
		} else {
			m.entered, gone = false, append(gone, m)
		}
		d.writeView(m, v, a.State)
	}
	d.engine.detachResults(gone)
	for i, part := range a.Parts {
		d.completePart(part, d.batches.errs[i], a)
	}
	d.engine.signals.AddBatch(a, d.batches.errs)
	for _, m := range d.workersHere(a.Entered) {
		d.answerAdmitted(m)
	}
	for _, m := range released {
		d.answerEnter(m)
	}
	for _, m := range d.engine.members {
		d.answerPassedEpoch(m, a.State)
	}
	if a.Change != nil {
		d.engine.signals.AddChange(a)
		d.reportSettingChange(a)
	}
	if a.AllReleased != "" && !d.allReleased {
		d.allReleased = true
		if d.head.Leads() {
			e := Event{What: "stop", Generation: d.generationNumber(a.View.Generation),
				Size: a.View.Size(), Step: a.Steps, OptimizerSteps: a.OptimizerSteps(),
				Because: a.AllReleased}
			d.giveOrder(func(o *Orders) { o.Event(e) })
		}
	}
}

// answerEnter completes the call of a worker that asks to take part, if one waits.
func (d *driver) answerEnter(m *worker) {
	if m.enter != 0 {
		d.engine.completeCall(m.id, m.enter, -1, arena.Changed, "")
		m.enter = 0
	}
}

// completePart completes the calls of this host in a part of the batch of a, with err if the part
// has failed.
func (d *driver) completePart(part head.Part, err error, a *head.Apply) {
	for _, p := range part.Calls {
		switch {
		case p.Call.Far != nil:
		case err != nil:
			d.engine.failCall(p, err)
		case a.Changed && p.Call.Step:
			d.engine.completeCall(p.Worker, p.Ticket, -1, arena.Changed, "")
		case p.Call.Kind == collective.Recv:
			d.engine.completeCall(p.Worker, p.Ticket, senderRank(part, a.View), arena.Done, "")
		default:
			d.engine.completeCall(p.Worker, p.Ticket, -1, arena.Done, "")
		}
	}
}

// senderRank returns the rank of who has sent what a transfer has moved: in their group, or in the
// view of the job that applies now, which may be another one than when the calls were matched.
func senderRank(transfer head.Part, now topo.View) int {
	send := transfer.Calls[0]
	if rank, is := now.Rank(send.Worker); is && send.Call.Group == topo.World {
		return int(rank)
	}
	return transfer.Calls[len(transfer.Calls)-1].Call.Peer
}

// writeView writes a worker's view of the job, completed from s, into its control block, and sets
// m.rank. A worker for which that fails is expelled.
func (d *driver) writeView(m *worker, v arena.View, s head.State) {
	v.Generation, v.Steps = d.generationNumber(s.View.Generation), s.Steps
	v.Setting = s.Setting.Number > 0 || s.Setting.Sync != "" || len(s.Setting.People) > 0
	if s.Data != nil {
		var err error
		if v.Cursor, err = s.Data.AppendBinary(nil); err != nil {
			d.engine.expel(m, err)
			return
		}
	}
	m.rank = topo.Rank(v.Rank)
	if err := m.control.SetView(v); err != nil {
		d.engine.expel(m, err)
	}
}
