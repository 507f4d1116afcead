package main

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	api "github.com/shoal-ml/shoal/api/control"
)

const (
	soakRound = 15 * time.Second // for how long a job on several hosts is given faults
	soakSlots = 2                // number of slots of each of its hosts
)

// hostSoak is a job on several hosts, of which any may be lost, but only one at a time: the next
// one when another has come. The goroutine of the test uses it; as with spread, what its methods
// wait for and does not come within testPatience ends the test.
type hostSoak struct {
	*spread
	rng   *rand.Rand
	tally *tally // of all jobs of the soak
	came  int    // number of hosts that came in place of others, for their names

	frozen []api.Worker // those that the fault "host frozen" has stopped
	// agents that the job went on without: what their workers say when they are ended is no matter
	dropped map[*process]bool
}

// soakHosts runs jobs on three hosts with random faults for so long.
func soakHosts(t *testing.T, rng *rand.Rand, c *tally, length time.Duration) {
	for end := time.Now().Add(length); time.Now().Before(end) && !t.Failed(); {
		soakHostsOnce(t, rng, c, min(time.Until(end), soakRound))
	}
}

// soakHostsOnce runs one such job, and adds what happened to c.
func soakHostsOnce(t *testing.T, rng *rand.Rand, c *tally, length time.Duration) {
	n := newNetwork(t, "a", "b", "c")
	s := &hostSoak{spread: startSpread(t, n, soakSlots, audited), rng: rng, tally: c,
		dropped: map[*process]bool{}}
	// the last two before they have entered
	s.faults = []string{"was killed by SIGKILL", "was killed by SIGTERM", "exited with code 143"}
	for end := time.Now().Add(length); time.Now().Before(end); {
		s.injectFault()
	}
	s.fillSlots()
	members := s.job.Size
	c.add(s.stopAndCheck(members))
	for _, p := range slices.DeleteFunc(s.all, func(p *process) bool { return s.dropped[p] }) {
		for _, line := range exceptions.FindAllString(s.outputOf(p), -1) {
			// one that is not wanted any more before it has entered
			if !strings.HasSuffix(line, ": SIGTERM") {
				c.exceptions = append(c.exceptions, line)
			}
		}
	}
}

// exceptions finds lines in which a worker tells of an error, on the screen of its host.
var exceptions = regexp.MustCompile(`(?m)^\[\d+\] shoal: .*$`)

// injectFault makes one random fault, and waits a moment.
func (s *hostSoak) injectFault() {
	s.must(s.job.Refresh(s.ctx))
	switch s.rng.IntN(8) {
	case 0, 1:
		s.killMember()
	case 2:
		s.stopMember()
	case 3, 4:
		s.must(s.job.Resize(s.ctx, 1+s.rng.IntN(soakSlots*len(s.net.hosts)), "the soak"))
		s.tally.faults["resized"]++
	default:
		s.fillSlots()
		s.loseHost(s.net.hosts[s.rng.IntN(len(s.net.hosts))],
			hostFaults[s.rng.IntN(len(hostFaults))])
	}
	<-time.After(time.Duration(s.rng.Int64N(int64(soakPause))))
}

// members returns the workers that hold the state, as s.job was refreshed last.
func (s *hostSoak) members() []api.Worker {
	return slices.DeleteFunc(slices.Clone(s.job.Workers), func(w api.Worker) bool {
		return !w.Running || w.Rank < 0
	})
}

// killMember kills a member where enough others stay, and waits until the job knows.
func (s *hostSoak) killMember() {
	members := s.members()
	if min(len(members), s.job.Size, s.job.Want) < 3 {
		return
	}
	w := members[s.rng.IntN(len(members))]
	if err := syscall.Kill(w.PID, syscall.SIGKILL); err == syscall.ESRCH {
		return // it has just been released
	}
	s.tally.faults["worker killed"]++
	s.waitUntil("the loss", func() (bool, error) {
		err := s.job.Refresh(s.ctx)
		return !slices.ContainsFunc(s.members(), func(o api.Worker) bool {
			return o.PID == w.PID
		}), err
	})
}

// stopMember stops a member for a moment, up to soakStop, and waits until that is over.
func (s *hostSoak) stopMember() {
	members := s.members()
	w := members[s.rng.IntN(len(members))]
	if syscall.Kill(w.PID, syscall.SIGSTOP) == syscall.ESRCH {
		return
	}
	s.tally.faults["worker stopped"]++
	<-time.After(time.Duration(s.rng.Int64N(int64(soakStop))))
	if err := syscall.Kill(w.PID, syscall.SIGCONT); err != syscall.ESRCH {
		s.must(err)
	}
}

// fillSlots resizes the job to a worker on every slot, and waits until all train.
func (s *hostSoak) fillSlots() {
	s.Helper()
	s.must(s.job.Resize(s.ctx, soakSlots*len(s.net.hosts), "the soak"))
	s.awaitSteps(soakSlots*len(s.net.hosts), 3)
}

// hostFault is a way in which a job loses a host. host is its name in the network, and p its
// process.
type hostFault struct {
	name  string
	begin func(s *hostSoak, host string)             // makes the fault, without waiting
	end   func(s *hostSoak, host string, p *process) // when the others go on
}

// hostFaults are the ways in which the soak loses hosts.
var hostFaults = []hostFault{
	{"host killed", func(s *hostSoak, host string) {
		s.signal(syscall.SIGKILL, nil, s.agents[s.names[host]])
	},
		func(s *hostSoak, _ string, p *process) { s.awaitExit(p, -1) }},
	{"cable cut", func(s *hostSoak, host string) { s.net.cutCable(host) },
		func(s *hostSoak, host string, p *process) { s.net.mendCable(host); s.awaitExit(p, 1) }},
	{"cable cut for good", func(s *hostSoak, host string) { s.net.cutCable(host) },
		func(s *hostSoak, host string, p *process) {
			s.signal(syscall.SIGKILL, nil, p)
			s.awaitExit(p, -1)
			s.net.mendCable(host)
		}},
	{"host frozen",
		func(s *hostSoak, host string) {
			s.frozen = s.workersOn(s.names[host])
			s.signal(syscall.SIGSTOP, s.frozen, s.agents[s.names[host]])
		},
		func(s *hostSoak, _ string, p *process) {
			s.signal(syscall.SIGCONT, s.frozen, p)
			s.awaitExit(p, 1)
		}},
	{"host drained", func(s *hostSoak, host string) { s.runShoal("drain", "train", s.names[host]) },
		func(s *hostSoak, _ string, p *process) { s.awaitExit(p, 0) }},
	{"host told to leave",
		func(s *hostSoak, host string) { s.signal(syscall.SIGTERM, nil, s.agents[s.names[host]]) },
		func(s *hostSoak, _ string, p *process) { s.awaitExit(p, 0) }},
}

// loseHost makes the job lose a host, waits until the others go on, and has another one come in its
// place.
func (s *hostSoak) loseHost(host string, how hostFault) {
	s.Helper()
	name := s.names[host]
	p, workers, leads := s.agents[name], s.workersOn(name), name == s.job.Head
	what := how.name
	if leads {
		what += ", the one that leads"
	}
	s.tally.faults[what]++
	how.begin(s, host)
	if leads {
		s.awaitLeader(s.otherHosts(host)...)
	}
	var from uint64
	s.waitUntil("steps after: "+what, func() (bool, error) {
		err := s.job.Refresh(s.ctx)
		if from == 0 || slices.ContainsFunc(s.job.Workers, func(w api.Worker) bool {
			return w.Running && w.Host == name
		}) {
			from = max(s.job.Steps, 1)
		}
		return s.job.Steps >= from+3, err
	})
	how.end(s, host, p)
	s.dropped[p] = p.ProcessState.ExitCode() != 0
	s.awaitGone(workers)
	delete(s.agents, name)
	s.came++
	s.startAgent(host, fmt.Sprintf("%s%d", host, s.came))
	s.fillSlots()
}
