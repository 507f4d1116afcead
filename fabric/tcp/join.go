package tcp

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/group"
)

// This file is how a newcomer becomes a member. Its functions run on the goroutine of Join, which
// has the Network for itself until startServing; those of Network that read m.peers take m.mu.

// reachTime is how long a newcomer tries to reach an agent that the others have a link with, from
// the end of the first attempt on. One that is lost meanwhile is not waited for.
const reachTime = 10 * time.Second

// Join makes this agent a member of the job that the token is for, through any of the job's agents,
// and links it with all of them. It waits for them; the context bounds the joining only. The caller
// closes the Network.
func Join(ctx context.Context, address, tokenText string, config Config, h fabric.Handler) (
	*Network, error) {
	t, err := parseToken(tokenText)
	var m *Network
	if err == nil {
		m, err = joinWithRetries(ctx, address, t, config, h)
	}
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) { // what failed was cut short
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("tcp: cannot join the job at %s: %w", address, err)
	}
	return m, nil
}

// errUnreachable marks the failure of a first connection: the job may not have begun yet, the
// network may not be up, or the agent there may have too many connections.
type errUnreachable struct{ error }

// Unwrap returns the failure itself.
func (e errUnreachable) Unwrap() error { return e.error }

// firstRetry and lastRetry are how long a newcomer waits until it dials again, at first and in the
// end.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 8 * time.Second
)

// joinWithRetries joins, and if config.Unreachable is set, calls it and tries again until an agent
// can be reached or the context ends.
func joinWithRetries(ctx context.Context, address string, t token, config Config,
	h fabric.Handler) (
	*Network, error) {
	wait := firstRetry
	for attempts := 1; ; attempts++ {
		m, err := joinOnce(ctx, address, t, config, h)
		if !errors.As(err, &errUnreachable{}) || config.Unreachable == nil || ctx.Err() != nil {
			return m, err
		}
		config.Unreachable(attempts, err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
		wait = min(2*wait, lastRetry)
	}
}

// joinOnce joins in one attempt, and waits until this agent is linked with all. Where it fails,
// what it opened is closed.
func joinOnce(ctx context.Context, address string, t token, config Config,
	h fabric.Handler) (*Network,
	error) {
	m, key, err := newNetwork(config, h)
	if err != nil {
		return nil, err
	}
	agents, err := m.becomeMember(ctx, address, t, key)
	if err == nil {
		err = m.linkWithAll(ctx, agents)
	}
	if err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// becomeMember asks an agent of the job to be let in, waits for the answer, takes over what it is
// given, and begins to answer others. It returns the agents to be linked with. An errUnreachable
// says that no agent was reached.
func (m *Network) becomeMember(ctx context.Context, address string, t token,
	key ed25519.PrivateKey) ([]agent,
	error) {
	c := &call{network: m, ctx: ctx, to: agent{Address: address}}
	defer c.closeStreams()
	s, err := c.connect(address, newcomerTLS(t))
	if err != nil {
		return nil, markUnreachable(ctx, err)
	}
	h := m.newHello(wantJoin)
	h.Name, h.Key, h.Expires = m.config.Name, key.Public().(ed25519.PublicKey), t.expires.Unix()
	if h.Proof, err = t.proof(s.Conn.(*tls.Conn).ConnectionState()); err != nil {
		return nil, err
	}
	w, err := exchangeHello(s, &s.frames, h)
	if err != nil {
		return nil, markUnreachable(ctx, err)
	}
	j := w.Joined
	if j == nil {
		return nil, fmt.Errorf("%w: a welcome that lets nobody in", errFrame)
	}
	a, err := j.verify(t, key.Public().(ed25519.PublicKey))
	if err != nil {
		return nil, err
	}
	m.self.host, m.config.Job, m.plainData = j.Host, j.Job, j.PlainData
	by := m.setAddressesFrom(s, j.By)
	m.addUsedNames(j.Used)
	if err := m.startServing(a, j.Certificate, key); err != nil {
		return nil, err
	}
	agents := []agent{by}
	for _, other := range w.Agents {
		if other.Host != by.Host {
			agents = append(agents, other)
		}
	}
	return agents, nil
}

// markUnreachable returns an error of the first connection as an errUnreachable that says what it
// means, where no agent has answered; else as it is.
func markUnreachable(ctx context.Context, err error) error {
	if name := (*net.DNSError)(nil); errors.As(err, &name) {
		return errUnreachable{fmt.Errorf(
			"no address is known for %s here: check the name, or give the address: %w", name.Name,
			err)}
	}
	if silent := (net.Error)(nil); errors.Is(err, syscall.ECONNREFUSED) ||
		ctx.Err() == nil && errors.As(err, &silent) && silent.Timeout() {
		if silent != nil {
			err = os.ErrDeadlineExceeded // the error itself has another port each time
		}
		return errUnreachable{fmt.Errorf("no host of a job or a pool answers there; it may "+
			"have ended, or listen at another address or port (shoal ps --json on its host has it "+
			"as \"join\", shoal pool ls --json as \"address\"), or a firewall is between: %w", err)}
	}
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		return errUnreachable{err} // no route, or no network
	}
	if hasHungUp(err) { // it ends, does not let anybody in yet, or has too many connections
		return errUnreachable{err}
	}
	return err
}

// verify checks what a newcomer was given against its token and key, and returns the authority of
// the job.
func (j *joined) verify(t token, key ed25519.PublicKey) (*authority, error) {
	if sha256.Sum256(j.Authority) != t.authority {
		return nil, errOtherAuthority
	}
	a, err := openAuthority(j.Authority, j.AuthorityKey)
	if err != nil {
		return nil, err
	}
	c, err := x509.ParseCertificate(j.Certificate)
	if err != nil {
		return nil, fmt.Errorf("the certificate of this agent: %w", err)
	}
	if err := c.CheckSignatureFrom(a.certificate); err != nil {
		return nil, fmt.Errorf("the certificate of this agent: %w", err)
	}
	if !key.Equal(c.PublicKey) || c.Subject.CommonName != string(j.Host) {
		return nil, fmt.Errorf("the certificate of this agent is for another one, %q",
			sanitize(c.Subject.CommonName))
	}
	return a, CheckName(j.Host)
}

// setAddressesFrom sets where this agent can be reached by the stream over which it was let in, and
// returns where the agent that let it in can. A newcomer that came over the loopback is on the host
// of the other, and reached where that one is.
func (m *Network) setAddressesFrom(s *stream, by agent) agent {
	local, remote := s.LocalAddr().(*net.TCPAddr), s.RemoteAddr().(*net.TCPAddr)
	ip := local.IP
	if elsewhere := hostIP(by.Address); remote.IP.IsLoopback() && elsewhere != nil {
		ip = elsewhere
	} else {
		by.Address = remote.String()
	}
	if listens := m.listener.Addr().(*net.TCPAddr).IP; !listens.IsUnspecified() {
		ip = listens
	}
	m.setAddresses(ip)
	return by
}

// linkWithAll links this agent with all agents of the job, also those that it hears of on the way,
// and waits until it is done.
func (m *Network) linkWithAll(ctx context.Context, agents []agent) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	tried := attempts{}
	var failure error // why the last attempt failed; nil = none has
	for {
		todo, changed := m.unlinkedAgents(agents)
		if len(todo) == 0 {
			return nil
		}
		if tried.haveAll(todo) {
			select {
			case <-ctx.Done():
			case <-changed: // perhaps the agent that is dialling this one
			case <-time.After(100 * time.Millisecond):
			}
			if now, err := m.askAnyAgent(ctx); err == nil {
				agents = now // who was lost meanwhile is no longer in it
				todo, _ = m.unlinkedAgents(agents)
			}
		}
		more, errs := m.dialEach(ctx, todo)
		agents = append(agents, more...)
		over, err := tried.add(todo, errs, time.Now()), errors.Join(errs...)
		// that the context has ended is no news
		if err != nil && (failure == nil || ctx.Err() == nil) {
			failure = err
		}
		var r *refusal
		switch {
		case errors.As(err, &r) && (r.Code == codeTaken || r.Code == codeGone):
			return err
		case ctx.Err() != nil && failure == nil:
			return ctx.Err()
		case ctx.Err() != nil, over:
			return fmt.Errorf("not all of its hosts can be reached from here, as they must be; "+
				"is there a firewall, or an address that is good elsewhere only? %w", failure)
		}
	}
}

// attempts has, for each agent that was tried, until when a newcomer tries to link with it:
// reachTime for each, since the newcomer may hear of one late.
type attempts map[fabric.Host]time.Time

// haveAll reports whether all agents of a list were tried.
func (t attempts) haveAll(list []agent) bool {
	return !slices.ContainsFunc(list, func(a agent) bool { return t[a.Host].IsZero() })
}

// add records attempts that have ended now, errs by agent, nil = it has not failed. It reports
// whether one has failed that was tried for long enough.
func (t attempts) add(list []agent, errs []error, now time.Time) (over bool) {
	for i, a := range list {
		if t[a.Host].IsZero() {
			t[a.Host] = now.Add(reachTime)
		}
		over = over || errs[i] != nil && !now.Before(t[a.Host])
	}
	return over
}

// unlinkedAgents returns those of the agents that this one neither is nor was linked with; changed
// is closed when that may be different.
func (m *Network) unlinkedAgents(agents []agent) (list []agent, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := map[fabric.Host]bool{}
	for _, a := range agents {
		k := m.peers[a.Host]
		done := k != nil && (k.state == stateUp || k.state == stateGone || k.state == stateSelf)
		if !done && !seen[a.Host] {
			list = append(list, a)
		}
		seen[a.Host] = true
	}
	return list, m.changed
}

// dialEach dials all of the agents at once, waits for all, and returns whom they know and, by
// agent, why it could not be linked. One with which there is a link, or that is dialling this
// agent, is no error.
func (m *Network) dialEach(ctx context.Context, agents []agent) (more []agent, errs []error) {
	others := make([][]agent, len(agents))
	errs = make([]error, len(agents))
	g := group.New(ctx)
	for i, a := range agents {
		g.Go("meet", func(ctx context.Context) error {
			others[i], errs[i] = m.dialLink(ctx, a)
			if r := (*refusal)(nil); errors.As(errs[i], &r) && r.Code == codeDuplicate {
				errs[i] = nil
			}
			return nil
		})
	}
	g.Wait()
	for _, o := range others {
		more = append(more, o...)
	}
	return more, errs
}
