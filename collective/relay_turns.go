package collective

import "slices"

// orderByTurn sorts r.initial, the pieces that need nothing from another host, by the turns of this
// host: a piece belongs to the first turn with its receiver that has room left, or to the last one
// with it. Of has the turns by host. It is the last part of Prepare, and runs alone.
func (r *Relay) orderByTurn(of [][]Turn) {
	r.turns = r.turns[:0]
	if of == nil || len(of[r.self]) == 0 {
		return
	}
	turns := of[r.self]
	room := slices.Clone(turns)
	for i := range r.initial {
		s := &r.initial[i]
		g := &r.segments[s.segment]
		s.turn = len(turns) - 1
		for k := range room {
			if room[k].To != g.firstReceiver() {
				continue
			}
			if s.turn = k; room[k].N > 0 {
				break
			}
		}
		_, n := r.pieceRange(g, s.piece)
		room[s.turn].N -= n
	}
	slices.SortStableFunc(r.initial, func(a, b initialPiece) int { return a.turn - b.turn })
	r.first = 0
	for k, at := 0, 0; k < len(turns); k++ {
		for at < len(r.initial) && r.initial[at].turn == k {
			at++
		}
		r.turns = append(r.turns, at)
	}
}

// Turns returns the number of turns of this host in the schedule; 0 = it may send everything at
// once. Any goroutine may call it and Turn after Prepare.
func (r *Relay) Turns() int { return len(r.turns) }

// Turn returns the indices of Chunk that belong to turn k: those with from <= index < to.
func (r *Relay) Turn(k int) (from, to int) {
	if k > 0 {
		from = r.turns[k-1]
	}
	return from, r.turns[k]
}

// firstReceiver returns the host to which a segment's pieces go first when they need nothing from
// another; -1 = they go nowhere.
func (g *segment) firstReceiver() int {
	switch {
	case g.parent >= 0:
		return g.parent
	case len(g.out) > 0:
		return g.out[0]
	}
	return -1
}
