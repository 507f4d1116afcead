package head_test

import (
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire"
)

// What a shell tells the head arrives at the shell there, with the name of its host.
func TestNotesToTheHead(t *testing.T) {
	p := newOpenPair(t)
	for host := range p.agents {
		note := []byte{0, 1, host[0], 0xff}
		p.agents[host].SendNote(note)
		note[1] = 9
		p.agents[host].SendNote(make([]byte, wire.MaxNote+1))
		p.runAll()
		got := newestAction[head.Note](p, "A")
		if got.Host != host || !slices.Equal(got.Data, []byte{0, 1, host[0], 0xff}) {
			t.Errorf("A is told %+v of %s", got, host)
		}
	}
	if n := newestAction[head.Note](p, "B"); n.Data != nil {
		t.Errorf("B is told %+v", n)
	}
}

// What a host has to tell while its head is lost and nobody can lead is not kept: the host may wait
// for days until a person has it lead, and would send all of that again and again meanwhile.
func TestNotesToALostHead(t *testing.T) {
	p := newOpenPair(t)
	b := p.agents["B"]
	b.LinkDown("A", "was silent for too long")
	kept := 0
	p.spy = func(m wire.Message) {
		if f, is := m.(*wire.Frame); is {
			for _, x := range f.Payloads {
				if _, is := x.(wire.Noted); is {
					kept++
				}
			}
		}
	}
	delete(p.agents, "A")
	for range 8 {
		b.SendNote([]byte("the machine is idle"))
		b.Tick()
		p.runAll()
	}
	if !b.Stuck() || kept > 0 {
		t.Errorf("a host without a head (%v) sends %d notes to it", b.Stuck(), kept)
	}
}
