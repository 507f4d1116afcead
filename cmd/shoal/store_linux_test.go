package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/internal/cli"
)

// storeHost is a host with nothing but a NATS server. The goroutine of the test uses it.
type storeHost struct {
	net       *network
	dir, file string    // folder of the server's files, and the file with its URL
	cmd       *exec.Cmd // the server, the newest one
}

// startServer runs a NATS server on the switch itself, where every host reaches it, until the test
// ends; it does not wait until that answers. After kill it can be called again.
func (s *storeHost) startServer(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command("ip", "netns", "exec", s.net.name, "natsd", filepath.Join(s.dir, "db"),
		s.file, "10.77.0.254")
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
}

// newStoreHost gives the switch of a network an address, and starts the server there. A failure
// ends the test.
func newStoreHost(t *testing.T, n *network) *storeHost {
	t.Helper()
	dir := t.TempDir()
	s := &storeHost{net: n, dir: dir, file: filepath.Join(dir, "url")}
	n.must(runIP("-n", n.name, "address", "add", "10.77.0.254/24", "dev", "switch"))
	n.must(runIP("-n", n.name, "link", "set", "lo", "up"))
	s.startServer(t)
	return s
}

// kill kills the server and waits for its end; a second call does nothing more.
func (s *storeHost) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

// url waits until the server has written its URL, and returns that. The end of the test ends the
// wait.
func (s *storeHost) url(t *testing.T) (url string) {
	t.Helper()
	if err := cli.Poll(t.Context(), func() (bool, error) {
		b, err := os.ReadFile(s.file)
		url = string(b)
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}); err != nil {
		t.Fatal(err)
	}
	return url
}

// awaitRecord waits until what a store has of the job, as the program recorded prints it, matches;
// where it does not within testPatience, it ends the test. The goroutine of the test calls it.
func (s *spread) awaitRecord(h *storeHost, url string, matches func(text string) bool) {
	s.Helper()
	var out []byte
	if err := cli.Poll(s.ctx, func() (done bool, err error) {
		out, err = exec.CommandContext(s.ctx, "ip", "netns", "exec", h.net.name, "recorded", url,
			"train").CombinedOutput()
		return err == nil && matches(string(out)), nil
	}); err != nil {
		s.Fatalf("%v; the record is\n%s", err, out)
	}
}

// The head is lost: who leads next goes on with the record, so that hosts that know the job's name
// find it. Then the store is lost, and training goes on.
func TestRecordGoesOnUnderAnotherHead(t *testing.T) {
	n := newNetwork(t, "a", "b", "c")
	h := newStoreHost(t, n)
	url := h.url(t)
	s := startSpreadOn(t, n, n.hosts, 1, []string{"--store", url}, audited)
	s.signal(syscall.SIGKILL, nil, s.head)
	host := s.awaitLeader("b", "c")
	s.awaitRecord(h, url, func(text string) bool {
		return strings.Contains(text, " at \""+n.address(host)+":") &&
			strings.Contains(text, "\ngeneration 2: ") &&
			strings.Contains(text, " led by "+host+" since 2\n")
	})

	p := s.startShoal("a", "agent", "--store", url, "--job", "train", "--token-file", s.tokenFile(),
		"--slots", "1", "--name", "d")
	s.agents["d"] = p
	s.runShoal("resize", "train", "3")
	s.awaitSteps(3, 10)

	h.kill()
	s.awaitSteps(3, 100) // nobody has noticed
	victims := s.workersOn("d")
	s.signal(syscall.SIGKILL, nil, p)
	s.awaitExit(p, -1)
	s.awaitGone(victims)
	s.awaitSteps(2, 100)
	s.awaitOutput(s.agents[host],
		"is unreachable: training goes on, membership changes are recorded later")
	s.awaitSteps(2, 100)
	h.startServer(t)
	s.awaitOutput(s.agents[host], "answers again")
	last := s.job.Generation
	s.awaitRecord(h, url, func(text string) bool {
		return strings.Count(text, "\ngeneration ") == int(last)
	})
	s.stopAndCheck(2)
	s.awaitRecord(h, url, func(text string) bool { return strings.Contains(text, "ended true") })
}

// smallDisk mounts a file system of this size until the test ends, and returns its folder; without
// the right to mount it skips the test.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	folder := t.TempDir()
	if err := unix.Mount("none", folder, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("a small file system cannot be mounted:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(folder, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return folder
}

// The disk under the embedded store fills up: the job says so and goes on, and when there is room
// again nothing is missing.
func TestTrainingGoesOnOnAFullDisk(t *testing.T) {
	n := newNetwork(t, "a")
	disk := smallDisk(t, "2m")
	record, ballast := filepath.Join(disk, "record"), filepath.Join(disk, "ballast")
	s := startSpreadOn(t, n, n.hosts, 3, []string{"--store", record}, audited)
	if err := os.WriteFile(ballast, make([]byte, 4<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	const lost = "is unreachable: training goes on, membership changes are recorded later"
	// the last page of a file still has room
	for i := 0; i < 40 && !strings.Contains(s.outputOf(s.head), lost); i++ {
		s.runShoal("resize", "train", strconv.Itoa(1+i%2))
	}
	s.awaitOutput(s.head, lost)
	s.runShoal("resize", "train", "2")
	s.awaitSteps(2, 100)
	s.awaitOutput(s.head, "the disk is full: free some space")
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	s.awaitOutput(s.head, "answers again")
	s.awaitSteps(2, 100)
	last := s.job.Generation
	s.stopAndCheck(2)
	owner, all, err := readRecord(t.Context(), record, "train")
	if err != nil {
		t.Fatal(err)
	}
	if owner.Ended.IsZero() {
		t.Error("the record does not say that the job has ended")
	}
	var numbers []uint64
	for _, g := range all {
		numbers = append(numbers, uint64(g.View.Generation))
	}
	if !slices.IsSorted(numbers) || uint64(len(numbers)) < last ||
		numbers[len(numbers)-1] != uint64(len(numbers)) {
		t.Errorf("recorded generations %v of at least %d", numbers, last)
	}
}
