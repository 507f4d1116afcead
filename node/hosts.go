package node

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/node/proc"
)

// Fleet is what a job on several hosts needs of who starts it.
type Fleet struct {
	Link  func(h fabric.Handler) (fabric.Mesh, error) // opens the mesh to the other hosts
	Slots int                                         // workers that this host takes; the others are placed elsewhere
	Addr  string                                      // by which the other hosts reach this one, for torch's own rendezvous
	Ready func()                                      // called when the mesh is open; may be nil
	Join  func() string                               // HOST:PORT where other hosts join; may be nil
	Need  func(missing int)                           // called when the hosts' room changes and is not enough; may be nil
}

// hosts is what the launcher knows of other hosts, and what it has yet to do because of what they said.
type hosts struct {
	mu    sync.Mutex
	rooms []room // in the order in which they came
	news  []func()
	told  chan struct{}
}

// room is a host that offers to run workers.
type room struct {
	host  string
	slots int
}

// attend deals with what other hosts say, outside of the engine's thread, until the end.
func (h *hosts) attend(ctx context.Context) error {
	for {
		select {
		case <-h.told:
		case <-ctx.Done():
			return nil
		}
		h.mu.Lock()
		news := h.news
		h.news = nil
		h.mu.Unlock()
		for _, f := range news {
			f()
		}
	}
}

// later has attend do something.
func (h *hosts) later(f func()) {
	h.mu.Lock()
	h.news = append(h.news, f)
	h.mu.Unlock()
	select {
	case h.told <- struct{}{}:
	default:
	}
}

func (h *hosts) add(r room) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rooms = append(h.rooms, r)
}

func (h *hosts) remove(host string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rooms = slices.DeleteFunc(h.rooms, func(r room) bool { return r.host == host })
}

func (h *hosts) has(host string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.rooms, func(r room) bool { return r.host == host })
}

// fleet is what the agent needs to know of other hosts.
func (l *launch) fleet() Hosts {
	f := l.cfg.Fleet
	l.hosts.told = make(chan struct{}, 1)
	if f == nil {
		return Hosts{}
	}
	return Hosts{Link: f.Link, Slots: f.Slots, Spec: l.spec, Addr: f.Addr, Port: l.port,
		Up: func(host string, slots int) {
			l.hosts.add(room{host, slots}) // before the membership orders workers there
			l.hosts.later(func() { l.hostUp(host, slots) })
		},
		Down: func(host, how string) {
			l.hosts.remove(host)
			l.hosts.later(func() { l.hostDown(host, how) })
		},
		Leaving: func(host, why string) { l.hosts.later(func() { l.hostLeaving(host, why) }) },
		Started: func(seat, pid int, problem string) { l.hosts.later(func() { l.farStarted(seat, pid, problem) }) },
		Ended: func(seat int, e proc.Exit, tail []string, log string) {
			l.hosts.later(func() { l.farEnded(seat, e, tail, log) })
		},
		Line: func(seat int, stderr bool, text string) { l.hosts.later(func() { l.console.Line(seat, stderr, text) }) },
	}
}

func (l *launch) hostUp(host string, slots int) {
	l.needRoom()
	l.console.Note(fmt.Sprintf("host %s has joined; slots: %d", host, slots))
	l.wake()
}

// hostDown ends, in the launcher's books, the workers of a host that is lost.
func (l *launch) hostDown(host, how string) {
	now := time.Now()
	for seat, w := range l.hands() {
		if f, ok := w.(*far); ok && f.host == host && f.ended(nil, "") {
			l.onExit(seat, proc.Exit{PID: f.PID(), Ended: now, Started: l.started, Lost: how})
		}
	}
	l.wake()
}

// drainHost lets the workers of another host go when their step ends.
func (l *launch) drainHost(host, who string) error {
	known := l.hosts.has(host)
	switch {
	case host == l.host:
		return fmt.Errorf("%s is where the job was started: what holds it together runs there; stop the job with shoal stop %s", host, l.spec.Name)
	case !known:
		return fmt.Errorf("no host called %q belongs to the job; shoal ps %s lists them", host, l.spec.Name)
	}
	return l.agent.Drain(host, who)
}

func (l *launch) hostLeaving(host, why string) {
	if err := l.drainHost(host, why); err != nil {
		l.console.Note(fmt.Sprintf("host %s asks to leave (%s), but its workers cannot be released: %v", host, why, err))
	}
}

func (l *launch) farStarted(seat, pid int, problem string) {
	if f, ok := l.hands()[seat].(*far); ok {
		f.started(pid)
		if problem != "" && f.ended([]string{problem}, "") {
			l.onExit(seat, proc.Exit{Code: 127, Started: time.Now(), Ended: time.Now()})
		}
	}
}

func (l *launch) farEnded(seat int, e proc.Exit, tail []string, log string) {
	if f, ok := l.hands()[seat].(*far); ok && f.ended(tail, log) {
		l.onExit(seat, e)
	}
}

func (l *launch) hands() []hand {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.workers[:len(l.workers):len(l.workers)]
}

// startFar has another host start a worker.
func (l *launch) startFar(seat int, host string, late bool) {
	l.add(newFar(seat, host, l.agent))
	l.agent.startFar(seat, host, late)
	if !l.hosts.has(host) { // it was lost before it could be told
		l.hosts.later(func() { l.hostDown(host, "was lost with its host "+host) })
	}
}

// startAll starts the workers that the job begins with; those of other hosts when these offer room.
func (l *launch) startAll() error {
	here := l.spec.Workers
	if f := l.cfg.Fleet; f != nil {
		here = min(here, f.Slots)
	}
	l.around = surroundings{base: os.Environ(), spec: l.spec, socket: l.place.Socket(), mark: l.place.Mark(), cores: runtime.GOMAXPROCS(0),
		here: here, addr: "127.0.0.1", port: l.port}
	if l.cfg.Fleet != nil {
		l.around.addr = l.cfg.Fleet.Addr
	}
	if f := l.cfg.Fleet; f != nil {
		if f.Ready != nil {
			f.Ready()
		}
		l.needRoom()
		l.agent.begin()
		return nil
	}
	for seat := range here {
		if err := l.startAt(seat, ""); err != nil {
			return err
		}
	}
	return nil
}

// needRoom tells how many of the first workers have no place yet.
func (l *launch) needRoom() {
	l.hosts.mu.Lock()
	missing := l.spec.Workers - l.cfg.Fleet.Slots
	for _, r := range l.hosts.rooms {
		missing -= r.slots
	}
	l.hosts.mu.Unlock()
	if missing > 0 && l.cfg.Fleet.Need != nil && l.agent.Status().Generation == 0 {
		l.cfg.Fleet.Need(missing)
	}
}
