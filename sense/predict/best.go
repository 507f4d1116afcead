package predict

import "github.com/shoal-ml/shoal/setting"

// IntervalScore returns how badly a band of 80 % has predicted x: its width, and ten times the
// distance by which x lies outside. The less, the better; who states the true quantiles has the
// least score on average (Gneiting and Raftery 2007, equation 43).
func IntervalScore(band setting.Band, x float64) float64 {
	const missed = 2 / 0.2
	return band.High - band.Low + float64(missed*max(band.Low-x, x-band.High, 0))
}

// scoresKept is over how many predictions one sample ahead Best compares predictors, and
// scoresLeast how many a predictor needs before it is compared with others that have as many.
const (
	scoresKept  = 64
	scoresLeast = 32
)

// Best predicts by that one of several predictors whose bands one sample ahead have had the least
// mean interval score over the newest 64 predictions. NewBest makes one, and one goroutine uses it
// at a time.
type Best struct {
	candidates []candidate
	used       int // index of the candidate that is used
}

// candidate is a predictor among which Best chooses.
type candidate struct {
	Predictor
	next   setting.Band        // what it predicts for the next sample; zero = nothing
	scores [scoresKept]float64 // a ring: score i lies at i % scoresKept
	n      int                 // scores ever added
}

// NewBest returns a Best that chooses among predictors, of which there must be one at least, and
// which it owns then. Of those that are equally good it takes the one that is named first.
func NewBest(predictors ...Predictor) *Best {
	if len(predictors) == 0 {
		panic("predict: NewBest needs a predictor, such as those of All")
	}
	b := &Best{candidates: make([]candidate, len(predictors))}
	for i, p := range predictors {
		b.candidates[i].Predictor = p
	}
	return b
}

// Name returns the name of the predictor that is used now.
func (b *Best) Name() string { return b.candidates[b.used].Name() }

// Add takes the next sample, as Predictor says, and compares it with what each predictor has said.
func (b *Best) Add(x float64) {
	if !IsUsable(x) {
		return
	}
	for i := range b.candidates {
		c := &b.candidates[i]
		if c.next.IsKnown() {
			c.scores[c.n%scoresKept] = IntervalScore(c.next, x)
			c.n++
		}
		c.Add(x)
		_, c.next = c.Predict(1)
	}
	b.choose()
}

// choose has the predictor with the least score used. Predictors are compared over the same newest
// predictions, which are as many as all that are compared have.
func (b *Best) choose() {
	most := 0
	for i := range b.candidates {
		most = max(most, b.candidates[i].n)
	}
	least, same := min(most, scoresLeast), scoresKept
	if most == 0 {
		return
	}
	for i := range b.candidates {
		if n := b.candidates[i].n; n >= least {
			same = min(same, n)
		}
	}
	b.used = -1
	var score float64
	for i := range b.candidates {
		c := &b.candidates[i]
		if c.n < least {
			continue
		}
		if s := c.mean(same); b.used < 0 || s < score {
			b.used, score = i, s
		}
	}
}

// mean returns the mean of the newest n scores, of which there must be that many.
func (c *candidate) mean(n int) float64 {
	sum := 0.0
	for i := c.n - n; i < c.n; i++ {
		sum += c.scores[i%scoresKept] / float64(n)
	}
	return sum
}

// Predict returns what the predictor that is used now predicts, as Predictor says.
func (b *Best) Predict(h int) (mean float64, band setting.Band) {
	return b.candidates[b.used].Predict(h)
}
