package chain

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/timeline"
	"github.com/shoal-ml/shoal/internal/portable"
)

// A Search looks for plans of a problem by annealing: a change that makes the step shorter is
// taken, and one that makes it a little longer is taken now and then, less often as time goes on.
// It is bounded by how many passes it plays, whatever the machine. One goroutine uses it at a time.
type Search struct {
	player *player
	random uint64
	Best   Plan // of all so far; its Seconds are +Inf as long as there is none that fits
}

// NewSearch returns a search, whose chance is drawn from a seed.
func NewSearch(p *Problem, seed uint64) *Search {
	return &Search{player: newPlayer(p), random: seed*0x9e3779b97f4a7c15 + 1,
		Best: Plan{Seconds: math.Inf(1)}}
}

// draw returns a number from 0 to n - 1 (xorshift64*; Vigna 2016).
func (s *Search) draw(n int) int {
	s.random ^= s.random >> 12
	s.random ^= s.random << 25
	s.random ^= s.random >> 27
	return int((s.random * 0x2545f4914f6cdd1d >> 33) % uint64(n))
}

// Start plays plans that begin at some layers, with several numbers of micro-batches that stages
// hold, and returns the best one. Starts is not kept.
func (s *Search) Start(starts []int) Plan {
	p := s.player.p
	best := Plan{Seconds: math.Inf(1)}
	for halves := range 8 {
		ahead := timeline.Held(p.Stages, halves, p.Micro)
		if seconds := s.player.play(starts, ahead, best.Seconds); seconds < best.Seconds {
			best = Plan{slices.Clone(starts), ahead, seconds}
		}
	}
	s.keep(&best)
	return best
}

// keep makes a copy of p the best plan if it takes less than that.
func (s *Search) keep(p *Plan) {
	if p.Seconds < s.Best.Seconds {
		s.Best = Plan{slices.Clone(p.Starts), slices.Clone(p.Ahead), p.Seconds}
	}
}

// Anneal begins at a plan and plays so many passes. hot is the part of the step by which a change
// is worse that is taken once in e times at the beginning.
func (s *Search) Anneal(from Plan, passes int, hot float64) {
	if math.IsInf(from.Seconds, 1) {
		return
	}
	now := Plan{slices.Clone(from.Starts), slices.Clone(from.Ahead), from.Seconds}
	next := Plan{make([]int, len(from.Starts)), make([]int, len(from.Ahead)), 0}
	begin := s.player.Played
	const cold = 0.002 // of hot, at the end
	for tries := 0; s.player.Played-begin < passes && tries < passes; tries++ {
		copy(next.Starts, now.Starts)
		copy(next.Ahead, now.Ahead)
		if !s.change(&next) {
			continue
		}
		done := float64(s.player.Played-begin) / float64(passes)
		heat := hot * portable.Pow(cold, done) * now.Seconds
		limit := now.Seconds - float64(heat*portable.Log(float64(s.draw(1<<20)+1)/(1<<20)))
		next.Seconds = s.player.play(next.Starts, next.Ahead, limit)
		if next.Seconds > limit {
			continue
		}
		now, next = next, now
		s.keep(&now)
	}
}

// change changes a plan by chance: some neighbouring stages begin at other layers, or hold other
// numbers of micro-batches. It reports false where that cannot be.
func (s *Search) change(p *Plan) bool {
	problem := s.player.p
	n := problem.Stages
	if n > 1 && s.draw(2) == 0 {
		first := 1 + s.draw(n-1)
		last := first
		for last+1 < n && s.draw(3) == 0 {
			last++
		}
		by := 1 + s.draw(1<<s.draw(5))
		if s.draw(2) == 0 {
			by = -by
		}
		for i := first; i <= last; i++ {
			p.Starts[i] += by
		}
		end := problem.Layers
		if last+1 < n {
			end = p.Starts[last+1]
		}
		return p.Starts[first] > p.Starts[first-1] && p.Starts[last] < end
	}
	first := s.draw(n)
	last := first
	for last+1 < n && s.draw(3) == 0 {
		last++
	}
	by := 1 + s.draw(2)
	if s.draw(2) == 0 {
		by = -by
	}
	for i := first; i <= last; i++ {
		p.Ahead[i] += by
	}
	// A stage may not hold more than the one before: the others follow.
	for i := first - 1; i >= 0; i-- {
		p.Ahead[i] = max(p.Ahead[i], p.Ahead[i+1])
	}
	for i := last + 1; i < n; i++ {
		p.Ahead[i] = min(p.Ahead[i], p.Ahead[i-1])
	}
	return p.Ahead[0] <= problem.Micro && p.Ahead[n-1] >= 1
}
