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

// storeHost is a host with nothing but a NATS server.
type storeHost struct {
	net       *network
	dir, file string
	cmd       *exec.Cmd
}

// serve runs a NATS server on the switch itself, where every host reaches it.
func (s *storeHost) serve(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command("ip", "netns", "exec", s.net.name, "natsd", filepath.Join(s.dir, "db"),
		s.file, "10.77.0.254")
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
}

func newStoreHost(t *testing.T, n *network) *storeHost {
	t.Helper()
	dir := t.TempDir()
	s := &storeHost{net: n, dir: dir, file: filepath.Join(dir, "url")}
	n.must(ip("-n", n.name, "address", "add", "10.77.0.254/24", "dev", "switch"))
	n.must(ip("-n", n.name, "link", "set", "lo", "up"))
	s.serve(t)
	return s
}

func (s *storeHost) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

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

// recorded runs until what a store has of the job matches.
func (s *spread) recorded(h *storeHost, url string, matches func(text string) bool) {
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
	host := s.led("b", "c")
	s.recorded(h, url, func(text string) bool {
		return strings.Contains(text, " at \""+n.address(host)+":") &&
			strings.Contains(text, "\ngeneration 2: ") &&
			strings.Contains(text, " led by "+host+" since 2\n")
	})

	p := s.start("a", "agent", "--store", url, "--job", "train", "--token-file", s.token(),
		"--slots", "1", "--name", "d")
	s.agents["d"] = p
	s.shoal("resize", "train", "3")
	s.trains(3, 10)

	h.kill()
	s.trains(3, 100) // nobody has noticed
	victims := s.on("d")
	s.signal(syscall.SIGKILL, nil, p)
	s.ends(p, -1)
	s.gone(victims)
	s.trains(2, 100)
	s.says(s.agents[host],
		"is unreachable: training goes on, membership changes are recorded later")
	s.trains(2, 100)
	h.serve(t)
	s.says(s.agents[host], "answers again")
	last := s.job.Generation
	s.recorded(h, url, func(text string) bool {
		return strings.Count(text, "\ngeneration ") == int(last)
	})
	s.finish(2)
	s.recorded(h, url, func(text string) bool { return strings.Contains(text, "ended true") })
}

// smallDisk mounts a file system of this size.
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
	for i := 0; i < 40 && !strings.Contains(s.said(s.head), lost); i++ {
		s.shoal("resize", "train", strconv.Itoa(1+i%2))
	}
	s.says(s.head, lost)
	s.shoal("resize", "train", "2")
	s.trains(2, 100)
	s.says(s.head, "the disk is full: free some space")
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	s.says(s.head, "answers again")
	s.trains(2, 100)
	last := s.job.Generation
	s.finish(2)
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
