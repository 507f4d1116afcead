package learn

import "github.com/shoal-ml/shoal/internal/portable"

// ActorCritic learns which of a few actions to take: one network gives how probable each should be,
// the other what reward is to be expected from a state on (advantage actor-critic: Mnih and others,
// ICML 2016, with generalised advantages: Schulman and others, ICLR 2016). One goroutine uses it at
// a time.
type ActorCritic struct {
	Actor, Critic *MLP
	Discount      float64 // of the reward of the next moment
	Trace         float64 // how far errors of the critic count for earlier moments, from 0 to 1
	Rate          float64 // how far a step of Adam goes
	Entropy       float64 // what being undecided is worth while learning
	random        *Random
}

// A Moment is one of an episode: the state in which an action was taken, and what came of it.
type Moment struct {
	State  []float64
	Action int
	Reward float64
}

// NewActorCritic returns one for states of so many numbers and so many actions, with two hidden
// layers of a width.
func NewActorCritic(seed uint64, state, actions, width int) *ActorCritic {
	r := NewRandom(seed)
	return &ActorCritic{Actor: NewMLP(r, state, width, width, actions),
		Critic: NewMLP(r, state, width, width, 1), Discount: 0.95, Trace: 0.95, Rate: 1e-3,
		Entropy: 0.01, random: r}
}

// Best returns the action that is most probable in a state.
func (a *ActorCritic) Best(state []float64) (best int) {
	out := a.Actor.Forward(state)
	for i, x := range out {
		if x > out[best] {
			best = i
		}
	}
	return best
}

// Draw returns an action by chance, as probable as it should be in a state.
func (a *ActorCritic) Draw(state []float64) int {
	left := a.random.Float()
	p := softmax(a.Actor.Forward(state))
	for i, x := range p {
		if left -= x; left < 0 {
			return i
		}
	}
	return len(p) - 1
}

// Learn moves both networks by an episode, in steps of so many moments, the last ones first.
func (a *ActorCritic) Learn(episode []Moment, batch int) {
	values := make([]float64, len(episode)+1)
	for i, m := range episode {
		values[i] = a.Critic.Forward(m.State)[0]
	}
	advantages, next := make([]float64, len(episode)), 0.0
	for i := len(episode) - 1; i >= 0; i-- {
		wrong := episode[i].Reward + float64(a.Discount*values[i+1]) - values[i]
		next = wrong + float64(float64(a.Discount*a.Trace)*next)
		advantages[i] = next
	}
	for to := len(episode); to > 0; to -= batch {
		from := max(0, to-batch)
		for i := from; i < to; i++ {
			a.addGradients(episode[i], advantages[i], values[i]+advantages[i], float64(to-from))
		}
		a.Actor.Step(a.Rate)
		a.Critic.Step(a.Rate)
	}
}

// addGradients adds to the gradients of both networks what moment m of n in a batch says, where
// advantage is how much better its action was than expected, and came the reward that came from its
// state on.
func (a *ActorCritic) addGradients(m Moment, advantage, came, n float64) {
	a.Critic.Backward([]float64{(a.Critic.Forward(m.State)[0] - came) / n})
	p := softmax(a.Actor.Forward(m.State))
	undecided := 0.0
	for _, x := range p {
		undecided -= float64(x * portable.Log(x+1e-12))
	}
	gradient := make([]float64, len(p))
	for i, x := range p {
		gradient[i] = float64(x * advantage)
		if i == m.Action {
			gradient[i] -= advantage
		}
		gradient[i] += float64(a.Entropy * float64(x*(portable.Log(x+1e-12)+undecided)))
		gradient[i] /= n
	}
	a.Actor.Backward(gradient)
}

// softmax returns how probable the outputs of the actor make each action; together they are 1.
func softmax(out []float64) []float64 {
	most, sum := out[0], 0.0
	for _, x := range out {
		most = max(most, x)
	}
	p := make([]float64, len(out))
	for i, x := range out {
		p[i] = portable.Exp(x - most)
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}
