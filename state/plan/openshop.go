package plan

import "math"

// An openShop is the traffic of one component that is not scheduled yet, and the schedule so far.
// It does no I/O and is for one goroutine at a time.
type openShop struct {
	links     []hostPair
	ports     []port
	now       int        // end of the schedule so far, in bytes at the rate of a port
	remaining int        // largest load of a port: the time that the schedule still takes
	sends     []Transfer // the schedule so far
	seen      []int      // last search that visited each port, as its round
	round     int        // number of the present search, from 1
}

// A hostPair is what one host still has to send to another.
type hostPair struct {
	Transfer
	port [2]int // port of the sender, and of the receiver
	last int    // index in openShop.sends, -1 = not sent yet
}

// A port is the sending or the receiving side of a host.
type port struct {
	side  int   // 0 sends, 1 receives
	links []int // indices in openShop.links
	load  int   // bytes still to be sent or received
	match int   // link that the port works on, -1 = none
}

// newOpenShop returns traffic of which nothing is scheduled yet.
func newOpenShop(traffic []Transfer) *openShop {
	s := &openShop{}
	index := map[[2]int]int{}
	for i, t := range traffic {
		l := hostPair{Transfer: t, last: -1}
		for side, host := range [2]int{t.From, t.To} {
			n, ok := index[[2]int{host, side}]
			if !ok {
				n = len(s.ports)
				index[[2]int{host, side}] = n
				s.ports = append(s.ports, port{side: side, match: -1})
			}
			l.port[side] = n
			p := &s.ports[n]
			p.links = append(p.links, i)
			p.load += t.Bytes
			s.remaining = max(s.remaining, p.load)
		}
		s.links = append(s.links, l)
	}
	s.seen = make([]int, len(s.ports))
	return s
}

// matchPorts sets what ports work on. It first takes every link of which both ports are free, one
// after the other, and then sees to it that all ports whose load takes all the remaining time have
// a link.
func (s *openShop) matchPorts() {
	for i := range s.links {
		l := &s.links[i]
		if l.Bytes > 0 && s.ports[l.port[0]].match < 0 && s.ports[l.port[1]].match < 0 {
			s.setMatch(i)
		}
	}
	for i := range s.ports {
		if p := &s.ports[i]; p.match < 0 && p.load == s.remaining {
			s.round++
			if !s.augment(i) {
				panic("plan: no round covers the busiest hosts")
			}
		}
	}
}

// setMatch has both ports of the link with number i work on it.
func (s *openShop) setMatch(i int) {
	for _, n := range s.links[i].port {
		s.ports[n].match = i
	}
}

// augment gives the port with number n a link by moving others on its side to other links; a port
// that is not among the busiest may lose its link. Such a chain exists, because the busiest ports
// of a side have work for all the remaining time; false if not.
func (s *openShop) augment(n int) bool {
	s.seen[n] = s.round
	p := &s.ports[n]
	for _, i := range p.links {
		other := s.links[i].port[1-p.side]
		if s.links[i].Bytes == 0 || s.seen[other] == s.round {
			continue
		}
		s.seen[other] = s.round
		held := s.ports[other].match
		if held >= 0 {
			rival := s.links[held].port[p.side]
			if s.ports[rival].load < s.remaining {
				s.ports[rival].match = -1
			} else if !s.augment(rival) {
				continue
			}
		}
		s.setMatch(i)
		return true
	}
	return false
}

// advance lets the matched links send until one of them is done, or a waiting port has no time left
// to wait, and adds that to the schedule.
func (s *openShop) advance() {
	bytes := math.MaxInt
	for i := range s.ports {
		if p := &s.ports[i]; p.match < 0 {
			bytes = min(bytes, s.remaining-p.load)
		} else {
			bytes = min(bytes, s.links[p.match].Bytes)
		}
	}
	for i := range s.ports {
		p := &s.ports[i]
		if p.match < 0 {
			continue
		}
		p.load -= bytes
		if p.side == 0 {
			s.addSend(&s.links[p.match], bytes)
		}
	}
	for i := range s.ports {
		if p := &s.ports[i]; p.match >= 0 && s.links[p.match].Bytes == 0 {
			p.match = -1
		}
	}
	s.now += bytes
	s.remaining -= bytes
}

// addSend adds to the schedule a transfer that begins now, joined with the one before if that ends
// now, and takes it from what the link has to send.
func (s *openShop) addSend(l *hostPair, bytes int) {
	l.Bytes -= bytes
	if l.last >= 0 && s.sends[l.last].Start+s.sends[l.last].Bytes == s.now {
		s.sends[l.last].Bytes += bytes
		return
	}
	l.last = len(s.sends)
	s.sends = append(s.sends, Transfer{l.From, l.To, s.now, bytes})
}
