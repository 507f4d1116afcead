package client

import "slices"

// The state moves from members to workers that join in pieces of statePiece bytes, of which a
// worker has stateWindow under way at most. Each piece lies in staging memory that was used before:
// to touch fresh shared memory takes several times longer than to copy.
const (
	statePiece  = 2 << 20 // bytes
	stateWindow = 4       // pieces
)

// piece is a part of the state under way. Only the goroutine of the loop uses it.
type piece struct {
	giver  int       // rank of the old member that sends the piece: they take turns
	at     int       // byte of the state at which the piece begins
	staged []byte    // bytes of the piece, in staging memory
	calls  []*Handle // transfers of the piece: one a joiner where it is sent, else one
}

// transferState takes the pieces of those givers for which `of` is true through staging memory:
// begin starts the calls of a piece, end waits for them. After an error it begins no more, and ends
// those that are under way. It blocks on the goroutine of the loop, which calls all three
// functions.
func (t *Trainer) transferState(of func(giver int) bool, begin func(*piece),
	end func(*piece) error) (err error) {
	var underWay []*piece
	// endOldest ends the oldest piece under way, and gives its memory back unless a call still
	// uses it.
	endOldest := func() {
		p := underWay[0]
		underWay = underWay[1:]
		if failed := end(p); err == nil {
			err = failed
		}
		if !slices.ContainsFunc(p.calls, func(h *Handle) bool { return !h.Done() }) {
			t.job.mem.returnStaging(p.staged)
		}
	}
	total, old := 0, t.job.size-t.joined
	for _, s := range t.state {
		total += len(s.bytes)
	}
	for i := 0; i*statePiece < total && err == nil; i++ {
		p := &piece{giver: i % old, at: i * statePiece}
		if !of(p.giver) {
			continue
		}
		if len(underWay) == stateWindow {
			if endOldest(); err != nil {
				break
			}
		}
		if p.staged, err = t.job.mem.borrowStaging(min(total-p.at, statePiece)); err == nil {
			begin(p)
			underWay = append(underWay, p)
		}
	}
	for len(underWay) > 0 {
		endOldest()
	}
	return err
}

// forEachItem calls f for the memory of a piece in t.state, item by item, in the order of the bytes
// of the piece. f may write to the memory. It runs on the goroutine of the loop, and does not wait.
func (t *Trainer) forEachItem(p *piece, f func(memory []byte)) {
	from, to := p.at, p.at+len(p.staged)
	for _, s := range t.state {
		if a, b := max(from, 0), min(to, len(s.bytes)); a < b {
			f(s.bytes[a:b])
		}
		from, to = from-len(s.bytes), to-len(s.bytes)
	}
}
