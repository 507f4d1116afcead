package job_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
	"github.com/shoal-ml/shoal/world/job"
)

// Who is lost is wanted no more, though a host has room, and nobody comes with a host that joins.
// Who asks for more members gets them.
func TestTheLostAreNotReplaced(t *testing.T) {
	c := config(t, 4, 100_000, 120)
	c.Levers.Size = setting.Range{From: 1, To: 4}
	c.Hosts[3].Spare = true
	c.Events = []job.Event{{Step: 2, What: job.Lose, Host: 1}, {Step: 4, What: job.Join, Host: 1}}
	w := newWorld(t, c)
	for i, s := range run(t, w, 6) {
		if want := []uint64{120, 120, 80, 120, 120, 120}[i]; s.Samples != want {
			t.Errorf("step %d has %d samples, want %d", i+1, s.Samples, want)
		}
		if want := []int{3, 3, 3, 2, 2, 2}[i]; s.Size != want {
			t.Errorf("step %d has %d members, want %d", i+1, s.Size, want)
		}
	}
	if o := w.Observation(); o.Setting.Size != 2 || o.Levers.Size.To != 4 {
		t.Errorf("the job is to have %d members, and there is room for %v", o.Setting.Size,
			o.Levers.Size)
	}
	if err := w.Change(setting.Setting{Number: 1, Size: 4}); err != nil {
		t.Fatal(err)
	}
	if got := run(t, w, 1)[0].Size; got != 4 {
		t.Errorf("%d members, where 4 were asked for", got)
	}
}

// With a host go those who start on it.
func TestTheLostThatStartAreNotReplaced(t *testing.T) {
	c := config(t, 3, 100_000, 120)
	c.Levers.Size = setting.Range{From: 1, To: 3}
	c.Hosts[1].Spare, c.Hosts[2].Spare = true, true
	c.Costs.Start = 0.3
	c.Events = []job.Event{{Step: 3, What: job.Lose, Host: 2}}
	w := newWorld(t, c)
	run(t, w, 2)
	if err := w.Change(setting.Setting{Number: 1, Size: 3}); err != nil {
		t.Fatal(err)
	}
	if got := sizes(run(t, w, 20)); got[1] != 1 || got[19] != 2 || w.Setting().Size != 2 {
		t.Errorf("%v members, and the job is to have %d", got, w.Setting().Size)
	}
}

// A host that is lost in the first step of fewer members makes the job smaller if it has some, and
// not if these are to leave, as in a running job.
func TestLostAfterOthersLeave(t *testing.T) {
	for lost, want := range []int{1, 1, 2, 2} {
		c := config(t, 4, 100_000, 120)
		c.Levers.Size = setting.Range{From: 1, To: 4}
		w := newWorld(t, c)
		run(t, w, 2)
		if err := w.Change(setting.Setting{Number: 1, Size: 2}); err != nil {
			t.Fatal(err)
		}
		w.Schedule(job.Event{What: job.Lose, Host: lost})
		if got := run(t, w, 3)[2].Size; got != want || int(w.Setting().Size) != want {
			t.Errorf("without host %d there are %d members of %d, want %d", lost, got,
				w.Setting().Size, want)
		}
		m := newMembership(4, 4, 1)
		if err := m.Resize(2, "you"); err != nil {
			t.Fatal(err)
		}
		m.HostLost(fmt.Sprint("h", lost+1), "is gone")
		if m.run(); m.View().Size() != want || m.Want() != want {
			t.Errorf("in a running job without host %d there are %d members of %d, want %d", lost,
				m.View().Size(), m.Want(), want)
		}
	}
}

// With fewer members than the minimum a job stands still until a host joins, though another one has
// room, and ends if none does.
func TestTooFewMembersWait(t *testing.T) {
	c := config(t, 4, 100_000, 120)
	c.Levers.Size = setting.Range{From: 2, To: 3}
	c.Hosts[2].Spare, c.Hosts[3].Out = true, true
	c.Costs.Start = 5
	c.Events = []job.Event{{Step: 2, What: job.Lose, Host: 1},
		{At: 100, Timed: true, What: job.Join, Host: 3}}
	w := newWorld(t, c)
	before := run(t, w, 3)[2].At
	if s := run(t, w, 1)[0]; before > 100 || s.Size != 2 || s.At < 105 || s.At > 106 {
		t.Errorf("%d members at %v s, after %v s", s.Size, s.At, before)
	}
	c.Events = append(c.Events[:1], job.Event{At: 50, Timed: true, What: job.Lose, Host: 2})
	w = newWorld(t, c)
	run(t, w, 3)
	if s, on := w.Step(); on {
		t.Errorf("the job goes on: %+v", s)
	}
}

// The workers of a host with a notice are replaced as far as there is room, and for the others the
// job becomes smaller for good.
func TestNoticeMakesTheJobSmaller(t *testing.T) {
	c := config(t, 3, 100_000, 120)
	for i := range c.Hosts {
		c.Hosts[i].Workers = 2
	}
	c.Levers.Size = setting.Range{From: 1, To: 6}
	c.Events = []job.Event{{Step: 4, What: job.Notice, Host: 1, Value: 9},
		{Step: 6, What: job.Join, Host: 1}}
	w := newWorld(t, c)
	if err := w.Change(setting.Setting{Number: 1, Size: 5}); err != nil {
		t.Fatal(err)
	}
	want := []int{5, 5, 5, 5, 4, 4, 4, 4}
	if got := sizes(run(t, w, 8)); !slices.Equal(got, want) {
		t.Errorf("%v members, want %v", got, want)
	}
}

// membership is the membership of a job on hosts with a slot each, whose hosts do what it orders.
type membership struct {
	*member.Machine
	next int // number of the next host that joins
}

// newMembership returns the membership of a job of so many workers at first.
func newMembership(hosts, want, least int) *membership {
	cfg := member.Config{Want: want, Min: least, Max: hosts, Head: "head",
		Hosts: []member.Host{{Name: "head", Slots: member.NoSlots}}}
	m := &membership{}
	for range hosts {
		m.next++
		cfg.Hosts = append(cfg.Hosts, member.Host{Name: fmt.Sprintf("h%d", m.next), Slots: 1})
	}
	m.Machine = member.New(cfg)
	m.run()
	return m
}

// run carries out what is ordered, and makes steps, until nothing more follows.
func (m *membership) run() {
	for range 5 {
		m.BeginStep()
		m.carryOut()
		m.ReachBoundary()
		m.carryOut()
		for _, host := range m.VacantHosts() {
			m.HostLost(host, "has left")
		}
	}
}

// carryOut does what is ordered.
func (m *membership) carryOut() {
	for list := m.Ready(); len(list) > 0; list = m.Ready() {
		for _, a := range list {
			switch a := a.(type) {
			case member.Start:
				for i := range a.Count {
					m.WorkerStarted(a.First+topo.WorkerID(i), a.Host)
					m.WorkerAsks(a.First + topo.WorkerID(i))
				}
			case member.Stop:
				m.WorkerFinished(a.Worker)
			case member.Propose:
				m.GenerationDecided(a.Record.View.Generation)
			}
		}
	}
}

// hostWith returns a host with members or without; "" = there is none.
func (m *membership) hostWith(members bool) string {
	for _, h := range m.Rooms() {
		if m.View().HasHost(h.Name) == members {
			return h.Name
		}
	}
	return ""
}

// Whatever is lost, left, joins and is asked for, a job in virtual time is to have as many members
// as a running one, has as many, and stands still where that does.
func TestSizeIsThatOfARunningJob(t *testing.T) {
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		hosts := rapid.IntRange(2, 6).Draw(t, "hosts")
		start := rapid.IntRange(1, hosts).Draw(t, "start")
		least := rapid.IntRange(1, min(start, hosts-1)).Draw(t, "least")
		c := config(outer, hosts, 1_000_000, 120)
		c.Levers.Size = setting.Range{From: uint64(least), To: uint64(hosts)}
		for i := start; i < hosts; i++ {
			c.Hosts[i].Spare = true
		}
		w, m := newWorld(outer, c), newMembership(hosts, start, least)
		run(outer, w, 1)
		told := ""
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			what := rapid.SampledFrom([]string{"lose", "lose spare", "notice", "join",
				"resize"}).Draw(t, "what")
			told += " " + what
			busy, idle, away := w.HostWith(true), w.HostWith(false), w.HostAway()
			members := m.View().Size()
			switch {
			case what == "lose" && members > 1:
				w.Schedule(job.Event{What: job.Lose, Host: busy})
				m.HostLost(m.hostWith(true), "is gone")
			case what == "lose spare" && idle >= 0:
				w.Schedule(job.Event{What: job.Lose, Host: idle})
				m.HostLost(m.hostWith(false), "is gone")
			case what == "notice" && members > 0: // refused where the state would be lost
				w.Schedule(job.Event{What: job.Notice, Host: busy, Value: 1e9})
				_ = m.Drain(m.hostWith(true), "you")
			case what == "join" && away >= 0:
				w.Schedule(job.Event{What: job.Join, Host: away})
				m.next++
				m.SetHost(fmt.Sprintf("h%d", m.next), 1, "")
			case what == "resize" && !m.IsPaused():
				size := rapid.IntRange(least, hosts).Draw(t, "size")
				told += fmt.Sprint("=", size)
				if err := w.Change(setting.Setting{Size: uint32(size)}); err != nil {
					t.Fatal(err)
				}
				if err := m.Resize(size, "you"); err != nil {
					t.Fatal(err)
				}
			}
			m.run()
			on := true
			for range 3 {
				_, on = w.Step()
			}
			if on == m.IsPaused() || int(w.Setting().Size) != m.Want() ||
				w.Observation().Size != m.View().Size() {
				t.Fatalf("%d hosts, %d members of at least %d:%s: on %v with %d of %d members; "+
					"in a running job %v with %d of %d", hosts, start, least, told, on,
					w.Observation().Size, w.Setting().Size, !m.IsPaused(), m.View().Size(),
					m.Want())
			}
		}
	})
}
