package node

import (
	"sync"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/node/proc"
)

// hand is the launcher's hold on a worker process, on this host or another.
type hand interface {
	Host() string
	PID() int
	Signal(sig syscall.Signal)
	// Silent is closed when nobody can write to its output any more.
	Silent() <-chan struct{}
	// Drain waits for its last output.
	Drain(d time.Duration)
	// Tail is the end of its output, LogPath the file with all of it.
	Tail() []string
	LogPath() string
}

// near is a worker process on this host.
type near struct {
	*proc.Worker
	*proc.Output
	host string
}

// Host is this host.
func (n near) Host() string { return n.host }

// far is a worker process on another host.
type far struct {
	host  string
	seat  int
	agent *Agent

	mu     sync.Mutex
	pid    int
	over   bool
	silent chan struct{}
	tail   []string
	log    string
}

func newFar(seat int, host string, a *Agent) *far {
	return &far{host: host, seat: seat, agent: a, silent: make(chan struct{})}
}

// Host is where it runs.
func (f *far) Host() string { return f.host }

// PID is its process on its host; 0 while it starts.
func (f *far) PID() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pid
}

// Signal has its host send it a signal.
func (f *far) Signal(sig syscall.Signal) { f.agent.signal(f.seat, f.host, int(sig)) }

// Silent is closed with its end.
func (f *far) Silent() <-chan struct{} { return f.silent }

// Drain has nothing to wait for: its lines come before its end.
func (f *far) Drain(time.Duration) {}

// Tail is what its host has told.
func (f *far) Tail() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tail
}

// LogPath names the host, because the file is there.
func (f *far) LogPath() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log
}

func (f *far) started(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pid = pid
}

// ended notes its end; false if that was known.
func (f *far) ended(tail []string, log string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return false
	}
	f.over = true
	f.tail, f.log = tail, f.host+":"+log
	close(f.silent)
	return true
}
