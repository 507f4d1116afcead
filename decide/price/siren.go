package price

import (
	"slices"

	"github.com/shoal-ml/shoal/decide/learn"
	"github.com/shoal-ml/shoal/internal/portable"
)

// A Budgeted is a job whose epochs can be run in several ways, and what it may cost. What is
// predicted of the ways is off: of a whole job by one factor, and of each epoch by another one. Its
// methods only read it.
type Budgeted struct {
	Epochs [][]Way   // as predicted; all epochs have the same ways, in the same order
	Noise  []float64 // of each epoch, the noise scale of the gradients in times of the first batch
	Budget float64
	// Off and OffEpoch are the standard deviations of the logarithms of both factors.
	Off, OffEpoch float64
}

// Spent is how far a job has come.
type Spent struct {
	Epochs        int     // that are over
	Seconds, Cost float64 // of them
	Expected      float64 // seconds that were predicted of them
	Last          Way     // of the last one, as it was predicted
	Took          float64 // seconds of the last one
}

// An EpochPolicy says in which way the next epoch of a job is run, as an index in its ways.
type EpochPolicy func(b *Budgeted, s Spent) int

// Play runs a job once, with the chance that follows from a seed, and returns what it took.
func (b *Budgeted) Play(policy EpochPolicy, seed uint64) (s Spent) {
	r := learn.NewRandom(seed)
	job := portable.Exp(b.Off * r.Normal())
	for _, ways := range b.Epochs {
		w := ways[policy(b, s)]
		off := job * portable.Exp(b.OffEpoch*r.Normal())
		s.Epochs, s.Last, s.Took = s.Epochs+1, w, float64(w.Seconds*off)
		s.Seconds, s.Cost = s.Seconds+s.Took, s.Cost+float64(w.Cost*off)
		s.Expected += w.Seconds
	}
	return s
}

// overrun is what a part of the budget counts for, in times of the job, that is spent beyond it.
const overrun = 5

// Score returns what a run of a job counts: its seconds, and more where it has cost more than it
// may. Less is better.
func (b *Budgeted) Score(s Spent) float64 {
	return s.Seconds * (1 + float64(overrun*max(0, s.Cost/b.Budget-1)))
}

// ByTwin plans the rest of a job anew after each epoch, by what the epochs until now took longer
// than predicted and what is left of the budget. Where that is too little it takes the cheapest
// ways.
func ByTwin(b *Budgeted, s Spent) int {
	plan, _ := WithinBudget(b.Epochs[s.Epochs:], (b.Budget-s.Cost)/s.slowdown())
	return slices.Index(b.Epochs[s.Epochs], plan.Ways[0])
}

// slowdown returns by which factor the epochs that are over took longer than predicted; 1 before
// the first.
func (s Spent) slowdown() float64 {
	if s.Expected > 0 {
		return s.Seconds / s.Expected
	}
	return 1
}

// Siren is the policy of the paper (section IV): an actor-critic that was trained on simulated runs
// of the job chooses the way of each epoch by what the last one took, the noise of the gradients
// and what is left of the budget. Its choice counts as long as the job ends hardly later by it, as
// the twin predicts, and it acts only if it is good enough: in each of some runs that it was not
// trained on it must be at most 2 % worse than the twin. Else the twin acts. Its networks keep what
// they compute with, so one goroutine uses it at a time.
type Siren struct {
	// Acts says that it was good enough. Alone and Worst say by which factor it was worse than the
	// twin in the worst of the runs that it was judged by: all by itself, and guarded by the twin.
	Acts         bool
	Alone, Worst float64

	agent   *learn.ActorCritic
	actions []int // the ways that it chooses from
}

const (
	sirenWidth  = 64   // of the hidden layers, two in each network
	sirenJudged = 20   // runs that it is judged by
	sirenWorse  = 1.02 // that it may be worse by in each of them
	sirenLater  = 0.01 // that its choices of a run may make the job later, as predicted
	sirenState  = 8    // numbers of a state
)

// TrainSiren trains the policy on so many runs of a job, and judges it. All chance follows from the
// seed; the runs that it is judged by are others than those that it is trained on.
func TrainSiren(b *Budgeted, runs int, seed uint64) *Siren {
	s := &Siren{actions: b.usedWays()}
	s.agent = learn.NewActorCritic(seed, sirenState, len(s.actions), sirenWidth)
	s.agent.Discount = 1
	chance := learn.NewRandom(seed)
	plan, _ := WithinBudget(b.Epochs, b.Budget)
	for range runs {
		s.learn(b, plan.Seconds, chance.Uint64())
	}
	for range sirenJudged {
		run := chance.Uint64()
		twin := b.Score(b.Play(ByTwin, run))
		s.Alone = max(s.Alone, b.Score(b.Play(s.best, run))/twin)
		s.Worst = max(s.Worst, b.Score(b.Play(s.guarded(), run))/twin)
	}
	s.Acts = s.Worst <= sirenWorse
	return s
}

// Policy returns the policy of one run of the job.
func (s *Siren) Policy() EpochPolicy {
	if s.Acts {
		return s.guarded()
	}
	return ByTwin
}

// guarded returns the policy of one run, in which the twin decides instead where the job would end
// too late, or cost too much, by the choices of the actor.
func (s *Siren) guarded() EpochPolicy {
	later, whole := 0.0, 0.0 // seconds: by its choices until now, and of the whole job
	return func(b *Budgeted, spent Spent) int {
		off, rest := spent.slowdown(), b.Epochs[spent.Epochs:]
		left := (b.Budget - spent.Cost) / off
		plan, err := WithinBudget(rest, left)
		if spent.Epochs == 0 {
			whole = plan.Seconds
		}
		choice := s.best(b, spent)
		w := rest[0][choice]
		if err == nil {
			after, tooDear := WithinBudget(rest[1:], left-w.Cost)
			x := w.Seconds + after.Seconds - plan.Seconds
			if tooDear == nil && later+x <= float64(sirenLater*whole) {
				later += max(x, 0)
				return choice
			}
		}
		return slices.Index(rest[0], plan.Ways[0])
	}
}

// best returns the way of the next epoch, as an index in its ways, that the actor takes to be the
// best.
func (s *Siren) best(b *Budgeted, spent Spent) int {
	return s.actions[s.agent.Best(s.stateFeatures(b, spent))]
}

// usedWays returns the ways that are worth a choice in some epoch whatever a second is worth, as
// indexes: those on the lower convex hull of cost and seconds.
func (b *Budgeted) usedWays() (list []int) {
	used := map[int]bool{}
	for _, ways := range b.Epochs {
		for factor := 1e-6; factor < 1e6; factor *= 1.2 {
			w := choose([][]Way{usefulWays(ways)}, factor*ways[0].Seconds/ways[0].Cost).Ways[0]
			used[slices.Index(ways, w)] = true
		}
	}
	for i := range b.Epochs[0] {
		if used[i] {
			list = append(list, i)
		}
	}
	return list
}

// learn lets the policy run a job, with the chance of a number, run, and moves it by what came of
// it. The reward of an epoch is what it took, and what it has cost beyond the budget, over
// `planned`, the seconds that the job is planned to take.
func (s *Siren) learn(b *Budgeted, planned float64, run uint64) {
	var episode []learn.Moment
	reward := func(now, before Spent) float64 {
		return -(now.Seconds-before.Seconds)/planned -
			float64(overrun*(max(0, now.Cost/b.Budget-1)-max(0, before.Cost/b.Budget-1)))
	}
	var before Spent
	end := b.Play(func(b *Budgeted, now Spent) int {
		if n := len(episode); n > 0 {
			episode[n-1].Reward = reward(now, before)
		}
		state := s.stateFeatures(b, now)
		action := s.agent.Draw(state)
		episode, before = append(episode, learn.Moment{State: state, Action: action}), now
		return s.actions[action]
	}, run)
	episode[len(episode)-1].Reward = reward(end, before)
	s.agent.Learn(episode, len(episode))
}

// stateFeatures returns what the policy sees of a job that has come so far: how far the job is, its
// last epoch, the noise, the budget; sirenState numbers.
func (s *Siren) stateFeatures(b *Budgeted, now Spent) []float64 {
	n := float64(len(b.Epochs))
	done := float64(now.Epochs) / n
	x := []float64{done, now.Cost / b.Budget, (1 - now.Cost/b.Budget) / (1 - done),
		portable.Log(1+b.Noise[now.Epochs]) / 4, 0, 0, 0, 0}
	if now.Epochs > 0 {
		x[4] = float64(portable.Log(now.Took/now.Last.Seconds) * 4)
		x[5] = float64(now.Took * n / now.Seconds / float64(now.Epochs+1))
		x[6] = portable.Log(float64(now.Last.Slots)) / 4
		x[7] = portable.Log(now.Last.Batch/b.Epochs[0][0].Batch) / 4
	}
	return x
}
