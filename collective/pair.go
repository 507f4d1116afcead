package collective

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// AnyRank as the Peer of a Recv accepts the first send that comes, from whichever rank. The Matcher
// then sets Peer to the sender.
const AnyRank = -1

// PartnerError says that a send or a receive is for a worker that is no member any more: the
// members have changed since the call was made. It wraps a LostError.
type PartnerError struct {
	Kind    Kind
	Partner topo.WorkerID
}

// Error implements error.
func (e *PartnerError) Error() string {
	return fmt.Sprintf("worker %d, for which this %v was made, %s since then: make it with a rank "+
		"of the members that there are, after the end of the step", e.Partner, e.Kind, left)
}

// left says of a worker that it is no member any more.
const left = "has left the members of the job"

// Unwrap returns the LostError.
func (e *PartnerError) Unwrap() error { return &LostError{Why: left} }

// The methods of Matcher and group in this file are for the one goroutine that uses the Matcher,
// and do no I/O.

// mailbox holds the sends to one rank under one tag and the receives there that wait for each
// other, in the order of posting.
type mailbox struct{ sends, recvs []*Posted }

// address identifies a mailbox in a group.
type address struct {
	to  int // index in the group of the member that receives
	tag uint32
}

// matchPair brings together a send and a receive: it appends p, posted by member self, with its
// partner to out, or keeps p in its mailbox until the partner comes. If none can come any more, it
// appends p alone, as failed.
func (m *Matcher) matchPair(g *group, self int, p *Posted, out []Ready) []Ready {
	key := address{p.Call.Peer, p.Call.Tag}
	if p.Call.Kind == Recv {
		key.to = self
	}
	box := g.mailboxes[key]
	if box == nil {
		box = &mailbox{}
	}
	mine, theirs := &box.sends, &box.recvs
	fits := func(recv *Posted) bool { return recv.Call.Peer == self || recv.Call.Peer == AnyRank }
	if p.Call.Kind == Recv {
		mine, theirs = theirs, mine
		fits = func(send *Posted) bool {
			return p.Call.Peer == AnyRank || g.members[p.Call.Peer].worker == send.Worker
		}
	}
	i := slices.IndexFunc(*theirs, fits)
	if i < 0 {
		if err := m.whyUnmatchable(g, self, p); err != nil {
			return append(out, Ready{[]*Posted{p}, err})
		}
		*mine = append(*mine, p)
		g.mailboxes[key] = box
		return out
	}
	send, recv := p, (*theirs)[i]
	if p.Call.Kind == Recv {
		send, recv = recv, send
	}
	*theirs = slices.Delete(*theirs, i, i+1)
	g.dropIfEmpty(key)
	recv.Call.Peer = g.index(send.Worker)
	var err error
	if send.Call.DType != recv.Call.DType || send.Call.InLen() != recv.Call.OutLen() {
		err = &MismatchError{Position: -1, RankA: m.rank(send.Worker), RankB: m.rank(recv.Worker),
			CallA: send.Call.String(), CallB: recv.Call.String()}
	}
	return append(out, Ready{[]*Posted{send, recv}, err})
}

// dropIfEmpty removes a mailbox in which nothing waits.
func (g *group) dropIfEmpty(key address) {
	if box := g.mailboxes[key]; len(box.sends)+len(box.recvs) == 0 {
		delete(g.mailboxes, key)
	}
}

// dropPairsOfLost removes the sends and receives of lost workers that wait in the group, and
// appends them to out, as failed.
func (m *Matcher) dropPairsOfLost(g *group, out []Ready) []Ready {
	for _, key := range g.sortedAddresses() {
		box := g.mailboxes[key]
		for _, list := range []*[]*Posted{&box.sends, &box.recvs} {
			*list = slices.DeleteFunc(*list, func(p *Posted) bool {
				lost := m.IsLost(p.Worker)
				if lost {
					out = append(out, Ready{[]*Posted{p}, m.lostError(p.Worker, p)})
				}
				return lost
			})
		}
		g.dropIfEmpty(key)
	}
	return out
}

// readdressPairs gives the sends and receives that wait in the group the ranks of its members,
// which were others before. It appends those of a worker that is no member any more to out, as
// failed, and those for one, and returns it.
func (g *group) readdressPairs(before []*member, out []Ready) []Ready {
	addresses, old := g.sortedAddresses(), g.mailboxes
	g.mailboxes = map[address]*mailbox{}
	for _, at := range addresses {
		box := &mailbox{}
		for _, p := range slices.Concat(old[at].sends, old[at].recvs) {
			switch err := g.readdress(p, before); {
			case err != nil:
				out = append(out, Ready{[]*Posted{p}, err})
			case p.Call.Kind == Send:
				box.sends = append(box.sends, p)
			default:
				box.recvs = append(box.recvs, p)
			}
		}
		to := address{g.index(before[at.to].worker), at.tag}
		g.mailboxes[to] = box
		g.dropIfEmpty(to)
	}
	return out
}

// readdress gives a send or a receive that waits the rank that its partner has now, whose rank it
// had before. It returns an error if the worker of the call is no member any more, or its partner.
func (g *group) readdress(p *Posted, before []*member) error {
	if g.index(p.Worker) < 0 {
		return fmt.Errorf("this worker has left the members of the job, and nobody has met its %v",
			p.Call.Kind)
	}
	if p.Call.Peer == AnyRank {
		return nil
	}
	partner := before[p.Call.Peer].worker
	rank := g.index(partner)
	if rank < 0 {
		return &PartnerError{Kind: p.Call.Kind, Partner: partner}
	}
	p.Call.Peer = rank
	return nil
}

// whyUnmatchable returns why a send or a receive of member self will never be matched; nil where it
// still may.
func (m *Matcher) whyUnmatchable(g *group, self int, p *Posted) error {
	var lost error
	for i, member := range g.members {
		if i == self || p.Call.Peer != AnyRank && p.Call.Peer != i {
			continue
		}
		if !m.IsLost(member.worker) {
			return nil
		}
		lost = m.lostError(member.worker, p)
	}
	return lost
}

// failPairs fails the transfers of a group that wait for a lost member, and appends them to out.
// Those that the member had posted itself can still be matched.
func (m *Matcher) failPairs(g *group, out []Ready) []Ready {
	for _, key := range g.sortedAddresses() {
		box := g.mailboxes[key]
		for _, list := range []*[]*Posted{&box.sends, &box.recvs} {
			*list = slices.DeleteFunc(*list, func(p *Posted) bool {
				err := m.whyUnmatchable(g, g.index(p.Worker), p)
				if err != nil {
					out = append(out, Ready{[]*Posted{p}, err})
				}
				return err != nil
			})
		}
		g.dropIfEmpty(key)
	}
	return out
}
