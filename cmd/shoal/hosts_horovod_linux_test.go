package main

import (
	"fmt"
	"syscall"
	"testing"

	api "github.com/shoal-ml/shoal/api/control"
)

// The two ways in which the workers of these scenarios fail.
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

func hostsAddedAndRemoved(t *testing.T) {
	for _, slots := range []int{2, 1} {
		t.Run(fmt.Sprintf("%d slots", slots), func(t *testing.T) {
			n := newNetwork(t, "a", "b")
			s := startSpreadOn(t, n, n.hosts[:1], slots, nil, audited)
			first, began := s.head, s.on(s.job.Head)
			s.agent("b", "b")
			s.shoal("resize", "train", fmt.Sprint(2*slots))
			s.trains(2*slots, 10)
			s.shoal("drain", "train", s.job.Head) // the one with rank 0, which leads
			s.ends(first, 0)
			s.gone(began)
			s.noneLost(slots)
			s.led("b")
			s.trains(slots, 10)
			s.noneLost(0)
			s.finish(slots)
		})
	}
}

// noneLost looks into the ledger of the host that leads, or led: nobody was lost, and so many were
// released.
func (s *spread) noneLost(released int) {
	s.Helper()
	if l, r := s.lost(), s.released(); l != 0 || r != released {
		s.Errorf("%d were lost, %d released: %+v", l, r, s.ledger())
	}
}

// fourOfTwoHosts is a job of four fallible workers on two hosts, of which min are enough: without
// --min the first exception would end the job.
func fourOfTwoHosts(t *testing.T, min int, flags ...string) *spread {
	n := newNetwork(t, "a", "b")
	return startSpreadOn(t, n, n.hosts, 2, append([]string{"--min", fmt.Sprint(min)}, flags...),
		[]string{"fallible"})
}

// fails makes the members with some ranks fail.
func (s *spread) fails(mode int, ranks ...int) {
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

// lose does so, and waits until the others go on; the failed ones are all that is lost.
func (s *spread) lose(mode, members int, ranks ...int) {
	s.Helper()
	before := s.lost()
	s.fails(mode, ranks...)
	s.trains(members, 10)
	if n := s.lost() - before; n != len(ranks) {
		s.Errorf("%d were lost, not %d: %+v", n, len(ranks), s.ledger())
	}
}

func singleRankFailure(t *testing.T, flags []string) {
	for mode, m := range exitModes {
		t.Run(m.name, func(t *testing.T) {
			s := fourOfTwoHosts(t, 2, flags...)
			s.lose(mode, 3, 0)
			if flags != nil { // nobody can come, and nobody has to
				if err := s.job.Resize(s.ctx, 5, "the test"); err == nil {
					t.Error("the job grows above --max")
				}
				s.trains(3, 10)
			}
			s.finish(3)
		})
	}
}

func allRanksFailure(t *testing.T) {
	s := fourOfTwoHosts(t, 2)
	s.fails(0, 0, 1, 2, 3)
	s.ends(s.head, 1)
	s.says(s.head, "failed: ")
}

func allHostsHaveFailed(t *testing.T) {
	s := fourOfTwoHosts(t, 2)
	s.lose(0, 2, 0, 2)
	s.shoal("resize", "train", "4")
	s.trains(4, 10)
	if a, b := s.on(s.job.Head), s.on("b"); len(a) != 2 || len(b) != 2 {
		t.Errorf("%d and %d workers on the two hosts", len(a), len(b))
	}
	s.finish(4)
}

func minHostsAreWaitedFor(t *testing.T) {
	s := fourOfTwoHosts(t, 4)
	s.fails(0, 0)
	s.says(s.head, "pause at step ")
	s.shoal("resize", "train", "4")
	s.says(s.head, "resume at step ")
	s.trains(4, 10)
	s.finish(4)
}

func changesWithoutLimit(t *testing.T) {
	n := newNetwork(t, "a", "b")
	s := startSpreadOn(t, n, n.hosts[:1], 1, nil, audited)
	for i := range 4 {
		name := fmt.Sprintf("b%d", i)
		s.agent("b", name)
		s.shoal("resize", "train", "2")
		s.trains(2, 5)
		s.shoal("drain", "train", name)
		s.ends(s.agents[name], 0)
		s.trains(1, 5)
	}
	s.noneLost(4)
	s.finish(1)
}

func hostFailsAgain(t *testing.T) {
	s := fourOfTwoHosts(t, 2)
	for range 2 {
		s.lose(0, 3, 3)
		s.shoal("resize", "train", "4")
		s.trains(4, 10)
		if n := len(s.on("b")); n != 2 {
			t.Errorf("%d workers on the host that failed", n)
		}
	}
	s.finish(4)
}
