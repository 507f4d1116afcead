package sim

// patience is how many rounds nothing may happen before a calm is over.
const patience = 60

// mostCalls is how much a worker may do at a time.
const mostCalls = 5

// Calm lets everything happen that waits to happen, in order and without faults, until so many more steps are committed or nothing
// changes any more. Links that one side has given up are given up by the other, crashed hosts are noticed.
func (c *Cluster) Calm(steps int) {
	goal, still := c.ledger.newest+uint64(steps), 0
	for still < patience && c.ledger.broken == nil && c.ledger.newest < goal {
		before := c.mark()
		c.notice()
		c.round()
		if still++; c.mark() != before {
			still = 0
		}
	}
}

// mark changes when something has come about.
func (c *Cluster) mark() (m [3]uint64) {
	m[0] = c.ledger.newest
	for _, h := range c.living() {
		m[1] += uint64(h.agent.Record().View.Generation)
		m[2] += uint64(len(h.workers)) << 16
	}
	return m
}

// notice makes both ends of every link agree on whether it is there.
func (c *Cluster) notice() {
	for _, h := range c.living() {
		for _, other := range c.hosts {
			if h == other || c.net.closed(h.name, other.name) {
				continue
			}
			if !other.alive || c.net.closed(other.name, h.name) {
				c.down(h, other.name)
			}
		}
	}
}

// round lets time pass everywhere, then everything that waits happen once.
func (c *Cluster) round() {
	for _, h := range c.living() {
		h.tick()
		for len(h.orders) > 0 && h.alive {
			id := h.orders[0]
			h.orders = h.orders[1:]
			h.start(id)
		}
	}
	for range 10 {
		for _, p := range c.net.busy() {
			for range len(c.net.links[p].waiting) {
				if m := c.net.take(p, 0, false); m != nil {
					c.host(p.to).receive(p.from, m)
				}
			}
		}
		worked := false
		for _, w := range c.all() {
			w.ask()
			for i := 0; i < mostCalls && w.work(); i++ {
				worked = true
			}
		}
		if c.ledger.broken != nil || !worked && len(c.net.busy()) == 0 {
			return
		}
	}
}
