package main

import (
	"fmt"
	"syscall"
	"testing"

	api "github.com/shoal-ml/shoal/api/control"
)

// Each scenario is a function for the goroutine of its subtest. The methods of spread here are for
// that goroutine too; what they wait for and does not come within testPatience ends the test.

// exitModes are the two ways in which the workers of these scenarios fail: by which signal, and how
// the result calls that.
var exitModes = []struct {
	name string
	sig  syscall.Signal
	how  string
}{{"exception", syscall.SIGUSR1, "exited with code 1"},
	{"kill", syscall.SIGKILL, "was killed by SIGKILL"}}

// TestHorovodScenarios are the eight elastic scenarios of Horovod's integration tests, under their
// names. There a failure costs the steps since the last commit and puts the whole host of the
// worker on a list of hosts not to be used; here it costs no step, and only the worker that failed.
func TestHorovodScenarios(t *testing.T) {
	for _, scenario := range []struct {
		name string
		play func(t *testing.T)
	}{
		{"hosts_added_and_removed", hostsAddedAndRemoved},
		{"single_rank_failure", func(t *testing.T) { singleRankFailure(t, nil) }},
		{"fault_tolerance_without_scaling", func(t *testing.T) {
			singleRankFailure(t, []string{"--max", "4"})
		}},
		{"all_ranks_failure", allRanksFailure},
		// There is no list of bad hosts: hosts whose workers failed are as good as before.
		{"all_hosts_blacklisted", allHostsHaveFailed},
		// There is no timeout: below --min the job waits, and goes on where it was.
		{"min_hosts_timeout", minHostsAreWaitedFor},
		// There is no limit of changes.
		{"reset_limit", changesWithoutLimit},
		// There is no cool-down: a host that failed again and again is of use at once.
		{"resurrecting_blacklisted_hosts_exponential_backoff", hostFailsAgain},
	} {
		t.Run(scenario.name, scenario.play)
	}
}

// hostsAddedAndRemoved adds a host and drains the one that leads: nobody is lost.
func hostsAddedAndRemoved(t *testing.T) {
	for _, slots := range []int{2, 1} {
		t.Run(fmt.Sprintf("%d slots", slots), func(t *testing.T) {
			n := newNetwork(t, "a", "b")
			s := startSpreadOn(t, n, n.hosts[:1], slots, nil, audited)
			first, began := s.head, s.workersOn(s.job.Head)
			s.startAgent("b", "b")
			s.runShoal("resize", "train", fmt.Sprint(2*slots))
			s.awaitSteps(2*slots, 10)
			s.runShoal("drain", "train", s.job.Head) // the one with rank 0, which leads
			s.awaitExit(first, 0)
			s.awaitGone(began)
			s.checkReleased(slots)
			s.awaitLeader("b")
			s.awaitSteps(slots, 10)
			s.checkReleased(0)
			s.stopAndCheck(slots)
		})
	}
}

// checkReleased fails the test unless the ledger of the host that leads, or led, says that nobody
// was lost and so many were released.
func (s *spread) checkReleased(released int) {
	s.Helper()
	if l, r := s.lostCount(), s.releasedCount(); l != 0 || r != released {
		s.Errorf("%d were lost, %d released: %+v", l, r, s.readLedger())
	}
}

// fourOfTwoHosts starts a job of four fallible workers on two hosts, of which min are enough:
// without --min the first exception would end the job. flags are further ones of shoal run. It
// waits until the job trains.
func fourOfTwoHosts(t *testing.T, min int, flags ...string) *spread {
	n := newNetwork(t, "a", "b")
	return startSpreadOn(t, n, n.hosts, 2, append([]string{"--min", fmt.Sprint(min)}, flags...),
		[]string{"fallible"})
}

// failMembers makes the members with these ranks fail, in the way exitModes[mode], and does not
// wait for it. Their end is then none that checkWorkersEnded refuses.
func (s *spread) failMembers(mode int, ranks ...int) {
	s.Helper()
	s.must(s.job.Refresh(s.ctx))
	var doomed []api.Worker
	for _, w := range s.job.Workers {
		for _, rank := range ranks {
			if w.Running && w.Rank == rank {
				doomed = append(doomed, w)
			}
		}
	}
	if len(doomed) != len(ranks) {
		s.Fatalf("no workers have the ranks %v: %+v", ranks, s.job.Workers)
	}
	s.signal(exitModes[mode].sig, doomed)
	s.faults = append(s.faults, exitModes[mode].how)
}

// loseMembers makes the members with these ranks fail, waits until the others, so many members, go
// on, and fails the test where anybody else is lost. mode is an index of exitModes.
func (s *spread) loseMembers(mode, members int, ranks ...int) {
	s.Helper()
	before := s.lostCount()
	s.failMembers(mode, ranks...)
	s.awaitSteps(members, 10)
	if n := s.lostCount() - before; n != len(ranks) {
		s.Errorf("%d were lost, not %d: %+v", n, len(ranks), s.readLedger())
	}
}

// singleRankFailure has rank 0 fail in every way: the others go on. flags are further ones of shoal
// run: nil, or --max 4.
func singleRankFailure(t *testing.T, flags []string) {
	for mode, m := range exitModes {
		t.Run(m.name, func(t *testing.T) {
			s := fourOfTwoHosts(t, 2, flags...)
			s.loseMembers(mode, 3, 0)
			if flags != nil { // nobody can come, and nobody has to
				if err := s.job.Resize(s.ctx, 5, "the test"); err == nil {
					t.Error("the job grows above --max")
				}
				s.awaitSteps(3, 10)
			}
			s.stopAndCheck(3)
		})
	}
}

// allRanksFailure has all workers fail: the job fails.
func allRanksFailure(t *testing.T) {
	s := fourOfTwoHosts(t, 2)
	s.failMembers(0, 0, 1, 2, 3)
	s.awaitExit(s.head, 1)
	s.awaitOutput(s.head, "failed: ")
}

// allHostsHaveFailed has a worker of each host fail: both hosts get new ones.
func allHostsHaveFailed(t *testing.T) {
	s := fourOfTwoHosts(t, 2)
	s.loseMembers(0, 2, 0, 2)
	s.runShoal("resize", "train", "4")
	s.awaitSteps(4, 10)
	if a, b := s.workersOn(s.job.Head), s.workersOn("b"); len(a) != 2 || len(b) != 2 {
		t.Errorf("%d and %d workers on the two hosts", len(a), len(b))
	}
	s.stopAndCheck(4)
}

// minHostsAreWaitedFor has a job fall below --min: it waits, and goes on when it has enough workers
// again.
func minHostsAreWaitedFor(t *testing.T) {
	s := fourOfTwoHosts(t, 4)
	s.failMembers(0, 0)
	s.awaitOutput(s.head, "pause at step ")
	s.runShoal("resize", "train", "4")
	s.awaitOutput(s.head, "resume at step ")
	s.awaitSteps(4, 10)
	s.stopAndCheck(4)
}

// changesWithoutLimit has a host come and go several times.
func changesWithoutLimit(t *testing.T) {
	n := newNetwork(t, "a", "b")
	s := startSpreadOn(t, n, n.hosts[:1], 1, nil, audited)
	for i := range 4 {
		name := fmt.Sprintf("b%d", i)
		s.startAgent("b", name)
		s.runShoal("resize", "train", "2")
		s.awaitSteps(2, 5)
		s.runShoal("drain", "train", name)
		s.awaitExit(s.agents[name], 0)
		s.awaitSteps(1, 5)
	}
	s.checkReleased(4)
	s.stopAndCheck(1)
}

// hostFailsAgain has a host lose a worker twice: it gets a new one each time.
func hostFailsAgain(t *testing.T) {
	s := fourOfTwoHosts(t, 2)
	for range 2 {
		s.loseMembers(0, 3, 3)
		s.runShoal("resize", "train", "4")
		s.awaitSteps(4, 10)
		if n := len(s.workersOn("b")); n != 2 {
			t.Errorf("%d workers on the host that failed", n)
		}
	}
	s.stopAndCheck(4)
}
