package watch

import (
	"math"
	"strconv"
)

// Series of numbers that are watched, and how they stay small. Like the Run that has it, a Series
// is for one goroutine at a time; nothing here does I/O.

// maxPoints is how many points a series shows at most.
const maxPoints = 2000

// Series is one or more columns of numbers over the same times. It takes any number of points, and
// keeps at most maxPoints: neighbours are put together, with the least and the greatest of each
// column, so that no peak is lost. The zero value has no columns.
type Series struct {
	columns []string
	means   bool // a point stands for the mean of those put together
	parts   []part
	per     int    // how many points a part takes before the next one is begun
	points  uint64 // taken so far
}

// part is some points that follow each other.
type part struct {
	points      int
	first, last float64 // times
	cells       []cell  // one for each column
}

// cell is what a part has of a column: the least, the greatest and the sum. Numbers that are none
// are left out.
type cell struct {
	low, high, sum float64
	count          int
	highLast       bool // the greatest came after the least
}

// newSeries returns a series without points, with columns of these names. means says that points
// which are put together stand for their mean, as what is stacked in a chart must.
func newSeries(means bool, columns ...string) *Series {
	return &Series{columns: columns, means: means, per: 1}
}

// add adds a point at a time in seconds, with a number for each column; NaN = not known.
func (s *Series) add(t float64, values []float64) {
	s.points++
	if n := len(s.parts); n > 0 && s.parts[n-1].points < s.per {
		p := &s.parts[n-1]
		p.points++
		p.last = t
		for i := range p.cells {
			p.cells[i].add(values[i])
		}
		return
	}
	p := part{points: 1, first: t, last: t, cells: make([]cell, len(s.columns))}
	for i := range p.cells {
		p.cells[i].add(values[i])
	}
	s.parts = append(s.parts, p)
	most := maxPoints
	if s.per > 1 { // such a part shows as two points
		most /= 2
	}
	if len(s.parts) <= most {
		return
	}
	half := s.parts[:0]
	for i := 0; i < len(s.parts); i += 2 {
		p := s.parts[i]
		if i+1 < len(s.parts) {
			p.merge(&s.parts[i+1])
		}
		half = append(half, p)
	}
	s.parts = half
	s.per *= 2
}

// add adds a number.
func (c *cell) add(x float64) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return
	}
	if c.count == 0 || x < c.low {
		c.low, c.highLast = x, false
	}
	if c.count == 0 || x > c.high {
		c.high, c.highLast = x, true
	}
	c.sum += x
	c.count++
}

// merge adds the points of the next part to this one.
func (p *part) merge(next *part) {
	p.points += next.points
	p.last = next.last
	for i := range p.cells {
		a, b := &p.cells[i], next.cells[i]
		if b.count == 0 {
			continue
		}
		if a.count == 0 {
			*a = b
			continue
		}
		lowLast, highLast := b.low < a.low, b.high > a.high
		switch {
		case lowLast && highLast:
			a.highLast = b.highLast
		case lowLast:
			a.highLast = false
		case highLast:
			a.highLast = true
		}
		a.low, a.high = min(a.low, b.low), max(a.high, b.high)
		a.sum += b.sum
		a.count += b.count
	}
}

// SeriesView is a series as it is shown. Times are seconds since 1970; what is not known is null.
type SeriesView struct {
	Name    string    `json:"name"`
	Worker  int       `json:"worker"` // whose reports these are; -1 = not those of one worker
	Points  uint64    `json:"points"` // measured, of which those below are the least and greatest
	Columns []string  `json:"columns"`
	Times   numbers   `json:"times"`
	Values  []numbers `json:"values"` // by column
}

// view returns the points of the series, at most maxPoints of them.
func (s *Series) view(name string, worker int) SeriesView {
	v := SeriesView{Name: name, Worker: worker, Points: s.points, Columns: s.columns,
		Times: numbers{}, Values: make([]numbers, len(s.columns))}
	for i := range v.Values {
		v.Values[i] = numbers{}
	}
	for k := range s.parts {
		p := &s.parts[k]
		two := p.points > 1 && p.last > p.first
		v.Times = append(v.Times, p.first)
		if two {
			v.Times = append(v.Times, p.last)
		}
		for i := range p.cells {
			a, b := p.cells[i].endValues(s.means)
			if !two && p.points > 1 {
				a = p.cells[i].mean()
			}
			v.Values[i] = append(v.Values[i], a)
			if two {
				v.Values[i] = append(v.Values[i], b)
			}
		}
	}
	return v
}

// mean returns the mean of the numbers; NaN = there is none.
func (c *cell) mean() float64 {
	if c.count == 0 {
		return math.NaN()
	}
	return c.sum / float64(c.count)
}

// endValues returns what stands for the first and the second point of a part: the least and the
// greatest number in the order in which they came, or with means the mean, twice.
func (c *cell) endValues(means bool) (a, b float64) {
	switch {
	case c.count == 0 || means:
		return c.mean(), c.mean()
	case c.highLast:
		return c.low, c.high
	}
	return c.high, c.low
}

// numbers are written with as many digits as a chart shows, and null for what is no number.
type numbers []float64

// MarshalJSON implements json.Marshaler: a list, as appendNumber writes each number.
func (n numbers) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 2+8*len(n))
	b = append(b, '[')
	for i, x := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendNumber(b, x)
	}
	return append(b, ']'), nil
}

// appendNumber appends a number: a whole one as it is, others from 100,000 on, such as times of
// this century in seconds, with three digits after the point, and others with six digits.
func appendNumber(b []byte, x float64) []byte {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return append(b, "null"...)
	case x == math.Trunc(x) && math.Abs(x) < 1e15:
		return strconv.AppendFloat(b, x, 'f', -1, 64)
	case math.Abs(x) >= 1e5 && math.Abs(x) < 1e15:
		return strconv.AppendFloat(b, math.Round(x*1e3)/1e3, 'f', -1, 64)
	}
	return strconv.AppendFloat(b, x, 'g', 6, 64)
}
