package tcp

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// This file answers connections that others open. But for serve, its functions run on a goroutine
// of each connection, and wait for the peer until the connection's deadline. They only read fields
// of Network that were set before the first connection, and lock what others change.

// serve accepts connections until the network closes, and starts a goroutine to answer each. Where
// strangers come faster than strangersPerSecond, it lets the next ones wait in the kernel. It is a
// goroutine of the network.
func (m *Network) serve(context.Context) error {
	for {
		if !m.strangers.wait(0, m.ctx.Done()) {
			return nil
		}
		conn, err := m.listener.AcceptTCP()
		if m.ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			// Most likely this process has too many open files. Those in the handshake go first.
			m.config.Log.Error("no connection can be accepted", "error", err)
			m.waiting.evictOldest()
			select {
			case <-time.After(100 * time.Millisecond):
			case <-m.ctx.Done():
			}
			continue
		}
		// A connection is counted before a goroutine serves it. Else a stranger could open
		// connections faster than they are counted.
		at, ok := m.waiting.enter(m.ctx, conn)
		if !ok {
			conn.Close()
			return nil
		}
		m.group.Go("handshake", func(context.Context) error {
			m.answerConnection(conn, at)
			return nil
		})
	}
}

// answerConnection finds out what a connection is for, and does that, for at most handshakeTime.
// The connection is closed in the end, unless it became a stream of a link.
func (m *Network) answerConnection(conn *net.TCPConn, at *pendingConn) {
	defer m.waiting.leave(at)
	unbind := context.AfterFunc(m.ctx, func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(handshakeTime))
	s, who, err := m.openStream(conn)
	taken := false
	if s != nil {
		s.unbind = func() { unbind() }
	}
	if who.host != "" {
		m.waiting.leave(at)
	}
	if err == nil {
		taken, err = m.serveHello(s, who, at)
	}
	if err != nil && who.host == "" {
		m.strangers.charge(1, sinceStart())
	}
	if err != nil && m.ctx.Err() == nil {
		m.config.Log.Warn("a connection was refused", "from", conn.RemoteAddr().String(), "agent",
			string(who.host), "error", err)
		if s != nil {
			r := &refusal{}
			if !errors.As(err, &r) {
				r = refusef("%v", err)
			}
			writeJSONFrame(s, kindRefusal,
				refusal{By: r.By, Code: r.Code, Text: sanitize(r.Text)})
		}
	}
	if !taken {
		closeGently(conn)
		unbind()
	}
}

// closeGently closes a connection so that what was written last arrives: one that is closed with
// bytes unread is reset. It waits for the peer to hang up, for a second at most.
func closeGently(conn *net.TCPConn) {
	conn.CloseWrite()
	conn.SetReadDeadline(time.Now().Add(time.Second))
	io.Copy(io.Discard, io.LimitReader(conn, 1<<20))
	conn.Close()
}

// advice is what a stranger gets who does not speak TLS, as a person with a web browser does.
const advice = "shoal: this port is for the agents of a job, which speak TLS. Join with: shoal " +
	"agent --join HOST:PORT --token-file FILE\n"

// openStream takes a connection to the point where its first frame can be read, with a TLS
// handshake unless it is plain, and returns who is at its other end. It waits for the peer. Who
// says nothing gets no buffers: those of a flood of connections would cost more than all else.
func (m *Network) openStream(conn *net.TCPConn) (s *stream, who identity, err error) {
	first := make([]byte, 1)
	if _, err := conn.Read(first); err != nil {
		return nil, who, fmt.Errorf("it said nothing: %w", err)
	}
	w := newWire(conn)
	w.begun = first
	switch {
	case first[0] == plainMagic[0] && m.plainData:
		magic := make([]byte, len(plainMagic))
		if _, err := io.ReadFull(w.in, magic); err != nil || string(magic) != plainMagic {
			return nil, who, fmt.Errorf("%w: it begins with %q", errFrame, magic)
		}
		return newStream(w, w), who, nil
	case first[0] != 0x16: // a TLS handshake
		io.WriteString(w, advice)
		return nil, who, fmt.Errorf("it does not speak TLS, its first byte is %#x", first[0])
	}
	secure := tls.Server(w, m.server)
	if err := secure.HandshakeContext(m.ctx); err != nil {
		return nil, who, fmt.Errorf("the TLS handshake, perhaps with an agent of another job: %w",
			err)
	}
	who, _ = identify(secure.ConnectionState())
	return newStream(w, secure), who, nil
}

// serveHello reads the hello of a connection and does what it asks for, if who sent it may. If
// taken, the connection is now a stream of a link.
func (m *Network) serveHello(s *stream, who identity, at *pendingConn) (taken bool, err error) {
	h, err := readHello(&s.frames)
	if err != nil {
		return false, err
	}
	if h.Want == wantData && !s.secure() { // its ticket says all
		return m.acceptData(s, who, h, at)
	}
	// No caller is told anything of the job, of this host or of the version before it has shown
	// that it belongs to the job, or has a token.
	if err := m.authenticate(s, who, h); err != nil {
		return false, err
	}
	if err := h.checkVersion(m.config.Version); err != nil {
		return false, m.asRefusal(err)
	}
	if err := h.checkJob(&m.config); err != nil {
		return false, m.asRefusal(err)
	}
	taken, err = m.serveWant(s, who, h, at)
	return taken, m.asRefusal(err)
}

// authenticate returns an error unless who dialled is a member, or has a token to become one.
func (m *Network) authenticate(s *stream, who identity, h hello) error {
	conn, secure := s.Conn.(*tls.Conn)
	switch {
	case h.Want == wantJoin && secure:
		return m.authority.checkProof(time.Unix(h.Expires, 0), h.Proof, conn.ConnectionState(),
			time.Now())
	case who.host == "":
		return refusef("you are no member of this job: join it with a token first")
	}
	return CheckName(who.host)
}

// asRefusal returns an error as a refusal that says that this host refuses; nil for nil.
func (m *Network) asRefusal(err error) error {
	if err == nil {
		return nil
	}
	r := &refusal{}
	if !errors.As(err, &r) {
		r = refusef("%v", err)
	}
	return &refusal{m.self.host, r.Code, r.Text}
}

// serveWant does what the hello of an agent of the job asks for. If taken, the connection is now a
// stream of a link.
func (m *Network) serveWant(s *stream, who identity, h hello, at *pendingConn) (taken bool,
	err error) {
	switch h.Want {
	case wantJoin:
		return false, m.admitNewcomer(s, h)
	case wantLink:
		if h.To != m.self.host {
			return false, refusef("%s listens here, and not %s", m.self.host,
				sanitize(string(h.To)))
		}
		return m.acceptLink(s, who, h)
	case wantData:
		return m.acceptData(s, who, h, at)
	case wantAgents:
		return false, writeJSONFrame(s, kindWelcome, welcome{Agents: m.knownAgents()})
	}
	return false, refusef(
		"%q is nothing that can be wanted: use the same version of shoal on all hosts",
		sanitize(h.Want))
}

// admitNewcomer lets a newcomer into the job, which has shown that it knows the secret of a token:
// it sends it a name, a certificate and the authority's key. The connection stays the caller's.
func (m *Network) admitNewcomer(s *stream, h hello) error {
	if err := CheckName(h.Name); err != nil {
		return err
	}
	if len(h.Key) != ed25519.PublicKeySize {
		return refusef("the key has %d bytes instead of %d", len(h.Key), ed25519.PublicKeySize)
	}
	key := ed25519.PublicKey(h.Key)
	used := m.usedNames()
	name := m.reserveName(h.Name, publicKeyInfo(key))
	certificate, err := m.authority.certify(name, key)
	if err != nil {
		return err
	}
	m.config.Log.Info("a newcomer was let in", "agent", string(name), "from",
		s.RemoteAddr().String())
	return writeJSONFrame(s, kindWelcome, welcome{Agents: m.knownAgents(), Joined: &joined{
		Job:          m.config.Job,
		Host:         name,
		Certificate:  certificate,
		Authority:    m.authority.certificate.Raw,
		AuthorityKey: m.authority.key.Seed(),
		PlainData:    m.plainData,
		By:           agent{m.self.host, m.address},
		Used:         used,
	}})
}

// publicKeyInfo returns a key as it stands in certificates.
func publicKeyInfo(key ed25519.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		panic(err) // every Ed25519 key can be
	}
	return string(der)
}
