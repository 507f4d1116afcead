package simtest

import (
	"cmp"
	"slices"
	"strings"
)

// network is the links between hosts. Messages wait on a link until an event delivers, repeats or
// loses one of them. One goroutine uses it, that of its Cluster.
type network struct{ links map[pair]*link }

// pair is a direction between two hosts.
type pair struct{ from, to string }

// link is one direction between two hosts.
type link struct {
	waiting []any // messages that were sent and neither arrived nor were lost, the oldest first
	cut     bool  // nothing arrives until it is healed
	closed  bool  // the receiver has given it up
}

// connect makes the links between two hosts, both ways.
func (n *network) connect(a, b string) {
	n.links[pair{a, b}], n.links[pair{b, a}] = &link{}, &link{}
}

// send queues a message; a link that its receiver has given up takes none.
func (n *network) send(from, to string, m any) {
	if l := n.links[pair{from, to}]; l != nil && !l.closed {
		l.waiting = append(l.waiting, m)
	}
}

// popMessage returns the i-th message that waits on a link and can arrive, counted round from 0,
// and removes it unless it is to be kept; nil if there is none.
func (n *network) popMessage(p pair, i int, keep bool) any {
	l := n.links[p]
	if l == nil || l.cut || len(l.waiting) == 0 {
		return nil
	}
	i %= len(l.waiting)
	m := l.waiting[i]
	if !keep {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	return m
}

// dropMessage removes the i-th message that waits on a link, counted round from 0; if none waits it
// does nothing.
func (n *network) dropMessage(p pair, i int) {
	if l := n.links[p]; l != nil && len(l.waiting) > 0 {
		i %= len(l.waiting)
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// setCut cuts the links between two hosts both ways, or heals them.
func (n *network) setCut(a, b string, cut bool) {
	for _, p := range []pair{{a, b}, {b, a}} {
		if l := n.links[p]; l != nil {
			l.cut = cut
		}
	}
}

// closeAt closes the link from a peer, which a host has given up: nothing of the peer reaches it
// any more.
func (n *network) closeAt(host, peer string) {
	if l := n.links[pair{peer, host}]; l != nil {
		l.closed, l.waiting = true, nil
	}
}

// isClosed reports whether a host has given up its link to a peer.
func (n *network) isClosed(host, peer string) bool {
	l := n.links[pair{peer, host}]
	return l == nil || l.closed
}

// closeAll closes the links to a host that is gone, with all that waits there. What it has sent may
// still arrive.
func (n *network) closeAll(host string) {
	for p, l := range n.links {
		if p.to == host {
			l.closed, l.waiting = true, nil
		}
	}
}

// busyLinks lists the links on which a message can arrive, in order.
func (n *network) busyLinks() (list []pair) {
	for p, l := range n.links {
		if !l.cut && len(l.waiting) > 0 {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b pair) int {
		return cmp.Or(strings.Compare(a.from, b.from), strings.Compare(a.to, b.to))
	})
	return list
}
