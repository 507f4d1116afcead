package agent

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head/wire"
)

// Agents send each other texts that are longer than a message of a link may be: what is known of a
// step of many collectives on many workers, say, when another host leads. Such a text travels in
// parts, one after the other. docs/formats/hosts.md has their form.
const (
	// partFollowed and partLast are the first byte of a part; no other message begins with them.
	partFollowed, partLast = 2, 3
	// partBytes is the most bytes of a text in one part: few enough that signs of life do not wait
	// long for the part.
	partBytes = 1 << 20
	// maxSaid bounds a text in parts, in bytes. It is less than a link keeps for a peer that does
	// not read, and enough for a step of collective.MaxStep collectives on job.MaxWorkers workers.
	maxSaid = 48 << 20
)

// sendInParts sends a text of up to maxSaid bytes that is too long for one message. It does not
// wait, and keeps nothing of b. The engine's thread calls it.
func sendInParts(network fabric.Network, to fabric.Host, b []byte) {
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

// repeats keeps long frames from being sent again too soon. The parts of a frame take a while to
// arrive and to be read, and a frame that was not answered by then would be sent again and again.
// The zero value is ready. Only the engine's thread uses it.
type repeats map[fabric.Host]repeat

// repeat is the long frame that was last sent to a host.
type repeat struct {
	term, first uint64    // Term and First of the frame
	up          bool      // Up of the frame
	until       time.Time // before this time the same frame is not sent again
}

// patiencePerByte is how long each byte of a long frame may take to be answered.
const patiencePerByte = 100 * time.Nanosecond

// isRepeatedTooSoon reports whether a frame of so many bytes is one that was just sent to a host;
// else it records the frame as sent now.
func (r *repeats) isRepeatedTooSoon(to fabric.Host, f *wire.Frame, bytes int, now time.Time) bool {
	if *r == nil {
		*r = repeats{}
	}
	last := (*r)[to]
	if last.term == uint64(f.Term) && last.first == f.First && last.up == f.Up &&
		now.Before(last.until) {
		return true
	}
	until := now.Add(time.Duration(bytes) * patiencePerByte)
	(*r)[to] = repeat{uint64(f.Term), f.First, f.Up, until}
	return false
}

// parts joins the parts that other hosts send to whole texts. The zero value is ready. It is safe
// for concurrent use.
type parts struct {
	mu   sync.Mutex             // guards said
	said map[fabric.Host][]byte // by sender: the beginning of a text that is not whole yet
}

// errTooMuch is the error of a text of more than maxSaid bytes.
var errTooMuch = errors.New("something in parts that has no end")

// isPart reports whether a message is a part. It is pure.
func isPart(b []byte) bool { return len(b) > 0 && (b[0] == partFollowed || b[0] == partLast) }

// add adds a part from a host to the text that it belongs to; with the last part it returns the
// whole text, which the caller owns; nil = it is not whole yet. It copies from b.
func (p *parts) add(from fabric.Host, b []byte) (whole []byte, err error) {
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

// forget drops the parts of a text that a peer has begun and will not end.
func (p *parts) forget(peer fabric.Host) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.said, peer)
}
