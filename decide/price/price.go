// Package price decides by prices and budgets who gets which part of something scarce: slots over
// time (posted prices), replicas of the stages of a chain (scaling), bandwidth of cables (a
// market), and the slots of a job's epochs (a budget). Each is a function of values, so it is the
// same in a replay and in a pool. Lengths of time are in seconds, and money is in any unit as long
// as it is the same one. What is remembered from one call to the next, as by Posted and Chain, is
// for one goroutine at a time. Nothing here does I/O.
package price

import "slices"

// A Speed is one at which the processors of a slot can run.
type Speed struct {
	Factor float64 // how fast work is done, over the speed at which rates were measured; above 0
	Watts  float64 // what a slot draws at it
}

// A Rate is how fast a job works with a number of slots.
type Rate struct {
	Slots int     // at least 1
	Rate  float64 // work a second; above 0
}

// A Bid is a job that asks for slots, and what it pays for.
type Bid struct {
	Arrived float64 // when it is known, and may start at the earliest
	Work    float64 // how much it has to do, in the unit of its rates
	Rates   []Rate  // the numbers of slots that it can use; one of them for as long as it runs
	// Value is the money that it is worth if it ends until Due. It is worth less with each second
	// after that, and nothing at Late.
	Value     float64
	Due, Late float64
}

// worth returns the money that a job is worth that ends at a time.
func (b *Bid) worth(end float64) float64 {
	switch {
	case end <= b.Due:
		return b.Value
	case end >= b.Late:
		return 0
	}
	return b.Value * (b.Late - end) / (b.Late - b.Due)
}

// An Option is a way to run a job.
type Option struct {
	Start, End float64
	Slots      int
	Speed      int     // the index in Grid.Speeds
	Worth      float64 // what the job is worth with that end, less the money for energy
}

// options calls f with the ways to run a job that are worth something, until f returns false: it
// starts when it arrives or when a cell of the grid begins.
func (g *Grid) options(b *Bid, f func(Option) bool) {
	for _, r := range b.Rates {
		for k, s := range g.speeds() {
			took := b.Work / (r.Rate * s.Factor)
			energy := float64(s.Watts * took * float64(r.Slots) * g.Joule)
			for cell := int(max(0, b.Arrived) / g.Cell); ; cell++ {
				start := max(b.Arrived, float64(float64(cell)*g.Cell))
				end := start + took
				worth := b.worth(end) - energy
				if !(worth > 0 && end <= g.end()) { // also what is not a number
					break
				}
				if !f(Option{start, end, r.Slots, k, worth}) {
					return
				}
			}
		}
	}
}

// A Grid is time in cells of the same length, and how many slots there are in each. Within a cell
// slots are shared by time: what counts is the sum of the slot-seconds.
type Grid struct {
	Slots  int     // that there are
	Cell   float64 // seconds
	Cells  int     // jobs end within them
	Speeds []Speed // nil = one, and energy costs nothing
	Joule  float64 // money for a joule
}

// speeds returns g.Speeds, or the one that there is where none is stated.
func (g *Grid) speeds() []Speed {
	if len(g.Speeds) == 0 {
		return []Speed{{Factor: 1}}
	}
	return g.Speeds
}

// end returns the time at which the last cell ends.
func (g *Grid) end() float64 { return float64(g.Cells) * g.Cell }

// cells calls f with the number of each cell that an option lies in, and for how many seconds it
// does.
func (g *Grid) cells(o Option, f func(cell int, seconds float64)) {
	for i := int(o.Start / g.Cell); i < g.Cells; i++ {
		from, to := max(o.Start, float64(i)*g.Cell), min(o.End, float64(i+1)*g.Cell)
		if to <= from {
			if i > int(o.Start/g.Cell) {
				return
			}
			continue
		}
		f(i, to-from)
	}
}

// prices are what a slot-second costs in each cell of a grid. They belong to one Posted, or to one
// call of Bound.
type prices struct {
	each  []float64 // the price in each cell
	until []float64 // what a slot costs from the begin of the grid to the begin of each cell
}

// newPrices returns prices of 0.
func (g *Grid) newPrices() *prices {
	return &prices{make([]float64, g.Cells), make([]float64, g.Cells+1)}
}

// addUp sets p.until by p.each, which is new from a cell on.
func (p *prices) addUp(g *Grid, from int) {
	for i := from; i < g.Cells; i++ {
		p.until[i+1] = p.until[i] + float64(p.each[i]*g.Cell)
	}
}

// at returns what a slot costs from the begin of the grid until the time `when`.
func (p *prices) at(g *Grid, when float64) float64 {
	i := min(int(when/g.Cell), g.Cells-1)
	return p.until[i] + float64(p.each[i]*(when-float64(float64(i)*g.Cell)))
}

// cost returns the money that an option costs at these prices: its slots from its start to its end.
func (p *prices) cost(g *Grid, o Option) float64 {
	return float64(o.Slots) * (p.at(g, o.End) - p.at(g, o.Start))
}

// best returns the option with the greatest gain: what it is worth less what it costs. Of those
// with the same gain it is the first. fits says which are possible; nil = all are. The gain is 0 if
// none has more.
func (p *prices) best(g *Grid, b *Bid, fits func(Option) bool) (best Option, gain float64) {
	g.options(b, func(o Option) bool {
		if x := o.Worth - p.cost(g, o); x > gain && (fits == nil || fits(o)) {
			best, gain = o, x
		}
		return true
	})
	return best, gain
}

// Efficient returns the rates without those that need more slots than another one and are not
// faster, the fewest slots first: no job is better off with one of the others.
func Efficient(rates []Rate) (kept []Rate) {
	sorted := slices.Clone(rates)
	slices.SortFunc(sorted, func(a, b Rate) int { return a.Slots - b.Slots })
	for _, r := range sorted {
		if n := len(kept); n == 0 || r.Rate > kept[n-1].Rate {
			kept = append(kept, r)
		}
	}
	return kept
}
