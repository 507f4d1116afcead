package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dying is how long a sweep waits for killed processes while none of them ends and the one that it
// waits for does not run. The kernel needs microseconds for most; a process inside a broken device
// driver never ends.
const dying = 2 * time.Second

// ending is how long a sweep waits at most for a killed process that runs: the kernel takes its
// memory back, which takes long for hundreds of gigabytes or on a busy machine.
const ending = 5 * time.Minute

// clearing is how long a sweep waits for processes that clear away to end by themselves. Python
// needs some ten milliseconds for it, and longer on a busy machine; one for which a process outside
// of the sweep is still there does not end.
const clearing = 2 * time.Second

// A sweep finds the processes of a run in /proc, and kills them. Nothing is kept between two
// sweeps, so any goroutine, and the guard process, may call the functions in this file.

// Sweep kills every process of the run with this id and the descendants of these, and blocks until
// none is left. For one that does not end it blocks for up to dying, or for up to ending while that
// runs. It leaves the guard alone. Processes that clear away what the others leave in shared memory
// come last: they end by themselves, for which it blocks for up to clearing, and are killed if they
// do not.
func Sweep(run string) error { return sweep(run, 0) }

// SweepGroup kills the processes that a worker which has ended left in its process group, and their
// descendants: processes that load data for the worker, say. It ends those that clear away, and
// blocks, as Sweep does.
func SweepGroup(run string, group int) error { return sweep(run, group) }

// sweep is Sweep, or SweepGroup unless group is 0. It blocks as these do.
func sweep(run string, group int) error {
	deadline := time.Now().Add(dying)
	for {
		found, err := livingProcesses()
		if err != nil {
			return err
		}
		victims, clearers := victimsOf(found, run, group)
		killed, err := killAll(victims, deadline)
		if killed > 0 && err == nil {
			deadline = time.Now().Add(dying)
			continue // what these have started meanwhile is not known yet
		}
		if killed > 0 && time.Now().Before(deadline) {
			continue
		}
		until := time.Now().Add(clearing)
		for _, pid := range clearers {
			err = errors.Join(err, letEnd(pid, until))
		}
		if err != nil {
			return fmt.Errorf("proc: sweep of run %s: %w", run, err)
		}
		return nil
	}
}

// process is what a sweep knows of an entry of /proc.
type process struct {
	pid, parent, group int
	runs               string // value of RunVariable; "" = unknown, or of no run
	guard              bool   // the process is the guard of some run
	clears             bool   // the process clears away, as clearsAway says
}

// isPartOf reports whether the process is marked as part of a run, or of a run inside that.
func (p process) isPartOf(run string) bool {
	for id := range strings.SplitSeq(p.runs, "/") {
		if id == run {
			return true
		}
	}
	return false
}

// victimsOf lists the processes, of all, that belong to a run, or to one process group in it, and
// all descendants of these, so that a child with a cleared environment dies too; clearers are those
// of them that clear away. Parents come before their children: a shell whose child is killed would
// end by itself, or start another one.
func victimsOf(all []process, run string, group int) (victims, clearers []int) {
	doomed := map[int]bool{}
	for more := true; more; {
		more = false
		for _, p := range all {
			if !doomed[p.pid] && !p.guard &&
				(p.isPartOf(run) && (group == 0 || p.group == group) || doomed[p.parent]) {
				doomed[p.pid], more = true, true
			}
		}
	}
	listed := map[int]bool{}
	for anyhow := false; len(listed) < len(doomed); {
		before := len(listed)
		for _, p := range all {
			if doomed[p.pid] && !listed[p.pid] &&
				(anyhow || !doomed[p.parent] || listed[p.parent]) {
				listed[p.pid] = true
				if p.clears {
					clearers = append(clearers, p.pid)
				} else {
					victims = append(victims, p.pid)
				}
			}
		}
		anyhow = len(listed) == before // parents in a circle: numbers were used again meanwhile
	}
	return victims, clearers
}

// clearsAway reports whether a command line, with NUL after each word, is that of a process that
// removes what others have left in shared memory, once all of them are gone, and then ends: the
// resource tracker of Python's multiprocessing, or that of joblib, or torch's manager of memory
// that is shared by name. It is pure.
func clearsAway(words []byte) bool {
	program, _, _ := bytes.Cut(words, []byte{0})
	return bytes.HasSuffix(program, []byte("/torch_shm_manager")) ||
		bytes.Contains(words, []byte("resource_tracker import main"))
}

// livingProcesses reads /proc and lists the living processes but this one. It leaves out processes
// that end meanwhile; of those of other users it does not know the runs.
func livingProcesses() ([]process, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(dirs) == 0 {
		return nil, errors.New(
			"proc: /proc shows no processes, so leftovers of a run cannot be found; mount it")
	}
	var all []process
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		p, state := parseStat(stat)
		if state == 0 || state == 'Z' || state == 'X' {
			continue
		}
		p.pid = pid
		if env, err := os.ReadFile(dir + "/environ"); err == nil {
			p.runs = findVariable(env, RunVariable)
		}
		if words, err := os.ReadFile(dir + "/cmdline"); err == nil {
			p.guard, p.clears = bytes.HasPrefix(words, []byte(guardName+"\x00")), clearsAway(words)
		}
		all = append(all, p)
	}
	return all, nil
}

// ProcessState reads from /proc the state of a process or thread as the kernel calls it: 'T' where
// it is stopped, 'D' where it waits in the kernel. 0 = there is none.
func ProcessState(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, state := parseStat(stat)
	return state
}

// parseStat reads the parent, the process group and the state from /proc/PID/stat: "4711 (any )
// text) S 1 4700 …". A state of 0 means that stat cannot be read.
func parseStat(stat []byte) (p process, state byte) {
	i := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[i+1:]))
	if len(fields) < 3 {
		return p, 0
	}
	p.parent, _ = strconv.Atoi(fields[1])
	p.group, _ = strconv.Atoi(fields[2])
	return p, fields[0][0]
}

// findVariable returns the value of a variable in an environment block, KEY=VALUE after NUL after
// KEY=VALUE; "" = it is not there.
func findVariable(block []byte, key string) string {
	for _, entry := range bytes.Split(block, []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, []byte(key+"=")); ok {
			return string(value)
		}
	}
	return ""
}

// killGroup sends SIGKILL to the processes of a group but those that clear away, which the sweep
// after the end of the worker lets end. It does not wait for the ends.
func killGroup(group int) {
	syscall.Kill(group, syscall.SIGKILL) // the worker, at once: it starts no more
	found, err := livingProcesses()
	if err != nil {
		syscall.Kill(-group, syscall.SIGKILL)
		return
	}
	for _, p := range found {
		if p.group == group && !p.clears {
			syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
}

// killAll kills processes by SIGKILL, blocks until all of them are gone or the deadline has come,
// which is put off by each that has gone, and counts those that it killed. It kills the others of
// one that cannot be killed or does not end; err has all of those.
func killAll(pids []int, deadline time.Time) (killed int, err error) {
	for _, pid := range pids {
		was, failed := kill(pid, deadline)
		if was {
			killed++
		}
		if was && failed == nil {
			deadline = time.Now().Add(dying)
		}
		err = errors.Join(err, failed)
	}
	return killed, err
}

// kill kills a process by SIGKILL, if it is there, and blocks until it is gone; an error when it
// cannot be killed, or is not gone at the deadline and does not run.
func kill(pid int, deadline time.Time) (killed bool, err error) {
	fd, err := openProcess(pid)
	if fd < 0 {
		return false, err
	}
	defer unix.Close(fd)
	return killOpen(fd, pid, deadline)
}

// letEnd blocks until a process has ended by itself, and kills it if it has not until then; an
// error as that of kill.
func letEnd(pid int, until time.Time) error {
	fd, err := openProcess(pid)
	if fd < 0 {
		return err
	}
	defer unix.Close(fd)
	if awaitGone(fd, until) == nil {
		return nil
	}
	_, err = killOpen(fd, pid, time.Now().Add(dying))
	return err
}

// openProcess opens a pidfd of a process, which the caller closes; -1 if it has none, because the
// process is gone or because of err.
func openProcess(pid int) (fd int, err error) {
	fd, err = unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return -1, nil
	case err != nil:
		return -1, fmt.Errorf("process %d: %w", pid, err)
	}
	return fd, nil
}

// killOpen is kill for a process of which a pidfd is open.
func killOpen(fd, pid int, deadline time.Time) (killed bool, err error) {
	switch err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); {
	case errors.Is(err, unix.ESRCH):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("process %d cannot be killed: %w; end it by hand", pid, err)
	}
	if err := awaitEnd(fd, deadline, func() bool { return hasRunningThread(pid) }); err != nil {
		return true, fmt.Errorf(
			"process %d was killed but does not end: %w; look at its state in ps", pid, err)
	}
	return true, nil
}

// awaitEnd is awaitGone for a process that was killed, whose deadline is put off as long as it
// runs, for up to ending.
func awaitEnd(fd int, deadline time.Time, runs func() bool) error {
	last := time.Now().Add(ending)
	for {
		err := awaitGone(fd, deadline)
		if !errors.Is(err, os.ErrDeadlineExceeded) || !runs() || !time.Now().Before(last) {
			return err
		}
		deadline = time.Now().Add(dying)
	}
}

// hasRunningThread reports whether a thread of a process runs, or waits for a processor.
func hasRunningThread(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/stat", pid))
	return err == nil && slices.ContainsFunc(threads, func(path string) bool {
		stat, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		_, state := parseStat(stat)
		return state == 'R'
	})
}

// awaitGone blocks on a pidfd, which turns readable when its process has ended; an error after the
// deadline. It looks at least once, for a millisecond.
func awaitGone(fd int, deadline time.Time) error {
	for {
		left := time.Until(deadline)
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(left, 0).Milliseconds())+1)
		switch {
		case n > 0:
			return nil
		case err != nil && err != unix.EINTR:
			return err
		case left <= 0:
			return os.ErrDeadlineExceeded
		}
	}
}
