package collective

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// MismatchError says that two ranks made different calls at the same position.
type MismatchError struct {
	Group        topo.GroupID
	Position     int // number of the collective in its group, from 0; -1 for a transfer
	RankA, RankB topo.Rank
	CallA, CallB string // the calls, as Call.String writes them
}

// Error implements error.
func (e *MismatchError) Error() string {
	if e.Position < 0 {
		return fmt.Sprintf("a send and its receive differ: rank %d called %s, rank %d called "+
			"%s. Both sides must state the same element type and length",
			e.RankA, e.CallA, e.RankB, e.CallB)
	}
	return fmt.Sprintf("the ranks disagree at collective number %d of group %d: rank %d called "+
		"%s, rank %d called %s. Every rank must make the same calls in the same order",
		e.Position, e.Group, e.RankA, e.CallA, e.RankB, e.CallB)
}

// LostError says that a call can never complete, because a rank that it needs is gone.
type LostError struct {
	Lost topo.Rank // the rank that is gone
	Why  string    // why it is gone, as the rest of a sentence: "has ended"
	Rank topo.Rank // the rank that made the call
	Call string    // the call, as Call.String writes it
}

// Error implements error.
func (e *LostError) Error() string {
	return fmt.Sprintf("rank %d %s, while rank %d waits for it in %s", e.Lost, e.Why, e.Rank,
		e.Call)
}

// The methods of Matcher in this file only read it, on the one goroutine that uses it.

// mismatch returns why two calls at the same position cannot be one collective, as a MismatchError;
// nil = they agree. It changes nothing.
func (m *Matcher) mismatch(g *group, pos *position, p, other *Posted) error {
	if agree(&p.Call, &other.Call) {
		return nil
	}
	a, b := other, p
	if m.rank(a.Worker) > m.rank(b.Worker) {
		a, b = b, a
	}
	return &MismatchError{g.id, pos.number, m.rank(a.Worker), m.rank(b.Worker), a.Call.String(),
		b.Call.String()}
}

// rank returns a worker's rank in the world, by which messages call it; -1 = it is no member.
func (m *Matcher) rank(w topo.WorkerID) topo.Rank {
	return topo.Rank(m.groups[topo.World].index(w))
}

// lostError returns the error, a LostError, that p waits for a lost worker, for the reason that
// m.gone has.
func (m *Matcher) lostError(lost topo.WorkerID, p *Posted) error {
	return &LostError{m.rank(lost), m.gone[lost], m.rank(p.Worker), p.Call.String()}
}

// agree reports whether two ranks mean the same collective. Lengths that may differ between ranks
// are compared by Schedule.Build.
func agree(a, b *Call) bool {
	if a.Kind != b.Kind || a.Flags != b.Flags || a.Shared != b.Shared {
		return false
	}
	if a.Kind == Barrier {
		return true
	}
	if a.DType != b.DType || a.Kind.Reduces() && a.Reduction != b.Reduction ||
		a.Kind.Rooted() && a.Peer != b.Peer {
		return false
	}
	switch a.Kind {
	case AllReduce, Reduce, ReduceScatter:
		return slices.Equal(a.Shape, b.Shape) && a.InLen() == b.InLen()
	case Broadcast:
		return slices.Equal(a.Shape, b.Shape)
	}
	return true
}
