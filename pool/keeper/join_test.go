package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/tcp"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/pool"
)

// dropper is a head that ends each link on which a host says who it is.
type dropper struct {
	headHandler
	ready   chan struct{}
	network *tcp.Network
}

// Message implements fabric.Handler.
func (d *dropper) Message(from fabric.Host, _ []byte) {
	<-d.ready
	d.network.Drop(from, errors.New("the cellar is full"))
}

// Down implements fabric.Handler.
func (*dropper) Down(fabric.Host, error) {}

// listen has the head listen until the end of the test, with a handler that has it, and returns
// what the keeper of a host needs to join it.
func (d *dropper) listen(t *testing.T, h *host1, with fabric.Handler) Config {
	t.Helper()
	network, err := tcp.Create(tcp.Config{Job: linkName("lab"), Name: "head",
		Listen: "127.0.0.1:0", Version: version.Version}, with)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { network.Close() })
	d.network = network
	close(d.ready)
	return Config{Name: "lab", Host: "two", Slots: 1, Dir: h.dir, Notes: new(notes),
		Links: Links{Machine: "12345678", Listen: "127.0.0.1:0", Join: network.Addr(),
			KeepAuthority: func([]byte) error { return nil },
			Token:         network.Token(time.Hour)}}
}

// Why a link ended before the host was taken is what pool join says, and not that nobody answers.
func TestJoinSaysWhy(t *testing.T) {
	h := newHost1(t)
	head := &dropper{ready: make(chan struct{})}
	err := Join(context.Background(), head.listen(t, h, head), func() {})
	if err == nil || !strings.Contains(err.Error(), "the cellar is full") ||
		strings.HasPrefix(err.Error(), "keep the host") {
		t.Errorf("got %v", err)
	}
}

// A keeper that ends since it cannot say how other hosts join listens to them no longer.
func TestInviteFails(t *testing.T) {
	h := newHost1(t)
	full, address := errors.New("the disk is full"), ""
	err := Run(context.Background(), Config{Name: "lab", Host: "here", Slots: 1, Dir: h.dir,
		Store: h.record, Notes: new(notes), Links: Links{Listen: "127.0.0.1:0",
			KeepAuthority: func([]byte) error { return nil },
			Invite: func(at, _ string) error {
				address = at
				return full
			}}}, func(int) { t.Error("it keeps the pool") })
	if !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Errorf("it still listens at %s", address)
	}
}

// The queue of 14,000 jobs comes to a host that has joined, in parts: it is more than a
// message of a link can be.
func TestLongAnswer(t *testing.T) {
	m, err := pool.New(pool.Config{Name: "lab"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m.HostUp(1, "here", 4, "")
	for range 14_000 {
		if _, err := m.Submit(1, pool.Submission{Name: "job", Spec: "x", Min: 1, Max: 4, Asked: 4,
			Preempt: "shrink"}); err != nil {
			t.Fatal(err)
		}
	}
	m.Reported(1, pool.Report{Host: "here"})
	m.Settle(2) // four of them are to start, and for these the others wait
	whole, err := json.Marshal(State{Jobs: m.Jobs(false)})
	if err != nil || len(whole) <= fabric.MaxMessage {
		t.Fatalf("%d bytes would fit, %v", len(whole), err)
	}
	g := &guest{asks: map[uint64]*asking{}}
	for i, body := range [][]byte{whole, []byte("{}"), whole[:2*answerPart], nil} {
		id, done := uint64(i), make(chan answered, 1)
		g.asks[id] = &asking{done: done}
		for _, part := range (answered{ID: id, Status: 200, Body: body}).inParts() {
			text, err := part.encode()
			if err != nil {
				t.Fatal(err)
			}
			read, err := decodeMessage(text)
			if err == nil {
				err = g.takeAnswer(*read.Answer)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		select {
		case a := <-done:
			if a.Status != 200 || !bytes.Equal(a.Body, body) {
				t.Errorf("%d bytes arrive as %d, with status %d", len(body), len(a.Body), a.Status)
			}
		default:
			t.Errorf("%d bytes do not arrive", len(body))
		}
	}
}

// blinker is a head that welcomes each host, and ends its link when it reports.
type blinker struct {
	dropper
	hellos chan *hello // has room for two
}

// Message implements fabric.Handler.
func (b *blinker) Message(from fabric.Host, text []byte) {
	<-b.ready
	if m, err := decodeMessage(text); err == nil && m.Hello != nil {
		_ = send(b.network, from, &message{Welcome: &welcome{"lab"}})
		select {
		case b.hellos <- m.Hello:
		default:
		}
		return
	}
	b.network.Drop(from, errors.New("the cellar is full"))
}

// A keeper says when it is linked again whether it was in the pool before, and one that was not has
// its host get jobs again. By what hosts trust each other is written once: later there may be no
// room.
func TestAgain(t *testing.T) {
	h := newHost1(t)
	head := &blinker{dropper{ready: make(chan struct{})}, make(chan *hello, 2)}
	config := head.listen(t, h, head)
	kept := 0
	config.KeepAuthority = func([]byte) error { kept++; return nil }
	ctx, cancel := context.WithCancel(context.Background())
	g := group.New(ctx)
	g.Go("join", func(ctx context.Context) error {
		return Join(ctx, config, func() {})
	})
	m, err := pool.New(pool.Config{Name: "lab"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{m: m}
	for i, again := range []bool{false, true, false} {
		x := &hello{Host: "two", Slots: 1} // of a keeper that is started in the end
		if i < 2 {
			x = <-head.hellos
		}
		if x.Again != again {
			t.Errorf("hello %d: %+v", i, x)
		}
		k.hostUp(x)
		if got := m.Hosts("")[0].Leaving; got != again {
			t.Errorf("after hello %d, %+v: the host is drained: %t", i, x, got)
		}
		if err := m.Leave(k.now(), "two", true); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := g.Wait(); err != nil || kept != 1 {
		t.Errorf("%v, and the authority was written %d times", err, kept)
	}
}

// A keeper that has the folder of a pool and does not answer here is not said to be kept here.
func TestFolderOfAnotherKeeper(t *testing.T) {
	h := newHost1(t)
	folder, err := os.Open(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if err := durable.Flock(folder, syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	err = Join(context.Background(), Config{Name: "lab", Dir: h.dir}, func() {})
	if err == nil || !strings.Contains(err.Error(), "another keeper uses the folder "+h.dir) {
		t.Errorf("got %v", err)
	}
}

// speaker is the keeper of a host that has joined: it says who it is to all that it is linked with.
type speaker struct{ dropper }

// Up implements fabric.Handler.
func (s *speaker) Up(peer fabric.Host) {
	<-s.ready
	_ = send(s.network, peer, &message{Hello: &hello{Host: "other", Machine: "87654321", Slots: 1}})
}

// Message implements fabric.Handler.
func (*speaker) Message(fabric.Host, []byte) {}

// listener is a session that tells of each message that has come.
type listener struct {
	*session
	came chan struct{} // has room for all
}

// Message implements fabric.Handler.
func (l *listener) Message(from fabric.Host, b []byte) {
	l.came <- struct{}{}
	l.session.Message(from, b)
}

// A host that is joining can be told to end, though another one has said to it who it is: its links
// end before the network is opened.
func TestJoinEndsBeforeItIsOpen(t *testing.T) {
	h := newHost1(t)
	head := &speaker{dropper{ready: make(chan struct{})}}
	config := head.listen(t, h, head)
	l := &listener{&session{guest: &guest{Config: config}, over: make(chan error, 1)},
		make(chan struct{}, 8)}
	network, err := tcp.Join(t.Context(), config.Join, config.Token, tcp.Config{
		Job: linkName("lab"), Name: "two", Listen: "127.0.0.1:0", Version: version.Version}, l)
	if err != nil {
		t.Fatal(err)
	}
	<-l.came
	if err := network.Close(); err != nil {
		t.Error(err)
	}
}

// The host that keeps a pool keeps it on when the file is lost that told its machine from others.
// It does not so under the name of another host, whose jobs it does not know.
func TestTheFileOfTheMachineIsLost(t *testing.T) {
	h := newHost1(t)
	for i, c := range []struct{ host, machine, why string }{{"here", "11111111", ""},
		{"here", "22222222", ""}, {"there", "22222222", ""},
		{"here", "33333333", "another machine"}} {
		ctx, cancel := context.WithCancel(context.Background())
		err := Run(ctx, Config{Name: "lab", Host: c.host, Slots: 1, Dir: h.dir, Store: h.record,
			Notes: new(notes), Waiters: new(Waiters), Links: Links{Machine: c.machine}},
			func(int) { cancel() })
		cancel()
		if c.why == "" && err != nil ||
			c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why)) {
			t.Errorf("start %d: %v", i, err)
		}
	}
}
