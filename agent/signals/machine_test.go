package signals

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/machine"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// agentOfTwo is an agent that leads a job of two workers of its host, of which worker 0 posts its
// call of a step early, and worker 1 late.
type agentOfTwo struct {
	now     sense.Duration
	endings [2]Ending
}

// Now implements Agent.
func (a *agentOfTwo) Now() sense.Duration { return a.now }

// Leads implements Agent.
func (*agentOfTwo) Leads() bool { return true }

// Levers implements Agent.
func (*agentOfTwo) Levers() (none setting.Levers) { return none }

// GenerationNumber implements Agent.
func (*agentOfTwo) GenerationNumber(g topo.Generation) uint64 { return uint64(g) }

// NewestEnding implements Agent.
func (a *agentOfTwo) NewestEnding(w topo.WorkerID) (topo.Rank, *Ending) {
	return topo.Rank(w), &a.endings[w]
}

// makeStep has a job of two workers make a step of a second.
func (a *agentOfTwo) makeStep(s *Signals, number uint64, batch uint64) {
	a.now = sense.Duration(number) * sense.Second
	a.endings = [2]Ending{{Ticket: number, At: a.now - sense.Second/2},
		{Ticket: number, At: a.now}}
	p := head.Part{}
	for w := range topo.WorkerID(2) {
		p.Calls = append(p.Calls, &collective.Posted{Worker: w, Ticket: number,
			Call: collective.Call{Flags: collective.Flags{Step: true}}})
	}
	s.AddBatch(&head.Apply{Parts: []head.Part{p}, State: stateAfter(number, batch)}, []error{nil})
}

// stateAfter is the state of a job of two workers after so many steps.
func stateAfter(steps, batch uint64) head.State {
	s := head.State{Steps: steps, Data: &cursor.Cursor{Samples: 1000, Batch: batch}}
	for w := range topo.WorkerID(2) {
		s.View.Members = append(s.View.Members, topo.Member{Worker: w, Host: "h1"})
	}
	return s
}

// readingAfter is a reading of a machine with two processors after so many seconds, all busy, of
// which others have 40 %, and on which a worker has needed a GiB.
func readingAfter(seconds int) machine.Reading {
	f := func(format string, list ...any) []byte { return fmt.Appendf(nil, format, list...) }
	return machine.Parse(machine.Files{Stat: f("cpu %d 0 0 0\ncpu0 0\ncpu1 0\n", 200*seconds),
		MemInfo: []byte("MemTotal: 9000000 kB\nMemAvailable: 4000000 kB\n"),
		Processes: []machine.Process{{Worker: true, Status: []byte("VmHWM: 1048576 kB\n"),
			Stat: f("7 (x) R 1 1 1 0 0 0 0 0 0 0 %d 0 0 0 20 0 1 0 55 9 1000\n", 120*seconds)}}},
		4096)
}

// What a host tells of its machine comes to the head with the next note, names the worker that is
// slow with what its machine is busy with, and says what a worker needs of the memory with the
// batch that it has trained on for some steps.
func TestMachines(t *testing.T) {
	a := &agentOfTwo{}
	s := New(a)
	// tell has the host tell of a second.
	tell := func(second int) {
		s.AddReadings(readingAfter(second), readingAfter(second+1), 1)
		s.AddNote(head.Note{Host: "h1", Data: s.PopStepsNote()}, 0)
	}
	s.AddReadings(readingAfter(0), readingAfter(1), 1)
	if s.PopStepsNote() != nil {
		t.Error("a job without steps tells of its machine")
	}
	steps := uint64(0)
	for ; steps < 8; steps++ {
		a.makeStep(s, steps+1, 16)
		tell(int(steps))
	}
	o := s.observe(stateAfter(steps, 16))
	if len(o.Machines) != 1 || len(o.Machines[0].Memory) != 1 {
		t.Fatalf("machines: %+v", o.Machines)
	}
	if m := o.Machines[0].Memory[0]; m.Used != 1<<30 || m.Samples != 8 || m.Device {
		t.Errorf("memory: %+v", m)
	}
	want := "rank 1 is slow: the others wait for it 50 % of a step; its processors are 100 % " +
		"busy, 40 % of that by others"
	if got := s.SlowHosts(stateAfter(steps, 16)); len(got) != 1 || got[0] != want {
		t.Errorf("slow hosts: %q", got)
	}
	others := stateAfter(steps, 16) // rank 1 may be somebody else now
	others.View.Generation = 1
	if got := s.SlowHosts(others); got != nil {
		t.Errorf("of members of whom nothing is known: %q", got)
	}
	// right after a change of the batch it is not known what workers need
	a.makeStep(s, steps+1, 64)
	a.makeStep(s, steps+2, 64)
	s.AddReadings(readingAfter(9), readingAfter(10), 1)
	if note := string(s.PopStepsNote()); !strings.Contains(note, "cpu") ||
		strings.Contains(note, "samples\":32") {
		t.Errorf("right behind the change: %s", note)
	}
	for range 4 {
		steps++
		a.makeStep(s, steps+2, 64)
	}
	tell(10)
	if m := s.observe(stateAfter(steps, 64)).Machines[0].Memory[0]; m.Samples != 32 {
		t.Errorf("behind the change: %+v", m)
	}
	// of two GPUs the fuller one counts, and what was told before members have changed does not
	s.AddDevice(0, stateAfter(steps, 64), 6, 8)
	s.AddDevice(1, stateAfter(steps, 64), 5, 8)
	s.AddDevice(7, stateAfter(steps, 64), 9, 9) // no member
	tell(11)
	fullest := machine.Memory{Used: 6, Samples: 32, Room: 8, Device: true}
	if m := s.observe(stateAfter(steps, 64)).Machines[0].Memory; len(m) != 2 || m[1] != fullest {
		t.Errorf("with GPUs: %+v", m)
	}
	later := stateAfter(steps, 64)
	later.View.Generation = 1
	s.AddDevice(1, later, 5, 8)
	tell(12)
	if m := s.observe(stateAfter(steps, 64)).Machines[0].Memory; len(m) != 2 || m[1].Used != 5 {
		t.Errorf("with GPUs of other members: %+v", m)
	}
}

// Ranks of members before do not count with those of now, where entries that change the members, or
// a mesh, follow one another.
func TestMembersThatChangeAgainAndAgain(t *testing.T) {
	a := &agentOfTwo{}
	s := New(a)
	for i := range uint64(3) {
		a.makeStep(s, i+1, 16)
	}
	one := stateAfter(4, 16)
	one.View.Members, one.View.Generation = one.View.Members[:1], 1
	for range 4 {
		s.AddBatch(&head.Apply{Changed: true, State: one, Parts: []head.Part{{
			Calls: []*collective.Posted{{Call: collective.Call{
				Flags: collective.Flags{Step: true}}}}}}}, []error{nil})
	}
	if s.machines.samples != 0 {
		t.Errorf("%v samples of a worker that nobody has seen", s.machines.samples)
	}
}
