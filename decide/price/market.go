package price

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// NetEx (HotCloud 2016) has a market for bandwidth: those who provide links sell, and jobs buy.
// Here a job has a weight, the money that a second less a step is worth to it, and sends some bytes
// a step over each of several cards or paths, all of which its step waits for. With r steps a
// second, the market minimises
//
//	Σ weight / r + Σ bytes · r · the provider's price,
//
// so that no link carries more than it can. At the optimum each link has a price of a byte a second
// at which the jobs, each for itself, buy just what there is: r = √(weight / Σ bytes · price).

// A Link is a card of a host, or a path, whose bandwidth is sold.
type Link struct {
	Bytes float64 // that it carries a second; above 0
	Price float64 // the least that its provider takes for a byte a second; 0 = it is there anyway
}

// A Buyer is a job that sends data.
type Buyer struct {
	Weight float64   // money that a second less a step is worth; above 0
	Bytes  []float64 // that a step sends over each link; not all 0
	// Least is how long a step takes at the least, whatever it may send, since it computes
	// meanwhile; 0 = it takes as long as the data.
	Least float64
}

// Sold is what a market comes to.
type Sold struct {
	Prices  []float64   // of a byte a second on each link
	Seconds []float64   // that a step of each buyer takes
	Rates   [][]float64 // bytes a second of each buyer on each link
	// Residual is how far the conditions of Karush, Kuhn and Tucker are from being met, as a part
	// of what they compare: it is 0 in the optimum.
	Residual float64
}

// mostResidual is the largest Residual with which Sell calls a market sold.
const mostResidual = 1e-6

// Sell sells the bandwidth of links. It fails where a link or a buyer makes no sense, or where no
// prices were found with which the conditions of the optimum are met up to a millionth.
func Sell(links []Link, buyers []Buyer) (*Sold, error) {
	m, err := newMarket(links, buyers)
	if err != nil {
		return nil, err
	}
	at := m.alonePrices()
	if len(links) > 1 {
		at = m.ascend(at)
	}
	s := m.sold(at)
	if !(s.Residual <= mostResidual) {
		return nil, fmt.Errorf("no prices of %d links for %d jobs: the best found miss the "+
			"optimum's conditions by %.2g", len(links), len(buyers), s.Residual)
	}
	return s, nil
}

// FairSeconds divides each link fairly among those who send over it, whatever they would pay:
// evenly, and who can use less because of another link leaves the rest to the others. That is what
// a network without a market does. It returns the seconds of their steps. It fails where Sell would
// refuse a link or a buyer.
func FairSeconds(links []Link, buyers []Buyer) (seconds []float64, err error) {
	m, err := newMarket(links, buyers)
	if err != nil {
		return nil, err
	}
	level := slices.Repeat([]float64{math.Inf(1)}, len(links)) // that nobody gets more of
	// rate returns the steps a second that a buyer gets on all links but one; -1 = on all.
	rate := func(i, but int) float64 {
		r := m.fast[i]
		for l, x := range m.part[i] {
			if x > 0 && l != but {
				r = min(r, level[l]/x)
			}
		}
		return r
	}
	for range 4 * (len(links) + len(buyers)) { // a level depends on those of other links
		for l := range links {
			var uses []float64 // that each of its buyers could make of it alone
			for i, part := range m.part {
				if part[l] > 0 {
					uses = append(uses, part[l]*rate(i, l))
				}
			}
			level[l] = fairLevel(uses)
		}
	}
	over := 1.0
	for l := range links {
		load := 0.0
		for i, part := range m.part {
			load += float64(part[l] * rate(i, -1))
		}
		over = max(over, load) // where the levels still change
	}
	for i := range buyers {
		seconds = append(seconds, over/rate(i, -1))
	}
	return seconds, nil
}

// fairLevel returns the part of a link that nobody gets more of, if the link, 1, is divided evenly
// among those who can use so much of it each, and what one cannot use goes to the others; +Inf =
// all get what they can use. It sorts uses.
func fairLevel(uses []float64) float64 {
	slices.Sort(uses)
	left := 1.0
	for i, x := range uses {
		if level := left / float64(len(uses)-i); x > level {
			return level
		}
		left -= x
	}
	return math.Inf(1)
}

// WeightedSum returns the sum of the seconds of buyers' steps, each times its weight.
func WeightedSum(buyers []Buyer, seconds []float64) (sum float64) {
	for i, b := range buyers {
		sum += float64(b.Weight * seconds[i])
	}
	return sum
}

// market is the links and buyers in units in which each link carries 1, so that a price is that of
// the whole link, and all weights together are 1. It belongs to one call of Sell or FairSeconds.
// Prices that its methods are given are by link, what a link costs beyond what its provider takes;
// they change only where that is said.
type market struct {
	links  []Link
	buyers []Buyer
	floor  []float64   // the provider's price of each link
	weight []float64   // of each buyer
	part   [][]float64 // of each link that a step of each buyer takes for a second
	fast   []float64   // the most steps a second of each buyer; +Inf = any number
	sum    float64     // of the weights as they were
}

// newMarket returns a market, or what makes no sense.
func newMarket(links []Link, buyers []Buyer) (*market, error) {
	m := &market{links: links, buyers: buyers}
	if len(links) == 0 || len(buyers) == 0 {
		return nil, errors.New("a market needs a link and a job")
	}
	for i, l := range links {
		if !(l.Bytes > 0 && l.Price >= 0) || math.IsInf(l.Bytes+l.Price, 0) {
			return nil, fmt.Errorf("link %d carries %v bytes a second for %v each: give numbers, "+
				"the first above 0", i+1, l.Bytes, l.Price)
		}
	}
	for i, b := range buyers {
		if !(b.Weight > 0 && b.Least >= 0) || math.IsInf(b.Weight+b.Least, 0) {
			return nil, fmt.Errorf("job %d has a weight of %v and steps of at least %v s: give "+
				"numbers, the first above 0", i+1, b.Weight, b.Least)
		}
		if len(b.Bytes) != len(links) {
			return nil, fmt.Errorf("job %d sends over %d links, and there are %d", i+1,
				len(b.Bytes), len(links))
		}
		part, all := make([]float64, len(links)), 0.0
		for l, x := range b.Bytes {
			if !(x >= 0) || math.IsInf(x, 0) {
				return nil, fmt.Errorf("job %d sends %v bytes a step over link %d: give a number "+
					"of at least 0", i+1, x, l+1)
			}
			part[l] = x / links[l].Bytes
			all += part[l]
		}
		if !(all > 0) || math.IsInf(all, 0) {
			return nil, fmt.Errorf("job %d sends nothing, or more than can be counted", i+1)
		}
		m.part, m.sum = append(m.part, part), m.sum+b.Weight
		m.fast = append(m.fast, 1/b.Least)
	}
	for _, b := range buyers {
		m.weight = append(m.weight, b.Weight/m.sum)
	}
	for _, l := range links {
		m.floor = append(m.floor, float64(l.Price*l.Bytes)/m.sum)
	}
	return m, nil
}

// rate returns the steps a second that a buyer buys at prices: those of whole links, on top of what
// providers take.
func (m *market) rate(buyer int, prices []float64) float64 {
	cost := m.cost(buyer, prices)
	return min(m.fast[buyer], math.Sqrt(m.weight[buyer]/cost))
}

// cost returns what a step a second costs a buyer at prices.
func (m *market) cost(buyer int, prices []float64) (cost float64) {
	for l, x := range m.part[buyer] {
		cost += float64(x * (prices[l] + m.floor[l]))
	}
	return cost
}

// loads returns the part of each link that all buyers together buy at prices; 1 = it is full.
func (m *market) loads(prices []float64) []float64 {
	loads := make([]float64, len(m.links))
	for i := range m.buyers {
		r := m.rate(i, prices)
		for l, x := range m.part[i] {
			if x > 0 {
				loads[l] += float64(x * r)
			}
		}
	}
	return loads
}

// alonePrices returns for each link the price that it would have if it were the only one: the
// closed form x ∝ √(weight · bytes) of those who are not at their most, who are found one after the
// other.
func (m *market) alonePrices() []float64 {
	prices := make([]float64, len(m.links))
	for l := range m.links {
		full := make([]bool, len(m.buyers)) // who has as many steps a second as it can
		for changed := true; changed; {
			root, left := 0.0, 1.0
			for i, part := range m.part {
				if full[i] {
					left -= float64(part[l] * m.fast[i])
				} else {
					root += math.Sqrt(float64(m.weight[i] * part[l]))
				}
			}
			prices[l] = 0
			if root > 0 && left > 0 {
				prices[l] = max(0, float64(root/left*(root/left))-m.floor[l])
			}
			changed = false
			for i, part := range m.part {
				at := part[l] * (prices[l] + m.floor[l])
				if part[l] > 0 && !full[i] && float64(m.fast[i]*m.fast[i]*at) <= m.weight[i] {
					full[i], changed = true, true
				}
			}
		}
	}
	return prices
}

// dual returns what the market comes to at least, by prices of links: Σ over buyers of the least of
// weight / r + r · cost, less what the links cost. The optimum has the greatest.
func (m *market) dual(prices []float64) (sum float64) {
	for i, w := range m.weight {
		if r := m.rate(i, prices); r > 0 && !math.IsInf(r, 0) {
			sum += w/r + float64(r*m.cost(i, prices))
		}
	}
	for _, p := range prices {
		sum -= p
	}
	return sum
}

// Bounds of the search for prices.
const (
	mostSteps  = 20000
	goodEnough = 1e-9 // a residual
	remembered = 10   // values of the dual, of which a step may not fall below all
)

// ascend looks for the prices of several links, from some prices on, whose memory it uses, by
// projected gradient steps on the dual. Its gradient is the load of each link less what it carries.
// A step is as long as the last two points say (Barzilai and Borwein), and shorter until the dual
// is greater than the least of its last values. It returns the prices with the least residual.
func (m *market) ascend(prices []float64) []float64 {
	for l := range prices { // a price of 0 has no slope where nobody pays another
		prices[l] = max(prices[l], 1e-6)
	}
	best, least := append([]float64(nil), prices...), m.residual(prices)
	values := []float64{m.dual(prices)}
	slope, length := m.slope(prices), 1.0
	for range mostSteps {
		if least <= goodEnough {
			break
		}
		next, value := make([]float64, len(prices)), 0.0
		floor := values[0]
		for _, v := range values {
			floor = min(floor, v)
		}
		for part := 1.0; ; part /= 2 {
			gain := 0.0
			for l, p := range prices {
				to := max(0, p+float64(length*slope[l]))
				next[l] = p + float64(part*(to-p))
				gain += float64(slope[l] * (next[l] - p))
			}
			value = m.dual(next)
			if value >= floor+float64(1e-4*gain) || part < 1e-12 {
				break
			}
		}
		values = append(values, value)
		values = values[max(0, len(values)-remembered):]
		slopeNext := m.slope(next)
		moved, turned := 0.0, 0.0
		for l := range next {
			d := next[l] - prices[l]
			moved += float64(d * d)
			turned -= float64(d * (slopeNext[l] - slope[l]))
		}
		length = 1
		if turned > 0 {
			length = min(max(moved/turned, 1e-12), 1e12)
		}
		prices, slope = next, slopeNext
		if x := m.residual(prices); x < least {
			best, least = append(best[:0], prices...), x
		}
	}
	return best
}

// slope returns the gradient of the dual at prices, by link.
func (m *market) slope(prices []float64) []float64 {
	loads := m.loads(prices)
	for l := range loads {
		loads[l] = min(loads[l], 1e9) - 1 // where links are free, somebody would buy any number
	}
	return loads
}

// residual returns how far prices are from the optimum: by how much a link carries too much, or
// what is paid for links that are not full, as a part of all that the market comes to.
func (m *market) residual(prices []float64) (most float64) {
	all := 0.0
	for i, w := range m.weight {
		all += w / m.rate(i, prices)
	}
	for l, load := range m.loads(prices) {
		most = max(most, load-1, float64(prices[l]*math.Abs(1-load))/all)
	}
	if math.IsNaN(most) {
		return math.Inf(1)
	}
	return most
}

// sold returns what buyers get at prices, in the units of Sell's links and buyers, none more than
// links carry.
func (m *market) sold(prices []float64) *Sold {
	s := &Sold{Residual: m.residual(prices)}
	over := 1.0
	for _, load := range m.loads(prices) {
		over = max(over, load)
	}
	for l, p := range prices {
		s.Prices = append(s.Prices, float64((p+m.floor[l])*m.sum)/m.links[l].Bytes)
	}
	for i, b := range m.buyers {
		took := over / m.rate(i, prices)
		rates := make([]float64, len(b.Bytes))
		for l, x := range b.Bytes {
			rates[l] = x / took
		}
		s.Seconds, s.Rates = append(s.Seconds, took), append(s.Rates, rates)
	}
	return s
}
