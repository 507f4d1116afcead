package fabrictest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/group"
)

// The functions of the suite expect a cluster without hosts, and leave those that they add to
// hosts.closeAll. They run on the goroutine of their test, wait on Recorders, and fail the test
// where the network does otherwise than their comment says.

// newSeededRand returns a source of randomness and writes its seed to the log of the test.
func newSeededRand(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// numberBytes returns the message with a number.
func numberBytes(i int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(i)) }

// messagesInOrder sends many messages both ways at once: all arrive, in the order of sending.
func messagesInOrder(t *testing.T, h *hosts) {
	a, b := h.add("a"), h.add("b")
	const n = 5000
	g := group.New(t.Context())
	for _, pair := range [][2]*host{{a, b}, {b, a}} {
		g.Go("sender", func(context.Context) error {
			scratch := make([]byte, 4)
			for i := range n {
				binary.LittleEndian.PutUint32(scratch, uint32(i)) // may be used again at once
				pair[0].Send(pair[1].Self(), scratch)
			}
			return nil
		})
	}
	g.Wait()
	for _, pair := range [][2]*host{{a, b}, {b, a}} {
		for i, m := range pair[1].WaitMessages(pair[0].Self(), n) {
			if !bytes.Equal(m, numberBytes(i)) {
				t.Fatalf("message %d is %x", i, m)
			}
		}
	}
}

// messagesOfAllSizes sends messages from no byte to the most that one may have: their bytes arrive.
func messagesOfAllSizes(t *testing.T, h *hosts) {
	random := newSeededRand(t)
	a, b := h.add("a"), h.add("b")
	var sent [][]byte
	for _, n := range []int{0, 1, 2, 100, 16 << 10, 16<<10 + 1, random.IntN(1 << 20),
		fabric.MaxMessage - 1, fabric.MaxMessage} {
		m := make([]byte, n)
		for i := range m {
			m[i] = byte(random.Uint32())
		}
		sent = append(sent, m)
		a.Send(b.Self(), m)
	}
	for i, m := range b.WaitMessages(a.Self(), len(sent)) {
		if !bytes.Equal(m, sent[i]) {
			t.Errorf("message %d of %d bytes came as one of %d", i, len(sent[i]), len(m))
		}
	}
}

// upMaySend sends from within Up, which may come before the network is returned to its maker.
func upMaySend(t *testing.T, h *hosts) {
	a := h.add("a")
	r := NewRecorder(t)
	made := make(chan fabric.Network, 1)
	r.OnUp = func(peer fabric.Host) {
		m := <-made // the first Up can come before the network is returned
		made <- m
		m.Send(peer, []byte("welcome"))
	}
	b := &host{Recorder: r}
	g := group.New(t.Context())
	g.Go("add", func(context.Context) error {
		b.Network = h.cluster.Add(t, "b", r)
		made <- b.Network
		return nil
	})
	g.Wait()
	h.all = append(h.all, b)
	if m := a.WaitMessages(b.Self(), 1); string(m[0]) != "welcome" {
		t.Errorf("got %q", m)
	}
}

// queuedMessagesBeforeClose closes a network at once after sending: all that was queued arrives
// before Down.
func queuedMessagesBeforeClose(t *testing.T, h *hosts) {
	a, b := h.add("a"), h.add("b")
	const n = 1000
	for i := range n {
		a.Send(b.Self(), numberBytes(i))
	}
	a.setClosed()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if why := b.WaitDown(a.Self()); !errors.Is(why, fabric.ErrClosed) {
		t.Errorf("Down with %v", why)
	}
	if got := len(b.WaitMessages(a.Self(), 0)); got != n {
		t.Errorf("%d of %d messages came", got, n)
	}
}

// closeTellsBoth closes one network: the handlers of both sides are told Down with ErrClosed.
func closeTellsBoth(t *testing.T, h *hosts) {
	a, b := h.add("a"), h.add("b")
	a.setClosed()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for _, pair := range [][2]*host{{a, b}, {b, a}} {
		if why := pair[0].WaitDown(pair[1].Self()); !errors.Is(why, fabric.ErrClosed) {
			t.Errorf("%s has a Down with %v", pair[0].Self(), why)
		}
	}
	b.Send(a.Self(), []byte("too late"))
}

// closeTwice closes a network twice, which is allowed.
func closeTwice(t *testing.T, h *hosts) {
	a := h.add("a")
	h.add("b")
	a.setClosed()
	for range 2 {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// dropTellsBoth drops a link: both sides are told why, nothing comes over it, and other links stay.
func dropTellsBoth(t *testing.T, h *hosts) {
	a, b, c := h.add("a"), h.add("b"), h.add("c")
	reason := errors.New("it lied about its step")
	a.Drop(b.Self(), reason)
	if why := a.WaitDown(b.Self()); !errors.Is(why, reason) {
		t.Errorf("the one that dropped has a Down with %v", why)
	}
	if why := b.WaitDown(a.Self()); !errors.Is(why, fabric.ErrClosed) ||
		!strings.Contains(why.Error(), reason.Error()) {
		t.Errorf("the one that was dropped has a Down with %v, which should say %q", why, reason)
	}
	a.Send(b.Self(), []byte("nothing"))
	a.Drop(b.Self(), errors.New("again"))
	for _, pair := range [][2]*host{{a, c}, {b, c}, {c, a}, {c, b}} {
		pair[0].Send(pair[1].Self(), []byte("still here"))
	}
	for _, pair := range [][2]*host{{a, c}, {b, c}, {c, a}, {c, b}} {
		pair[1].WaitMessages(pair[0].Self(), 1)
	}
	if n := len(b.WaitMessages(a.Self(), 0)); n != 0 {
		t.Errorf("%d messages came over a link that was dropped", n)
	}
}

// suspectEndsNothing suspects a peer that lives, and one that is not there: the links stay.
func suspectEndsNothing(t *testing.T, h *hosts) {
	a, b := h.add("a"), h.add("b")
	a.Suspect(b.Self())
	a.Suspect("nobody")
	a.Send(b.Self(), []byte("are you there"))
	b.WaitMessages(a.Self(), 1)
	b.Send(a.Self(), []byte("yes"))
	a.WaitMessages(b.Self(), 1)
}

// seekFindsLostPeers has hosts that have lost their link find out whether the other one lives, and
// whom it is linked with.
func seekFindsLostPeers(t *testing.T, h *hosts) {
	a, b, c := h.add("a"), h.add("b"), h.add("c")
	if found := a.Seek(t.Context()); len(found) != 0 {
		t.Errorf("with all its links a host finds %v", found)
	}
	a.Drop(b.Self(), errors.New("enough"))
	a.WaitDown(b.Self())
	b.WaitDown(a.Self())
	for from, want := range map[*host]fabric.Host{a: b.Self(), b: a.Self()} {
		found := from.Seek(t.Context())
		if links, ok := found[want]; len(found) != 1 || !ok ||
			!slices.Equal(links, []fabric.Host{c.Self()}) {
			t.Errorf("%s finds %v, and not that %s is linked with %s", from.Self(), found, want,
				c.Self())
		}
	}
	h.kill(b)
	c.WaitDown(b.Self())
	if found := a.Seek(t.Context()); len(found) != 0 {
		t.Errorf("a host finds %v, of which one is dead", found)
	}
}

// dropFromMessage drops a link from within the handler, as a reason to refuse a message.
func dropFromMessage(t *testing.T, h *hosts) {
	r := NewRecorder(t)
	reason := errors.New("enough")
	var a *host
	ready := make(chan struct{})
	r.OnMessage = func(from fabric.Host, b []byte) {
		<-ready
		a.Drop(from, reason)
	}
	a = h.addWith("a", r)
	close(ready)
	b := h.add("b")
	b.Send(a.Self(), []byte("x"))
	b.Send(a.Self(), []byte("y"))
	if why := a.WaitDown(b.Self()); !errors.Is(why, reason) {
		t.Errorf("Down with %v", why)
	}
	b.WaitDown(a.Self())
}

// sendToNobody sends to hosts without a link, which does nothing.
func sendToNobody(t *testing.T, h *hosts) {
	a, b := h.add("a"), h.add("b")
	for _, nobody := range []fabric.Host{"nobody", a.Self(), ""} {
		a.Send(nobody, []byte("x"))
		a.SendPiece(nobody, fabric.Piece{Length: 1}, []byte("x"))
		a.Drop(nobody, errors.New("x"))
	}
	a.Send(b.Self(), []byte("y"))
	b.WaitMessages(a.Self(), 1)
}

// manyHosts has each of several hosts send messages and pieces to all others at once.
func manyHosts(t *testing.T, h *hosts) {
	const n, each = 5, 50
	for i := range n {
		h.add(fabric.Host(fmt.Sprintf("host%d", i)))
	}
	payload := make([]byte, 10_000)
	for _, from := range h.all {
		for _, to := range h.all {
			for i := range each {
				from.Send(to.Self(), numberBytes(i))
				from.SendPiece(to.Self(),
					fabric.Piece{Transfer: uint64(i), Length: uint32(len(payload))}, payload)
			}
		}
	}
	for _, from := range h.all {
		for _, to := range h.all {
			if from == to {
				continue
			}
			to.WaitArrived(from.Self(), each)
			for i, m := range to.WaitMessages(from.Self(), each) {
				if !bytes.Equal(m, numberBytes(i)) {
					t.Fatalf("message %d from %s to %s is %x", i, from.Self(), to.Self(), m)
				}
			}
		}
	}
}

// lateJoiner adds a host after others have talked: it is linked with all of them, and gets nothing
// from before.
func lateJoiner(t *testing.T, h *hosts) {
	a, b := h.add("a"), h.add("b")
	for i := range 100 {
		a.Send(b.Self(), numberBytes(i))
	}
	b.WaitMessages(a.Self(), 100)
	c := h.add("c")
	c.Send(a.Self(), []byte("hello a"))
	b.Send(c.Self(), []byte("hello c"))
	a.WaitMessages(c.Self(), 1)
	c.WaitMessages(b.Self(), 1)
	if n := len(c.WaitMessages(a.Self(), 0)); n != 0 {
		t.Errorf("the late one got %d messages from before its time", n)
	}
}

// sameNameAgain adds hosts with a name that is or was used: each gets a name of its own.
func sameNameAgain(t *testing.T, h *hosts) {
	a, b := h.add("a"), h.add("b")
	h.kill(b)
	a.WaitDown(b.Self())
	back := h.add("b")
	if back.Self() == b.Self() || back.Self() == a.Self() {
		t.Errorf("the host that came back is %q, as the one before", back.Self())
	}
	other := h.add("b")
	if other.Self() == back.Self() {
		t.Errorf("two hosts are %q", other.Self())
	}
}

// peerDies kills a host: its peers are told, and go on.
func peerDies(t *testing.T, h *hosts) {
	a, b, c := h.add("a"), h.add("b"), h.add("c")
	h.kill(b)
	for _, survivor := range []*host{a, c} {
		if why := survivor.WaitDown(b.Self()); !errors.Is(why, fabric.ErrClosed) {
			t.Errorf("%s has a Down with %v", survivor.Self(), why)
		}
	}
	a.Send(c.Self(), []byte("we go on"))
	c.WaitMessages(a.Self(), 1)
}
