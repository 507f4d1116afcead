package proc

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/rundir"
)

// Place is what a run keeps outside of its run directory while it lives: the paths of its sockets,
// and a lock, which the kernel releases when the launcher dies. All lie in a directory that only
// the user can enter. Its fields are not changed, so any goroutine may call its methods; Close is
// the last one that is called.
type Place struct {
	Run  string   // random id of the run
	dir  string   // directory of the sockets and the lock
	lock *os.File // open and locked file, which Close closes
}

// NewPlace removes what dead runs have left in dir, kills what is left of them, which blocks as
// Sweep does, and makes and locks the lock file of a new one. The caller closes the Place.
func NewPlace(dir string) (*Place, error) {
	if err := removeStale(dir); err != nil {
		return nil, err
	}
	var id [idBytes]byte
	rand.Read(id[:])
	p := &Place{Run: hex.EncodeToString(id[:]), dir: dir}
	if err := rundir.CheckSocket(p.Socket()); err != nil {
		return nil, err
	}
	// The file is locked before it gets its name: if a lock with a name is free, its launcher is
	// dead.
	unnamed := filepath.Join(dir, p.Run+".new")
	lock, err := os.OpenFile(unnamed, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("proc: the lock of the run: %w", err)
	}
	p.lock = lock
	if err := errors.Join(durable.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB),
		os.Rename(unnamed, p.lockPath())); err != nil {
		lock.Close()
		os.Remove(unnamed)
		return nil, fmt.Errorf("proc: the lock of the run: %w", err)
	}
	return p, nil
}

// Socket is the path for the socket of the agent.
func (p *Place) Socket() string { return filepath.Join(p.dir, p.Run+".sock") }

// Control is the path for the socket on which the launcher answers tools.
func (p *Place) Control() string { return filepath.Join(p.dir, p.Run+rundir.ControlSuffix) }

// lockPath is the path of the lock file.
func (p *Place) lockPath() string { return filepath.Join(p.dir, p.Run+".lock") }

// Mark is the value of RunVariable for the processes of this run. If this program is itself part of
// a run, the mark begins with the mark of that run.
func (p *Place) Mark() string {
	if outer := os.Getenv(RunVariable); outer != "" {
		return outer + "/" + p.Run
	}
	return p.Run
}

// Clear kills what is left of the run and removes its sockets, but keeps its lock. It blocks as
// Sweep does.
func (p *Place) Clear() error {
	err := Sweep(p.Run)
	return errors.Join(err, removeIfThere(p.Socket()), removeIfThere(p.Control()))
}

// Close removes the lock file and releases the lock. It is called once.
func (p *Place) Close() error {
	return errors.Join(removeIfThere(p.lockPath()), p.lock.Close())
}

// IsCleared reports whether nothing is left on this host of a run with this id, whose launcher has
// ended: its guard or a later start has cleared its place.
func IsCleared(run string) bool {
	dir, err := rundir.Path()
	if err != nil {
		return false
	}
	_, err = os.Lstat((&Place{Run: run, dir: dir}).lockPath())
	return errors.Is(err, fs.ErrNotExist)
}

// idBytes is how many bytes the id of a run has, which stands in hexadecimal digits.
const idBytes = 6

// isRun reports whether a text is the id of a run.
func isRun(text string) bool {
	id, err := hex.DecodeString(text)
	return err == nil && len(id) == idBytes
}

// removeStale clears the places in dir whose launcher and guard were killed together. Places in use
// are left alone, and locks of other things, such as GPUs. It blocks as Sweep does, once for each
// such place.
func removeStale(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("proc: %w", err)
	}
	for _, e := range entries {
		if run, is := strings.CutSuffix(e.Name(), ".lock"); is && isRun(run) {
			// A locked place is in use. A place that cannot be cleared now waits for the next
			// start, and is no reason to refuse this job.
			_ = takeOverPlace(filepath.Join(dir, e.Name()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
	}
	return nil
}

// takeOverPlace locks the lock file path of a launcher, as durable.Flock does with how, which may
// block until the launcher is dead, and then clears and closes its place. If there is no such file
// it does nothing.
func takeOverPlace(path string, how int) error {
	lock, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("proc: the lock of a run: %w", err)
	}
	p := &Place{Run: strings.TrimSuffix(filepath.Base(path), ".lock"), dir: filepath.Dir(path),
		lock: lock}
	if err := durable.Flock(lock, how); err != nil {
		lock.Close()
		return fmt.Errorf("proc: the lock of run %s: %w", p.Run, err)
	}
	if err := p.Clear(); err != nil {
		lock.Close()
		return err
	}
	return p.Close()
}

// HasOpen reports whether /proc, which it reads, shows that the process with a number has a file
// open. So one that does is told from another one: numbers are given again, and a process in
// another PID namespace, as in a container, has another number here.
func HasOpen(pid int, path string) bool {
	file, err := os.Stat(path)
	if err != nil {
		return false
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	open, _ := os.ReadDir(dir) // none of a process that cannot be seen
	for _, entry := range open {
		other, err := os.Stat(filepath.Join(dir, entry.Name()))
		if err == nil && os.SameFile(file, other) {
			return true
		}
	}
	return false
}

// removeIfThere removes a file, if it is there. It keeps nothing.
func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("proc: %w", err)
	}
	return nil
}
