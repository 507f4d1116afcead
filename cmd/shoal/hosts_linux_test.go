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
	"github.com/shoal-ml/shoal/launcher/runs"
)

// Each test makes its own network and job. The methods of spread here are for the goroutine of the
// test, and end it when what they wait for does not come within testPatience.

// A cable is cut in mid-training and nobody says goodbye: the job goes on, and the host that is cut
// off ends what it runs.
func TestHostIsCutOff(t *testing.T) {
	n := newNetwork(t, "a", "b", "c")
	s := startSpread(t, n, 1, audited)
	took := []time.Duration{s.cutAndMeasure("b")}
	victim := s.agents["b"]
	s.awaitOutput(victim, "shoal recover train --force")
	n.mendCable("b")
	s.awaitExit(victim, 1)
	s.awaitOutput(victim, "the others go on without it")
	s.startAgent("b", "b2")
	s.runShoal("resize", "train", "3")
	s.awaitSteps(3, 10)
	took = append(took, s.cutAndMeasure("c"))
	s.signal(syscall.SIGKILL, nil, s.agents["c"])
	if s.lostCount() != 2 {
		t.Errorf("the ledger: %+v", s.readLedger())
	}
	s.stopAndCheck(2)
	s.awaitExit(s.agents["b2"], 0)
	t.Logf("from the cut to the next commit of the slowest survivor: %v", took)
}

// cutAndMeasure cuts the cable of a host and returns the time until the slowest worker of the
// others has made its next step. Where that host leads, another one then is s.head.
func (s *spread) cutAndMeasure(host string) time.Duration {
	s.Helper()
	name := s.names[host]
	gone := s.workersOn(name)
	others := slices.DeleteFunc(slices.Clone(s.job.Workers), func(w api.Worker) bool {
		return !w.Running || w.Host == name
	})
	if len(gone) == 0 || len(others) == 0 {
		s.Fatalf("%d workers on %s, %d elsewhere", len(gone), name, len(others))
	}
	generation, leads, at := s.job.Generation, name == s.job.Head, time.Now()
	s.net.cutCable(host)
	if leads {
		s.awaitLeader(s.otherHosts(host)...)
	}
	return s.awaitCommits(generation, others).Sub(at)
}

// BenchmarkHostCut cuts b.N cables, a few in each job, and tells how long the others then need to
// their next commit: when the host leads the job, and when it does not:
//
//	go test -run '^$' -bench HostCut -benchtime 25x ./cmd/shoal
func BenchmarkHostCut(b *testing.B) {
	b.Run("another", func(b *testing.B) {
		cutHosts(b, func(s *spread, turn int) string { return s.otherHosts(s.leader())[turn%2] })
	})
	b.Run("the one that leads", func(b *testing.B) {
		cutHosts(b, func(s *spread, _ int) string { return s.leader() })
	})
}

// leader returns the host of the network that leads the job; it ends the test where none is known.
func (s *spread) leader() string {
	for host, name := range s.names {
		if name == s.job.Head {
			return host
		}
	}
	s.Fatalf("no host is called %s", s.job.Head)
	return ""
}

// cutHosts cuts the cables of b.N hosts, which victim chooses, and reports how long the others need
// to their next commit. turn counts the cuts of a job from 0. It runs on the goroutine of the
// benchmark.
func cutHosts(b *testing.B, victim func(s *spread, turn int) string) {
	const cutsOfJob = 5
	var took []time.Duration
	for len(took) < b.N {
		n := newNetwork(b, "a", "b", "c")
		s := startSpread(b, n, 1, audited)
		for i := range min(cutsOfJob, b.N-len(took)) {
			host := victim(s, i)
			p, workers := s.agents[s.names[host]], s.workersOn(s.names[host])
			took = append(took, s.cutAndMeasure(host))
			s.signal(syscall.SIGKILL, nil, p)
			s.awaitExit(p, -1)
			s.awaitGone(workers)
			n.mendCable(host)
			s.startAgent(host, fmt.Sprintf("%s%d", host, i+2))
			s.runShoal("resize", "train", "3")
			s.awaitSteps(3, 50)
		}
		s.stopAndCheck(3)
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
	victims := s.workersOn("b")
	s.signal(syscall.SIGSTOP, victims, s.agents["b"])
	s.awaitSteps(2, 10)
	s.signal(syscall.SIGCONT, victims, s.agents["b"])
	s.awaitExit(s.agents["b"], 1)
	s.awaitGone(victims)
	s.stopAndCheck(2)
	s.awaitExit(s.agents["c"], 0)
}

// Who stands still for a moment only is waited for: a worker, or a host with all that runs there.
func TestShortPausesAreWaitedFor(t *testing.T) {
	s := startSpread(t, newNetwork(t, "a", "b", "c"), 1, audited)
	for name, others := range map[string][]*process{"b": nil, "c": {s.agents["c"]}} {
		paused := s.workersOn(name)
		s.signal(syscall.SIGSTOP, paused, others...)
		<-time.After(400 * time.Millisecond)
		s.signal(syscall.SIGCONT, paused, others...)
		s.awaitSteps(3, 10)
	}
	if n := s.lostCount(); n > 0 {
		t.Errorf("%d were lost: %+v", n, s.readLedger())
	}
	s.stopAndCheck(3)
}

// An agent dies: what it ran dies with it.
func TestAgentIsKilled(t *testing.T) {
	s := startSpread(t, newNetwork(t, "a", "b", "c"), 2, audited)
	victims := s.workersOn("b")
	s.signal(syscall.SIGKILL, nil, s.agents["b"])
	s.awaitSteps(4, 10)
	s.awaitExit(s.agents["b"], -1)
	s.awaitGone(victims)
	if n := s.lostCount(); n != 2 {
		t.Errorf("%d were lost: %+v", n, s.readLedger())
	}
	s.stopAndCheck(4)
	s.awaitExit(s.agents["c"], 0)
}

// A host leaves because it was asked to, there or at the head; another one comes.
func TestHostsLeaveAndJoin(t *testing.T) {
	s := startSpread(t, newNetwork(t, "a", "b", "c"), 2, audited)
	for _, leave := range []struct {
		name string
		ask  func()
	}{
		{"b", func() { s.signal(syscall.SIGTERM, nil, s.agents["b"]) }},
		{"c", func() { s.runShoal("drain", "train", "c") }},
	} {
		workers := s.workersOn(leave.name)
		leave.ask()
		s.awaitExit(s.agents[leave.name], 0)
		s.awaitGone(workers)
	}
	s.awaitSteps(2, 10)
	s.startAgent("b", "d")
	s.runShoal("resize", "train", "4")
	s.awaitSteps(4, 10)
	if n := len(s.workersOn("d")); n != 2 {
		t.Errorf("%d workers run on the host that joined", n)
	}
	if lost, released := s.lostCount(), s.releasedCount(); lost != 0 || released != 4 {
		t.Errorf("%d were lost, %d released: %+v", lost, released, s.readLedger())
	}
	s.stopAndCheck(4)
	s.awaitExit(s.agents["d"], 0)
}

// A host leaves, and the others are too few: it is free, they wait with what they have, and go on
// with a host that comes. Then the one that leads.
func TestHostsLeaveBelowTheMinimum(t *testing.T) {
	n := newNetwork(t, "a", "b", "c", "d")
	s := startSpreadOn(t, n, []string{"a", "b", "c"}, 1, []string{"--min", "3"}, audited)
	workers := s.workersOn("c")
	s.runShoal("drain", "train", "c")
	s.awaitExit(s.agents["c"], 0)
	s.awaitGone(workers)
	s.awaitOutput(s.head, "2 members are fewer than the minimum of 3")
	s.startAgent("d", "d")
	s.awaitSteps(3, 10)
	s.checkReleased(1)
	old, workers := s.head, s.workersOn(s.job.Head)
	s.signal(syscall.SIGTERM, nil, old)
	s.awaitExit(old, 0)
	s.awaitGone(workers)
	s.awaitLeader("b", "d")
	s.awaitOutput(s.head, "2 members are fewer than the minimum of 3")
	s.runShoal("token", "train", "--for", "1h", "--token-file", s.tokenFile())
	s.startAgent("c", "e")
	s.awaitSteps(3, 10)
	s.checkReleased(0)
	s.stopAndCheck(3)
}

// Tensors fill a slow cable with a long queue: signs of life are not overtaken by them so that
// somebody would be thought lost.
func TestSlowCable(t *testing.T) {
	n := newNetwork(t, "a", "b", "c")
	s := startSpread(t, n, 1, []string{benchProgram(t, "recovery"), "worker", "100000", "1000"})
	n.limitCable("b", "10mbit", "500kb")
	s.awaitSteps(3, 10)
	if n := s.lostCount(); n > 0 {
		t.Errorf("%d were lost: %+v", n, s.readLedger())
	}
	s.must(s.job.Stop(s.ctx, false, "the test"))
	s.awaitExit(s.head, 0)
	s.checkWorkersEnded()
}

// Two hosts cannot reach each other, though the head reaches both: one of them goes.
func TestHostsCannotReachEachOther(t *testing.T) {
	n := newNetwork(t, "a", "b", "c")
	s := startSpread(t, n, 1, audited)
	n.separate("b", "c")
	s.awaitSteps(2, 10)
	if n := s.lostCount(); n != 1 {
		t.Errorf("%d were lost: %+v", n, s.readLedger())
	}
	for name, agent := range s.agents {
		if len(s.workersOn(name)) == 0 {
			s.awaitExit(agent, 1)
		}
	}
	s.stopAndCheck(2)
}

// The host that leads is lost, with its launcher: the others lose no step, and one of them leads
// on. There it can grow again.
func TestTheHeadIsLost(t *testing.T) {
	for how, lose := range map[string]func(n *network, s *spread){
		"killed":  func(_ *network, s *spread) { s.signal(syscall.SIGKILL, nil, s.head) },
		"cut off": func(n *network, _ *spread) { n.cutCable("a") },
	} {
		t.Run(how, func(t *testing.T) {
			n := newNetwork(t, "a", "b", "c")
			s := startSpread(t, n, 1, audited)
			old, workers := s.head, s.workersOn(s.job.Head)
			lose(n, s)
			host := s.awaitLeader("b", "c")
			s.awaitSteps(2, 10)
			if how == "cut off" {
				s.awaitOutput(old, "shoal recover train --force")
				n.mendCable("a")
				s.awaitExit(old, 1)
			}
			s.awaitGone(workers)
			s.runShoal("token", "train", "--for", "1h", "--token-file", s.tokenFile())
			s.startAgent("a", "d")
			s.runShoal("resize", "train", "3")
			s.awaitSteps(3, 10)
			if n := s.lostCount(); n != 1 {
				t.Errorf("%d were lost: %+v", n, s.readLedger())
			}
			s.awaitOutput(s.agents[host], "this host leads the job now")
			s.stopAndCheck(3)
			s.awaitExit(s.agents["d"], 0)
		})
	}
}

// The host that leads is drained, or is told that it will be gone: it hands over, and its launcher
// ends well while the job goes on.
func TestTheHeadLeaves(t *testing.T) {
	for how, ask := range map[string]func(s *spread){
		"drained":       func(s *spread) { s.runShoal("drain", "train", s.job.Head) },
		"a spot notice": func(s *spread) { s.signal(syscall.SIGTERM, nil, s.head) },
	} {
		t.Run(how, func(t *testing.T) {
			s := startSpread(t, newNetwork(t, "a", "b", "c"), 1, audited)
			old, name, workers := s.head, s.job.Head, s.workersOn(s.job.Head)
			ask(s)
			s.awaitLeader("b", "c")
			s.awaitExit(old, 0)
			// the one who drains it is there too
			s.awaitOutput(old, name+" asked for "+name+" to be drained")
			s.awaitOutput(old, "goes on on host")
			s.awaitGone(workers)
			s.awaitSteps(2, 10)
			s.checkReleased(0)
			s.stopAndCheck(2)
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
	s.awaitOutput(leaver, "this host leaves the job")
	s.signal(syscall.SIGKILL, nil, old)
	s.awaitLeader("c")
	s.awaitExit(leaver, 0)
	s.awaitSteps(1, 10)
	s.stopAndCheck(1)
}

// Of two hosts the one that led is lost. The other cannot know that it is gone, and waits until a
// person says so.
func TestOneOfTwoHostsWaits(t *testing.T) {
	s := startSpread(t, newNetwork(t, "a", "b"), 1, audited)
	s.signal(syscall.SIGKILL, nil, s.head)
	s.awaitLeader("b")
	if s.job.State != api.Stuck {
		t.Errorf("the job is %s", s.job.State)
	}
	s.refuses("job train stays as it is: too few hosts are left", "drain", "train", "b")
	s.runShoal("recover", "train", "--force")
	s.awaitSteps(1, 10)
	s.stopAndCheck(1)
}

// All hosts but the one that leads are lost at once. It cannot know that, says so, and takes no
// changes until a person says that they are gone.
func TestTheHostThatLeadsIsLeftAlone(t *testing.T) {
	s := startSpread(t, newNetwork(t, "a", "b", "c"), 1, audited)
	// first, so that neither helps to decide on the loss of the other
	s.signal(syscall.SIGSTOP, nil, s.agents["b"], s.agents["c"])
	s.signal(syscall.SIGKILL, append(s.workersOn("b"), s.workersOn("c")...), s.agents["b"],
		s.agents["c"])
	s.awaitOutput(s.head, "too few hosts are left to be sure that no others go on; if you know "+
		"that the others are gone for good, say so: shoal recover train --force")
	s.refuses("job train stays as it is: too few hosts are left", "resize", "train", "1")
	s.runShoal("recover", "train", "--force")
	s.awaitSteps(1, 10)
	s.stopAndCheck(1)
}

// The host that leads is lost, and then another: only with that are too few left, and a person has
// to hear of it.
func TestHostsAreLostOneAfterTheOther(t *testing.T) {
	s := startSpread(t, newNetwork(t, "a", "b", "c"), 1, audited)
	frozen := s.workersOn("c")
	s.signal(syscall.SIGSTOP, frozen, s.agents["c"])
	s.signal(syscall.SIGKILL, nil, s.head)
	s.awaitOutput(s.agents["b"], "shoal recover train --force")
	s.signal(syscall.SIGKILL, frozen, s.agents["c"])
	s.awaitLeader("b")
	s.runShoal("recover", "train", "--force")
	s.awaitSteps(1, 10)
	s.stopAndCheck(1)
}

// Of two hosts with workers the one that led is lost. A third one, which has none, is the witness:
// the other need not wait.
func TestAHostWithoutWorkersIsAWitness(t *testing.T) {
	s := startSpreadOn(t, newNetwork(t, "a", "b", "c"), []string{"a", "b"}, 1, nil, audited)
	s.startAgent("c", "c")
	s.waitUntil("a generation with the third host", func() (bool, error) {
		return slices.ContainsFunc(s.readLedger(), func(e runs.Entry) bool {
			return e.Because == "c joined the job"
		}), nil
	})
	s.signal(syscall.SIGKILL, nil, s.head)
	s.awaitLeader("b", "c")
	s.awaitSteps(1, 10)
	if n := s.lostCount(); n != 1 {
		t.Errorf("%d were lost: %+v", n, s.readLedger())
	}
	s.stopAndCheck(1)
	s.awaitExit(s.agents["c"], 0)
}

// Who has no token of the job is refused, whatever he says, and the job does not notice.
func TestStrangersAreRefused(t *testing.T) {
	n := newNetwork(t, "a", "b")
	other := startSpread(t, newNetwork(t, "a"), 1, audited)
	// so that only strangers could change anything
	s := startSpreadOn(t, n, n.hosts, 1, []string{"--fixed-routes"}, audited)
	at := n.address("a") + ":7077"
	for token, code := range map[string]int{other.tokenFile(): 1, "/etc/hostname": 2} {
		p := s.startShoal("b", "agent", "--join", at, "--token-file", token)
		s.awaitExit(p, code)
		if said := s.outputOf(p); !strings.Contains(said, "token") {
			t.Errorf("%s: %s", token, said)
		}
	}
	for _, garbage := range []string{"head -c 1000000 /dev/urandom",
		`printf 'GET / HTTP/1.1\r\n\r\n'`, "head -c 70000 /dev/zero"} {
		// It is cut off in mid-sentence, or sees the connection end.
		err := n.hostCommand(s.ctx, "b", "bash", "-c",
			"exec 3<>/dev/tcp/"+strings.Replace(at, ":", "/", 1)+"; "+garbage+
				" >&3; cat <&3 >/dev/null").Run()
		if _, exited := err.(*exec.ExitError); err != nil && !exited {
			t.Error(err)
		}
	}
	s.awaitSteps(2, 10)
	if n := len(s.readLedger()); n != 1 {
		t.Errorf("the job has changed: %+v", s.readLedger())
	}
	s.stopAndCheck(2)
	s.awaitExit(s.agents["b"], 0)
	if said := s.outputOf(s.agents["b"]); !strings.Contains(said, "the job is over") {
		t.Errorf("the agent of a job that has ended says %s", said)
	}
	other.stopAndCheck(1)
}
