package cost

import (
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/sim"
)

// Model is what work costs on hosts that a switch connects, and that differ in nothing but cables.
// Steps, bytes and sums are those of the α-β-γ model (Thakur, Rabenseifner and Gropp, "Optimization
// of Collective Communication Operations in MPICH", IJHPCA 2005, §3), and the overhead of a piece
// is that of LogGP (Alexandrov, Ionescu, Schauser and Scheiman, SPAA 1995). The zero value is a
// network that costs nothing.
type Model struct {
	Fixed float64 // seconds of one collective for the messages that begin and end it
	Alpha float64 // seconds from one host to another for a piece without bytes
	Piece float64 // seconds that the sending host spends on a piece, however long it is
	Beta  float64 // seconds for a byte on a host's cable, in each direction
	Gamma float64 // seconds to add a byte to a partial sum

	// Share is the part of a cable that one stream of a link can fill, above 0 and at most 1:
	// encryption by one processor or a long distance limits it. 0 counts as 1.
	Share float64

	// Slow has by host how many times as long a byte takes on its cable as Beta says; nil = no
	// cable is slower than the others. Hosts that it does not have take Beta.
	Slow []float64
}

// Default returns a model to begin with: hosts in a data centre with cables of 10 Gbit/s.
func Default() Model {
	return Model{Fixed: 200e-6, Alpha: 50e-6, Piece: 5e-6, Beta: 8.0 / 10e9, Gamma: 0.1e-9,
		Share: 1}
}

// playedPieces is the number of pieces of a segment that are played through. The pieces of a longer
// segment follow each other evenly, so that its time follows from two shorter ones.
const playedPieces = 8

// AllReduceSeconds predicts the seconds of an all-reduce of so many bytes on each of the hosts. It
// plays through what collective.Relay does on every host: a host has one cable, on which pieces
// follow each other in each direction, and one processor that adds them up.
func (m Model) AllReduceSeconds(r collective.Route, hosts, bytes int) float64 {
	return m.playAllReduce(r, hosts, bytes, nil)
}

// AllReduceSecondsOver is AllReduceSeconds over cables that differ. cables has by host the seconds
// for a byte, in place of Beta and Slow, and is not altered.
func (m Model) AllReduceSecondsOver(cables []float64, r collective.Route, bytes int) float64 {
	return m.playAllReduce(r, len(cables), bytes, cables)
}

// playAllReduce plays an all-reduce of so many bytes over the hosts through, and returns its
// seconds. cables has by host the seconds for a byte; nil = as the model says.
func (m Model) playAllReduce(r collective.Route, hosts, bytes int, cables []float64) float64 {
	if hosts < 2 || bytes == 0 {
		return m.Fixed
	}
	s := newAllReduce(m, r, hosts)
	s.cables = cables
	whole := s.trees * playedPieces * r.Piece
	if s.streams != nil {
		whole *= 2 // several streams become evenly busy only later
	}
	if bytes <= whole {
		return m.Fixed + s.simulate(bytes)
	}
	half, all := s.simulate(whole/2), s.simulate(whole)
	return m.Fixed + all + float64((all-half)/float64(whole-whole/2)*float64(bytes-whole))
}

// allReduce simulates an all-reduce, as a queue of events. simulate begins anew each time. One
// goroutine uses it, and its methods do no I/O.
type allReduce struct {
	model    Model
	cables   []float64 // by host: seconds for a byte on its cable; nil = as the model says
	hosts    int       // number of hosts
	trees    int       // number of trees of the route
	piece    int       // bytes of a piece at most
	parent   [][]int   // by tree and host: the host that gets its partial sum; -1 = the root
	children [][][]int // by tree and host: the hosts that get the result from it
	inputs   [][]int   // by tree and host: the number of hosts that send it partial sums

	segment int   // bytes of one tree's segment
	pieces  int   // pieces of a segment
	missing []int // by tree, piece and host: partial sums that have not been added yet

	out        []sim.Resource      // by host: the sending direction of its cable
	received   []float64           // by host: until when its cable takes in pieces, in seconds
	processors []sim.Resource      // by host: the processor that adds
	streams    []sim.Resource      // by sender, receiver and stream; nil = one stream fills a cable
	events     sim.Queue[transfer] // transfers that are to come, by time
	end        float64             // when the last result was complete, in seconds
}

// transfer is a piece that one host is ready to send to another, or that has arrived there.
type transfer struct {
	arrived bool // the piece is at the host `to`; false = it waits to be sent
	result  bool // the piece is a result on its way down; else a partial sum on its way up
	from    int  // sending host; meaningless for a host's own input
	to      int  // receiving host
	tree    int  // number of the tree, from 0
	index   int  // which piece of the segment, from 0
	bytes   int  // bytes of the piece
}

// newAllReduce returns a simulation with the trees of a route over so many hosts.
func newAllReduce(m Model, r collective.Route, hosts int) *allReduce {
	s := &allReduce{model: m, hosts: hosts, piece: r.Piece, trees: r.Strategy.Trees(hosts, -1),
		out: make([]sim.Resource, hosts), received: make([]float64, hosts),
		processors: make([]sim.Resource, hosts)}
	if m.Share > 0 && m.Share < 1 {
		s.streams = make([]sim.Resource, hosts*hosts*max(r.Streams, 1))
	}
	for t := range s.trees {
		parents, children := make([]int, hosts), make([][]int, hosts)
		inputs := make([]int, hosts)
		for i := range hosts {
			parents[i] = r.Parent(t, hosts, i)
			if parents[i] >= 0 {
				inputs[parents[i]]++
				above := r.Source(t, hosts, i)
				children[above] = append(children[above], i)
			}
		}
		s.parent, s.children = append(s.parent, parents), append(s.children, children)
		s.inputs = append(s.inputs, inputs)
	}
	return s
}

// simulate plays an all-reduce of so many bytes through, from the beginning, and returns the
// seconds from the first piece to the last result.
func (s *allReduce) simulate(bytes int) float64 {
	s.segment = (bytes + s.trees - 1) / s.trees
	s.pieces = (s.segment + s.piece - 1) / s.piece
	s.missing, s.end = make([]int, s.trees*s.pieces*s.hosts), 0
	s.events.Reset()
	clear(s.out)
	clear(s.received)
	clear(s.processors)
	clear(s.streams)
	for i := range s.pieces {
		for step := range s.trees {
			for host := range s.hosts {
				// A Relay begins with another tree on each host, so that not all send to the same
				// host first.
				t := (host + 1 + step) % s.trees
				*s.missingAt(t, i, host) = s.inputs[t][host]
				if s.inputs[t][host] == 0 {
					s.sendUp(0, transfer{to: host, tree: t, index: i,
						bytes: min(s.piece, s.segment-i*s.piece)})
				}
			}
		}
	}
	for s.events.Len() > 0 {
		switch at, t := s.events.Next(); {
		case !t.arrived:
			s.send(at, t)
		case t.result:
			s.sendDown(at, t)
		default:
			s.addPartialSum(at, t)
		}
	}
	return s.end
}

// missingAt returns the element of missing for a piece of a tree on a host.
func (s *allReduce) missingAt(tree, piece, host int) *int {
	return &s.missing[(tree*s.pieces+piece)*s.hosts+host]
}

// send plans the arrival of a piece that begins to leave its sender at a time in seconds, when the
// cables of sender and receiver are free.
func (s *allReduce) send(at float64, t transfer) {
	wire := float64(float64(t.bytes) * s.secondsPerByte(t.from))
	s.out[t.from].Serve(at, s.model.Piece)
	sent := max(s.out[t.from].Serve(at, wire), s.useStream(at, t, wire))
	// The receiver takes in the piece while the sender still sends it, and others beside it.
	s.received[t.to] = max(sent-wire+s.model.Alpha, s.received[t.to]) +
		float64(float64(t.bytes)*s.secondsPerByte(t.to))
	t.arrived = true
	s.events.Add(max(sent+s.model.Alpha, s.received[t.to]), t)
}

// secondsPerByte returns the seconds for a byte on the cable of a host.
func (s *allReduce) secondsPerByte(host int) float64 {
	switch {
	case s.cables != nil:
		return s.cables[host]
	case host < len(s.model.Slow):
		return s.model.Beta * s.model.Slow[host]
	}
	return s.model.Beta
}

// useStream gives a piece, at a time in seconds, to the stream of its link that is free first, and
// returns when that stream has sent it; 0 where one stream fills a cable. wire is the seconds that
// the piece takes on a whole cable.
func (s *allReduce) useStream(at float64, t transfer, wire float64) float64 {
	if s.streams == nil {
		return 0
	}
	n := len(s.streams) / (s.hosts * s.hosts)
	link := s.streams[(t.from*s.hosts+t.to)*n:][:n]
	first := 0
	for i, free := range link {
		if free < link[first] {
			first = i
		}
	}
	return link[first].Serve(at, wire/s.model.Share)
}

// addPartialSum adds a partial sum that has arrived at a time, in seconds, to that of its receiver,
// and sends it on when it was the last one.
func (s *allReduce) addPartialSum(at float64, t transfer) {
	done := s.processors[t.to].Serve(at, float64(t.bytes)*s.model.Gamma)
	missing := s.missingAt(t.tree, t.index, t.to)
	if *missing--; *missing == 0 {
		s.sendUp(done, t)
	}
}

// sendUp plans that the sum of a piece goes, at a time in seconds, from where it is to the parent
// there, or as the result down from the root.
func (s *allReduce) sendUp(at float64, t transfer) {
	parent := s.parent[t.tree][t.to]
	if parent < 0 {
		t.result = true
		s.sendDown(at, t)
		return
	}
	t.from, t.to, t.arrived = t.to, parent, false
	s.events.Add(at, t)
}

// sendDown plans that the result of a piece goes, at a time in seconds, from where it is to the
// children there.
func (s *allReduce) sendDown(at float64, t transfer) {
	s.end = max(s.end, at)
	for _, child := range s.children[t.tree][t.to] {
		next := t
		next.from, next.to, next.arrived = t.to, child, false
		s.events.Add(at, next)
	}
}
