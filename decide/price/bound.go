package price

// How far posted prices are from the best that there can be. A Grid and a Posted are only read
// here; the prices that the methods change belong to one call of Bound, on its goroutine. A cell is
// a length of time in a Grid, and a slot-second costs money.

// Bound returns what no allocation of these jobs can be worth more than, even one that knows all
// jobs before the first arrives: by prices λ of slot-seconds, whatever they are,
//
//	Σ slot-seconds of a cell · λ of the cell + Σ most that a job can gain at these prices,
//
// the dual of the linear relaxation. It looks for prices with which that is little: the final ones
// of posted prices times a factor, then by subgradient steps from the best of these.
func (p *Posted) Bound(bids []Bid, steps int) float64 {
	g, best := &p.grid, 0.0
	from := g.newPrices()
	for i, factor := range []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1} {
		scaled := g.newPrices()
		for cell, price := range p.prices.each {
			if p.taken[cell] > 0 {
				scaled.each[cell] = factor * price
			}
		}
		if bound, _ := g.bound(bids, scaled, nil); i == 0 || bound < best {
			best, from = bound, scaled
		}
	}
	return g.descend(bids, from, best, steps)
}

// descend looks for prices with a lower bound than best, that of the prices `from`, by so many
// subgradient steps. It returns the lowest bound, whose prices are then in `from`. A step goes
// along the subgradient, as far as it would have to be where the bound could be lowered by a part
// of itself, which is less after steps that lowered nothing.
func (g *Grid) descend(bids []Bid, from *prices, best float64, steps int) float64 {
	at, part, wait := g.newPrices(), 0.05, 0
	copy(at.each, from.each)
	slope := make([]float64, g.Cells)
	for range steps {
		now, square := g.bound(bids, at, slope)
		if now < best {
			best, wait = now, 0
			copy(from.each, at.each)
		} else if wait++; wait == 5 {
			part, wait = part/2, 0
			copy(at.each, from.each)
			now, square = g.bound(bids, at, slope)
		}
		if square == 0 {
			break
		}
		far := (now - float64(best*(1-part))) / square
		for i := range slope {
			at.each[i] = max(0, at.each[i]-float64(far*slope[i]))
		}
	}
	return best
}

// bound returns the bound of what bids can be worth, in money, by the prices `at`. Into slope it
// writes the subgradient: the slot-seconds of each cell that nobody takes who gains most. It
// returns the square of its length; with a slope of nil neither is computed.
func (g *Grid) bound(bids []Bid, at *prices, slope []float64) (bound, square float64) {
	at.addUp(g, 0)
	all := float64(g.Slots) * g.Cell
	for i, price := range at.each {
		bound += float64(price * all)
		if slope != nil {
			slope[i] = all
		}
	}
	for i := range bids {
		o, gain := at.best(g, &bids[i], nil)
		bound += gain
		if gain > 0 && slope != nil {
			g.cells(o, func(cell int, seconds float64) {
				slope[cell] -= float64(seconds * float64(o.Slots))
			})
		}
	}
	for i, x := range slope {
		if at.each[i] == 0 && x > 0 {
			slope[i], x = 0, 0 // the price cannot be lower
		}
		square += float64(x * x)
	}
	return bound, square
}
