package agent

import (
	"slices"
	"time"

	"github.com/shoal-ml/shoal/agent/transfers"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/state/digest"
)

// How this agent executes the batches of calls that the head tells of, and takes them back.

// All functions of this file run on the engine's thread.

// batch is what this agent executes before the head lets it count: until then the batch can be
// taken back. Only the engine's thread touches a batch.
type batch struct {
	parts []head.Part
	more  bool         // other parts follow
	ahead bool         // the batch began before its step was complete
	errs  []error      // by part: why the part cannot be executed; nil = it can
	by    []means      // by part: how the part is executed
	open  int          // transfers and streams that are not done
	timed int          // transfers whose time is being measured
	moves *reshapeStep // the part that brings the state to another mesh; nil = there is none
	proof digest.Proof // proof of that part; meaningless without one
}

// batches are the batches of this host that do not count yet, and memory that is used again.
type batches struct {
	running map[head.BatchID]*batch
	spare   []*batch
	begun   []*transfers.Transfer // transfers of the last call of beginBatch
	sites   []int                 // hosts of the last transfer, by their number in its batch
	// errs says, by part of the last batch that counts, why the part failed; nil = it did not.
	errs []error
}

// means is how a part of a batch is executed.
type means uint8

const (
	// atOnce is for a part whose memory is all on this host. Nobody else needs the result, so the
	// part is executed when it counts.
	atOnce means = iota
	// byTransfer is for a part that needs other hosts, or a reshape.
	byTransfer
	// byPieces is for a part that is executed while its memory comes.
	byPieces
)

// beginBatch begins this agent's parts of a batch, or the parts that have come since. A part of
// which one host has all calls is executed when it counts: nobody else needs it. The batch keeps
// the calls of x until it ends.
func (d *driver) beginBatch(x *head.Execute) {
	f := d.batches.running[x.Batch]
	if f == nil {
		f = d.newBatch()
		d.batches.running[x.Batch] = f
	}
	told, refused := len(f.parts), error(nil)
	f.parts, f.more, f.ahead = append(f.parts, x.Parts...), x.More, f.ahead || x.More
	begun := d.batches.begun[:0]
	for i := told; i < len(f.parts); i++ {
		f.errs, f.by = append(f.errs, nil), append(f.by, atOnce)
		part := f.parts[i]
		if part.Err != nil {
			continue
		}
		if collective.InPieces(part.Calls) {
			f.by[i] = byPieces
			f.open++
			d.engine.startStream(x.Batch, i, part.Calls)
			continue
		}
		t := d.newPartTransfer(x, part)
		if t == nil {
			continue
		}
		if part.Calls[0].Call.Kind == collective.Reshape {
			f.errs[i] = d.scheduleReshape(f, t, part)
			refused = f.errs[i]
		} else {
			f.errs[i] = buildSchedule(&t.Schedule, t.Calls)
		}
		if f.errs[i] != nil {
			d.engine.transfers.Recycle(t)
			continue
		}
		t.ID, f.by[i] = transfers.IDOf(uint64(x.Batch), i), byTransfer
		f.open++
		begun = append(begun, t)
	}
	d.beginMeasuring(f, begun)
	d.batches.begun = begun
	for _, t := range begun {
		d.engine.beginTransfer(t)
		if t.Reshapes {
			d.engine.beginReshape(f.moves, x.Batch)
		}
	}
	clear(begun) // a reshape, which is not used again, has room for all of the state
	if f.ahead {
		d.engine.transfers.SetParts(uint64(x.Batch), len(f.parts), x.More)
	}
	if refused != nil {
		d.refuseBatch(x.Batch, f, refused)
	} else if f.open == 0 && !f.more {
		d.reportExecuted(x.Batch, f.proof)
	}
}

// refuseBatch tells the head that this host cannot take its part in the reshape of batch n, and
// why. The batch is never executed here; the head has it dropped. Pieces that other hosts send for
// it meanwhile are dropped, too.
func (d *driver) refuseBatch(n head.BatchID, f *batch, why error) {
	f.open++
	d.engine.transfers.EndBatch(uint64(n))
	d.later = append(d.later, func() { d.head.BatchRefused(n, why) }) // after the actions
}

// scheduleReshape fills in the schedule of a transfer with what a reshape moves, and makes the
// reshape part of the batch. It is an error if this host cannot take its part in the reshape.
func (d *driver) scheduleReshape(f *batch, t *transfers.Transfer, part head.Part) error {
	moves, err := d.newReshapeStep(part.Calls)
	if err == nil {
		err = moves.fillSchedule(&t.Schedule, t.Sites)
	}
	if err != nil {
		return err
	}
	f.moves, moves.transfer, t.Reshapes = moves, t, true
	// a host that shared its port with another has all of the port once that one is through, and
	// the pieces of a reshape need no order
	if t.Sites.N > 2 {
		t.Route.Streams = collective.MaxStreams
	}
	return nil
}

// newPartTransfer makes the transfer by which this agent executes a part, but for its schedule; nil
// = the part needs none here. A reshape is proved before it counts, so it gets a transfer on one
// host too.
func (d *driver) newPartTransfer(x *head.Execute, part head.Part) *transfers.Transfer {
	sites := d.batches.sites[:0]
	for _, host := range part.Of {
		if !slices.Contains(sites, host) {
			sites = append(sites, host)
		}
	}
	d.batches.sites = sites
	self := slices.IndexFunc(sites, func(host int) bool {
		return x.Hosts[host] == string(d.engine.name)
	})
	if self < 0 || len(sites) == 1 && part.Calls[0].Call.Kind != collective.Reshape {
		return nil
	}
	t := d.engine.transfers.New()
	if t.Done == nil {
		done := func() { d.transferDone(t) }
		t.Done = func() { _ = d.engine.runLater(done) } // a stopped engine needs no news
	}
	t.Network, t.Route, t.Calls = d.network, part.Route, t.Calls[:0]
	t.Workers, t.Peers = t.Workers[:0], t.Peers[:0]
	of := t.Sites.Of[:0]
	for _, host := range sites {
		t.Peers = append(t.Peers, fabric.Host(x.Hosts[host]))
	}
	for i, p := range part.Calls {
		t.Calls = append(t.Calls, &p.Call)
		if of = append(of, slices.Index(sites, part.Of[i])); of[i] == self {
			t.Workers = append(t.Workers, p.Worker)
		}
	}
	t.Sites = collective.Sites{Of: of, N: len(sites), Self: self}
	return t
}

// newBatch returns a batch to fill in, a spare one if there is any.
func (d *driver) newBatch() *batch {
	n := len(d.batches.spare)
	if n == 0 {
		return &batch{}
	}
	f := d.batches.spare[n-1]
	d.batches.spare = d.batches.spare[:n-1]
	return f
}

// transferDone counts a transfer that is done as a part of its batch that is done.
func (d *driver) transferDone(t *transfers.Transfer) {
	number, _ := transfers.PositionOf(t.ID)
	n := head.BatchID(number)
	f := d.batches.running[n]
	if f == nil {
		return // dropped meanwhile
	}
	if f.ahead { // the batch counts when its step ends, which says nothing about this transfer
		d.endMeasuring(f, 1, t.Ended())
	}
	d.partDone(f, n)
}

// partDone counts one more part of a batch of which this host has the result. With the last one it
// tells the head.
func (d *driver) partDone(f *batch, n head.BatchID) {
	if f.open--; f.open > 0 || f.more {
		return
	}
	if f.moves != nil {
		f.proof = d.engine.verifyReshape(f.moves)
	}
	d.reportExecuted(n, f.proof)
}

// reportExecuted tells the head that this host has the result of batch n, at once or after the
// actions that are being carried out. proof is that of its reshape; zero without one.
func (d *driver) reportExecuted(n head.BatchID, proof digest.Proof) {
	if d.carrying {
		d.later = append(d.later, func() { d.head.BatchExecuted(n, proof) })
		return
	}
	d.head.BatchExecuted(n, proof)
	d.carryOutActions()
}

// dropBatch takes back a batch that will not count: its inputs and outputs are then what they were.
func (d *driver) dropBatch(n head.BatchID) {
	if f := d.batches.running[n]; f != nil {
		delete(d.batches.running, n)
		d.routes.meter.AbortTransfers(f.timed)
		for i := range f.parts {
			d.engine.abortTransfer(transfers.IDOf(uint64(n), i))
		}
		d.engine.streams = slices.DeleteFunc(d.engine.streams, func(s *stream) bool {
			return s.batch == n
		})
		d.engine.transfers.EndBatch(uint64(n))
	}
}

// deliverResults ends a batch that counts: it brings the results to the workers' memory, and stores
// in batches.errs which parts have failed.
func (d *driver) deliverResults(a *head.Apply) {
	f := d.batches.running[a.Batch]
	delete(d.batches.running, a.Batch)
	if f != nil {
		d.endMeasuring(f, f.timed, time.Now())
	}
	d.batches.errs = d.batches.errs[:0]
	d.engine.signals.BeginBatch()
	for i, part := range a.Parts {
		d.engine.signals.AddCall(&part.Calls[0].Call)
		err := part.Err
		switch {
		case err != nil:
		case f != nil && f.errs[i] != nil:
			err = d.engine.withCulprit(part.Calls, f.errs[i])
		case f != nil && f.by[i] == byPieces:
		case f != nil && f.by[i] == byTransfer:
			d.engine.deliverTransfer(transfers.IDOf(uint64(a.Batch), i), part)
		case part.Calls[0].Call.Far == nil:
			if err = d.engine.executeCalls(part.Calls); err == nil {
				d.engine.signals.AddNorms(part, &d.engine.run)
			}
		}
		d.batches.errs = append(d.batches.errs, err)
	}
	if f != nil {
		clear(f.parts)
		clear(f.errs)
		*f = batch{parts: f.parts[:0], errs: f.errs[:0], by: f.by[:0]}
		d.batches.spare = append(d.batches.spare, f)
	}
}

// beginTransfer starts a transfer: pieces for it may come, and this agent's own are sent. The lanes
// help.
func (e *engine) beginTransfer(t *transfers.Transfer) {
	t.Relay.Prepare(&t.Schedule, t.Calls, t.Sites, t.Route)
	e.signals.Measure(t.Calls[0], &t.Relay)
	if !e.transfers.Begin(t) {
		e.executeInOrder(t, t.Relay.BytesSummed())
		t.FinishIfDone()
	}
}

// deliverTransfer copies the results of a transfer, that of a part of a batch which counts, to the
// workers' outputs, and ends the transfer. Where it counts without a host that is lost, a link to
// that host may still read what it was to get, as after abortTransfer.
func (e *engine) deliverTransfer(id uint64, part head.Part) {
	t := e.transfers.Remove(id)
	lacks := false // some host has no part in the job any more
	for _, peer := range t.Peers {
		lacks = lacks || !e.driver.record.Belongs(string(peer))
	}
	if lacks {
		e.pinWorkers(t)
	}
	if t.Reshapes {
		return // the transfer is not used again: it has room for all of the state
	}
	e.signals.AddNorms(part, &t.Relay)
	e.executeOnLanes(transfers.Delivery{Transfer: t}, t.Relay.BytesDelivered())
	if lacks {
		return
	}
	e.transfers.Recycle(t)
}

// abortTransfer takes back a transfer, whose inputs and outputs are then what they were. The memory
// of the transfer is not used again, for a piece may be on its way into it; the memory of its
// workers stays until no piece is on its way out.
func (e *engine) abortTransfer(id uint64) {
	t := e.transfers.Remove(id)
	if t == nil {
		return
	}
	e.executeOnLanes(transfers.Reversal{Transfer: t}, t.Relay.BytesPlaced())
	e.pinWorkers(t)
}

// pinWorkers keeps the memory of the workers of a transfer until no link reads from it any more.
func (e *engine) pinWorkers(t *transfers.Transfer) {
	for _, w := range t.Workers {
		if m := e.byID[w]; m != nil && t.Network != nil {
			m.pins++
			// a stopped engine frees all
			t.Network.Unused(func() { _ = e.runLater(func() { m.pins-- }) })
		}
	}
}
