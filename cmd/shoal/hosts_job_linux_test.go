package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// spread is a job on the hosts of a network, each with a launcher or an agent of its own. Its head
// is on the first. The goroutine of the test uses it. What its methods wait for and does not come
// within testPatience ends the test, and so does what fails, unless a method says that it fails the
// test, which then goes on.
type spread struct {
	testing.TB
	net    *network
	ctx    context.Context     // bounds everything that is waited for
	dir    string              // folder for files and sockets; the end of the test removes it
	job    *control.Job        // as the host that leads answered last; nil = none has answered yet
	head   *process            // of the host that leads
	agents map[string]*process // by the name of the host in the job
	names  map[string]string   // in the job, by the host of the network: the newest
	slots  int                 // that an agent offers
	faults []string            // how workers may end, beside well or with their host
	all    []*process          // launchers and agents that were started
}

// process is a launcher or an agent, which the end of the test kills.
type process struct {
	*exec.Cmd
	output string // path of the file with what it prints
}

// audited is the worker of the demo, which counts samples and compares parameters, without an end.
var audited = []string{"shoal", "demo", "worker", strconv.Itoa(math.MaxInt32)}

// testPatience bounds what a test waits for; nothing else is judged by it.
const testPatience = 3 * time.Minute

// startSpread starts a job of one worker a slot on all hosts of a network, and waits until it
// trains. The end of the test ends it.
func startSpread(tb testing.TB, n *network, slots int, worker []string) *spread {
	tb.Helper()
	return startSpreadOn(tb, n, n.hosts, slots, nil, worker)
}

// startSpreadOn does what startSpread does, on some of the hosts, with flags of shoal run. It sets
// XDG_RUNTIME_DIR to that of the head, so the test must not be parallel.
func startSpreadOn(tb testing.TB, n *network, hosts []string, slots int, flags,
	worker []string) *spread {
	tb.Helper()
	dir, err := os.MkdirTemp("", "hosts") // a socket path must be short
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	tb.Cleanup(cancel)
	s := &spread{TB: tb, net: n, ctx: ctx, dir: dir, agents: map[string]*process{},
		names: map[string]string{}, slots: slots}
	size := slots * len(hosts)
	tb.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "run-"+hosts[0]))
	words := append([]string{"run", "-n", strconv.Itoa(size), "--name", "train", "--listen",
		n.address(hosts[0]) + ":7077",
		"--slots", strconv.Itoa(slots), "--token-file", s.tokenFile()}, flags...)
	s.head = s.startShoal(hosts[0], append(append(words, "--"), worker...)...)
	s.waitUntil("the token", func() (bool, error) {
		_, err := os.Stat(s.tokenFile())
		return err == nil, nil
	})
	for _, host := range hosts[1:] {
		s.startAgent(host, host)
	}
	s.waitUntil("the job", func() (bool, error) {
		s.job, _ = control.Find(s.ctx, "train")
		return s.job != nil, nil
	})
	s.awaitSteps(size, 1)
	s.names[hosts[0]], s.agents[s.job.Head] = s.job.Head, s.head
	return s
}

// awaitLeader waits until one of these hosts answers for the job, makes it s.head, and returns it.
// It sets XDG_RUNTIME_DIR to that of this host.
func (s *spread) awaitLeader(hosts ...string) (host string) {
	s.Helper()
	s.waitUntil("another head", func() (bool, error) {
		for _, host = range hosts {
			s.Setenv("XDG_RUNTIME_DIR", filepath.Join(s.dir, "run-"+host))
			if j, err := control.Find(s.ctx, "train"); err == nil {
				s.job, s.head = j, s.agents[s.names[host]]
				return true, nil
			}
		}
		return false, nil
	})
	return host
}

// otherHosts returns the hosts of the network but this one, by their names there.
func (s *spread) otherHosts(host string) []string {
	return slices.DeleteFunc(slices.Clone(s.net.hosts), func(h string) bool { return h == host })
}

// awaitOutput waits until a process has printed what.
func (s *spread) awaitOutput(p *process, what string) {
	s.Helper()
	s.waitUntil(what, func() (bool, error) { return strings.Contains(s.outputOf(p), what), nil })
}

// tokenFile returns the path of the join token.
func (s *spread) tokenFile() string { return filepath.Join(s.dir, "token") }

// startAgent starts an agent on a host of the network, which has this name in the job, and does not
// wait until it has joined.
func (s *spread) startAgent(host, name string) *process {
	at := s.net.address(s.net.hosts[0]) + ":7077"
	if s.job != nil {
		at = s.job.Join
	}
	p := s.startShoal(host, "agent", "--join", at, "--token-file", s.tokenFile(), "--slots",
		strconv.Itoa(s.slots), "--name", name)
	s.agents[name], s.names[host] = p, name
	return p
}

// startShoal starts shoal on a host, with directories of that host's own, and kills it at the end
// of the test, which shows its output if the test has failed.
func (s *spread) startShoal(host string, words ...string) *process {
	s.Helper()
	file, err := os.CreateTemp(s.dir, words[0]+"-"+host+"-")
	s.must(err)
	defer file.Close()
	p := &process{s.net.hostCommand(s.ctx, host, append([]string{"shoal"}, words...)...),
		file.Name()}
	runtime := filepath.Join(s.dir, "run-"+host)
	s.must(os.MkdirAll(runtime, 0o700))
	p.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+runtime,
		"XDG_STATE_HOME="+filepath.Join(s.dir, "state-"+host))
	p.Stdout, p.Stderr = file, file
	s.must(p.Start())
	s.all = append(s.all, p)
	s.Cleanup(func() {
		p.Process.Signal(syscall.SIGCONT)
		p.Process.Kill() // ended already, unless the test has failed
		p.Wait()
		if s.Failed() {
			s.Logf("shoal %s on %s:\n%s", strings.Join(words, " "), host, s.outputOf(p))
		}
	})
	return p
}

// outputOf returns what a process has printed so far.
func (s *spread) outputOf(p *process) string {
	text, err := os.ReadFile(p.output)
	s.must(err)
	return string(text)
}

// must ends the test if err is not nil.
func (s *spread) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// waitUntil polls f until it returns true; an error, or the end of the time of the test, ends the
// test. what says in the failure what was waited for.
func (s *spread) waitUntil(what string, f func() (bool, error)) {
	s.Helper()
	if err := cli.Poll(s.ctx, f); err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// awaitSteps waits until the job has so many members, which have committed so many steps more.
func (s *spread) awaitSteps(members int, steps uint64) {
	s.Helper()
	var from uint64
	s.waitUntil(fmt.Sprintf("%d members and %d steps", members, steps), func() (bool, error) {
		err := s.job.Refresh(s.ctx)
		if s.job.Size != members || s.job.Entering > 0 || from == 0 {
			from = max(s.job.Steps, 1)
			return false, err
		}
		return s.job.Steps >= from+steps, err
	})
}

// workersOn returns the running workers of the host with this name in the job.
func (s *spread) workersOn(name string) []api.Worker {
	s.Helper()
	s.must(s.job.Refresh(s.ctx))
	return slices.DeleteFunc(slices.Clone(s.job.Workers), func(w api.Worker) bool {
		return w.Host != name || !w.Running
	})
}

// runShoal runs a command as a person on the head's host would, and waits for it; it must succeed.
func (s *spread) runShoal(words ...string) {
	s.Helper()
	if out, err := exec.CommandContext(s.ctx, "shoal", words...).CombinedOutput(); err != nil {
		s.Fatalf("shoal %s: %v\n%s", strings.Join(words, " "), err, out)
	}
}

// refuses fails the test unless a command of shoal fails and says some text.
func (s *spread) refuses(text string, words ...string) {
	s.Helper()
	out, err := exec.CommandContext(s.ctx, "shoal", words...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), text) {
		s.Errorf("shoal %s: %v\n%s", strings.Join(words, " "), err, out)
	}
}

// awaitExit waits for a process, and fails the test unless it ends with this exit code; -1 = a
// signal has ended it.
func (s *spread) awaitExit(p *process, code int) {
	s.Helper()
	if p.Wait(); p.ProcessState.ExitCode() != code {
		s.Errorf("%v: %v, not code %d\n%s", p.Args[4:], p.ProcessState, code, s.outputOf(p))
	}
}

// awaitGone waits until the processes of these workers do not exist any more, on whichever host of
// the network.
func (s *spread) awaitGone(workers []api.Worker) {
	s.Helper()
	for _, w := range workers {
		s.waitUntil(fmt.Sprintf("the end of worker %d", w.Worker), func() (bool, error) {
			return syscall.Kill(w.PID, 0) == syscall.ESRCH, nil
		})
	}
}

// signal sends a signal to processes. After SIGSTOP it waits until all of their threads stand
// still.
func (s *spread) signal(sig syscall.Signal, workers []api.Worker, others ...*process) {
	s.Helper()
	var pids []int
	for _, w := range workers {
		pids = append(pids, w.PID)
	}
	for _, p := range others {
		pids = append(pids, p.Process.Pid)
	}
	for _, pid := range pids {
		s.must(syscall.Kill(pid, sig))
	}
	if sig != syscall.SIGSTOP {
		return
	}
	for _, pid := range pids {
		s.waitUntil(fmt.Sprintf("process %d stands still", pid), func() (bool, error) {
			return isStopped(pid)
		})
	}
}

// isStopped reports whether all threads of a process are stopped, or have ended.
func isStopped(pid int) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, thread := range threads {
		tid, err := strconv.Atoi(filepath.Base(thread))
		// 0: it has just ended
		if state := proc.ProcessState(tid); err != nil || state != 'T' && state != 0 {
			return false, err
		}
	}
	return true, err
}

// readLedger returns how the membership changed, from the ledger of the host that leads.
func (s *spread) readLedger() []runs.Entry {
	s.Helper()
	text, err := os.ReadFile(runs.LedgerPath(s.job.Dir))
	s.must(err)
	entries, _, _ := runs.ParseLedger(text)
	return entries
}

// lostCount returns the number of workers that were lost, by the ledger of the host that leads.
func (s *spread) lostCount() (n int) {
	s.Helper()
	for _, e := range s.readLedger() {
		n += len(e.Lost)
	}
	return n
}

// releasedCount returns the number of workers that were released, by the ledger of the host that
// leads.
func (s *spread) releasedCount() (n int) {
	s.Helper()
	for _, e := range s.readLedger() {
		n += len(e.Released)
	}
	return n
}

// told is a line of metrics.jsonl.
type told struct {
	Rank    int                `json:"rank"` // the worker
	Metrics map[string]float64 `json:"metrics"`
}

// readReports returns what the workers have reported, from metrics.jsonl of the host that leads.
func (s *spread) readReports() (list []told) {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(s.job.Dir, "metrics.jsonl"))
	s.must(err)
	for line := range bytes.Lines(text) {
		var r told
		if line[len(line)-1] == '\n' {
			s.must(json.Unmarshal(line, &r))
			list = append(list, r)
		}
	}
	return list
}

// awaitCommits waits until each of some workers has committed a step with a generation after the
// given one; it returns when the last had.
func (s *spread) awaitCommits(generation uint64, workers []api.Worker) (last time.Time) {
	s.Helper()
	first := map[int]time.Time{}
	s.waitUntil("the next commit", func() (bool, error) {
		clear(first)
		for _, r := range s.readReports() {
			if at, ok := r.Metrics["at_us"]; ok && uint64(r.Metrics["generation"]) > generation &&
				first[r.Rank].IsZero() {
				first[r.Rank] = time.UnixMicro(int64(at))
			}
		}
		return !slices.ContainsFunc(workers, func(w api.Worker) bool {
			return first[w.Worker].IsZero()
		}), nil
	})
	for _, w := range workers {
		if at := first[w.Worker]; at.After(last) {
			last = at
		}
	}
	return last
}

// stopAndCheck stops the job when its step ends, waits for the end of the head, and fails the test
// unless its members, so many, lost no sample and have equal parameters; it returns the last report
// of one of them.
func (s *spread) stopAndCheck(members int) (report map[string]float64) {
	s.Helper()
	s.must(s.job.Stop(s.ctx, false, "the test"))
	s.awaitExit(s.head, 0)
	var digests []float64
	ended, last := map[int]map[string]float64{}, 0.0
	for _, r := range s.readReports() {
		if _, ok := r.Metrics["digest"]; ok {
			ended[r.Rank] = r.Metrics
			last = max(last, r.Metrics["step"])
		}
	}
	for worker, m := range ended {
		if m["samples_lost"]+m["samples_repeated"]+m["steps_lost"]+m["steps_unequal"] != 0 {
			s.Errorf("worker %d found %v", worker, m)
		}
		if m["step"] == last {
			digests, report = append(digests, m["digest"]), m
		}
	}
	if len(digests) != members || slices.Min(digests) != slices.Max(digests) {
		s.Errorf("after step %.0f %d of %d members end with the parameters %v", last, len(digests),
			members, digests)
	}
	s.checkWorkersEnded()
	return report
}

// checkWorkersEnded fails the test if a worker ended in an unexpected way, or still runs.
func (s *spread) checkWorkersEnded() {
	s.Helper()
	result, err := runs.ReadResult(s.job.Dir)
	s.must(err)
	for _, w := range result.Workers {
		if strings.HasPrefix(w.How, "was lost with its host ") {
			s.awaitGone([]api.Worker{{Worker: w.Rank, PID: w.PID}}) // its own guard ends it
			continue
		}
		if w.How != "exited with code 0" && !slices.Contains(s.faults, w.How) {
			s.Errorf("worker %d %s", w.Rank, w.How)
		}
		if err := syscall.Kill(w.PID, 0); !errors.Is(err, syscall.ESRCH) {
			s.Errorf("worker %d still runs: %v", w.Rank, err)
		}
	}
}
