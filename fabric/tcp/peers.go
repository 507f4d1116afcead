package tcp

import (
	"fmt"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/fabric"
)

// The methods of Network in this file take m.mu themselves, but for announceChange, and never wait
// for I/O: any goroutine may call them.

// peer is what this agent knows about a name. Network.mu guards it. Names are never forgotten: a
// host that comes back gets another one, so that nobody takes it for the one that was lost.
type peer struct {
	state   state
	key     string // the public key of the agent with that name; "" until they were linked
	address string // HOST:PORT where the agent listens; "" = not known
}

// state is how far this agent has come with a peer.
type state uint8

const (
	stateHeard     state = iota // the name was heard of or given, and nobody was met
	stateDialling               // this agent is dialling the other one
	stateAccepting              // the other one has dialled, its streams of data are on their way
	stateUp                     // there is a link
	stateGone                   // there was a link
	stateSelf                   // the name is that of this agent
)

// reserveName finds a name for a newcomer that nobody has or had, and adds it to m.peers with the
// newcomer's key. A long one is cut where a number would make it too long.
func (m *Network) reserveName(asked fabric.Host, key string) fabric.Host {
	m.mu.Lock()
	defer m.mu.Unlock()
	unique := asked
	for i := 2; m.peers[unique] != nil; i++ {
		number := fmt.Sprintf("-%d", i)
		unique = asked[:min(len(asked), maxName-len(number))] + fabric.Host(number)
	}
	m.peers[unique] = &peer{key: key}
	return unique
}

// usedNames lists all names that cannot be given again.
func (m *Network) usedNames() []fabric.Host {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.peers))
}

// addUsedNames adds names to m.peers that other agents have told, so that none of them is given
// again.
func (m *Network) addUsedNames(names []fabric.Host) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		if m.peers[name] == nil {
			m.peers[name] = &peer{}
		}
	}
}

// knownAgents lists the agents that this one has, or is about to have, a link with, and itself
// first. Who is accepted is in the list that the next one gets: so of two newcomers at least one
// hears of the other, from any agent that both meet.
func (m *Network) knownAgents() []agent {
	return append([]agent{{m.self.host, m.address}},
		m.agentsInState(stateDialling, stateAccepting, stateUp)...)
}

// agentsInState lists the agents in any of these states, by name.
func (m *Network) agentsInState(states ...state) (list []agent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.peers)) {
		if k := m.peers[name]; slices.Contains(states, k.state) {
			list = append(list, agent{name, k.address})
		}
	}
	return list
}

// startAccepting records that an agent that has dialled gets a link, or returns why it gets none,
// as a refusal. Of two that dial each other, the call of the one whose name comes first is the one
// that counts.
func (m *Network) startAccepting(who identity, address string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.peers[who.host]
	if k == nil {
		k = &peer{}
		m.peers[who.host] = k
	}
	switch {
	case k.state == stateSelf || k.key != "" && k.key != who.key:
		return &refusal{Code: codeTaken,
			Text: fmt.Sprintf(
				"the name %s belongs to another agent: join again, which gives another name",
				who.host)}
	case k.state == stateGone:
		return &refusal{Code: codeGone,
			Text: fmt.Sprintf(
				"the link with %s was lost, and does not come again: join again as a new host",
				who.host)}
	case k.state == stateUp, k.state == stateAccepting:
		return &refusal{Code: codeDuplicate, Text: fmt.Sprintf("there is a link with %s", who.host)}
	case k.state == stateDialling && m.self.host < who.host:
		return &refusal{Code: codeDuplicate,
			Text: fmt.Sprintf("this agent is dialling %s", who.host)}
	}
	k.state, k.key, k.address = stateAccepting, who.key, address
	m.announceChange()
	return nil
}

// startDialling records that this agent dials another one; false: it must not, because there is or
// was a link, or one is on its way, or the name is its own.
func (m *Network) startDialling(a agent) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.peers[a.Host]
	if k == nil {
		k = &peer{}
		m.peers[a.Host] = k
	}
	if k.state != stateHeard {
		return false
	}
	k.state, k.address = stateDialling, a.Address
	return true
}

// setLinkFailed takes back startAccepting or startDialling, if the peer is still in the state was,
// which is stateAccepting or stateDialling. The peer is known.
func (m *Network) setLinkFailed(host fabric.Host, was state) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.peers[host]; k.state == was {
		k.state = stateHeard
		m.announceChange()
	}
}

// setLinked records in m.links that there is a link with a peer that was accepted or dialled (the
// state was), and whose public key is key; false: the network is closing, or another link was
// quicker, and the link stays the caller's.
func (m *Network) setLinked(l *link, key string, was state) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.peers[l.peer]
	if m.closing || k.state != was {
		return false
	}
	k.state, k.key = stateUp, key
	m.linksMu.Lock()
	m.links[l.peer] = l
	m.linksMu.Unlock()
	m.announceChange()
	return true
}

// setLinkLost records that a link has ended, for all time.
func (m *Network) setLinkLost(l *link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peers[l.peer].state = stateGone
	m.linksMu.Lock()
	delete(m.links, l.peer)
	m.linksMu.Unlock()
	m.announceChange()
}

// announceChange wakes those who wait for a change of m.peers, which they see by m.changed; m.mu is
// held.
func (m *Network) announceChange() {
	close(m.changed)
	m.changed = make(chan struct{})
}
