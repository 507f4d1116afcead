// Package mem is a network inside one process, for tests of what runs on a network: asynchronous as
// a network is, with links that can be cut and hosts that can be killed, and without sockets or
// time.
package mem

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/group"
)

// Networks are linked when both have come to the Hub; link.go has what goes over a link.

// Hub is where the networks of hosts find each other. Any goroutine may call its methods, which do
// not wait for handlers.
type Hub struct {
	mu       sync.Mutex               // guards the fields below it; taken before Network.mu
	networks map[fabric.Host]*Network // by host, those that were neither killed nor closed
	// used are the names that were given. None is given twice: a host that comes back is another
	// one.
	used map[fabric.Host]bool
}

// NewHub returns a hub without hosts.
func NewHub() *Hub {
	return &Hub{networks: map[fabric.Host]*Network{}, used: map[fabric.Host]bool{}}
}

// Add adds a host and links it with all others. A name that was used before gets a number. The
// caller closes the Network, also after Kill.
func (n *Hub) Add(name fabric.Host, h fabric.Handler) *Network {
	n.mu.Lock()
	defer n.mu.Unlock()
	unique := name
	for i := 2; n.used[unique]; i++ {
		unique = fabric.Host(fmt.Sprintf("%s-%d", name, i))
	}
	m := &Network{hub: n, self: unique, handler: h, group: group.New(context.Background()),
		links: map[fabric.Host]*link{}}
	for _, other := range n.networks {
		connect(m, other)
	}
	n.used[unique], n.networks[unique] = true, m
	return m
}

// Cut breaks the link between two hosts as if nothing came through any more and both had noticed:
// both get Down with ErrSilent, and what was under way is lost.
func (n *Hub) Cut(a, b fabric.Host) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m := n.networks[a]; m != nil {
		if l := m.link(b); l != nil {
			l.end(fabric.ErrSilent)
			l.other.end(fabric.ErrSilent)
		}
	}
}

// Kill ends a host as SIGKILL does: its peers get Down with ErrClosed, what it had queued is lost.
// Its own handler gets Down too, because its network still lives to be closed.
func (n *Hub) Kill(host fabric.Host) {
	n.mu.Lock()
	m := n.networks[host]
	delete(n.networks, host)
	n.mu.Unlock()
	if m == nil {
		return
	}
	links := m.allLinks()
	m.mu.Lock()
	clear(m.links) // while one link after the other ends, it says no more
	m.mu.Unlock()
	for _, l := range links {
		l.end(fabric.ErrClosed)
		l.other.end(fabric.ErrClosed)
	}
}

// Network is the fabric.Network of one host. Any goroutine may call its methods.
type Network struct {
	hub     *Hub           // where the other hosts are
	self    fabric.Host    // the name of this host
	handler fabric.Handler // is told what arrives
	group   *group.Group   // the goroutines of the links

	mu    sync.Mutex            // guards links
	links map[fabric.Host]*link // by peer, those that live

	payloads fabric.Payloads // counts the payloads of SendPiece that may still be read
}

var _ fabric.Network = (*Network)(nil)

// Self returns the name of this host.
func (m *Network) Self() fabric.Host { return m.self }

// Send implements fabric.Network: it queues a copy of b at the peer, and does not
// wait. Without a link b is lost, as on a network.
func (m *Network) Send(to fabric.Host, b []byte) {
	if len(b) > fabric.MaxMessage {
		panic(fmt.Sprintf("mem: a message of %d bytes; the limit is %d", len(b), fabric.MaxMessage))
	}
	if l := m.link(to); l != nil {
		room, _ := l.other.spare.TakeNow()
		l.other.messages.Put(message{bytes: append(room[:0], b...)})
	}
}

// SendPiece implements fabric.Network: it queues the piece at the peer without a copy, and does not
// wait.
func (m *Network) SendPiece(to fabric.Host, p fabric.Piece, payload []byte) {
	if int(p.Length) != len(payload) || p.Length > fabric.MaxPiece {
		panic(fmt.Sprintf("mem: a piece of %d bytes with a payload of %d; the limit is %d",
			p.Length, len(payload), fabric.MaxPiece))
	}
	if l := m.link(to); l != nil {
		if l.calls.QueuePayload() {
			p.Streams = 0 // it is the sender's own
			l.other.pieces.Put(piece{p, payload})
		}
	}
}

// Unused implements fabric.Network: it calls f when no payload is read any more.
func (m *Network) Unused(f func()) { m.payloads.Unused(f) }

// Drop implements fabric.Network: it ends both ends of the link, and does not wait.
func (m *Network) Drop(peer fabric.Host, why error) {
	if l := m.link(peer); l != nil {
		l.end(why)
		l.other.messages.Put(message{goodbye: fmt.Errorf("%w: %v", fabric.ErrClosed, why)})
	}
}

// Suspect implements fabric.Network. Nothing is done: in memory no peer is silent before its link
// has ended.
func (m *Network) Suspect(fabric.Host) {}

// Seek implements fabric.Network. A host that was killed reaches nobody.
func (m *Network) Seek(context.Context) map[fabric.Host][]fabric.Host {
	m.hub.mu.Lock()
	defer m.hub.mu.Unlock()
	found := map[fabric.Host][]fabric.Host{}
	if m.hub.networks[m.self] != m {
		return found
	}
	for name, other := range m.hub.networks {
		if other != m && m.link(name) == nil {
			found[name] = slices.Sorted(other.linkedHosts())
		}
	}
	return found
}

// Close implements fabric.Network: it removes the host from the hub, ends its links, and blocks
// until their goroutines have.
func (m *Network) Close() error {
	m.hub.mu.Lock()
	if m.hub.networks[m.self] == m {
		delete(m.hub.networks, m.self)
	}
	m.hub.mu.Unlock()
	for _, l := range m.allLinks() {
		l.end(fabric.ErrClosed)
		l.other.messages.Put(message{goodbye: fabric.ErrClosed})
	}
	return m.group.Wait()
}

// link returns the link with a peer; nil = there is none.
func (m *Network) link(peer fabric.Host) *link {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.links[peer]
}

// allLinks returns the links that live, in no order.
func (m *Network) allLinks() []*link {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.links))
}

// linkedHosts returns the hosts to which there is a link, in no order.
func (m *Network) linkedHosts() iter.Seq[fabric.Host] {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Keys(maps.Clone(m.links))
}
