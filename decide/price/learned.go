package price

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/learn"
	"github.com/shoal-ml/shoal/internal/portable"
)

// Learned is the scaling of a chain that predicts and learns (Luo, Wu, Li and Zhou, JSAC 2019): a
// forecast says how many replicas are worth keeping, and an actor-critic makes that one more or one
// fewer where it has learned that it costs less. It proposes only; Guard decides. One goroutine
// uses it at a time.
type Learned struct {
	stages []Stage
	of     []*forecast
	actor  *learn.ActorCritic
}

// actorState is how many numbers an actor sees of a stage.
const actorState = window + 4

// NewLearned returns one that has learned nothing and seen nothing; the seed gives first weights.
func NewLearned(stages []Stage, seed uint64) *Learned {
	l := &Learned{stages: stages, actor: learn.NewActorCritic(seed, actorState, 3, 24)}
	l.ResetForecasts(seed)
	return l
}

// ResetForecasts has it see the needs from anew, with what the actor has learned.
func (l *Learned) ResetForecasts(seed uint64) {
	r := learn.NewRandom(seed ^ 1)
	l.of = nil
	for range l.stages {
		l.of = append(l.of, newForecast(r))
	}
}

// Train has the actor learn from needs, which it goes through a number of times, in episodes of 256
// slots of time: it learns nothing from what is left behind the last whole one. The forecasts have
// seen the needs after that: see ResetForecasts.
func (l *Learned) Train(needs [][]int, times int) {
	const length = 256 // slots of an episode
	for round := range times {
		l.ResetForecasts(uint64(round))
		before, episodes := make([]int, len(l.stages)), make([][]learn.Moment, len(l.stages))
		for _, need := range needs {
			for i, s := range l.stages {
				state := l.observe(i, need[i], before[i])
				action := l.actor.Draw(state)
				after := l.replicasAfter(i, need[i], before[i], action)
				worth := -s.cost(before[i], after) / (s.Run * (1 + l.of[i].scale))
				before[i] = after
				episodes[i] = append(episodes[i], learn.Moment{State: state, Action: action,
					Reward: worth})
				if len(episodes[i]) == length {
					l.actor.Learn(episodes[i], 64)
					episodes[i] = nil
				}
			}
		}
	}
}

// Propose returns how many replicas each stage should have, where it needs at least `need` and has
// had `before`. The forecasts take in the need.
func (l *Learned) Propose(need, before []int) []int {
	after := make([]int, len(l.stages))
	for i := range l.stages {
		action := l.actor.Best(l.observe(i, need[i], before[i]))
		after[i] = l.replicasAfter(i, need[i], before[i], action)
	}
	return after
}

// observe takes in what stage i needs, where it has had `before` replicas, and returns the
// actorState numbers that an actor sees of it.
func (l *Learned) observe(i, need, before int) []float64 {
	f, s := l.of[i], l.stages[i]
	f.observe(float64(need))
	mean, deviation := f.next()
	scale := 1 + f.scale
	return append(f.input(), (mean-float64(need))/scale, deviation/scale,
		float64(before-max(need, s.replicasWorthKeeping(f)))/scale, portable.Log(s.Start/s.Run)/4)
}

// replicasAfter returns how many replicas an action leaves stage i, which needs and has had so
// many: one fewer, as many or one more than are worth keeping. What is not needed is not started,
// since it can be started when it is.
func (l *Learned) replicasAfter(i, need, before, action int) int {
	return max(need, min(before, l.stages[i].replicasWorthKeeping(l.of[i])+action-1))
}

// Guard is a Scaler that does what another one proposes, as long as it can be sure that it costs at
// most a part more than a safe one, whatever comes. It knows what the safe one would have cost so
// far, and what it costs to get to where that is.
type Guard struct {
	Stages   []Stage
	Capacity float64 // of all hosts; 0 = no bound
	Safe     Scaler
	// Bold proposes replicas by stage, never fewer than are needed, as Learned.Propose does.
	Bold func(need, before []int) []int
	Part float64 // by how much it may cost more; 0.02 = 2 %

	safe, has []int   // replicas of the safe one, and those that there are
	safeCost  float64 // of the safe one so far
	cost      float64 // so far
	followed  int     // slots of time in which the proposal was followed
}

// Step implements Scaler.
func (g *Guard) Step(need []int) ([]int, error) {
	if g.has == nil {
		g.safe, g.has = make([]int, len(need)), make([]int, len(need))
	}
	safe, err := g.Safe.Step(need)
	if err != nil {
		return nil, err
	}
	g.safeCost += costOf(g.Stages, g.safe, safe)
	g.safe = slices.Clone(safe)
	after := g.Bold(need, g.has)
	cost := g.cost + costOf(g.Stages, g.has, after)
	if g.fits(after) && cost+g.costOfReturn(after) <= g.safeCost*(1+g.Part) {
		g.followed++
	} else {
		after = slices.Clone(safe)
		cost = g.cost + costOf(g.Stages, g.has, after)
	}
	g.has, g.cost = slices.Clone(after), cost
	return after, nil
}

// Followed returns in how many slots of time the proposal was followed.
func (g *Guard) Followed() int { return g.followed }

// fits reports whether the hosts have room for so many replicas of each stage.
func (g *Guard) fits(whole []int) bool {
	room := 0.0
	for i, s := range g.Stages {
		room += float64(s.Room * float64(whole[i]))
	}
	return g.Capacity <= 0 || room <= g.Capacity*(1+1e-9)
}

// costOfReturn returns the money that it costs to start the replicas that the safe one has and
// `whole`, by stage, lacks.
func (g *Guard) costOfReturn(whole []int) (cost float64) {
	for i, s := range g.Stages {
		cost += float64(s.Start * math.Max(0, float64(g.safe[i]-whole[i])))
	}
	return cost
}

// costOf returns the money that a chain costs in a slot of time, with the replicas of each stage
// that were there before and that are there after.
func costOf(stages []Stage, before, after []int) (cost float64) {
	for i, s := range stages {
		cost += s.cost(before[i], after[i])
	}
	return cost
}
