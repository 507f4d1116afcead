package plan

import "math"

// A shop is the traffic of one component that is not yet scheduled, and what is.
type shop struct {
	links []link
	ports []port
	now   int
	left  int // the largest load of a port: what the schedule still takes
	sends []Send
	seen  []int // of each port: the number of the last search that came by
	round int
}

// A link is what one host still has to send to another.
type link struct {
	Send
	port [2]int // of the sender, of the receiver
	last int    // index in shop.sends, -1 before the first
}

// A port is the sending or the receiving side of a host.
type port struct {
	side  int
	links []int // indices in shop.links
	load  int   // bytes that it has yet to send or to receive
	match int   // the link that it is busy with, -1 for none
}

func newShop(traffic []Send) *shop {
	s := &shop{}
	index := map[[2]int]int{}
	for i, t := range traffic {
		l := link{Send: t, last: -1}
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
			s.left = max(s.left, p.load)
		}
		s.links = append(s.links, l)
	}
	s.seen = make([]int, len(s.ports))
	return s
}

// cover matches as many ports as are free on both sides, and then all whose load is all the time
// that is left.
func (s *shop) cover() {
	for i := range s.links {
		l := &s.links[i]
		if l.Bytes > 0 && s.ports[l.port[0]].match < 0 && s.ports[l.port[1]].match < 0 {
			s.match(i)
		}
	}
	for i := range s.ports {
		if p := &s.ports[i]; p.match < 0 && p.load == s.left {
			s.round++
			if !s.augment(i) {
				panic("plan: no round covers the busiest hosts")
			}
		}
	}
}

func (s *shop) match(i int) {
	for _, n := range s.links[i].port {
		s.ports[n].match = i
	}
}

// augment finds a link for a port, by moving others on its side to other links; one that is not
// among the busiest may be left without. Such a chain exists, since the busiest ports of a side
// have work for all the time that is left.
func (s *shop) augment(n int) bool {
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
			if s.ports[rival].load < s.left {
				s.ports[rival].match = -1
			} else if !s.augment(rival) {
				continue
			}
		}
		s.match(i)
		return true
	}
	return false
}

// advance lets the matched links send until one of them is done, or a port that waits has no time
// left to wait.
func (s *shop) advance() {
	step := math.MaxInt
	for i := range s.ports {
		if p := &s.ports[i]; p.match < 0 {
			step = min(step, s.left-p.load)
		} else {
			step = min(step, s.links[p.match].Bytes)
		}
	}
	for i := range s.ports {
		p := &s.ports[i]
		if p.match < 0 {
			continue
		}
		p.load -= step
		if p.side == 0 {
			s.send(&s.links[p.match], step)
		}
	}
	for i := range s.ports {
		if p := &s.ports[i]; p.match >= 0 && s.links[p.match].Bytes == 0 {
			p.match = -1
		}
	}
	s.now += step
	s.left -= step
}

// send records that a link is busy from now on, as one send with the time before where it was busy
// then.
func (s *shop) send(l *link, bytes int) {
	l.Bytes -= bytes
	if l.last >= 0 && s.sends[l.last].Start+s.sends[l.last].Bytes == s.now {
		s.sends[l.last].Bytes += bytes
		return
	}
	l.last = len(s.sends)
	s.sends = append(s.sends, Send{l.From, l.To, s.now, bytes})
}
