package collective

import "github.com/shoal-ml/shoal/topo"

// pairUp brings a send and a receive together.
func (m *Matcher) pairUp(g *ranks, self int, p *Posted, out []Ready) []Ready {
	key := pair{self, p.Call.Peer, p.Call.Tag}
	if p.Call.Kind == Recv {
		key.from, key.to = key.to, key.from
	}
	at := g.pairs[key]
	if at == nil {
		at = &meeting{}
		g.pairs[key] = at
	}
	mine, theirs := &at.sends, &at.recvs
	if p.Call.Kind == Recv {
		mine, theirs = theirs, mine
	}
	if len(*theirs) == 0 {
		if why, gone := m.gone[g.members[p.Call.Peer]]; gone {
			return append(out, Ready{[]*Posted{p}, &LostError{g.members[p.Call.Peer], why, p.Rank, p.Call.String()}})
		}
		*mine = append(*mine, p)
		return out
	}
	other := (*theirs)[0]
	*theirs = append((*theirs)[:0], (*theirs)[1:]...)
	if len(at.sends)+len(at.recvs) == 0 {
		delete(g.pairs, key)
	}
	send, recv := p, other
	if p.Call.Kind == Recv {
		send, recv = other, p
	}
	var err error
	if send.Call.DType != recv.Call.DType || send.Call.InLen() != recv.Call.OutLen() {
		err = &MismatchError{Position: -1, RankA: send.Rank, RankB: recv.Rank, CallA: send.Call.String(), CallB: recv.Call.String()}
	}
	return append(out, Ready{[]*Posted{send, recv}, err})
}

// losePairs fails the transfers of a group that wait for a lost member.
func (g *ranks) losePairs(rank topo.Rank, self int, why string, out []Ready) []Ready {
	for key, at := range g.pairs {
		waiting := at.recvs
		if key.to == self {
			waiting = at.sends
		} else if key.from != self {
			continue
		}
		for _, p := range waiting {
			out = append(out, Ready{[]*Posted{p}, &LostError{rank, why, p.Rank, p.Call.String()}})
		}
		delete(g.pairs, key)
	}
	return out
}
