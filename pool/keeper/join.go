package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/tcp"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/pool"
)

// The keeper of a host that has joined a pool: it carries out the orders of the head for its host,
// and hands on what tools ask. When the head is away, its jobs go on.

// guest is the keeper of a host that has joined. Its first goroutine runs keep, and in it one
// session after the other; a second one calls report, and forward and ask run on the goroutine of a
// tool's request. mu guards what stands below it, and is not held while the head is waited for.
type guest struct {
	Config
	host  *host
	group *group.Group

	mu      sync.Mutex
	network *tcp.Network       // nil = there is none now
	head    fabric.Host        // the head, once it has sent a welcome; "" = not yet
	asks    map[uint64]*asking // by number, what the head was asked
	asked   uint64             // number of the last one
}

// asking is what the head was asked and has not answered.
type asking struct {
	body []byte        // the parts of the answer that have come
	done chan answered // has room for the answer
}

// Join keeps this host in a pool that another host leads, until ctx ends or somebody asks for the
// keeper's end; its jobs go on. started is called once, when the head has welcomed this host.
func Join(ctx context.Context, c Config, started func()) error {
	socket, err := Socket(c.Name)
	if err != nil {
		return err
	}
	lock, err := lockFolder(c)
	if err != nil {
		return err
	}
	defer lock.Close()
	g := &guest{Config: c, group: group.New(ctx), asks: map[uint64]*asking{}}
	g.host = newHost(c, g.group)
	if err := serveTools(g.group, c.Name, g.handler()); err != nil {
		return err
	}
	defer os.Remove(socket)
	g.group.Go("report of this host", func(ctx context.Context) error {
		return g.host.reports(ctx, g.report)
	})
	var kept error
	g.group.Go("keep the host", func(ctx context.Context) error {
		g.host.find(ctx)
		kept = g.keep(ctx, started)
		return kept
	})
	if err = g.group.Wait(); kept != nil {
		err = kept // without the name of a goroutine
	}
	if no := refusedError(""); errors.As(err, &no) {
		return &pool.UsageError{Msg: string(no)}
	}
	return err
}

// report sends a report to the head, if there is one. It does not wait; one that is too long ends
// the link. The report is made under the lock, so it is none of before this link: that could lack a
// part that an earlier link has begun.
func (g *guest) report() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.head == "" {
		return
	}
	r := g.host.report()
	if err := send(g.network, g.head, &message{Report: &r}); err != nil {
		g.network.Drop(g.head, fmt.Errorf("the report of this host: %w", err))
	}
}

// refusedError is why the head does not take this host.
type refusedError string

// Error returns the reason.
func (e refusedError) Error() string { return string(e) }

// rejoinPause is how long a keeper waits that could not join again.
const rejoinPause = 2 * time.Second

// keep links this host with the head, again and again, until ctx ends or the head refuses it. It
// fails where the first link ends before the head has welcomed this host.
func (g *guest) keep(ctx context.Context, started func()) error {
	first := true
	for {
		err := g.session(ctx, !first, func() {
			if first {
				started()
			}
			first = false
		})
		no := refusedError("")
		switch {
		case ctx.Err() != nil:
			return nil
		case first || errors.As(err, &no):
			return err
		}
		fmt.Fprintf(g.Notes, "shoal: the head of pool %s is away (%v); jobs go on, and this host "+
			"joins again when it answers\n", g.Name, err)
		select {
		case <-time.After(rejoinPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// welcomeTime is how long the head may take to answer to a keeper that has joined.
const welcomeTime = 20 * time.Second

// session is one link with the head, from the joining to its end, for which it waits, and whose
// reason it returns; nil where ctx has ended. again says that there was one before.
func (g *guest) session(ctx context.Context, again bool, welcomed func()) error {
	token := g.Token
	var err error
	if g.Authority != nil {
		if token, err = tcp.NewToken(g.Authority, tokenLife); err != nil {
			return err
		}
	}
	g.host.newLink()
	s := &session{guest: g, again: again, over: make(chan error, 1),
		welcome: make(chan struct{}, 1)}
	network, err := tcp.Join(ctx, g.Config.Join, token, tcp.Config{Job: linkName(g.Name),
		Name: fabric.Host(g.Host), Listen: g.Listen, Version: version.Version,
		Refuse: noJob(g.Name), Unreachable: unreachable(g.Notes, g.Config.Join)}, s)
	if err != nil {
		return err
	}
	defer network.Close()
	g.host.setJobsAt(hostOf(network.Addr()))
	authority := network.Authority()
	if !bytes.Equal(authority, g.Authority) { // else it is kept, and there may be no room for it
		if err := g.KeepAuthority(authority); err != nil {
			return err
		}
	}
	g.mu.Lock()
	g.network, g.Authority = network, authority
	g.mu.Unlock()
	defer g.leave()
	s.open(network)
	late := time.NewTimer(welcomeTime)
	defer late.Stop()
	for {
		select {
		case <-s.welcome:
			late.Stop()
			g.host.tell()
			welcomed()
		case err := <-s.over:
			return err
		case <-late.C:
			return errors.New("no head of the pool answers there")
		case <-ctx.Done():
			return nil
		}
	}
}

// unreachable returns a function that tells people, once a reason, why the head at an address
// cannot be reached. tcp.Join calls that on the goroutine of session, after each attempt.
func unreachable(notes io.Writer, address string) func(attempts int, why error) {
	last := ""
	return func(_ int, why error) {
		if why.Error() != last {
			last = why.Error()
			fmt.Fprintf(notes, "shoal: the pool at %s cannot be reached yet: %v; trying again "+
				"until it answers\n", address, why)
		}
	}
}

// leave forgets the link with the head; who waits for its answers is told.
func (g *guest) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.network, g.head = nil, ""
	for id, x := range g.asks {
		x.done <- answered{Status: http.StatusConflict, Body: refusalText("the head of the pool " +
			"was lost before it answered; what it was asked may be done: see shoal queue when it " +
			"is back")}
		delete(g.asks, id)
	}
}

// session is told what the other keepers send on one link of a guest: the network calls the methods
// of fabric.Handler on its goroutines. Where a method takes both locks, it is one after the other.
type session struct {
	guest   *guest
	again   bool          // whether the head has welcomed this keeper before
	welcome chan struct{} // has room for one
	over    chan error    // has room for one: why the link with the head is gone

	mu      sync.Mutex
	network *tcp.Network  // nil = it is not open yet; it is set once
	early   []fabric.Host // peers whose link was there before network
	linked  int           // peers that are linked
}

// open sets the network of a session, and says hello to all who are linked. guest.session calls it
// once.
func (s *session) open(network *tcp.Network) {
	s.mu.Lock()
	s.network = network
	early := s.early
	s.mu.Unlock()
	for _, peer := range early {
		s.hello(peer)
	}
}

// hello tells a peer which host this is. One that is not the head does not answer.
func (s *session) hello(peer fabric.Host) {
	g := s.guest
	_ = send(s.network, peer, &message{Hello: &hello{g.Host, g.Machine, g.Slots,
		s.network.Addr(), g.Link, s.again}}) // a short one
}

// Up implements fabric.Handler: it says hello to the peer, or has open say it.
func (s *session) Up(peer fabric.Host) {
	s.mu.Lock()
	open := s.network != nil
	s.linked++
	if !open {
		s.early = append(s.early, peer)
	}
	s.mu.Unlock()
	if open {
		s.hello(peer)
	}
}

// Place implements fabric.Handler: keepers send no pieces.
func (s *session) Place(fabric.Host, fabric.Piece) []byte { return nil }

// Arrived implements fabric.Handler: keepers send no pieces.
func (s *session) Arrived(fabric.Host, fabric.Piece) {}

// Message implements fabric.Handler: it takes in a welcome, a refusal, an order or an answer of the
// head, and ends the link with a peer whose message cannot be read. It takes nothing in before open
// was called: the head answers a hello, and others have nothing to say. It must not wait for open,
// since a network that cannot be joined waits for it.
func (s *session) Message(from fabric.Host, b []byte) {
	s.mu.Lock()
	network := s.network
	s.mu.Unlock()
	if network == nil {
		return
	}
	g := s.guest
	m, err := decodeMessage(b)
	if err != nil {
		network.Drop(from, err)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case m.Welcome != nil && m.Welcome.Pool == g.Name && (g.head == "" || g.head == from):
		g.head = from
		select {
		case s.welcome <- struct{}{}:
		default:
		}
	case m.Refused != nil && g.head == "":
		s.end(refusedError(m.Refused.Why))
	case m.Order != nil && g.head == from && m.Order.Host == g.Host:
		g.host.take(*m.Order)
	case m.Answer != nil && g.head == from:
		if err := g.takeAnswer(*m.Answer); err != nil {
			network.Drop(from, err)
		}
	}
}

// maxAnswer bounds an answer of the head, in bytes.
const maxAnswer = 256 << 20

// takeAnswer takes an answer of the head, or a part of one. The caller holds g.mu.
func (g *guest) takeAnswer(a answered) error {
	x := g.asks[a.ID]
	if x == nil {
		return nil
	}
	if x.body = append(x.body, a.Body...); len(x.body) > maxAnswer {
		return fmt.Errorf("an answer of more than %d bytes", maxAnswer)
	}
	if !a.More {
		x.done <- answered{a.ID, a.Status, x.body, false}
		delete(g.asks, a.ID)
	}
	return nil
}

// Down implements fabric.Handler: it ends the session where the head is lost, or nobody is left who
// could be the head.
func (s *session) Down(peer fabric.Host, err error) {
	s.mu.Lock()
	s.linked--
	alone := s.linked == 0
	s.mu.Unlock()
	s.guest.mu.Lock()
	defer s.guest.mu.Unlock()
	switch {
	case s.guest.head == peer:
		s.end(err)
	case s.guest.head == "" && alone: // nobody is left who could welcome this host
		s.end(fmt.Errorf("host %s ended the link before it took this host: %w", peer, err))
	}
}

// end has the session end, with the first reason that it is given. It does not wait.
func (s *session) end(err error) {
	select {
	case s.over <- err:
	default:
	}
}

// handler returns what answers tools on a host that has joined.
func (g *guest) handler() http.Handler {
	mux := http.NewServeMux()
	for _, path := range looks {
		mux.HandleFunc("GET "+path, g.forward)
	}
	for _, path := range forwardable[len(looks):] {
		mux.HandleFunc("POST "+path, g.forward)
	}
	mux.HandleFunc("POST "+PathEnd, endHandler(g.group, g.Waiters))
	mux.HandleFunc("/", refuseUnknown)
	return mux
}

// forward has the head answer the request of a tool, as an http.Handler, and waits for the answer
// until the tool is gone or the keeper ends.
func (g *guest) forward(w http.ResponseWriter, r *http.Request) {
	f := forwarded{Path: r.URL.Path}
	if r.Method == http.MethodPost {
		body, err := readBody(r)
		if err == nil && !json.Valid(body) {
			err = &pool.UsageError{Msg: "the request cannot be read: it is no JSON"}
		}
		if err != nil {
			answer(w, nil, err)
			return
		}
		f.Body = body
	} else if q := r.URL.Query().Encode(); q != "" {
		f.Path += "?" + q
	}
	done, err := g.ask(f)
	if err != nil {
		answer(w, nil, err)
		return
	}
	select {
	case a := <-done:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(a.Status)
		_, _ = w.Write(a.Body) // a tool that has gone needs no answer
	case <-r.Context().Done():
	case <-g.group.Context().Done():
		answer(w, nil, endedError(g.Name))
	}
}

// ask gives a request its ID, sends it to the head, and returns the channel that gets the answer:
// the head's, or that of leave where the link ends first. It does not wait. It fails if no head is
// linked, or if the request is too long for a link.
func (g *guest) ask(f forwarded) (<-chan answered, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.head == "" {
		return nil, fmt.Errorf("the head of the pool %s does not answer at %s; the jobs on this "+
			"host go on, and it joins again by itself", g.Name, g.Config.Join)
	}
	g.asked++
	f.ID = g.asked
	if err := send(g.network, g.head, &message{Ask: &f}); err != nil {
		return nil, &pool.UsageError{Msg: err.Error()}
	}
	x := &asking{done: make(chan answered, 1)}
	g.asks[f.ID] = x
	return x.done, nil
}
