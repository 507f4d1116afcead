package main

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/launcher"
)

// A cable is cut in mid-training and nobody says goodbye: the job goes on, and the host that is cut
// off ends what it runs.
func TestHostIsCutOff(t *testing.T) {
	n := newNetwork(t, "a", "b", "c")
	s := startSpread(t, n, 1, audited)
	took := []time.Duration{s.cut("b")}
	victim := s.agents["b"]
	s.says(victim, "shoal recover train --force")
	n.mend("b")
	s.ends(victim, 1)
	s.says(victim, "the others go on without it")
	s.agent("b", "b2")
	s.shoal("resize", "train", "3")
	s.trains(3, 10)
	took = append(took, s.cut("c"))
	s.signal(syscall.SIGKILL, nil, s.agents["c"])
	if s.lost() != 2 {
		t.Errorf("the ledger: %+v", s.ledger())
	}
	s.finish(2)
	s.ends(s.agents["b2"], 0)
	t.Logf("from the cut to the next commit of the slowest survivor: %v", took)
}

// cut cuts the cable of a host and measures until the slowest of the others has made the next step.
func (s *spread) cut(host string) time.Duration {
	s.Helper()
	name := s.names[host]
	gone := s.on(name)
	others := slices.DeleteFunc(slices.Clone(s.job.Workers), func(w api.Worker) bool {
		return !w.Running || w.Host == name
	})
	if len(gone) == 0 || len(others) == 0 {
		s.Fatalf("%d workers on %s, %d elsewhere", len(gone), name, len(others))
	}
	generation, leads, at := s.job.Generation, name == s.job.Head, time.Now()
	s.net.cut(host)
	if leads {
		s.led(s.elsewhere(host)...)
	}
	return s.next(generation, others).Sub(at)
}

// BenchmarkHostCut cuts b.N cables, a few in each job, and tells how long the others then need to
// their next commit: when the host leads the job, and when it does not:
//
//	go test -run '^$' -bench HostCut -benchtime 25x ./cmd/shoal
func BenchmarkHostCut(b *testing.B) {
	b.Run("another", func(b *testing.B) {
		cutHosts(b, func(s *spread, turn int) string { return s.elsewhere(s.leader())[turn%2] })
	})
	b.Run("the one that leads", func(b *testing.B) {
		cutHosts(b, func(s *spread, _ int) string { return s.leader() })
	})
}

// leader is the host of the network that leads the job.
func (s *spread) leader() string {
	for host, name := range s.names {
		if name == s.job.Head {
			return host
		}
	}
	s.Fatalf("no host is called %s", s.job.Head)
	return ""
}

func cutHosts(b *testing.B, victim func(s *spread, turn int) string) {
	const cutsOfJob = 5
	var took []time.Duration
	for len(took) < b.N {
		n := newNetwork(b, "a", "b", "c")
		s := startSpread(b, n, 1, audited)
		for i := range min(cutsOfJob, b.N-len(took)) {
			host := victim(s, i)
			p, workers := s.agents[s.names[host]], s.on(s.names[host])
			took = append(took, s.cut(host))
			s.signal(syscall.SIGKILL, nil, p)
			s.ends(p, -1)
			s.gone(workers)
			n.mend(host)
			s.agent(host, fmt.Sprintf("%s%d", host, i+2))
			s.shoal("resize", "train", "3")
			s.trains(3, 50)
		}
		s.finish(3)
	}
	slices.Sort(took)
	b.ReportMetric(cli.Milliseconds(took[len(took)/2]), "p50-ms")
	b.ReportMetric(cli.Milliseconds(took[len(took)*99/100]), "p99-ms")
	b.ReportMetric(cli.Milliseconds(took[len(took)-1]), "max-ms")
	b.ReportMetric(0, "ns/op")
}

// A host stands still: the others go on. When it wakes up it is not of the job any more.
func TestHostIsFrozen(t *testing.T) {
	s := startSpread(t, newNetwork(t, "a", "b", "c"), 1, audited)
	victims := s.on("b")
	s.signal(syscall.SIGSTOP, victims, s.agents["b"])
	s.trains(2, 10)
	s.signal(syscall.SIGCONT, victims, s.agents["b"])
	s.ends(s.agents["b"], 1)
	s.gone(victims)
	s.finish(2)
	s.ends(s.agents["c"], 0)
}

// Who stands still for a moment only is waited for: a worker, or a host with all that runs there.
func TestShortPausesAreWaitedFor(t *testing.T) {
	s := startSpread(t, newNetwork(t, "a", "b", "c"), 1, audited)
	for name, others := range map[string][]*process{"b": nil, "c": {s.agents["c"]}} {
		paused := s.on(name)
		s.signal(syscall.SIGSTOP, paused, others...)
		<-time.After(400 * time.Millisecond)
		s.signal(syscall.SIGCONT, paused, others...)
		s.trains(3, 10)
	}
	if n := s.lost(); n > 0 {
		t.Errorf("%d were lost: %+v", n, s.ledger())
	}
	s.finish(3)
}

// An agent dies: what it ran dies with it.
func TestAgentIsKilled(t *testing.T) {
	s := startSpread(t, newNetwork(t, "a", "b", "c"), 2, audited)
	victims := s.on("b")
	s.signal(syscall.SIGKILL, nil, s.agents["b"])
	s.trains(4, 10)
	s.ends(s.agents["b"], -1)
	s.gone(victims)
	if n := s.lost(); n != 2 {
		t.Errorf("%d were lost: %+v", n, s.ledger())
	}
	s.finish(4)
	s.ends(s.agents["c"], 0)
}

// A host leaves because it was asked to, there or at the head; another one comes.
func TestHostsLeaveAndJoin(t *testing.T) {
	s := startSpread(t, newNetwork(t, "a", "b", "c"), 2, audited)
	for _, leave := range []struct {
		name string
		ask  func()
	}{
		{"b", func() { s.signal(syscall.SIGTERM, nil, s.agents["b"]) }},
		{"c", func() { s.shoal("drain", "train", "c") }},
	} {
		workers := s.on(leave.name)
		leave.ask()
		s.ends(s.agents[leave.name], 0)
		s.gone(workers)
	}
	s.trains(2, 10)
	s.agent("b", "d")
	s.shoal("resize", "train", "4")
	s.trains(4, 10)
	if n := len(s.on("d")); n != 2 {
		t.Errorf("%d workers run on the host that joined", n)
	}
	if lost, released := s.lost(), s.released(); lost != 0 || released != 4 {
		t.Errorf("%d were lost, %d released: %+v", lost, released, s.ledger())
	}
	s.finish(4)
	s.ends(s.agents["d"], 0)
}

// A host leaves, and the others are too few: it is free, they wait with what they have, and go on
// with a host that comes. Then the one that leads.
func TestHostsLeaveBelowTheMinimum(t *testing.T) {
	n := newNetwork(t, "a", "b", "c", "d")
	s := startSpreadOn(t, n, []string{"a", "b", "c"}, 1, []string{"--min", "3"}, audited)
	workers := s.on("c")
	s.shoal("drain", "train", "c")
	s.ends(s.agents["c"], 0)
	s.gone(workers)
	s.says(s.head, "2 members are fewer than the minimum of 3")
	s.agent("d", "d")
	s.trains(3, 10)
	s.noneLost(1)
	old, workers := s.head, s.on(s.job.Head)
	s.signal(syscall.SIGTERM, nil, old)
	s.ends(old, 0)
	s.gone(workers)
	s.led("b", "d")
	s.says(s.head, "2 members are fewer than the minimum of 3")
	s.shoal("token", "train", "--for", "1h", "--token-file", s.token())
	s.agent("c", "e")
	s.trains(3, 10)
	s.noneLost(0)
	s.finish(3)
}

// Tensors fill a slow cable with a long queue: signs of life are not overtaken by them so that
// somebody would be thought lost.
func TestSlowCable(t *testing.T) {
	n := newNetwork(t, "a", "b", "c")
	s := startSpread(t, n, 1, []string{benchProgram(t, "recovery"), "worker", "100000", "1000"})
	n.limit("b", "10mbit", "500kb")
	s.trains(3, 10)
	if n := s.lost(); n > 0 {
		t.Errorf("%d were lost: %+v", n, s.ledger())
	}
	s.must(s.job.Stop(s.ctx, false, "the test"))
	s.ends(s.head, 0)
	s.endedWell()
}

// Two hosts cannot reach each other, though the head reaches both: one of them goes.
func TestHostsCannotReachEachOther(t *testing.T) {
	n := newNetwork(t, "a", "b", "c")
	s := startSpread(t, n, 1, audited)
	n.part("b", "c")
	s.trains(2, 10)
	if n := s.lost(); n != 1 {
		t.Errorf("%d were lost: %+v", n, s.ledger())
	}
	for name, agent := range s.agents {
		if len(s.on(name)) == 0 {
			s.ends(agent, 1)
		}
	}
	s.finish(2)
}

// The host that leads is lost, with its launcher: the others lose no step, and one of them leads
// on. There it can grow again.
func TestTheHeadIsLost(t *testing.T) {
	for how, lose := range map[string]func(n *network, s *spread){
		"killed":  func(_ *network, s *spread) { s.signal(syscall.SIGKILL, nil, s.head) },
		"cut off": func(n *network, _ *spread) { n.cut("a") },
	} {
		t.Run(how, func(t *testing.T) {
			n := newNetwork(t, "a", "b", "c")
			s := startSpread(t, n, 1, audited)
			old, workers := s.head, s.on(s.job.Head)
			lose(n, s)
			host := s.led("b", "c")
			s.trains(2, 10)
			if how == "cut off" {
				n.mend("a")
				s.ends(old, 1)
			}
			s.gone(workers)
			s.shoal("token", "train", "--for", "1h", "--token-file", s.token())
			s.agent("a", "d")
			s.shoal("resize", "train", "3")
			s.trains(3, 10)
			if n := s.lost(); n != 1 {
				t.Errorf("%d were lost: %+v", n, s.ledger())
			}
			s.says(s.agents[host], "this host leads the job now")
			s.finish(3)
			s.ends(s.agents["d"], 0)
		})
	}
}

// The host that leads is drained, or is told that it will be gone: it hands over, and its launcher
// ends well while the job goes on.
func TestTheHeadLeaves(t *testing.T) {
	for how, ask := range map[string]func(s *spread){
		"drained":       func(s *spread) { s.shoal("drain", "train", s.job.Head) },
		"a spot notice": func(s *spread) { s.signal(syscall.SIGTERM, nil, s.head) },
	} {
		t.Run(how, func(t *testing.T) {
			s := startSpread(t, newNetwork(t, "a", "b", "c"), 1, audited)
			old, name, workers := s.head, s.job.Head, s.on(s.job.Head)
			ask(s)
			s.led("b", "c")
			s.ends(old, 0)
			// the one who drains it is there too
			s.says(old, name+" asked for "+name+" to be drained")
			s.says(old, "goes on on host")
			s.gone(workers)
			s.trains(2, 10)
			s.noneLost(0)
			s.finish(2)
		})
	}
}

// A host is told that it will be gone, but who leads is lost before it has heard of that: who leads
// next hears of it too.
func TestAHostLeavesThoughTheHeadIsLost(t *testing.T) {
	s := startSpread(t, newNetwork(t, "a", "b", "c"), 1, audited)
	old, leaver := s.head, s.agents["b"]
	s.signal(syscall.SIGSTOP, nil, old)
	s.signal(syscall.SIGTERM, nil, leaver)
	s.says(leaver, "this host leaves the job")
	s.signal(syscall.SIGKILL, nil, old)
	s.led("c")
	s.ends(leaver, 0)
	s.trains(1, 10)
	s.finish(1)
}

// Of two hosts the one that led is lost. The other cannot know that it is gone, and waits until a
// person says so.
func TestOneOfTwoHostsWaits(t *testing.T) {
	s := startSpread(t, newNetwork(t, "a", "b"), 1, audited)
	s.signal(syscall.SIGKILL, nil, s.head)
	s.led("b")
	if s.job.State != api.Stuck {
		t.Errorf("the job is %s", s.job.State)
	}
	s.shoal("recover", "train", "--force")
	s.trains(1, 10)
	s.finish(1)
}

// The host that leads is lost, and then another: only with that are too few left, and a person has
// to hear of it.
func TestHostsAreLostOneAfterTheOther(t *testing.T) {
	s := startSpread(t, newNetwork(t, "a", "b", "c"), 1, audited)
	frozen := s.on("c")
	s.signal(syscall.SIGSTOP, frozen, s.agents["c"])
	s.signal(syscall.SIGKILL, nil, s.head)
	s.says(s.agents["b"], "shoal recover train --force")
	s.signal(syscall.SIGKILL, frozen, s.agents["c"])
	s.led("b")
	s.shoal("recover", "train", "--force")
	s.trains(1, 10)
	s.finish(1)
}

// Of two hosts with workers the one that led is lost. A third one, which has none, is the witness:
// the other need not wait.
func TestAHostWithoutWorkersIsAWitness(t *testing.T) {
	s := startSpreadOn(t, newNetwork(t, "a", "b", "c"), []string{"a", "b"}, 1, nil, audited)
	s.agent("c", "c")
	s.until("a generation with the third host", func() (bool, error) {
		return slices.ContainsFunc(s.ledger(), func(e launcher.Entry) bool {
			return e.Because == "c joined the job"
		}), nil
	})
	s.signal(syscall.SIGKILL, nil, s.head)
	s.led("b", "c")
	s.trains(1, 10)
	if n := s.lost(); n != 1 {
		t.Errorf("%d were lost: %+v", n, s.ledger())
	}
	s.finish(1)
	s.ends(s.agents["c"], 0)
}

// Who has no token of the job is refused, whatever he says, and the job does not notice.
func TestStrangersAreRefused(t *testing.T) {
	n := newNetwork(t, "a", "b")
	other := startSpread(t, newNetwork(t, "a"), 1, audited)
	// so that only strangers could change anything
	s := startSpreadOn(t, n, n.hosts, 1, []string{"--fixed-routes"}, audited)
	at := n.address("a") + ":7077"
	for what, token := range map[string]string{"a foreign token": other.token(),
		"no token": "/etc/hostname"} {
		p := s.start("b", "agent", "--join", at, "--token-file", token)
		s.ends(p, 1)
		if said := s.said(p); !strings.Contains(said, "token") {
			t.Errorf("%s: %s", what, said)
		}
	}
	for _, garbage := range []string{"head -c 1000000 /dev/urandom",
		`printf 'GET / HTTP/1.1\r\n\r\n'`, "head -c 70000 /dev/zero"} {
		// It is cut off in mid-sentence, or sees the connection end.
		err := n.command(s.ctx, "b", "bash", "-c",
			"exec 3<>/dev/tcp/"+strings.Replace(at, ":", "/", 1)+"; "+garbage+
				" >&3; cat <&3 >/dev/null").Run()
		if _, exited := err.(*exec.ExitError); err != nil && !exited {
			t.Error(err)
		}
	}
	s.trains(2, 10)
	if n := len(s.ledger()); n != 1 {
		t.Errorf("the job has changed: %+v", s.ledger())
	}
	s.finish(2)
	s.ends(s.agents["b"], 0)
	other.finish(1)
}
