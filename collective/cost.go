package collective

// Model is what it costs equal hosts on a switch to work together, in seconds: a step, a byte and a
// sum as in the α-β-γ model (Thakur, Rabenseifner and Gropp, "Optimization of collective
// communication operations in MPICH", 2005, §3), and the overhead of a message as in LogGP
// (Alexandrov et al., 1995).
type Model struct {
	Fixed float64 // a batch: what is said about it before and after
	Alpha float64 // from one host to another, for a piece without bytes
	Piece float64 // a piece, at the host that sends it
	Beta  float64 // a byte on a host's cable, each way
	Gamma float64 // a byte that is added to a partial sum

	// Share is how much of a cable one stream of a link can fill, as far as encryption by one
	// processor, or a distance, lets it: above 0, up to 1. 0 counts as 1.
	Share float64
}

// playedPieces is how many pieces of a segment are played; those of a long one follow each other
// evenly.
const playedPieces = 8

// Time predicts how long an all-reduce takes of so many bytes on each of some hosts. It plays what
// the Relays do: each host has one cable, on which pieces follow each other each way, and one
// processor that adds them up.
func (m Model) Time(r Route, hosts, bytes int) float64 {
	if hosts < 2 || bytes == 0 {
		return m.Fixed
	}
	p := newPlay(m, r, hosts)
	whole := p.trees * playedPieces * r.Piece
	if p.streams != nil {
		whole *= 2 // they are busy evenly only later
	}
	if bytes <= whole {
		return m.Fixed + p.run(bytes)
	}
	half, all := p.run(whole/2), p.run(whole)
	return m.Fixed + all + (all-half)/float64(whole-whole/2)*float64(bytes-whole)
}

// play is an all-reduce whose pieces are moved by the clock of a Model.
type play struct {
	model    Model
	k, trees int
	piece    int
	parent   [][]int   // by tree and host
	children [][][]int // by tree and host: who gets the result from it
	inlets   [][]int   // by tree and host: how many give it partial sums

	length        int // bytes of a segment
	missing       []int
	out, in, busy []float64 // by host: when its cable, each way, and its processor are free
	streams       []float64 // by host, the other host, and stream: when it is free
	events        events
	said          int
	end           float64
}

// event is a piece that is ready to be sent, or has come.
type happening struct {
	at                 float64
	order              int // of two at the same time, the one that was planned first comes first
	arrived, down      bool
	from, to           int
	tree, index, bytes int
}

func newPlay(m Model, r Route, k int) *play {
	p := &play{model: m, k: k, piece: r.Piece, trees: r.Strategy.Trees(k, -1),
		out: make([]float64, k), in: make([]float64, k), busy: make([]float64, k)}
	if m.Share > 0 && m.Share < 1 { // else a stream takes what the cable takes
		p.streams = make([]float64, k*k*max(r.Streams, 1))
	}
	for t := range p.trees {
		parents, children, inlets := make([]int, k), make([][]int, k), make([]int, k)
		for i := range k {
			parents[i] = r.Strategy.Parent(t, k, -1, i)
			if parents[i] >= 0 {
				inlets[parents[i]]++
				above := source(r.Strategy, t, k, -1, i)
				children[above] = append(children[above], i)
			}
		}
		p.parent, p.children, p.inlets = append(p.parent, parents), append(p.children, children),
			append(p.inlets, inlets)
	}
	return p
}

// run returns the time from the first piece to the last result.
func (p *play) run(bytes int) float64 {
	p.length = (bytes + p.trees - 1) / p.trees
	pieces := (p.length + p.piece - 1) / p.piece
	p.missing, p.events, p.end, p.said = make([]int, p.trees*pieces*p.k), p.events[:0], 0, 0
	clear(p.out)
	clear(p.in)
	clear(p.busy)
	clear(p.streams)
	for i := range pieces {
		for step := range p.trees {
			for host := range p.k {
				t := (host + 1 + step) % p.trees // as a Relay does: not all to the same one first
				p.missing[(t*pieces+i)*p.k+host] = p.inlets[t][host]
				if p.inlets[t][host] == 0 {
					p.rise(happening{to: host, tree: t, index: i,
						bytes: min(p.piece, p.length-i*p.piece)})
				}
			}
		}
	}
	for len(p.events) > 0 {
		switch e := p.events.pop(); {
		case !e.arrived:
			p.carry(e)
		case e.down:
			p.fall(e)
		default:
			p.add(e, pieces)
		}
	}
	return p.end
}

// plan puts something into the future.
func (p *play) plan(e happening) {
	e.order = p.said
	p.said++
	p.events.push(e)
}

// carry takes a piece from one cable to another.
func (p *play) carry(e happening) {
	wire := float64(e.bytes) * p.model.Beta
	p.out[e.from] = max(e.at, p.out[e.from]) + p.model.Piece + wire
	sent := max(p.out[e.from], p.stream(e, wire))
	p.in[e.to] = max(sent+p.model.Alpha, p.in[e.to]+wire)
	e.at, e.arrived = p.in[e.to], true
	p.plan(e)
}

// stream gives a piece to the stream that is free first, and returns when that has sent it.
func (p *play) stream(e happening, wire float64) float64 {
	if p.streams == nil {
		return 0
	}
	n := len(p.streams) / (p.k * p.k)
	of := p.streams[(e.from*p.k+e.to)*n:][:n]
	first := 0
	for i, free := range of {
		if free < of[first] {
			first = i
		}
	}
	of[first] = max(e.at, of[first]) + wire/p.model.Share
	return of[first]
}

// add sums a piece at a host.
func (p *play) add(e happening, pieces int) {
	p.busy[e.to] = max(e.at, p.busy[e.to]) + float64(e.bytes)*p.model.Gamma
	e.at = p.busy[e.to]
	at := (e.tree*pieces+e.index)*p.k + e.to
	if p.missing[at]--; p.missing[at] == 0 {
		p.rise(e)
	}
}

// rise sends what a host has summed to its parent, or down again from the root.
func (p *play) rise(e happening) {
	parent := p.parent[e.tree][e.to]
	if parent < 0 {
		e.down = true
		p.fall(e)
		return
	}
	e.from, e.to, e.arrived = e.to, parent, false
	p.plan(e)
}

// fall sends a result on.
func (p *play) fall(e happening) {
	p.end = max(p.end, e.at)
	for _, child := range p.children[e.tree][e.to] {
		next := e
		next.from, next.to, next.arrived = e.to, child, false
		p.plan(next)
	}
}

// events are what will happen: a heap, the next one first.
type events []happening

func (e events) before(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}

func (e *events) push(x happening) {
	*e = append(*e, x)
	list := *e
	for i := len(list) - 1; i > 0 && list.before(i, (i-1)/2); i = (i - 1) / 2 {
		list[i], list[(i-1)/2] = list[(i-1)/2], list[i]
	}
}

func (e *events) pop() happening {
	list := *e
	first, last := list[0], len(list)-1
	list[0] = list[last]
	list = list[:last]
	for i := 0; 2*i+1 < last; {
		child := 2*i + 1
		if child+1 < last && list.before(child+1, child) {
			child++
		}
		if list.before(i, child) {
			break
		}
		list[i], list[child] = list[child], list[i]
		i = child
	}
	*e = list
	return first
}
