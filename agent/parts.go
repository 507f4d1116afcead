package agent

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head"
)

// What agents say can be longer than a message of a link: what is known of a step of many
// collectives on many workers, say, when another host leads. It travels in parts then, one behind
// the other. docs/formats/hosts.md has their form.
const (
	partFollowed, partLast = 2, 3 // the first byte of a part; no other message begins so
	// partBytes is how much of it a part has: not so much that signs of life would wait long behind
	// it.
	partBytes = 1 << 20
	// maxSaid bounds what travels so. It is less than a link keeps for a peer that does not read,
	// and room for what there can be to say of a step of collective.MaxStep collectives on
	// job.MaxWorkers workers.
	maxSaid = 48 << 20
)

// inParts sends what is too long for a message, and not for maxSaid.
func inParts(network fabric.Network, to fabric.Host, b []byte) {
	var part []byte
	for len(b) > 0 {
		n := min(len(b), partBytes)
		kind := byte(partFollowed)
		if n == len(b) {
			kind = partLast
		}
		part = append(append(part[:0], kind), b[:n]...)
		network.Send(to, part)
		b = b[n:]
	}
}

// repeats keeps long frames from being said again too soon. The parts of one take a while, and so
// does reading them, and what was not answered by then would be sent again and again.
type repeats map[fabric.Host]repeat

type repeat struct {
	term, first uint64
	up          bool
	until       time.Time
}

// patienceByte is how long each byte of a long frame may take to be answered.
const patienceByte = 100 * time.Nanosecond

// tooSoon reports whether a frame of so many bytes is one that was just sent; else it is noted as
// sent.
func (r *repeats) tooSoon(to fabric.Host, f *head.Frame, bytes int, now time.Time) bool {
	if *r == nil {
		*r = repeats{}
	}
	last := (*r)[to]
	if last.term == uint64(f.Term) && last.first == f.First && last.up == f.Up &&
		now.Before(last.until) {
		return true
	}
	(*r)[to] = repeat{uint64(f.Term), f.First, f.Up, now.Add(time.Duration(bytes) * patienceByte)}
	return false
}

// parts brings together what comes in parts. The zero value is ready.
type parts struct {
	mu   sync.Mutex
	said map[fabric.Host][]byte
}

var errTooMuch = errors.New("something in parts that has no end")

// isPart reports whether a message is a part.
func isPart(b []byte) bool { return len(b) > 0 && (b[0] == partFollowed || b[0] == partLast) }

// take takes a part; with the last one it returns the whole.
func (p *parts) take(from fabric.Host, b []byte) (whole []byte, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	said := p.said[from]
	if len(said)+len(b)-1 > maxSaid {
		delete(p.said, from)
		return nil, fmt.Errorf("%w: more than %d bytes", errTooMuch, maxSaid)
	}
	said = append(said, b[1:]...)
	if b[0] == partLast {
		delete(p.said, from)
		return said, nil
	}
	if p.said == nil {
		p.said = map[fabric.Host][]byte{}
	}
	p.said[from] = said
	return nil, nil
}

// forget drops what a peer has said in part.
func (p *parts) forget(peer fabric.Host) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.said, peer)
}
