package agent

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/head"
)

// All functions of this file run on the engine's thread.

// stream is a part of a batch of this host whose memory comes in pieces: a piece is executed when
// every worker that feeds the stream has put its share into its window. Only the engine's thread
// touches a stream.
type stream struct {
	batch   head.BatchID
	part    int                  // position of the part in the batch
	calls   []*collective.Posted // calls of the part
	pieces  int                  // number of pieces in all
	through int                  // pieces that have their result
	piece   []collective.Call    // room for the call over one piece, by call
}

// errAhead is the error of a stream whose worker says more than its window can hold.
var errAhead = fmt.Errorf(
	"a rank says that it has put more pieces into its window than the %d that this holds",
	collective.PiecesOpen)

// errGivenUp is the error of a stream in the middle of which a worker has given up its call.
var errGivenUp = errors.New("a rank has given up a call in the middle, as a Ctrl-C does: what " +
	"the others have of the result is worth nothing")

// startStream begins to execute a part of a batch in pieces. It keeps calls until the stream ends.
func (e *engine) startStream(n head.BatchID, part int, calls []*collective.Posted) {
	s := &stream{batch: n, part: part, calls: calls, piece: make([]collective.Call, len(calls))}
	s.pieces = calls[0].Call.Pieces()
	e.streams = append(e.streams, s)
}

// advanceStreams executes the pieces that workers have put into their windows, and reports whether
// there were any. The engine calls it over and over.
func (e *engine) advanceStreams() (worked bool) {
	for i := 0; i < len(e.streams); i++ {
		s, err := e.streams[i], error(nil)
		for ; err == nil && s.through < s.pieces && e.nextPieceReady(s); worked = true {
			err = e.executePiece(s)
		}
		if err != nil || s.through == s.pieces {
			// other streams may begin or end with this one: the next call finds them
			e.endStream(s, err)
		}
	}
	return worked
}

// nextPieceReady reports whether the next piece of a stream is in all windows, or a call was given
// up, so that it never will be.
func (e *engine) nextPieceReady(s *stream) bool {
	for _, p := range s.calls {
		if p.Call.Window != nil && e.byID[p.Worker].control.PiecesFed(p.Ticket) <=
			uint64(s.through) {
			return false
		}
	}
	return true
}

// executePiece executes the next piece of a stream, from inputs to outputs, and wakes the workers
// that wait for it.
func (e *engine) executePiece(s *stream) error {
	e.calls = e.calls[:0]
	for i, p := range s.calls {
		if p.Call.Window != nil {
			switch n := e.byID[p.Worker].control.PiecesFed(p.Ticket); {
			case n == arena.GivenUp:
				return errGivenUp
			case n > uint64(s.through+collective.PiecesOpen):
				return errAhead
			}
		}
		s.piece[i].SetToPiece(&p.Call, s.through)
		e.calls = append(e.calls, &s.piece[i])
	}
	if err := buildSchedule(&e.schedule, e.calls); err != nil {
		return err
	}
	e.run.Prepare(&e.schedule, e.calls)
	e.executeOnLanes(&e.run, e.schedule.Bytes)
	s.through++
	for _, p := range s.calls {
		if m := e.byID[p.Worker]; p.Call.Window != nil {
			m.control.SetPiecesDone(p.Ticket, uint64(s.through))
			if m.control.WorkerParked() {
				m.bell.Ring()
			}
		}
	}
	return nil
}

// failStreamsOf ends the streams that lack pieces of a worker which is gone, with an error.
func (e *engine) failStreamsOf(m *worker, how string) {
	for _, s := range slices.Clone(e.streams) {
		i := slices.IndexFunc(s.calls, func(p *collective.Posted) bool { return p.Worker == m.id })
		if i < 0 || s.calls[i].Call.Window == nil ||
			m.control.PiecesFed(s.calls[i].Ticket) >= uint64(s.pieces) {
			continue
		}
		other := e.byID[s.calls[(i+1)%len(s.calls)].Worker]
		e.endStream(s, &collective.LostError{Lost: m.rank, Why: how, Rank: other.rank,
			Call: s.calls[i].Call.String()})
	}
}

// endStream removes a stream: its part of a batch is executed, or has failed with err.
func (e *engine) endStream(s *stream, err error) {
	e.streams = slices.DeleteFunc(e.streams, func(other *stream) bool { return other == s })
	e.driver.streamDone(s, err)
}

// streamWaits lists the workers that keep others waiting for a piece, in the middle of a call.
func (e *engine) streamWaits() (list []collective.Wait) {
	for _, s := range e.streams {
		var lacks []*collective.Posted
		var waits *collective.Posted // some call that lacks nothing
		for _, p := range s.calls {
			if p.Call.Window != nil && e.byID[p.Worker].control.PiecesFed(p.Ticket) <=
				uint64(s.through) {
				lacks = append(lacks, p)
			} else {
				waits = p
			}
		}
		if waits == nil {
			continue
		}
		for _, p := range lacks {
			id := collective.WaitID{Worker: p.Worker, Group: p.Call.Group, Of: p.Worker,
				Number: p.Ticket<<32 | uint64(s.through)}
			list = append(list,
				collective.Wait{WaitID: id, Call: waits, Waiters: len(s.calls) - len(lacks)})
		}
	}
	return list
}

// streamDone stores that a part in pieces is executed, or has failed with err.
func (d *driver) streamDone(s *stream, err error) {
	f := d.batches.running[s.batch]
	f.errs[s.part] = err
	d.partDone(f, s.batch)
}
