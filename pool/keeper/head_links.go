package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/tcp"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/pool"
)

// The links of the head of a pool with the keepers of other hosts. They are those of the agents of
// a job, with the same tokens. open calls listen before other goroutines know the keeper. unlink,
// admit, hostUp and order run on the goroutine of keeper.loop; the other functions may be called on
// any goroutine.

// linkName returns the name under which the keepers of a pool are linked.
func linkName(pool string) string { return "pool-" + pool }

// noJob returns what is said to who wants to join a pool as if it was a job.
func noJob(pool string) string {
	return fmt.Sprintf("this is the pool %s, and no job: a host joins it with shoal pool join",
		pool)
}

// tokenLife is how long hosts can join with a token; renewToken is after which time the next one is
// made.
const (
	tokenLife  = 24 * time.Hour
	renewToken = time.Hour
)

// headLinks are the links of the head. links and peers belong to the goroutine of keeper.loop.
type headLinks struct {
	network *tcp.Network           // nil = the pool has one host
	ready   chan struct{}          // closed when network is set
	links   map[string]fabric.Host // by host of the pool
	peers   map[fabric.Host]string // the other way round
	asks    chan struct{}          // has a token for each request that is being answered
	tools   http.Handler           // answers them
}

// maxAsks bounds the requests of other hosts that are answered at one time.
const maxAsks = 64

// listen opens the network on which other hosts join, if there is to be one, and tells
// Config.Invite how they do.
func (k *keeper) listen() error {
	k.links = map[string]fabric.Host{}
	k.peers, k.asks = map[fabric.Host]string{}, make(chan struct{}, maxAsks)
	if k.Listen == "" {
		return nil
	}
	k.ready = make(chan struct{})
	network, err := tcp.Create(tcp.Config{Job: linkName(k.Name), Name: fabric.Host(k.Host),
		Listen: k.Listen, Version: version.Version, Authority: k.Authority,
		Refuse: noJob(k.Name)}, headHandler{k})
	if err != nil {
		return err
	}
	k.network = network
	close(k.ready)
	if err := k.KeepAuthority(network.Authority()); err != nil {
		return err
	}
	return k.Invite(network.Addr(), network.Token(tokenLife))
}

// closeNetwork closes the network, if there is one. Nobody uses it any more.
func (k *keeper) closeNetwork() {
	if k.network != nil {
		k.network.Close()
	}
}

// renew makes a new token now and then, until ctx ends. open starts it on a goroutine of its own.
func (k *keeper) renew(ctx context.Context) error {
	ticker := time.NewTicker(renewToken)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if err := k.Invite(k.network.Addr(), k.network.Token(tokenLife)); err != nil {
				k.post(func() { fmt.Fprintf(k.Notes, "shoal: %v\n", err) })
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// address returns where the head listens; "" = nowhere.
func (k *keeper) address() string {
	if k.network == nil {
		return ""
	}
	return k.network.Addr()
}

// hostOf returns the first half of HOST:PORT.
func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return host
}

// send sends a message to a peer. One that is too long is not sent.
func send(network *tcp.Network, to fabric.Host, m *message) error {
	b, err := m.encode()
	if err == nil {
		network.Send(to, b)
	}
	return err
}

// headHandler is told what other hosts send to the head. Goroutines of the network call its
// methods, which leave what follows to the goroutine of loop, and wait where much is to be done.
type headHandler struct{ k *keeper }

// Up implements fabric.Handler, and does nothing: a keeper that has a link says next who it is.
func (headHandler) Up(fabric.Host) {}

// Place implements fabric.Handler: keepers send no pieces.
func (headHandler) Place(fabric.Host, fabric.Piece) []byte { return nil }

// Arrived implements fabric.Handler: keepers send no pieces.
func (headHandler) Arrived(fabric.Host, fabric.Piece) {}

// Message implements fabric.Handler: it reads a message of another keeper, and has the goroutine of
// loop do what it asks for, or ends the link with one that cannot be read. It waits until the
// network is there.
func (h headHandler) Message(from fabric.Host, b []byte) {
	k := h.k
	<-k.ready
	m, err := decodeMessage(b)
	switch {
	case err != nil:
		k.network.Drop(from, err)
	case m.Hello != nil:
		k.post(func() { k.admit(from, m.Hello) })
	case m.Report != nil:
		k.post(func() {
			if k.peers[from] == m.Report.Host {
				k.m.Reported(k.now(), *m.Report)
			}
		})
	case m.Ask != nil:
		k.answerFor(from, m.Ask)
	default:
		k.network.Drop(from, errors.New("this keeper is the head of the pool"))
	}
}

// Down implements fabric.Handler: it has the goroutine of loop forget the link.
func (h headHandler) Down(peer fabric.Host, _ error) {
	k := h.k
	k.post(func() { k.unlink(peer) })
}

// unlink tells the machine that the link with the keeper of a host is gone.
func (k *keeper) unlink(peer fabric.Host) {
	host, known := k.peers[peer]
	if delete(k.peers, peer); known && k.links[host] == peer {
		delete(k.links, host)
		k.m.HostDown(k.now(), host)
	}
}

// admit takes a host into the pool, or tells it why it cannot. from is the other end of the link,
// and h what the keeper there has said of its host.
func (k *keeper) admit(from fabric.Host, h *hello) {
	if err := k.m.Admit(k.now(), h.Host, h.Machine, false); err != nil {
		_ = send(k.network, from, &message{Refused: &refused{err.Error()}}) // a short one
		return
	}
	if old, up := k.links[h.Host]; up { // its keeper was killed, which shows only now
		k.unlink(old)
		k.network.Drop(old, errors.New("another keeper of this host has come"))
	}
	k.links[h.Host], k.peers[from] = from, h.Host
	_ = send(k.network, from, &message{Welcome: &welcome{k.Name}})
	k.hostUp(h)
}

// hostUp tells the machine that the keeper of a host is linked, or is this one. One that has been
// started since it was linked last takes back that its host is out of the pool.
func (k *keeper) hostUp(h *hello) {
	k.m.HostUp(k.now(), h.Host, h.Slots, h.Address)
	if !h.Again {
		_ = k.m.Leave(k.now(), h.Host, false) // the host is in the pool
	}
	k.m.SetLink(k.now(), h.Host, h.Link)
}

// order hands an order to the keeper of its host, and does not wait until it is carried out. Where
// no keeper of the host is linked it does nothing, for the machine orders again.
func (k *keeper) order(o pool.Order) {
	if o.Host == k.Host {
		k.host.take(o)
		return
	}
	peer, up := k.links[o.Host]
	if !up {
		return // the machine hears of it, and orders anew when the host is back
	}
	if err := send(k.network, peer, &message{Order: &o}); err != nil {
		fmt.Fprintf(k.Notes, "shoal: job %s: an order for host %s: %v\n", o.Job, o.Host, err)
	}
}

// answerFor answers what a tool asks on another host, which is from, on a goroutine of its own. It
// does not wait: where too much is being answered, it refuses.
func (k *keeper) answerFor(from fabric.Host, f *forwarded) {
	reply := func(status int, body []byte) {
		for _, part := range (answered{ID: f.ID, Status: status, Body: body}).inParts() {
			_ = send(k.network, from, part) // a short one
		}
	}
	select {
	case k.asks <- struct{}{}:
	default:
		reply(http.StatusServiceUnavailable, refusalText("the head of the pool has too much "+
			"to answer: ask again"))
		return
	}
	k.group.Go("answer another host", func(ctx context.Context) error {
		defer func() { <-k.asks }()
		method := http.MethodPost
		if f.Body == nil {
			method = http.MethodGet
		}
		r, err := http.NewRequestWithContext(ctx, method, "http://pool"+f.Path,
			bytes.NewReader(f.Body))
		if err != nil {
			return nil // the paths are known to be good
		}
		w := &recorder{status: http.StatusOK, header: http.Header{}}
		k.tools.ServeHTTP(w, r)
		if ctx.Err() == nil {
			reply(w.status, w.body.Bytes())
		}
		return nil
	})
}

// recorder keeps the answer to a request, as the http.ResponseWriter of answerFor. Only the
// goroutine that answers the request uses it.
type recorder struct {
	status int
	header http.Header
	body   bytes.Buffer
}

// Header implements http.ResponseWriter: it returns the header of the answer, which the caller may
// change.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter: it keeps the status of the answer.
func (r *recorder) WriteHeader(status int) { r.status = status }

// Write implements http.ResponseWriter: it appends to the body of the answer.
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
