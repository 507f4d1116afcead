package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/shoal-ml/shoal/fabric"
)

// This file is the side of a link that was dialled; dial.go is the other one. Its functions run on
// the goroutines that answer connections, and take Network.mu themselves.

// opening is a link whose control stream has come and whose streams of data are on their way.
// Network.mu guards index; came is for the streams that acceptData gets.
type opening struct {
	peer  identity       // who has dialled, by its certificate
	index map[string]int // by ticket, the index of its stream of data
	came  chan arrival   // the streams of data that have come; has room for all of them
}

// arrival is a stream of data that has come for an opening.
type arrival struct {
	index  int     // index among the streams of data of the link
	stream *stream // becomes the link's, or is abandoned
}

// acceptLink makes a link with an agent that has dialled, and waits until the agent has opened its
// streams of data, for at most handshakeTime. If taken, the control stream is now the link's, which
// runs; else it stays the caller's, and the streams of data are closed.
func (m *Network) acceptLink(control *stream, who identity, h hello) (taken bool, err error) {
	if err := m.startAccepting(who, sanitize(h.Address)); err != nil {
		return false, err
	}
	o := &opening{peer: who, index: map[string]int{}, came: make(chan arrival, fabric.MaxStreams)}
	tickets := m.issueTickets(o)
	data, err := m.awaitData(control, o, tickets)
	m.withdrawTickets(tickets)
	if err == nil {
		l := newLink(m, who.host, control, data)
		l.send(kindReady, nil)
		if m.setLinked(l, who.key, stateAccepting) {
			l.start()
			return true, nil
		}
		err = errors.New("the network is closing")
	}
	m.setLinkFailed(who.host, stateAccepting)
	close(o.came)
	for a := range o.came {
		a.stream.abandon()
	}
	for _, s := range data {
		if s != nil {
			s.abandon()
		}
	}
	return false, err
}

// issueTickets makes the tickets of a link's streams of data, and adds them to m.tickets.
func (m *Network) issueTickets(o *opening) (tickets [][]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range fabric.MaxStreams {
		ticket := make([]byte, 32)
		rand.Read(ticket)
		o.index[string(ticket)] = i
		m.tickets[string(ticket)] = o
		tickets = append(tickets, ticket)
	}
	return tickets
}

// withdrawTickets makes tickets worthless. Afterwards no goroutine puts anything into their
// opening.
func (m *Network) withdrawTickets(tickets [][]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range tickets {
		delete(m.tickets, string(t))
	}
}

// awaitData welcomes the peer with the tickets, and waits for the streams of data that belong to
// them, for at most handshakeTime, and while the peer does not hang up. What has come is returned
// also where it fails.
func (m *Network) awaitData(control *stream, o *opening, tickets [][]byte) ([]*stream, error) {
	if err := writeJSONFrame(control, kindWelcome,
		welcome{Agents: m.knownAgents(), Tickets: tickets,
			OtherAddresses: m.otherAddresses}); err != nil {
		return nil, err
	}
	data := make([]*stream, fabric.MaxStreams)
	expired := time.NewTimer(handshakeTime)
	defer expired.Stop()
	hungUp, stop := m.watchHangUp(control)
	defer stop()
	for range data {
		select {
		case a := <-o.came:
			data[a.index] = a.stream
		case <-expired.C:
			return data, fmt.Errorf("%s did not open its streams of data", o.peer.host)
		case <-hungUp:
			return data, fmt.Errorf("%s hung up before all of its streams of data were open",
				o.peer.host)
		case <-m.ctx.Done():
			return data, m.ctx.Err()
		}
	}
	return data, nil
}

// watchHangUp returns what is closed when the peer of a stream hangs up, from which nobody reads
// until stop has returned. stop leaves a deadline in the past for reads.
func (m *Network) watchHangUp(s *stream) (hungUp <-chan struct{}, stop func()) {
	up, done := make(chan struct{}), make(chan struct{})
	m.group.Go("watch of a handshake", func(context.Context) error {
		defer close(done)
		if _, err := s.raw.in.Peek(1); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			close(up)
		}
		return nil
	})
	return up, func() {
		s.raw.SetReadDeadline(time.Unix(1, 0))
		<-done
	}
}

// acceptData hands a stream of data to the opening that its ticket is from. Each ticket is good
// once. If taken, the stream is the link's; else it stays the caller's. It does not wait.
func (m *Network) acceptData(s *stream, who identity, h hello, at *pendingConn) (taken bool,
	err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.tickets[string(h.Ticket)]
	if o == nil || s.secure() == m.plainData || s.secure() && o.peer != who {
		return false, refusef("this stream of data belongs to no link: dial the link first")
	}
	delete(m.tickets, string(h.Ticket))
	if !m.waiting.leave(at) {
		return false, refusef("there were too many connections: dial the link again")
	}
	o.came <- arrival{o.index[string(h.Ticket)], s} // has room for all tickets
	return true, nil
}
