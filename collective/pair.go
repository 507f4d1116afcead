package collective

import "slices"

// pairUp brings a send and a receive together.
func (m *Matcher) pairUp(g *group, self int, p *Posted, out []Ready) []Ready {
	key := pair{self, p.Call.Peer, p.Call.Tag}
	if p.Call.Kind == Recv {
		key.from, key.to = key.to, key.from
	}
	at := g.pairs[key]
	if at == nil {
		at = &meeting{}
	}
	mine, theirs := &at.sends, &at.recvs
	if p.Call.Kind == Recv {
		mine, theirs = theirs, mine
	}
	if len(*theirs) == 0 {
		if other := g.members[p.Call.Peer].worker; m.Gone(other) {
			return append(out, Ready{[]*Posted{p}, m.lostError(other, p)})
		}
		*mine = append(*mine, p)
		g.pairs[key] = at
		return out
	}
	other := (*theirs)[0]
	*theirs = slices.Delete(*theirs, 0, 1)
	g.tidy(key)
	send, recv := p, other
	if p.Call.Kind == Recv {
		send, recv = other, p
	}
	var err error
	if send.Call.DType != recv.Call.DType || send.Call.InLen() != recv.Call.OutLen() {
		err = &MismatchError{Position: -1, RankA: m.rank(send.Worker), RankB: m.rank(recv.Worker), CallA: send.Call.String(), CallB: recv.Call.String()}
	}
	return append(out, Ready{[]*Posted{send, recv}, err})
}

// tidy forgets a meeting at which nobody waits.
func (g *group) tidy(key pair) {
	if at := g.pairs[key]; len(at.sends)+len(at.recvs) == 0 {
		delete(g.pairs, key)
	}
}

// losePairs fails the transfers of a group that wait for a lost member. What it had posted itself can still be met.
func (m *Matcher) losePairs(g *group, lost int, out []Ready) []Ready {
	for key, at := range g.pairs {
		waiting := &at.recvs
		if key.to == lost {
			waiting = &at.sends
		} else if key.from != lost {
			continue
		}
		for _, p := range *waiting {
			out = append(out, Ready{[]*Posted{p}, m.lostError(g.members[lost].worker, p)})
		}
		*waiting = nil
		g.tidy(key)
	}
	return out
}
