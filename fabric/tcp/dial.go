package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/group"
)

// This file is the side of a link that dials; accept.go is the other one. Any goroutine may call
// the methods of Network, which take m.mu themselves; those that dial wait for the other agent.

// connectTime is how long one attempt to reach an address may take: a lost first packet is sent
// again after a second.
const connectTime = 2 * time.Second

// call is a conversation that this agent begins: for a link, several connections. connect may run
// on several goroutines at once; the other methods are for the one that made the call.
type call struct {
	network *Network        // the Network of this agent
	ctx     context.Context // ends the call: its connections are closed
	to      agent           // whom it means; Host is "" before it is known

	mu      sync.Mutex // guards streams while connect runs
	streams []*stream  // the streams that were opened, to be closed together
}

// connect opens one more connection, to an address of the other one, under TLS unless config is
// nil, and adds it to c.streams, also where it fails later. It waits for the other side, for at
// most connectTime and handshakeTime. The stream is closed when the context or the network ends.
func (c *call) connect(address string, config *tls.Config) (*stream, error) {
	dialer := net.Dialer{Timeout: connectTime}
	conn, err := dialer.DialContext(c.ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	w := newWire(conn.(*net.TCPConn))
	s := newStream(w, w)
	unbind, unbindNetwork := context.AfterFunc(c.ctx, func() {
		conn.Close()
	}), context.AfterFunc(c.network.ctx, func() { conn.Close() })
	s.unbind = func() { unbind(); unbindNetwork() }
	c.mu.Lock()
	c.streams = append(c.streams, s)
	c.mu.Unlock()
	w.SetDeadline(time.Now().Add(handshakeTime))
	if config == nil {
		_, err := io.WriteString(w, plainMagic)
		return s, err
	}
	secure := tls.Client(w, config)
	s.Conn, s.frames.from = secure, secure
	return s, explainConnError(secure.HandshakeContext(c.ctx))
}

// closeStreams closes all connections of the call, when no connect runs any more. It is not called
// where they became a link's.
func (c *call) closeStreams() {
	for _, s := range c.streams {
		s.abandon()
	}
}

// newHello returns what this agent says first on a connection for the purpose want: wantJoin,
// wantLink, wantData or wantAgents.
func (m *Network) newHello(want string) hello {
	return hello{Protocol: Protocol, Version: m.config.Version, Job: m.config.Job, Want: want}
}

// dialLink makes a link with another agent, unless there is or was one or one is on its way, and
// starts it. It waits for the other agent, and returns the agents that the other one knows, also
// where another link was quicker; none where it did not dial.
func (m *Network) dialLink(ctx context.Context, a agent) (others []agent, err error) {
	if !m.startDialling(a) {
		return nil, nil
	}
	c := &call{network: m, ctx: ctx, to: a}
	control, data, who, others, err := c.openLink()
	if err != nil {
		c.closeStreams()
		m.setLinkFailed(a.Host, stateDialling)
		return others, fmt.Errorf("%s at %s: %w", a.Host, a.Address, err)
	}
	l := newLink(m, a.Host, control, data)
	if !m.setLinked(l, who.key, stateDialling) {
		c.closeStreams()
		return others, nil
	}
	l.start()
	return others, nil
}

// openLink opens all streams of a link and waits until the other side is ready. Others are the
// agents that the other side knows. Where it fails, closeStreams closes what was opened.
func (c *call) openLink() (control *stream, data []*stream, who identity, others []agent,
	err error) {
	if control, err = c.connect(c.to.Address, c.network.client); err != nil {
		return nil, nil, who, nil, err
	}
	who, _ = identify(control.Conn.(*tls.Conn).ConnectionState())
	h := c.network.newHello(wantLink)
	h.To, h.Address = c.to.Host, c.network.address
	w, err := exchangeHello(control, &control.frames, h)
	if err != nil {
		return nil, nil, who, nil, err
	}
	if len(w.Tickets) != fabric.MaxStreams {
		return nil, nil, who, w.Agents,
			fmt.Errorf("%w: %d tickets for %d streams of data", errFrame, len(w.Tickets),
				fabric.MaxStreams)
	}
	if data, err = c.openData(w.Tickets, c.dataPaths(control, w.OtherAddresses)); err != nil {
		return nil, nil, who, w.Agents, err
	}
	_, _, err = control.frames.nextFrame(kindReady)
	return control, data, who, w.Agents, explainConnError(err)
}

// openData opens the streams of data, all at once, over the paths in turn. That the other side has
// all of them, it says on the control stream.
func (c *call) openData(tickets [][]byte, paths []string) ([]*stream, error) {
	config := c.network.client
	if c.network.plainData {
		config = nil
	}
	data, errs := make([]*stream, len(tickets)), make([]error, len(tickets))
	g := group.New(c.ctx)
	for i, ticket := range tickets {
		g.Go("stream", func(context.Context) error {
			if data[i], errs[i] = c.connect(paths[i%len(paths)], config); errs[i] != nil {
				return nil
			}
			h := c.network.newHello(wantData)
			h.Ticket = ticket
			errs[i] = writeJSONFrame(data[i], kindHello, h)
			return nil
		})
	}
	return data, errors.Join(g.Wait(), errors.Join(errs...))
}

// askAnyAgent asks the agents with a link one after the other, and returns the agents that the
// first one knows that answers. It waits for them; any goroutine may call it, and askAgent.
func (m *Network) askAnyAgent(ctx context.Context) (agents []agent, err error) {
	err = errors.New("there is no link with anybody")
	for _, a := range m.agentsInState(stateUp) {
		if agents, err = m.askAgent(ctx, a); err == nil {
			return agents, nil
		}
	}
	return nil, err
}

// askAgent asks another agent over a connection of its own, and returns the agents that it knows,
// itself first.
func (m *Network) askAgent(ctx context.Context, a agent) ([]agent, error) {
	c := &call{network: m, ctx: ctx, to: a}
	defer c.closeStreams()
	s, err := c.connect(a.Address, m.client)
	if err != nil {
		return nil, err
	}
	w, err := exchangeHello(s, &s.frames, m.newHello(wantAgents))
	if err == nil && (len(w.Agents) == 0 || w.Agents[0].Host != a.Host) {
		err = fmt.Errorf("it is not %s who listens there", a.Host)
	}
	return w.Agents, err
}

// Seek implements fabric.Network. It asks all agents whose link is gone at once, and waits for the
// slowest.
func (m *Network) Seek(ctx context.Context) map[fabric.Host][]fabric.Host {
	gone := m.agentsInState(stateGone)
	answers := make([][]agent, len(gone))
	g := group.New(ctx)
	for i, a := range gone {
		g.Go("seek", func(ctx context.Context) error {
			// who does not answer, or is another one, is not there
			if agents, err := m.askAgent(ctx, a); err == nil {
				answers[i] = agents
			}
			return nil
		})
	}
	_ = g.Wait()
	links := map[fabric.Host][]fabric.Host{}
	for i, a := range gone {
		if len(answers[i]) == 0 {
			continue
		}
		links[a.Host] = []fabric.Host{}
		for _, other := range answers[i][1:] {
			links[a.Host] = append(links[a.Host], other.Host)
		}
	}
	return links
}
