package price

import (
	"errors"

	"github.com/shoal-ml/shoal/internal/portable"
)

// Posted sells slots at posted prices, with sizes and speeds to choose from: online resource
// allocation and pricing with server speed scaling (Luo, Li and Wu, ICC 2018), where a size on a
// job's own curve is a speed too: more slots are faster, and cost more for the same work.
//
// What a slot-second costs in a cell goes by what of the cell is taken: the least that anybody pays
// while little is, and the most that anybody pays when all is. A job gets the option that gains it
// most at the prices when it arrives, if any gains, and pays these prices. They go by earlier jobs
// alone, so no job gains by saying another value than its own. One goroutine uses it at a time, and
// only Sell and Take change it.
type Posted struct {
	grid   Grid
	low    float64   // the least that a slot-second is sold for
	steep  float64   // 1 + ln(high/low)
	taken  []float64 // slot-seconds of each cell
	prices *prices
}

// NewPosted returns a seller of the slots of a grid, to jobs that are worth from low to high money
// for each slot-second that they need at the least.
func NewPosted(g Grid, low, high float64) (*Posted, error) {
	if !(0 < low && low < high) || g.Slots < 1 || !(g.Cell > 0) || g.Cells < 1 {
		return nil, errors.New("prices need slots, a length of time, and a lowest price above 0 " +
			"that is below the highest")
	}
	p := &Posted{grid: g, low: low, steep: 1 + portable.Log(high/low),
		taken: make([]float64, g.Cells), prices: g.newPrices()}
	for i := range p.taken {
		p.prices.each[i] = p.price(i)
	}
	p.prices.addUp(&p.grid, 0)
	return p, nil
}

// price returns the money that a slot-second costs in a cell, given by its number, by how much of
// the cell is taken.
func (p *Posted) price(cell int) float64 {
	part := p.taken[cell] / (float64(p.grid.Slots) * p.grid.Cell)
	if part*p.steep <= 1 {
		return p.low
	}
	return p.low * portable.Exp(float64(p.steep*part)-1)
}

// Offer returns the option that gains a job most at the prices as they are, and what it costs;
// false: none gains.
func (p *Posted) Offer(b *Bid) (o Option, cost float64, ok bool) {
	o, gain := p.prices.best(&p.grid, b, p.fits)
	return o, o.Worth - gain, gain > 0
}

// Sell offers a job the slots that gain it most, as Offer, and takes them for it.
func (p *Posted) Sell(b *Bid) (o Option, cost float64, ok bool) {
	if o, cost, ok = p.Offer(b); ok {
		p.Take(o)
	}
	return o, cost, ok
}

// fits reports whether the cells that an option lies in have its slots free.
func (p *Posted) fits(o Option) bool {
	fits, most := true, float64(p.grid.Slots)*p.grid.Cell
	p.grid.cells(o, func(cell int, seconds float64) {
		fits = fits && p.taken[cell]+float64(seconds*float64(o.Slots)) <= most*(1+1e-12)
	})
	return fits
}

// Take takes the slots of an option, whoever gets them.
func (p *Posted) Take(o Option) {
	first := p.grid.Cells
	p.grid.cells(o, func(cell int, seconds float64) {
		p.taken[cell] += float64(seconds * float64(o.Slots))
		p.prices.each[cell] = p.price(cell)
		first = min(first, cell)
	})
	p.prices.addUp(&p.grid, first)
}

// FirstOption returns the option of a job that takes what it asks for, at the first speed, as soon
// as that is free, whatever it costs: what a queue without prices does. False: it would be worth
// nothing then, or asks for what is none of its rates.
func (p *Posted) FirstOption(b *Bid, asked int) (first Option, ok bool) {
	p.grid.options(b, func(o Option) bool {
		if o.Slots == asked && o.Speed == 0 && p.fits(o) {
			first, ok = o, true
		}
		return !ok
	})
	return first, ok
}
