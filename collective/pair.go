package collective

import "slices"

// AnyRank as the Peer of a Recv takes the first send that comes, whoever sends it. The match sets Peer to the sender.
const AnyRank = -1

// mailbox is where sends to one rank under one tag and its receives meet. What waits, waits in the order of posting.
type mailbox struct{ sends, recvs []*Posted }

type address struct {
	to  int
	tag uint32
}

// pairUp brings a send and a receive together.
func (m *Matcher) pairUp(g *ranks, self int, p *Posted, out []Ready) []Ready {
	key := address{p.Call.Peer, p.Call.Tag}
	if p.Call.Kind == Recv {
		key.to = self
	}
	box := g.boxes[key]
	if box == nil {
		box = &mailbox{}
		g.boxes[key] = box
	}
	mine, theirs := &box.sends, &box.recvs
	fits := func(recv *Posted) bool { return recv.Call.Peer == self || recv.Call.Peer == AnyRank }
	if p.Call.Kind == Recv {
		mine, theirs = theirs, mine
		fits = func(send *Posted) bool { return p.Call.Peer == AnyRank || g.members[p.Call.Peer] == send.Rank }
	}
	i := slices.IndexFunc(*theirs, fits)
	if i < 0 {
		if err := m.hopeless(g, self, p); err != nil {
			return append(out, Ready{[]*Posted{p}, err})
		}
		*mine = append(*mine, p)
		return out
	}
	send, recv := p, (*theirs)[i]
	if p.Call.Kind == Recv {
		send, recv = recv, send
	}
	*theirs = slices.Delete(*theirs, i, i+1)
	if len(box.sends)+len(box.recvs) == 0 {
		delete(g.boxes, key)
	}
	recv.Call.Peer = slices.Index(g.members, send.Rank)
	var err error
	if send.Call.DType != recv.Call.DType || send.Call.InLen() != recv.Call.OutLen() {
		err = &MismatchError{Position: -1, RankA: send.Rank, RankB: recv.Rank, CallA: send.Call.String(), CallB: recv.Call.String()}
	}
	return append(out, Ready{[]*Posted{send, recv}, err})
}

// hopeless says why a send or a receive will never meet its other half; nil where it still may.
func (m *Matcher) hopeless(g *ranks, self int, p *Posted) error {
	var lost error
	for i, r := range g.members {
		if i == self || p.Call.Peer != AnyRank && p.Call.Peer != i {
			continue
		}
		why, gone := m.gone[r]
		if !gone {
			return nil
		}
		lost = &LostError{r, why, p.Rank, p.Call.String()}
	}
	return lost
}

// losePairs fails the transfers of a group that wait for a lost member.
func (m *Matcher) losePairs(g *ranks, out []Ready) []Ready {
	for key, box := range g.boxes {
		for _, list := range []*[]*Posted{&box.sends, &box.recvs} {
			*list = slices.DeleteFunc(*list, func(p *Posted) bool {
				err := m.hopeless(g, slices.Index(g.members, p.Rank), p)
				if err != nil {
					out = append(out, Ready{[]*Posted{p}, err})
				}
				return err != nil
			})
		}
		if len(box.sends)+len(box.recvs) == 0 {
			delete(g.boxes, key)
		}
	}
	return out
}
