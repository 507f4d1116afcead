// Package tcp is the network between real hosts: TCP links under TLS 1.3 with a certificate
// authority of the job's own, join tokens, and detection of silence without a time-out to choose.
// The bytes are in docs/formats/link.md, the reasons in docs/design/links.md.
//
// Every agent is linked with every other: one control stream for messages and signs of life, and
// streams of data, of which mostly one is used. Nobody is special: any agent lets newcomers in,
// also when the one that made the job is gone.
package tcp

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/group"
)

// Config is how an agent takes part. The zero value is good for tests.
type Config struct {
	// Name is the name that the agent would like, as CheckName allows it; "" = "host".
	Name fabric.Host
	// Listen is HOST:PORT; "" = any port on all interfaces.
	Listen string
	// Advertise is HOST or HOST:PORT by which the others reach it; "" = it is found out.
	Advertise string
	// Job is the name of the job. An agent that joins may leave it empty to take any.
	Job string
	// Refuse is why one that joins and names no job is not let in, as where something else than a
	// job has the links; "" = it is.
	Refuse string
	// Version is that of shoal. All agents must have the same.
	Version string
	// Authority is what Network.Authority has returned of an earlier job of that name, for one that
	// is begun again: tokens of then are good, and who took part can join. Only Create reads it;
	// nil = a new authority.
	Authority []byte
	// PlainData sends data without TLS. The agent that makes the job decides for all.
	PlainData bool
	// Log is where to log; nil = nowhere.
	Log *slog.Logger

	// Unreachable is called by Join when no agent answers at the address, or what is there hangs up
	// without an answer, with the reason and the number of attempts. Join then tries again until
	// its context ends. If nil, it gives up.
	Unreachable func(attempts int, why error)
}

// withDefaults returns c with the zero values replaced that stand for others.
func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = "host"
	}
	if c.Listen == "" {
		c.Listen = ":0"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Network is the fabric.Network of one agent. Any goroutine may call its exported methods.
type Network struct {
	config   Config           // only Job changes, before the first connection is served
	handler  fabric.Handler   // is told what arrives
	listener *net.TCPListener // where others dial this agent
	group    *group.Group     // all goroutines of the Network
	waiting  *pending         // connections in the handshake

	ctx    context.Context    // ends when the network closes
	cancel context.CancelFunc // ends ctx

	// Set before the first connection is served.
	self           identity    // the name and key of this agent
	address        string      // HOST:PORT where others reach this agent
	otherAddresses []string    // HOST:PORT on its other interfaces
	plainData      bool        // whether data goes without TLS
	authority      *authority  // that of the job
	server, client *tls.Config // for connections that this agent accepts, and that it dials

	// mu guards the four fields below it. Who needs linksMu too takes mu first.
	mu      sync.Mutex
	closing bool                  // whether no more links may be made
	peers   map[fabric.Host]*peer // by name, this agent's own included
	tickets map[string]*opening   // by ticket, links that wait for their streams of data
	changed chan struct{}         // closed and replaced when peers changes

	linksMu sync.RWMutex          // guards links
	links   map[fabric.Host]*link // links that are up

	limit     bucket          // holds the pieces to all peers together
	strangers bucket          // holds up new connections while many end without a name
	payloads  fabric.Payloads // counts the payloads of SendPiece that may still be read
}

var _ fabric.Network = (*Network)(nil)

// Create makes a job: its authority, and its first agent, which listens and answers from now on.
// The caller closes the Network.
func Create(config Config, h fabric.Handler) (*Network, error) {
	m, key, err := newNetwork(config, h)
	if err != nil {
		return nil, err
	}
	var a *authority
	if m.config.Authority != nil {
		a, err = parseAuthority(m.config.Authority)
	} else {
		a, err = newAuthority()
	}
	if err == nil {
		var certificate []byte
		m.self.host, m.plainData = m.config.Name, m.config.PlainData
		m.setAddresses(localIP(m.listener))
		if certificate, err = a.certify(m.self.host, key.Public().(ed25519.PublicKey)); err == nil {
			err = m.startServing(a, certificate, key)
		}
		if err == nil {
			return m, nil
		}
	}
	m.listener.Close()
	return nil, err
}

// newNetwork returns a Network that listens and does not answer yet, and the key of its agent. The
// caller closes it, or its listener as long as nothing else was started.
func newNetwork(config Config, h fabric.Handler) (*Network, ed25519.PrivateKey, error) {
	config = config.withDefaults()
	if err := CheckName(config.Name); err != nil {
		return nil, nil, fmt.Errorf("tcp: %w", err)
	}
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, nil, fmt.Errorf("tcp: %w", err)
	}
	listener, err := net.Listen("tcp", config.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("tcp: no place to listen at %q, choose another: %w",
			config.Listen, err)
	}
	m := &Network{
		config:   config,
		handler:  h,
		listener: listener.(*net.TCPListener),
		group:    group.New(context.Background()),
		waiting:  newPending(descriptorLimit()),
		peers:    map[fabric.Host]*peer{},
		tickets:  map[string]*opening{},
		changed:  make(chan struct{}),
		links:    map[fabric.Host]*link{},
		self:     identity{key: publicKeyInfo(public)},
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.strangers.set(strangersPerSecond)
	limitBacklog(m.listener, maxPending)
	return m, key, nil
}

// startServing makes the agent a member of the job and starts the goroutines that answer and judge
// other agents. It is called once, by Create or Join, which have the Network for themselves.
func (m *Network) startServing(a *authority, certificate []byte,
	key ed25519.PrivateKey) (err error) {
	m.authority = a
	if m.server, m.client, err = a.tlsConfigs(certificate, key); err != nil {
		return err
	}
	m.peers[m.self.host] = &peer{state: stateSelf, key: m.self.key}
	if m.plainData {
		m.config.Log.Warn("data between the hosts of this job is not encrypted; control is")
	}
	m.group.Go("listener", m.serve)
	m.group.Go("monitor", m.monitor)
	return nil
}

// Self returns the name of this agent, unique in the job for all time.
func (m *Network) Self() fabric.Host { return m.self.host }

// Job returns the name of the job.
func (m *Network) Job() string { return m.config.Job }

// PlainData reports whether the job sends data between its hosts without TLS.
func (m *Network) PlainData() bool { return m.plainData }

// Addr returns the HOST:PORT by which others reach this agent, for newcomers to join through it.
func (m *Network) Addr() string { return m.address }

// Token returns a line that lets its holder join at any agent of the job, from now on for ttl; with
// a negative ttl it has expired already.
func (m *Network) Token(ttl time.Duration) string {
	return m.authority.newToken(time.Now().Add(ttl)).String()
}

// Authority returns the authority of the job with its key, for Config.Authority and NewToken. Who
// has it can let hosts into the job: it belongs into a file that nobody else can read.
func (m *Network) Authority() []byte { return m.authority.bytes() }

// NewAuthority returns an authority for Config.Authority, for who must know it before the job is.
func NewAuthority() ([]byte, error) {
	a, err := newAuthority()
	if err != nil {
		return nil, err
	}
	return a.bytes(), nil
}

// NewToken returns a token as Network.Token does, by what Network.Authority has returned.
func NewToken(authority []byte, ttl time.Duration) (string, error) {
	a, err := parseAuthority(authority)
	if err != nil {
		return "", err
	}
	return a.newToken(time.Now().Add(ttl)).String(), nil
}

// Send implements fabric.Network: it queues a copy of b for the peer, or writes b at once, and does
// not wait.
func (m *Network) Send(to fabric.Host, b []byte) {
	if len(b) > fabric.MaxMessage {
		panic(fmt.Sprintf("tcp: a message of %d bytes; the limit is %d", len(b), fabric.MaxMessage))
	}
	if l := m.link(to); l != nil {
		l.send(kindMessage, b)
	}
}

// SendPiece implements fabric.Network: it queues the payload itself, which must stay as it is until
// it is sent, and does not wait.
func (m *Network) SendPiece(to fabric.Host, p fabric.Piece, payload []byte) {
	if int(p.Length) != len(payload) || p.Length > fabric.MaxPiece {
		panic(fmt.Sprintf("tcp: a piece of %d bytes with a payload of %d; the limit is %d",
			p.Length, len(payload), fabric.MaxPiece))
	}
	if l := m.link(to); l != nil {
		if l.calls.QueuePayload() {
			l.pieces.put(outgoing{p, payload})
		}
	}
}

// Unused implements fabric.Network: it calls f when no payload is read any more.
func (m *Network) Unused(f func()) { m.payloads.Unused(f) }

// Sent implements fabric.Counter. It asks the kernel about each stream of data, and leaves out the
// peers of which the kernel does not tell all.
func (m *Network) Sent() map[fabric.Host][]fabric.Sent {
	found := map[fabric.Host][]fabric.Sent{}
	for _, l := range m.allLinks() {
		var list []fabric.Sent
		for i, s := range l.data {
			if sent, ok := sentOn(s.raw.TCPConn); ok {
				sent.Held = time.Duration(l.heldFor[i].Load())
				list = append(list, sent)
			}
		}
		if len(list) == len(l.data) {
			found[l.peer] = list
		}
	}
	return found
}

// Drop implements fabric.Network: it has the goroutine of the link end it, and does not wait.
func (m *Network) Drop(peer fabric.Host, why error) {
	if l := m.link(peer); l != nil {
		l.end(ending{err: why, goodbye: true, reason: why.Error()})
	}
}

// Suspect implements fabric.Network: monitor looks at it, and nothing waits.
func (m *Network) Suspect(peer fabric.Host) {
	if l := m.link(peer); l != nil {
		l.suspectUntil.Store(int64(sinceStart() + suspicion))
	}
}

// Close implements fabric.Network: it blocks until all goroutines of the network have ended. It
// waits for peers to take what was queued for at most the time of a goodbye, two seconds.
func (m *Network) Close() error {
	m.mu.Lock()
	m.closing = true
	m.mu.Unlock()
	m.cancel()
	m.listener.Close()
	for _, l := range m.allLinks() {
		l.end(ending{err: fabric.ErrClosed, goodbye: true})
	}
	return m.group.Wait()
}

// link returns the link with a peer; nil = there is none.
func (m *Network) link(peer fabric.Host) *link {
	m.linksMu.RLock()
	defer m.linksMu.RUnlock()
	return m.links[peer]
}

// allLinks returns the links that are up, in no order.
func (m *Network) allLinks() []*link {
	m.linksMu.RLock()
	defer m.linksMu.RUnlock()
	return slices.Collect(maps.Values(m.links))
}
