package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/node/proc"
)

// Fleet is what a job on several hosts needs of who starts it.
type Fleet struct {
	Link  func(h fabric.Handler) (fabric.Mesh, error) // opens the mesh to the other hosts
	Slots int                                         // workers that this host takes; the others are placed elsewhere
	Addr  string                                      // by which the other hosts reach this one, for torch's own rendezvous
	Ready func()                                      // called when the mesh is open; may be nil
	Need  func(missing int)                           // called when the hosts' room changes and is not enough; may be nil
}

// hosts is what the launcher knows of other hosts, and what it has yet to do because of what they said.
type hosts struct {
	mu    sync.Mutex
	rooms []*room // in the order in which they came
	news  []func()
	told  chan struct{}
}

// room is a host that offers to run workers.
type room struct {
	host    string
	slots   int
	used    int
	leaving bool
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

// fleet is what the agent needs to know of other hosts.
func (l *launch) fleet() Hosts {
	f := l.cfg.Fleet
	l.hosts.told = make(chan struct{}, 1)
	if f == nil {
		return Hosts{}
	}
	return Hosts{Link: f.Link, Spec: l.spec, Addr: f.Addr, Port: l.port,
		Up:      func(host string, slots int) { l.hosts.later(func() { l.hostUp(host, slots) }) },
		Down:    func(host, how string) { l.hosts.later(func() { l.hostDown(host, how) }) },
		Leaving: func(host, why string) { l.hosts.later(func() { l.hostLeaving(host, why) }) },
		Started: func(seat, pid int, problem string) { l.hosts.later(func() { l.farStarted(seat, pid, problem) }) },
		Ended: func(seat int, e proc.Exit, tail []string, log string) {
			l.hosts.later(func() { l.farEnded(seat, e, tail, log) })
		},
		Line: func(seat int, stderr bool, text string) { l.hosts.later(func() { l.console.Line(seat, stderr, text) }) },
	}
}

func (l *launch) hostUp(host string, slots int) {
	l.hosts.mu.Lock()
	l.hosts.rooms = append(l.hosts.rooms, &room{host: host, slots: slots})
	l.hosts.mu.Unlock()
	l.console.Note(fmt.Sprintf("host %s has joined; slots: %d", host, slots))
	l.wake()
}

// hostDown ends, in the launcher's books, the workers of a host that is lost.
func (l *launch) hostDown(host, how string) {
	l.hosts.mu.Lock()
	for i, r := range l.hosts.rooms {
		if r.host == host {
			l.hosts.rooms = append(l.hosts.rooms[:i], l.hosts.rooms[i+1:]...)
			break
		}
	}
	l.hosts.mu.Unlock()
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
	known := false
	l.hosts.mu.Lock()
	for _, r := range l.hosts.rooms {
		if r.host == host {
			known, r.leaving = true, true
		}
	}
	l.hosts.mu.Unlock()
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
		l.free(f.host)
		l.onExit(seat, e)
	}
}

func (l *launch) hands() []hand {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.workers[:len(l.workers):len(l.workers)]
}

func (l *launch) free(host string) {
	l.hosts.mu.Lock()
	defer l.hosts.mu.Unlock()
	for _, r := range l.hosts.rooms {
		if r.host == host {
			r.used--
		}
	}
}

// roomiest is the other host with the most free slots, if it has more than this one; "" = this host.
func (l *launch) roomiest() string {
	best, free := "", 0
	if f := l.cfg.Fleet; f != nil {
		free = f.Slots - l.runningHere()
	} else {
		return ""
	}
	l.hosts.mu.Lock()
	defer l.hosts.mu.Unlock()
	for _, r := range l.hosts.rooms {
		if !r.leaving && r.slots-r.used > free {
			best, free = r.host, r.slots-r.used
		}
	}
	return best
}

func (l *launch) runningHere() int {
	n := 0
	for _, w := range l.hands() {
		if w.Host() == l.host {
			n++
		}
	}
	for _, e := range l.endings() {
		if l.hands()[e.rank].Host() == l.host {
			n--
		}
	}
	return n
}

// startFar has another host start a worker.
func (l *launch) startFar(seat int, host string, late bool) error {
	l.hosts.mu.Lock()
	for _, r := range l.hosts.rooms {
		if r.host == host {
			r.used++
		}
	}
	l.hosts.mu.Unlock()
	l.add(newFar(seat, host, l.agent))
	l.agent.startFar(seat, host, late)
	return nil
}

// startAll starts the workers that the job begins with, when there is room for them all.
func (l *launch) startAll(ctx context.Context, house *group.Group) error {
	here := l.spec.Workers
	if f := l.cfg.Fleet; f != nil {
		here = min(here, f.Slots)
		if f.Ready != nil {
			f.Ready()
		}
		if err := l.awaitRoom(ctx, house, l.spec.Workers-here); err != nil {
			return err
		}
	}
	l.around = surroundings{base: os.Environ(), spec: l.spec, socket: l.place.Socket(), mark: l.place.Mark(), cores: runtime.GOMAXPROCS(0),
		here: here, addr: "127.0.0.1", port: l.port}
	if l.cfg.Fleet != nil {
		l.around.addr = l.cfg.Fleet.Addr
	}
	for seat := range here {
		token := l.agent.Expect(seat, false)
		l.agent.Started(seat, "")
		err := l.start(seat, l.around.environment(place{seat: seat, token: token, rank: seat, size: l.spec.Workers, local: seat, here: here, port: l.port}))
		if err != nil {
			return err
		}
	}
	for seat := here; seat < l.spec.Workers; seat++ {
		host := l.firstRoom()
		if host == "" {
			return errors.New("node: a host was lost before the job began; start it again when its hosts are there")
		}
		if err := l.startFar(seat, host, false); err != nil {
			return err
		}
	}
	return nil
}

// firstRoom is the first host with a free slot: ranks that follow each other lie on one host.
func (l *launch) firstRoom() string {
	l.hosts.mu.Lock()
	defer l.hosts.mu.Unlock()
	for _, r := range l.hosts.rooms {
		if r.used < r.slots && !r.leaving {
			return r.host
		}
	}
	return ""
}

// awaitRoom blocks until the other hosts have room for a number of workers.
func (l *launch) awaitRoom(ctx context.Context, house *group.Group, want int) error {
	told := -1
	for {
		l.hosts.mu.Lock()
		missing := want
		for _, r := range l.hosts.rooms {
			missing -= r.slots
		}
		l.hosts.mu.Unlock()
		if missing <= 0 {
			return nil
		}
		if missing != told && l.cfg.Fleet.Need != nil {
			l.cfg.Fleet.Need(missing)
			told = missing
		}
		select {
		case <-l.changed:
		case <-ctx.Done():
			return l.interrupted(ctx)
		case <-l.farewell.asked:
			return fmt.Errorf("job %s was stopped by %s before it had room for its workers", l.spec.Name, l.stoppedBy())
		case <-house.Context().Done():
			return nil // house.Wait has the error
		}
	}
}
