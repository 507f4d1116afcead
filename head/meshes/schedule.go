package meshes

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/state/reshape"
)

// The moves of a plan as the schedule of a collective, which is how the agents of a job execute the
// plan. The functions are pure; the agent calls Schedule on its engine's thread.

const (
	// shortRun is how many bytes of a run are worth a move of their own, which is sent from where
	// it lies.
	shortRun = collective.MinPiece
	// mostTogether is how many bytes of short runs are one move: hosts can share out many.
	mostTogether = 1 << 20
)

// Schedule fills s in with the moves of a plan. old and new are the members of a collective that
// have the ranks of the two meshes; -1 = one that does not take part. Short runs from one worker to
// the same others are one move: each on its own would cost more on the way than its bytes do.
func Schedule(s *collective.Schedule, c *reshape.Change, old, new []int,
	sites collective.Sites) error {
	s.Moves, s.Bytes = s.Moves[:0], 0
	together, way, offs := map[string]int{}, []byte(nil), []int(nil)
	for _, m := range c.Moves() {
		way, offs = binary.AppendVarint(way[:0], int64(m.From.Rank)), append(offs[:0], m.From.At)
		for _, to := range m.To {
			way, offs = binary.AppendVarint(way, int64(to.Rank)), append(offs, to.At)
		}
		s.Bytes += m.N * (1 + len(m.To))
		if i, known := together[string(way)]; known && m.N < shortRun &&
			s.Moves[i].N < mostTogether {
			s.Moves[i].AddRun(m.N, offs...)
			continue
		}
		move := collective.Move{Src: []collective.Span{{Member: old[m.From.Rank], Off: m.From.At}}}
		for _, to := range m.To {
			move.Dst = append(move.Dst,
				collective.Span{Member: new[to.Rank], Out: true, Off: to.At})
		}
		if slices.ContainsFunc(append(move.Dst, move.Src...), func(x collective.Span) bool {
			return x.Member < 0
		}) {
			return errors.New("a worker that has a part in the reshape has not called it")
		}
		if move.N = m.N; m.N < shortRun {
			together[string(way)], move.N = len(s.Moves), 0
			move.AddRun(m.N, offs...)
		}
		s.Moves = append(s.Moves, move)
	}
	s.Moves = collective.BalanceChains(s.Moves, sites, c.Plan.Stats.Busiest)
	s.Turns, s.Fresh = turnsByHost(s.Moves, sites), true
	return nil
}

// ScheduleInPlace fills s in with the moves of a reshape that leaves every rank on its worker: the
// part that a worker gives to its call is copied to the memory that it gives for the new part.
func ScheduleInPlace(s *collective.Schedule, calls []*collective.Posted) {
	s.Moves, s.Bytes, s.Turns, s.Fresh = s.Moves[:0], 0, nil, true
	for i, c := range calls {
		if n := c.Call.InLen(); n > 0 {
			s.Bytes += 2 * n
			s.Moves = append(s.Moves, collective.Move{N: n,
				Src: []collective.Span{{Member: i}},
				Dst: []collective.Span{{Member: i, Out: true}}})
		}
	}
}

// turnsByHost returns, for each host, in which order it sends what it has of its own to the others,
// so that every host sends to one other at a time and hears from one: flows that share a cable get
// in each other's way. Where hosts pass on more than a sixteenth of the bytes the result is nil,
// for a host that waits for its turn would keep the next one waiting.
func turnsByHost(moves []collective.Move, sites collective.Sites) [][]collective.Turn {
	elements, passedOn := collective.Traffic(moves, sites)
	all := 0
	for _, n := range elements {
		all += n
	}
	if passedOn > all/16 {
		return nil
	}
	list := make([][]collective.Turn, sites.N)
	for _, s := range plan.ScheduleOnePort(elements) {
		list[s.From] = append(list[s.From], collective.Turn{To: s.To, N: s.Bytes})
	}
	return list
}
