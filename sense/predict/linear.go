package predict

import "math"

// maxTerms is the largest number of unknowns of leastSquares.
const maxTerms = 16

// leastSquares are the normal equations of a linear least-squares problem. In the zero value there
// are no rows. It is its user's alone.
type leastSquares struct {
	squares [maxTerms][maxTerms]float64 // Σ row·rowᵀ; only i >= j is used
	right   [maxTerms]float64           // Σ row·y
}

// add adds the row of an equation row·x = y, which has at most maxTerms elements.
func (s *leastSquares) add(row []float64, y float64) {
	for i, r := range row {
		for j, c := range row[:i+1] {
			s.squares[i][j] += float64(r * c)
		}
		s.right[i] += float64(r * y)
	}
}

// solve returns the n unknowns that fit the rows best, by a Cholesky decomposition. Its diagonal is
// raised by a part in 10^10, so that unknowns that are not determined stay small. The equations
// are used up then.
func (s *leastSquares) solve(n int) (x [maxTerms]float64) {
	a := &s.squares
	for i := range n {
		for j := range i + 1 {
			sum := a[i][j]
			if i == j {
				sum += float64(1e-10*sum) + 1e-200
			}
			for k := range j {
				sum -= float64(a[i][k] * a[j][k])
			}
			if i > j {
				a[i][j] = sum / a[j][j]
				continue
			}
			if least := float64(1e-12*a[i][i]) + 1e-200; !(sum > least) {
				sum = least
			}
			a[i][i] = math.Sqrt(sum)
		}
	}
	for i := range n {
		x[i] = s.right[i]
		for k := range i {
			x[i] -= float64(a[i][k] * x[k])
		}
		x[i] /= a[i][i]
	}
	for i := n - 1; i >= 0; i-- {
		for k := i + 1; k < n; k++ {
			x[i] -= float64(a[k][i] * x[k])
		}
		x[i] /= a[i][i]
	}
	return x
}
