package predict

import (
	"math"

	"github.com/shoal-ml/shoal/internal/portable"
)

// maxOrder is the largest number of coefficients of each of the two parts of an arma.
const maxOrder = 3

// arma is an autoregressive moving-average model of a stationary series:
//
//	y(t) = w(t) - mean = Σ ar·y(t-i) + e(t) + Σ ma·e(t-j)
//
// The zero value is noise around 0. It is a value.
type arma struct {
	p, q    int  // coefficients of ar, and of ma; the others are 0
	hasMean bool // whether mean is fitted; else it is 0
	mean    float64
	ar, ma  [maxOrder]float64
}

// armaState is what of a series its next sample depends on, the newest first. In the zero value the
// series has been at its mean.
type armaState struct {
	y [maxOrder]float64 // samples less the mean
	e [maxOrder]float64 // errors of the predictions one sample ahead
}

// next returns the y that a model expects next.
func (m *arma) next(s *armaState) (y float64) {
	for i := range maxOrder {
		y += float64(m.ar[i]*s.y[i]) + float64(m.ma[i]*s.e[i])
	}
	return y
}

// add adds the newest y and its error.
func (s *armaState) add(y, e float64) {
	copy(s.y[1:], s.y[:])
	copy(s.e[1:], s.e[:])
	s.y[0], s.e[0] = y, e
}

// terms returns the number of fitted coefficients, the mean among them.
func (m *arma) terms() int {
	if m.hasMean {
		return m.p + m.q + 1
	}
	return m.p + m.q
}

// squares returns the conditional sum of squares of a series, and the state at its end: the first
// maxOrder samples are taken as given, without errors.
func (m *arma) squares(w []float64) (sum float64, s armaState) {
	for t, x := range w {
		y, e := x-m.mean, 0.0
		if t >= maxOrder {
			e = y - m.next(&s)
		}
		sum += float64(e * e)
		s.add(y, e)
	}
	return sum, s
}

// gradients returns the normal equations of the step by which the errors of a series would be least
// if they were linear in the coefficients. Their order is ar, ma, mean.
func (m *arma) gradients(w []float64) (eq leastSquares) {
	var s armaState
	var past [maxOrder][2*maxOrder + 1]float64 // derivatives of the newest errors, newest first
	for t, x := range w {
		y, e := x-m.mean, 0.0
		var row [2*maxOrder + 1]float64
		if t >= maxOrder {
			e = y - m.next(&s)
			copy(row[:m.p], s.y[:])
			copy(row[m.p:m.p+m.q], s.e[:])
			row[m.p+m.q] = 1 - m.ar[0] - m.ar[1] - m.ar[2] // used if the mean is fitted
			for i := range m.terms() {
				for j := range m.q {
					row[i] -= float64(m.ma[j] * past[j][i])
				}
			}
			eq.add(row[:m.terms()], e)
		}
		past[2], past[1], past[0] = past[1], past[0], row
		s.add(y, e)
	}
	return eq
}

// afterStep returns the model after a step, of which it takes a part.
func (m *arma) afterStep(step *[maxTerms]float64, part float64) arma {
	n := *m
	for i := range m.p {
		n.ar[i] += float64(part * step[i])
	}
	for i := range m.q {
		n.ma[i] += float64(part * step[m.p+i])
	}
	if m.hasMean {
		n.mean += float64(part * step[m.p+m.q])
	}
	return n
}

// refine takes up to a number of Gauss-Newton steps to where the conditional sum of squares is
// least, and returns the sum. A step is halved until it lessens the sum and stays among stationary,
// invertible models.
func (m *arma) refine(w []float64, steps int) float64 {
	sum, _ := m.squares(w)
	for range steps {
		eq := m.gradients(w)
		step := eq.solve(m.terms())
		before := sum
		for part := 1.0; part > 1e-3; part /= 2 {
			n := m.afterStep(&step, part)
			if !n.isAllowed() {
				continue
			}
			if s, _ := n.squares(w); s < sum {
				*m, sum = n, s
				break
			}
		}
		if before-sum <= 1e-6*before {
			break
		}
	}
	return sum
}

// isAllowed reports whether the model is stationary and invertible, by a margin.
func (m *arma) isAllowed() bool { return isStable(m.ar, 1) && isStable(m.ma, -1) }

// isStable reports whether what follows the recursion y(t) = sign·Σ c·y(t-i) dies away: all its
// reflection coefficients, which the Levinson recursion backwards finds, are below 1.
func isStable(c [maxOrder]float64, sign float64) bool {
	for i := range c {
		c[i] *= sign
	}
	for k := maxOrder - 1; k >= 0; k-- {
		r := c[k]
		if !(math.Abs(r) < 0.999) {
			return false
		}
		shorter := c
		for i := range k {
			shorter[i] = (c[i] + float64(r*c[k-1-i])) / (1 - float64(r*r))
		}
		c = shorter
	}
	return true
}

// shrink moves coefficients towards 0 until isStable, so that roots keep their directions.
func shrink(c *[maxOrder]float64, sign float64) {
	for !isStable(*c, sign) {
		factor := 0.9
		for i := range c {
			c[i] *= factor
			factor *= 0.9
		}
	}
}

// innovations estimates the errors of a series around a mean by an autoregression that is long, and
// writes them to e. Returned is its order; there are no errors before that.
func innovations(w, e []float64, mean float64) (order int) {
	order = min(int(portable.Pow(portable.Log(float64(len(w))), 1.5)), maxTerms, len(w)/4)
	var eq leastSquares
	var row [maxTerms]float64
	for t := order; t < len(w); t++ {
		for i := range order {
			row[i] = w[t-1-i] - mean
		}
		eq.add(row[:order], w[t]-mean)
	}
	c := eq.solve(order)
	for t := order; t < len(w); t++ {
		e[t] = w[t] - mean
		for i := range order {
			e[t] -= float64(c[i] * (w[t-1-i] - mean))
		}
	}
	return order
}

// start sets the coefficients by the second regression of Hannan and Rissanen (1982): on the
// samples w, and on the errors e that innovations has found, which has also returned order.
func (m *arma) start(w, e []float64, order int) {
	var eq leastSquares
	var row [2 * maxOrder]float64
	first := m.p
	if m.q > 0 {
		first = max(m.p, order+m.q)
	}
	for t := first; t < len(w); t++ {
		for i := range m.p {
			row[i] = w[t-1-i] - m.mean
		}
		for j := range m.q {
			row[m.p+j] = e[t-1-j]
		}
		eq.add(row[:m.p+m.q], w[t]-m.mean)
	}
	c := eq.solve(m.p + m.q)
	copy(m.ar[:], c[:m.p])
	copy(m.ma[:], c[m.p:m.p+m.q])
	shrink(&m.ar, 1)
	shrink(&m.ma, -1)
}
