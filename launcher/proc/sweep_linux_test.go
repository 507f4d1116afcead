package proc

import (
	"context"
	"errors"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/internal/group"
)

// parsePID returns the process number in a text such as "pid 4711."; it fails the test if there is
// none.
func parsePID(t *testing.T, text string) int {
	t.Helper()
	m := regexp.MustCompile(`pid (\d+)\.`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no process number in %q", text)
	}
	pid, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// A sweep takes the processes of its run and their descendants, and no guard.
func TestVictims(t *testing.T) {
	all := []process{
		{pid: 1},
		{pid: 10, parent: 1},                        // the launcher
		{pid: 11, parent: 10, guard: true},          // its guard
		{pid: 12, parent: 10, runs: "a", group: 12}, // a worker
		{pid: 13, parent: 12, group: 12},            // its child, with a cleared environment
		{pid: 9, parent: 13},                        // and grandchild
		{pid: 14, parent: 1, runs: "a", group: 14},  // a daemon that it has left
		{pid: 15, parent: 12, runs: "a/b"},          // a worker of a run inside the run
		// the guard of that run: it has its own work to do
		{pid: 16, parent: 12, guard: true},
		{pid: 17, parent: 1, runs: "ab"},               // others
		{pid: 18, parent: 10, runs: "b/ca"},            //
		{pid: 19, parent: 17},                          //
		{pid: 20, parent: 1, runs: "x/a", guard: true}, //
		// who clears away what the worker and its children leave
		{pid: 8, parent: 12, runs: "a", group: 12, clears: true},
	}
	for group, want := range map[int][]int{0: {9, 12, 13, 14, 15}, 12: {9, 12, 13, 15}, 14: {14},
		17: {}} {
		got, clearers := victimsOf(all, "a", group)
		if child, parent := slices.Index(got, 9), slices.Index(got, 13); child < parent {
			t.Errorf("group %d: %v, and 13 is the parent of 9", group, got)
		}
		slices.Sort(got)
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("group %d: %s", group, d)
		}
		if clears := group == 0 || group == 12; clears != slices.Equal(clearers, []int{8}) {
			t.Errorf("group %d: %v clear away", group, clearers)
		}
	}
}

// Who clears away is known by the command line.
func TestClearsAway(t *testing.T) {
	for line, want := range map[string]bool{
		"/usr/bin/python3 -c|from multiprocessing.resource_tracker import main;main(5)":    true,
		"python3|-c|from joblib.externals.loky.backend.resource_tracker import main; main": true,
		"/x/site-packages/torch/bin/torch_shm_manager":                                     true,
		"python3|train.py|/x/torch_shm_manager":                                            false,
		"python3|resource_tracker.py":                                                      false,
		"":                                                                                 false,
	} {
		if got := clearsAway([]byte(strings.ReplaceAll(line, "|", "\x00"))); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}

// The parent, the group and the state are found whatever a process calls itself.
func TestParseStat(t *testing.T) {
	for text, want := range map[string]struct {
		parent, group int
		state         byte
	}{
		"12 (sh) S 7 1 1":        {7, 1, 'S'},
		"12 (a) Z 3 (b) R 8 2 1": {8, 2, 'R'},
		"12 (python3) Z 9 1 1":   {9, 1, 'Z'},
		"":                       {0, 0, 0},
	} {
		if p, state := parseStat([]byte(text)); p.parent != want.parent || p.group != want.group ||
			state != want.state {
			t.Errorf("parseStat(%q) = %+v, %q", text, p, state)
		}
	}
}

// A sweep kills what is left of a run, with children that have cleared their environment.
func TestSweep(t *testing.T) {
	const run = "sweep-test"
	// One in another session, one of these with a cleared environment, one whose parent is gone.
	s := startShell(t, `
		setsid sh -c 'env -i sleep 1000 & echo session; exec sleep 1000' &
		(setsid sh -c 'echo daemon; exec sleep 1000' &)
		echo worker; sleep 1000`, RunVariable+"=outer/"+run)
	bystander := startShell(t, `echo here; exec sleep 1000`, RunVariable+"=outer")
	bystander.text.awaitText("here")
	for _, who := range []string{"session", "daemon", "worker"} {
		s.text.awaitText(who)
	}
	if err := Sweep(run); err != nil {
		t.Fatal(err)
	}
	if e := <-s.ended; e.Signal != syscall.SIGKILL {
		t.Errorf("the worker %v", e)
	}
	if err := s.group.Wait(); err != nil { // everybody held its output
		t.Fatal(err)
	}
	if err := syscall.Kill(bystander.PID(), 0); err != nil {
		t.Errorf("the bystander: %v", err)
	}
	select {
	case e := <-bystander.ended:
		t.Errorf("the bystander %v", e)
	default:
	}
}

// What a run leaves in shared memory is cleared away, also if its worker was killed before the
// sweep: the process that does so is not killed, and waits until the others are gone.
func TestSweepHasMemoryClearedAway(t *testing.T) {
	const run = "clearing-test"
	for name, kill := range map[string]bool{"swept": false, "killed": true} {
		dir := t.TempDir()
		// as Python's resource tracker, which reads until the last writer of its pipe is gone
		s := startShell(t, `cd "$DIR"; mkfifo pipe; sh -c "$TRACKER" <pipe & exec 3>pipe; wait`,
			RunVariable+"="+run, "DIR="+dir, "TRACKER=echo ready; while read -r _; do :; done; "+
				": >cleared # resource_tracker import main")
		s.text.awaitText("ready")
		if kill {
			s.Signal(syscall.SIGKILL)
			<-s.ended
		}
		if err := Sweep(run); err != nil {
			t.Fatal(err)
		}
		if names := listNames(t, dir); !slices.Contains(names, "cleared") {
			t.Errorf("%s: nothing was cleared away", name)
		}
	}
}

// One that does not end by itself, because others still need it, is killed.
func TestClearerThatStaysIsKilled(t *testing.T) {
	s := startShell(t, `echo here; exec sleep 1000`)
	s.text.awaitText("here")
	if err := letEnd(s.PID(), time.Now()); err != nil {
		t.Error(err)
	}
	if e := <-s.ended; e.Signal != syscall.SIGKILL {
		t.Errorf("it %v", e)
	}
}

// A killed process that runs is waited for, as while the kernel takes its memory back; one that
// does not run is not.
func TestEndThatTakesLong(t *testing.T) {
	for runs, want := range map[bool]error{true: nil, false: os.ErrDeadlineExceeded} {
		gone, end, err := os.Pipe() // like a pidfd it turns readable
		if err != nil {
			t.Fatal(err)
		}
		defer gone.Close()
		asked := func() bool {
			end.Close() // it ends after the deadline
			return runs
		}
		if err := awaitEnd(int(gone.Fd()), time.Now(), asked); !errors.Is(err, want) {
			t.Errorf("it runs: %v; %v", runs, err)
		}
	}
	runtime.LockOSThread() // the thread that reads of itself runs
	defer runtime.UnlockOSThread()
	if !hasRunningThread(os.Getpid()) {
		t.Error("this process does not run")
	}
	s := startShell(t, `exec sleep 1000`)
	for hasRunningThread(s.PID()) { // until it sleeps
		runtime.Gosched()
	}
}

// Where one of the processes cannot be killed, as that of another user, the others are.
func TestKillsTheOthers(t *testing.T) {
	const noProcess = -1 // the kernel refuses this number, and not as one that has ended
	s := startShell(t, `echo here; exec sleep 1000`)
	s.text.awaitText("here")
	killed, err := killAll([]int{noProcess, s.PID()}, time.Now().Add(dying))
	if killed != 1 || err == nil || !strings.Contains(err.Error(), "process -1: ") {
		t.Errorf("%d are killed, %v", killed, err)
	}
	if killed == 1 {
		<-s.ended
	}
}

// A guard that somebody kills is replaced.
func TestGuardIsReplaced(t *testing.T) {
	p, err := NewPlace(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g := group.New(context.Background())
	guards := make(chan int)
	g.Go("guard", func(ctx context.Context) error {
		return p.Guard(ctx, func(pid int) { guards <- pid })
	})
	first := <-guards
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := <-guards
	fd, err := unix.PidfdOpen(second, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	g.Stop(nil)
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := unix.PidfdSendSignal(fd, 0, nil, 0); err != unix.ESRCH {
		t.Errorf("the guard outlives the launcher's own end: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// When the launcher is dead, its guard kills the run and removes its files.
func TestGuardTakesOver(t *testing.T) {
	dir := t.TempDir()
	p, err := NewPlace(dir)
	if err != nil {
		t.Fatal(err)
	}
	touch(t, p.Socket())
	s := startShell(t, `setsid sleep 1000 & echo ready; wait`, RunVariable+"="+p.Run)
	s.text.awaitText("ready")
	g := group.New(context.Background())
	started := make(chan int, 1)
	g.Go("guard", func(ctx context.Context) error {
		return p.Guard(ctx, func(pid int) { started <- pid })
	})
	<-started
	if err := p.lock.Close(); err != nil { // what the kernel does for a launcher that dies
		t.Fatal(err)
	}
	if e := <-s.ended; e.Signal != syscall.SIGKILL {
		t.Errorf("the worker %v", e)
	}
	if err := s.group.Wait(); err != nil { // its child held the output
		t.Error(err)
	}
	if err := g.Wait(); err == nil {
		t.Error("the guard ended unnoticed")
	}
	if left := listNames(t, dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A guard whose lock file is gone is an error.
func TestGuardWithoutLock(t *testing.T) {
	p, err := NewPlace(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(p.lockPath()); err != nil {
		t.Fatal(err)
	}
	if err := p.Guard(context.Background(), nil); err == nil {
		t.Error("a guard without a lock was taken for one")
	}
}
