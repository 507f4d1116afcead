package twin

import (
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// What becomes of a step when a job has another number of members. With m samples of the worker
// that has most, and n members, a step takes a + w·m + c·(n − 1) + d·[n > 1]: what does not depend
// on either, what goes with the samples, and what workers exchange, which costs something as soon
// as there are two and may cost more with each. With a batch that stays, m is about batch/n, and
// that is the a + b/n + c·n of cluster-size search. All four are at least 0, and known before from
// what the workers tell of their time; what was measured are points (least squares with a normal
// prior, where none is negative: Lawson and Hanson, "Solving Least Squares Problems", 1974, §23).
// What jobs take more or less than such a sum is alike where sizes are: points near to a size say
// more of it than others (universal kriging: Cressie, "Statistics for Spatial Data", 1993, §3.4).

const (
	// guessedFixed and guessedFixedDoubt are which part of what workers compute does not depend on
	// the samples, and its standard deviation, before anything else was measured.
	guessedFixed, guessedFixedDoubt = 0.4, 0.33
	// guessedEach is which part of the exposed communication goes with the members, and the doubt
	// of it, where it was measured with as many as there are now.
	guessedEach, guessedEachDoubt = 0.3, 0.3
	// aloneJump and aloneEach are what two members may exchange and what each more may add, as
	// parts of a step of a worker that is alone, with their doubts.
	aloneJump, aloneJumpDoubt = 0.15, 0.3
	aloneEach, aloneEachDoubt = 0.02, 0.03
	// membersMisfit is how far sizes lie from such a sum, as a part of what they take. On the
	// profiles of Pollux it is between 0.07 and 0.12. alikeDoublings is for how many doublings of
	// the members, or twice as many of the samples, that is about the same.
	membersMisfit, alikeDoublings = 0.1, 2.0
	// membersPoints is how many of the newest sizes count: their number goes into the time of a
	// prediction with its third power.
	membersPoints = 24
	// scaledDoubt is how far, in logarithms, what was measured before a drift may be off since.
	scaledDoubt = 0.15
	// terms is the number of terms of the sum.
	terms = 4
)

// sum has the terms of a + w·m + c·(n − 1) + d·[n > 1], in this order.
type sum [terms]float64

// membersModel says how long a step takes by its members and samples, as a multiple of a step of
// now. The zero value knows nothing.
type membersModel struct {
	at         float64 // samples of the busiest worker now
	parts      sum     // of a step; none is negative
	covariance [terms]sum
	points     []membersPoint
	root       [][]float64 // the lower triangle whose product with itself is their covariance
	rest       []float64   // by point: what the parts do not explain, divided by root
	white      []sum       // by point: its terms, divided by root
	chance     float64     // standard error of the level of now, in logarithms
}

// membersPoint is a number of members and samples of the busiest worker that was measured.
type membersPoint struct {
	size
	took  float64 // as a multiple of a step of now
	error float64 // standard error of that, as a part of it
}

// termsOf returns by what the parts of a step are multiplied, where a step of now has `at` samples
// of the busiest worker.
func termsOf(members int, samples, at float64) sum {
	x := sum{1, samples / at, float64(members - 1), 0}
	if members > 1 {
		x[3] = 1
	}
	return x
}

// fitMembers returns the model of a job whose rate is known.
func (t *Twin) fitMembers() membersModel {
	batch, n := float64(t.now.Setting.Batch), t.now.Size
	m := membersModel{at: samplesOfBusiestWorker(t.now.Setting.Batch, n)}
	m.chance = (portable.Log(t.rate.High) - portable.Log(t.rate.Low)) / (2 * tail80)
	level := portable.Log(batch / t.rate.Mid)
	// share returns a time as a part of a step.
	share := func(seconds float64) float64 {
		return min(max(seconds*t.rate.Mid/batch, 0), 0.95)
	}
	exposed, optimizer := share(t.now.Split.Exposed), share(t.now.Split.Optimizer)
	free := max(1-exposed-optimizer, 0.05)
	mean := sum{optimizer + float64(guessedFixed*free), (1 - guessedFixed) * free, aloneEach,
		aloneJump}
	doubt := sum{guessedFixedDoubt * free, guessedFixedDoubt * free, aloneEachDoubt,
		aloneJumpDoubt}
	if n > 1 {
		others := float64(n - 1)
		mean[2], mean[3] = guessedEach*exposed/others, (1-guessedEach)*exposed
		doubt[2] = guessedEachDoubt*exposed/others + 0.005
		doubt[3] = float64(guessedEachDoubt*exposed) + 0.03
	}
	deviation := sense.Deviation(t.MeasuredSteps())
	for _, s := range t.sizes[:min(len(t.sizes), membersPoints)] {
		p := membersPoint{size: s, took: portable.Exp(s.log - level),
			error: medianError * deviation / math.Sqrt(float64(s.steps))}
		if s.scaled {
			p.error = portable.Hypot(p.error, scaledDoubt)
		}
		m.points = append(m.points, p)
	}
	m.solve(mean, doubt)
	return m
}

// solve finds the parts that explain the points best, where they have a mean and doubts before.
func (m *membersModel) solve(mean, doubt sum) {
	n := len(m.points)
	m.root, m.white, m.rest = make([][]float64, n), make([]sum, n), make([]float64, n)
	for i, p := range m.points {
		m.root[i] = m.divideByRoot(m.covarianceWithPoints(p.members, p.samples, p.took)[:i])
		own := portable.Hypot(membersMisfit, p.error) * p.took
		own *= own
		for _, x := range m.root[i] {
			own -= float64(x * x)
		}
		m.root[i] = append(m.root[i], math.Sqrt(max(own, 1e-12)))
		m.white[i], m.rest[i] = termsOf(p.members, p.samples, m.at), p.took
		for j, x := range m.root[i][:i] {
			for k := range terms {
				m.white[i][k] -= float64(x * m.white[j][k])
			}
			m.rest[i] -= float64(x * m.rest[j])
		}
		for k := range terms {
			m.white[i][k] /= m.root[i][i]
		}
		m.rest[i] /= m.root[i][i]
	}
	var a [terms]sum // the normal equations a·parts = right
	var right sum
	for i := range terms {
		weight := 1 / (doubt[i] * doubt[i])
		a[i][i], right[i] = weight, weight*mean[i]
	}
	for i, x := range m.white {
		for j := range terms {
			for k := range terms {
				a[j][k] += float64(x[j] * x[k])
			}
			right[j] += float64(x[j] * m.rest[i])
		}
	}
	least := math.Inf(1)
	for subset := 1; subset < 1<<terms; subset++ { // the others are 0
		parts, ok := solveSubset(a, right, subset)
		if !ok {
			continue
		}
		loss := 0.0
		for i := range terms {
			for j := range terms {
				loss += float64(parts[i] * a[i][j] * parts[j])
			}
			loss -= float64(2 * parts[i] * right[i])
		}
		if loss < least {
			least, m.parts = loss, parts
		}
	}
	for i := range terms {
		var unit sum
		unit[i] = 1
		m.covariance[i], _ = eliminate(a, unit)
	}
	for i, x := range m.white {
		m.rest[i] -= dot(x, m.parts)
	}
}

// covarianceWithPoints returns, by point, the covariance of its misfit with that of a size, given
// by members and samples, that takes about `took` times what a step takes now.
func (m *membersModel) covarianceWithPoints(members int, samples, took float64) []float64 {
	list := make([]float64, len(m.points))
	for i, p := range m.points {
		away := portable.Hypot(portable.Log2(float64(members)/float64(p.members)),
			portable.Log2(samples/p.samples)/2)
		list[i] = membersMisfit * membersMisfit * took * p.took * portable.Exp(-away/alikeDoublings)
	}
	return list
}

// divideByRoot divides the covariances with the first points by root, in place, and returns them.
func (m *membersModel) divideByRoot(list []float64) []float64 {
	for i := range list {
		for j, x := range list[:i] {
			list[i] -= float64(m.root[i][j] * x)
		}
		list[i] /= m.root[i][i]
	}
	return list
}

// dot returns the sum of the products of two sums.
func dot(a, b sum) (x float64) {
	for i := range terms {
		x += float64(a[i] * b[i])
	}
	return x
}

// solveSubset solves a·x = right for those of the unknowns that are in a set of bits, where the
// others are 0; false = one of them is negative.
func solveSubset(a [terms]sum, right sum, subset int) (sum, bool) {
	for i := range terms {
		if subset&(1<<i) != 0 {
			continue
		}
		for j := range terms {
			a[i][j], a[j][i] = 0, 0
		}
		a[i][i], right[i] = 1, 0
	}
	x, ok := eliminate(a, right)
	return x, ok && slices.Min(x[:]) >= 0
}

// eliminate solves a·x = right, where a is symmetric and positive definite; false = it is not, as
// far as numbers can tell (Gauss).
func eliminate(a [terms]sum, right sum) (x sum, ok bool) {
	for i := range terms {
		if !(a[i][i] > 0) {
			return x, false
		}
		for k := i + 1; k < terms; k++ {
			factor := a[k][i] / a[i][i]
			for j := i; j < terms; j++ {
				a[k][j] -= float64(factor * a[i][j])
			}
			right[k] -= float64(factor * right[i])
		}
	}
	for i := terms - 1; i >= 0; i-- {
		x[i] = right[i]
		for j := i + 1; j < terms; j++ {
			x[i] -= float64(a[i][j] * x[j])
		}
		x[i] /= a[i][i]
	}
	return x, true
}

// seconds returns what a step takes with so many members and samples of the busiest worker, as a
// multiple of a step of now, and whether such steps were measured.
func (m *membersModel) seconds(members int, samples float64) (b setting.Band, measured bool) {
	for _, p := range m.points {
		if p.members == members && p.samples == samples && !p.scaled {
			return bandAround(p.took, portable.Hypot(p.error, m.chance)), true
		}
	}
	x := termsOf(members, samples, m.at)
	sum := max(dot(x, m.parts), 1e-6)
	took, variance := sum, membersMisfit*sum*membersMisfit*sum
	for i, near := range m.divideByRoot(m.covarianceWithPoints(members, samples, sum)) {
		took += float64(near * m.rest[i])
		variance -= float64(near * near)
		for k := range terms {
			x[k] -= float64(near * m.white[i][k])
		}
	}
	variance = max(variance, 0)
	for i := range terms {
		variance += float64(x[i] * dot(m.covariance[i], x))
	}
	took = max(took, sum/4)
	return bandAround(took, portable.Hypot(min(math.Sqrt(variance)/took, 1), m.chance)), false
}

// bandAround returns the band of 80 % of a number whose logarithm has a standard error.
func bandAround(mid, error float64) setting.Band {
	wide := portable.Exp(tail80 * error)
	return setting.Band{Low: mid / wide, Mid: mid, High: mid * wide}
}

// membersThroughput returns by which factor the samples a second grow with another number of
// members, and what of it is a guess.
func (t *Twin) membersThroughput(batch uint64, size int) (b setting.Band, guess string) {
	if !t.membersKnown {
		t.members, t.membersKnown = t.fitMembers(), true
	}
	growth := float64(batch) / float64(t.now.Setting.Batch)
	took, measured := t.members.seconds(size, samplesOfBusiestWorker(batch, size))
	if !measured {
		guess = fmt.Sprintf("steps of %d members were not measured", size)
	}
	return setting.Band{Low: growth / took.High, Mid: growth / took.Mid,
		High: growth / took.Low}, guess
}
