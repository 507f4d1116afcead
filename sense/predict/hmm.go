package predict

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
)

// hmmStates is the number of states of a hidden Markov model.
const hmmStates = 3

// hmm is a hidden Markov model whose samples are normal in each state. It is a value.
type hmm struct {
	start    [hmmStates]float64            // probability of the first sample's state; above 0
	move     [hmmStates][hmmStates]float64 // of the next state, by the state; above 0
	mean     [hmmStates]float64
	variance [hmmStates]float64 // above 0
}

// posterior is what a model says of a sample in view of all samples.
type posterior struct {
	state [hmmStates]float64            // probability of each state
	move  [hmmStates][hmmStates]float64 // of each state and the state of the next sample; 0 = none
}

// moments are a weighted sum of samples. The zero value has none.
type moments struct {
	weight  float64
	mean    float64
	squares float64 // weighted sum of the squared distances to the mean
}

// add adds samples of a weight and a mean.
func (m *moments) add(o moments) {
	if o.weight <= 0 {
		return
	}
	sum := m.weight + o.weight
	distance := o.mean - m.mean
	m.mean += float64(distance * (o.weight / sum))
	m.squares += o.squares + float64(distance*distance*(m.weight*(o.weight/sum)))
	m.weight = sum
}

// statistics are what a model is fitted to: of each state its samples, and the number of moves to
// each other one. The zero value has none.
type statistics struct {
	states [hmmStates]moments
	moves  [hmmStates][hmmStates]float64
}

// add adds a sample.
func (s *statistics) add(x float64, p *posterior) {
	for i := range hmmStates {
		s.states[i].add(moments{weight: p.state[i], mean: x})
		for j := range hmmStates {
			s.moves[i][j] += p.move[i][j]
		}
	}
}

// weight returns the number of samples, less what has decayed.
func (s *statistics) weight() (weight float64) {
	for _, m := range s.states {
		weight += m.weight
	}
	return weight
}

// decay multiplies the weight of all samples by a factor.
func (s *statistics) decay(factor float64) {
	for i := range hmmStates {
		s.states[i].weight *= factor
		s.states[i].squares *= factor
		for j := range hmmStates {
			s.moves[i][j] *= factor
		}
	}
}

// newHMM returns a model to begin with: states that mostly stay, each with a third of the samples
// by their size. There must be hmmStates samples at least.
func newHMM(samples []float64) (m hmm) {
	var room [hmmWindow]float64
	sorted := room[:copy(room[:], samples)]
	slices.Sort(sorted)
	least := leastVariance(samples)
	_, deviation := scaleOf(samples)
	for i := range hmmStates {
		from, to := i*len(sorted)/hmmStates, (i+1)*len(sorted)/hmmStates
		mean, sd := scaleOf(sorted[from:to])
		m.mean[i] = mean
		m.variance[i] = max(float64(sd*sd)+float64(0.01*deviation*deviation), least)
		m.start[i] = 1. / hmmStates
		for j := range hmmStates {
			m.move[i][j] = 0.05
		}
		m.move[i][i] = 0.9
	}
	return m
}

// leastVariance returns below what the variance of a state does not fall: it would go to 0 at a
// state of one sample.
func leastVariance(samples []float64) float64 {
	mean, deviation := scaleOf(samples)
	least := max(0.01*deviation, 1e-9*math.Abs(mean), 1e-145)
	return least * least
}

// densities returns the density of a sample in each state, divided by the highest of them, whose
// logarithm is returned too. So they are finite, and one is 1, however far a sample lies outside.
func (m *hmm) densities(x float64) (d [hmmStates]float64, logHighest float64) {
	for i := range hmmStates {
		distance := x - m.mean[i]
		d[i] = float64(-0.5*portable.Log(2*math.Pi*m.variance[i])) -
			float64(0.5*min(distance*(distance/m.variance[i]), 1e290))
	}
	logHighest = max(d[0], d[1], d[2])
	for i := range d {
		d[i] = portable.Exp(d[i] - logHighest)
	}
	return d, logHighest
}

// normalize divides numbers, which are not negative and not all 0, by their sum, and returns it.
func normalize(p *[hmmStates]float64) (sum float64) {
	for _, x := range p {
		sum += x
	}
	for i := range p {
		p[i] /= sum
	}
	return sum
}

// forwardBackward writes the posterior of each sample, and returns the logarithm of their
// likelihood. There are 1 to hmmWindow samples, and as many posteriors. It scales the probabilities
// at each sample in place of taking logarithms, which costs a tenth and cannot underflow: no move
// is impossible, and one of the densities is 1.
func (m *hmm) forwardBackward(samples []float64, posteriors []posterior) (logLikelihood float64) {
	var densities, forward [hmmWindow][hmmStates]float64
	last := len(samples) - 1
	for t, x := range samples {
		d, logHighest := m.densities(x)
		p := m.start
		if t > 0 {
			p = m.nextState(forward[t-1])
		}
		for i := range p {
			p[i] *= d[i]
		}
		logLikelihood += portable.Log(normalize(&p)) + logHighest
		densities[t], forward[t] = d, p
	}
	backward := [hmmStates]float64{1, 1, 1}
	posteriors[last] = posterior{state: forward[last]}
	for t := last - 1; t >= 0; t-- {
		p := &posteriors[t]
		var here [hmmStates]float64
		sum := 0.0
		for i := range hmmStates {
			for j := range hmmStates {
				to := float64(m.move[i][j] * densities[t+1][j] * backward[j])
				here[i] += to
				p.move[i][j] = float64(forward[t][i] * to)
				sum += p.move[i][j]
			}
		}
		for i := range hmmStates {
			p.state[i] = 0
			for j := range hmmStates {
				p.move[i][j] /= sum
				p.state[i] += p.move[i][j]
			}
		}
		normalize(&here)
		backward = here
	}
	return logLikelihood
}

// fit takes a step of Baum and Welch: it sets the model to what fits the samples best, and what was
// before them, by posteriors that forwardBackward has found.
func (m *hmm) fit(samples []float64, posteriors []posterior, before statistics) {
	const prior = 0.01 // moves of each kind that are taken as seen, so that no move is impossible
	sums := before
	for t, x := range samples {
		sums.add(x, &posteriors[t])
	}
	least := leastVariance(samples)
	for i := range hmmStates {
		if s := sums.states[i]; s.weight > 1e-6 {
			m.mean[i] = s.mean
			m.variance[i] = max(s.squares/s.weight, least)
		}
		total := hmmStates * prior
		for j := range hmmStates {
			total += sums.moves[i][j]
		}
		for j := range hmmStates {
			m.move[i][j] = (sums.moves[i][j] + prior) / total
		}
		m.start[i] = (posteriors[0].state[i] + prior) / (1 + hmmStates*prior)
	}
}

// nextState returns the probability of each state one sample on.
func (m *hmm) nextState(state [hmmStates]float64) (next [hmmStates]float64) {
	for i := range hmmStates {
		for j := range hmmStates {
			next[j] += float64(state[i] * m.move[i][j])
		}
	}
	return next
}

// stateAtSample returns the probability of each state at a sample, from that at the sample before.
func (m *hmm) stateAtSample(state [hmmStates]float64, x float64) (next [hmmStates]float64) {
	next = m.nextState(state)
	d, _ := m.densities(x)
	for i := range next {
		next[i] *= d[i]
	}
	normalize(&next)
	return next
}

// quantile returns below what a sample lies with a probability, if its state has these
// probabilities.
func (m *hmm) quantile(state [hmmStates]float64, probability float64) float64 {
	low, high, least := math.Inf(1), math.Inf(-1), math.Inf(1)
	for i, p := range state {
		if p > 1e-6 {
			sd := math.Sqrt(m.variance[i])
			low, high = min(low, m.mean[i]-float64(6*sd)), max(high, m.mean[i]+float64(6*sd))
			least = min(least, sd)
		}
	}
	for range 400 { // it takes some 30, and more only between states that are very unlike
		mid := low + float64((high-low)/2)
		if high-low <= 1e-6*least || mid <= low || mid >= high {
			break
		}
		below := 0.0
		for i, p := range state {
			below += float64(p * portable.NormalBelow((mid-m.mean[i])/math.Sqrt(m.variance[i])))
		}
		if below < probability {
			low = mid
		} else {
			high = mid
		}
	}
	return low + float64((high-low)/2)
}
