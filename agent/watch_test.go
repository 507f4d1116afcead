package agent_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
)

// A worker hangs. The host that leads knows it, wherever it is, and tells once; and once when it
// goes on.
func TestWhoIsWaitedFor(t *testing.T) {
	t.Parallel()
	events := make(chan agent.Event, 100)
	c := startHosts(t, 3, []int{1, 1}, agent.Orders{Event: func(e agent.Event) { events <- e }})
	c.addHost("c", 1)
	workers := make([]*rawWorker, 3)
	where := make([]string, 3)
	for range workers {
		s := <-c.started
		workers[s.number], where[s.number] = joinRawWithToken(t, s.agent, s.number, s.token),
			s.agent.Host()
	}
	hung := slices.IndexFunc(where, func(host string) bool { return host != "a" })
	d := validCall()
	d.Step = true
	post := func(hangs int) {
		for n, w := range workers {
			if n != hangs {
				w.submit(d)
			}
		}
	}
	done := func() {
		for _, w := range workers {
			if s, why := w.wait(); !s.OK() {
				t.Fatalf("status %d: %s", s, why)
			}
		}
	}
	next := func(what string) agent.Event {
		for {
			if e := <-events; e.What == what {
				return e
			}
		}
	}
	post(-1)
	done()
	post(hung)
	e := next("wait")
	if want := " on host " + where[hung] +
		" in all_reduce(f32[4], sum, step)"; !slices.Equal(e.Awaited, []int{hung}) || e.Step != 1 ||
		e.Size != 3 || !strings.HasPrefix(e.Because, "2 others have waited ") ||
		!strings.HasSuffix(e.Because, want) {
		t.Errorf("%+v, want …%s", e, want)
	}
	waits := c.head.Waits()
	if w, is := waits[hung]; !is || len(waits) != 1 || w.Waiters != 2 ||
		w.Call != "all_reduce(f32[4], sum, step)" || !w.Unusual || w.OwnCall != "" ||
		w.Since.IsZero() {
		t.Errorf("%+v", waits)
	}
	for host, a := range c.agents {
		if host != "a" && len(a.Waits()) > 0 {
			t.Errorf("host %s, which does not lead, knows of %+v", host, a.Waits())
		}
	}
	workers[hung].submit(d)
	done()
	if e := next("waited"); !slices.Equal(e.Awaited, []int{hung}) ||
		!strings.Contains(e.Because, "is waited for no more, after ") {
		t.Errorf("%+v", e)
	}
	if waits := c.head.Waits(); len(waits) > 0 {
		t.Errorf("%+v", waits)
	}
}

// Nobody is told to wait for a worker that cannot start before another host joins.
func TestNoWaitForWorkersWithoutRoom(t *testing.T) {
	t.Parallel()
	c := startHosts(t, 2, []int{1}, agent.Orders{})
	s := <-c.started
	first := joinRawWithToken(t, s.agent, s.number, s.token)
	d := validCall()
	d.Step = true
	first.submit(d)
	all, told := 0, 0
	for all == 0 {
		all, told = c.head.CountWaits()
	}
	if told != 0 {
		t.Errorf("told of %d of %d waits, while a host lacks", told, all)
	}
	c.addHost("b", 1)
	s = <-c.started
	for told == 0 {
		_, told = c.head.CountWaits()
	}
	second := joinRawWithToken(t, s.agent, s.number, s.token)
	second.submit(d)
	for _, w := range []*rawWorker{first, second} {
		if s, why := w.wait(); !s.OK() {
			t.Fatalf("status %d: %s", s, why)
		}
	}
}
