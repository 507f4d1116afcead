package launcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/member"
)

// tell notes something about a worker of this host in the books of the host that leads, which may
// be this one.
func (l *launch) tell(n *note) {
	l.mu.Lock()
	leader := l.leader
	l.mu.Unlock()
	if leader != "" && leader != l.host {
		l.agent.Tell(leader, n.encode())
	}
	l.enter(l.host, n) // only now: with the last worker that has ended this host may leave
}

// forward sends the line of a worker to the host that leads, for the terminal there.
func (l *launch) forward(seat int, stderr bool, line string) {
	l.mu.Lock()
	leader := l.leader
	l.mu.Unlock()
	if leader != "" && leader != l.host {
		l.agent.Tell(leader, (&note{Line: &lineNote{seat, stderr, line}}).encode())
	}
}

// onNote is told what the launcher of another host says.
func (l *launch) onNote(from string, b []byte) error {
	n, err := decodeNote(b)
	if err == nil {
		l.later(func() { l.hear(from, n) })
	}
	return err
}

// hear deals with a note of another host. What comes from one that is not asked is of the time
// before another led.
func (l *launch) hear(from string, n *note) {
	l.mu.Lock()
	leads, heeds := l.leader == l.host, l.leader == from
	l.mu.Unlock()
	switch {
	case n.Job != nil && heeds:
		l.begin(*n.Job)
	case n.Signal != nil && heeds:
		if h := l.hand(n.Signal.Worker); h != nil {
			l.signalOne(h, syscall.Signal(n.Signal.Signal))
			l.confess()
		}
	case n.Over != nil && heeds:
		l.leave(failedElsewhere(l.name(), n.Over.Why))
	case n.Stays != nil && heeds:
		l.console.Note("this host cannot leave: " + n.Stays.Why)
	case !leads:
	case n.Offer != nil:
		l.welcome(from, *n.Offer)
	case n.Leaving != nil:
		if err := l.agent.Drain(from, from); errors.Is(err, head.ErrNotHead) {
			l.soon(func() { l.hear(from, n) })
		} else if err != nil {
			l.console.Note(fmt.Sprintf(
				"host %s asks to leave (%s), but its workers cannot be released: %v", from,
				n.Leaving.Why, err))
			l.deny(from)
			l.agent.Tell(from, (&note{Stays: &reasonNote{err.Error()}}).encode())
		}
	case n.Line != nil:
		l.quote(from, n.Line)
	default:
		l.enter(from, n)
	}
}

// enter writes into the books what is known of a worker.
func (l *launch) enter(host string, n *note) {
	seat, is := n.worker()
	if !is {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.book(seat, host)
	switch {
	case h.host != host || n.Ended != nil && h.exit != nil:
		return // of the time before it was lost
	case n.Started != nil:
		h.pid = n.Started.PID
	case n.Joined != nil:
		h.joined = true
	case n.Report != nil && l.dir != nil: // without one this host does not know the job yet
		// A full disk must not end a training run; what is missing shows in the file.
		_ = l.dir.report(seat, n.Report.Metrics, time.Now())
		l.reports[seat] = n.Report.Metrics
	case n.Ended != nil:
		e := n.Ended.exit()
		h.needless = n.Ended.Needless
		h.exit, h.survived, h.because, h.tail, h.log = &e, n.Ended.Survived, n.Ended.Because,
			n.Ended.Tail, n.Ended.Log
		if host != l.host {
			h.log = host + ":" + h.log
		}
		l.ended = append(l.ended, ending{seat, e, n.Ended.Survived})
	}
	l.wake()
}

// book finds a worker in the books, which have room for it from its first mention on; l.mu is held.
func (l *launch) book(seat int, host string) *hand {
	h := l.hands[seat]
	if h == nil {
		h = &hand{seat: seat, host: host}
		l.hands[seat] = h
	}
	return h
}

// begin learns what the job is, on a host that joins it.
func (l *launch) begin(j jobNote) {
	l.mu.Lock()
	known, orders := l.job != nil, l.orders
	l.orders = nil
	l.mu.Unlock()
	if known {
		return
	}
	program, err := find(j.Spec)
	if err == nil {
		err = l.settle(j, program, "@"+l.host)
	}
	if err != nil {
		l.fail(fmt.Errorf("job %s cannot run on this host: %w", j.Spec.Name, err))
		return
	}
	if j.Spec.FixedRoutes {
		l.agent.FixRoutes()
	}
	if j.Spec.Redundant {
		l.agent.KeepRedundant()
	}
	l.agent.CountFrom(j.After)
	if l.record != nil && j.Record != nil {
		l.record.learn(*j.Record, j.After, l.stores(j.Record.URL))
	}
	if l.cfg.OnStart != nil {
		l.cfg.OnStart(j.Spec.Name, l.dir.path)
	}
	for _, o := range orders {
		l.startAll(o)
	}
}

// welcome takes the offer of a host that joins, or that has another head.
func (l *launch) welcome(host string, o offerNote) {
	l.mu.Lock()
	l.rooms[host] = true
	if o.Machine != "" {
		l.machines[host] = o.Machine
	}
	delete(l.expected, host)
	job := l.job
	l.mu.Unlock()
	if job == nil {
		return // it leads, and has not heard of the job: then nobody has
	}
	if !o.Known {
		l.agent.Tell(host, (&note{Job: job}).encode())
		l.console.Note(fmt.Sprintf("host %s has joined; slots: %d", host, o.Slots))
	}
	l.needRoom()
	l.releaseDenied()
	l.wake()
}

// needRoom tells how many of the first workers have no place yet; none when the job has begun, or
// is over.
func (l *launch) needRoom() {
	f := l.cfg.Fleet
	if f == nil || f.Need == nil {
		return
	}
	s := l.agent.Status()
	l.mu.Lock()
	settled := l.muted || s.Generation > 0
	l.mu.Unlock()
	if settled {
		s.Short = 0
	}
	f.Need(s.Short)
}

// onLead is told who leads the job.
func (l *launch) onLead(host string) { l.later(func() { l.follow(host) }) }

// follow turns to a host that leads: it learns what it must know of this one.
func (l *launch) follow(leader string) {
	hosts := l.agent.Status().Hosts
	l.mu.Lock()
	if l.leader == leader {
		l.mu.Unlock()
		return
	}
	l.leader, l.mourned = leader, ""
	clear(l.rooms)
	clear(l.machines)
	clear(l.expected)
	clear(l.denied)
	if leader == l.host {
		for _, host := range hosts {
			if host != l.host {
				l.expected[host] = true
			}
		}
	} else { // it keeps the books of other hosts' workers
		maps.DeleteFunc(l.hands, func(_ int, h *hand) bool { return h.host != l.host })
	}
	known, slots, over, leaving := l.job != nil, 0, l.over, l.leaving
	if l.cfg.Fleet != nil {
		slots = l.cfg.Fleet.Slots
	}
	offer := offerNote{Slots: slots, Known: known}
	if l.machine != l.host {
		offer.Machine = l.machine
	}
	hands := slices.Collect(maps.Values(l.hands))
	l.mu.Unlock()
	switch {
	case over:
	case leader == l.host:
		l.console.Note("this host leads the job now")
	default:
		if known {
			l.console.Note(fmt.Sprintf("host %s leads the job now", leader))
		}
		l.agent.Tell(leader, (&note{Offer: &offer}).encode())
		for _, h := range hands {
			l.introduce(leader, h)
		}
	}
	if leaving && !over {
		l.sayLeaving()
	}
	l.wake()
}

// introduce tells a host that leads of a worker.
func (l *launch) introduce(leader string, h *hand) {
	l.mu.Lock()
	notes := []*note{{Started: &startedNote{h.seat, h.pid}}}
	if h.joined {
		notes = append(notes, &note{Joined: &workerNote{h.seat}})
	}
	if m := l.reports[h.seat]; m != nil {
		notes = append(notes, &note{Report: &reportNote{h.seat, m}})
	}
	if h.exit != nil {
		n := endOf(h.seat, *h.exit, h.survived)
		n.Because, n.Tail, n.Log, n.Needless = h.because, h.tail, h.log, h.needless
		notes = append(notes, &note{Ended: n})
	}
	l.mu.Unlock()
	for _, n := range notes {
		l.agent.Tell(leader, n.encode())
	}
}

// onGone is told of a host that is lost, or has left: all its workers have ended.
func (l *launch) onGone(host, how string) {
	l.later(func() {
		l.mu.Lock()
		leader, muted := l.leader == host, l.muted
		if leader {
			l.leader, l.mourned = "", host
		}
		delete(l.rooms, host)
		delete(l.machines, host)
		delete(l.expected, host)
		delete(l.denied, host)
		l.mu.Unlock()
		for _, h := range l.living() {
			if h.host == host {
				now := time.Now()
				lost := proc.Exit{PID: h.pid, Lost: "was lost with its host " + host, Started: now,
					Ended: now}
				l.enter(host, &note{Ended: endOf(h.seat, lost, l.agent.Status().Elastic)})
			}
		}
		if leader && !muted {
			l.console.Note(fmt.Sprintf("host %s, which led the job, %s", host, how))
		}
		if !muted {
			l.sayStuck()
			l.needRoom()
		}
		l.wake()
	})
}

// sayStuck tells, once, that nobody can lead the job after the host that did. That may come out
// only when further hosts are lost.
func (l *launch) sayStuck() {
	if s := l.agent.Status(); !s.Stuck || s.Generation == 0 {
		return
	}
	l.mu.Lock()
	host := l.mourned
	l.mourned = ""
	l.mu.Unlock()
	if host != "" {
		l.console.Note(fmt.Sprintf("too few hosts are left to be sure that no others go on; if "+
			"you know that %s is gone for good, say so: shoal recover --force %s", host, l.name()))
	}
}

// onLeave is told that this host is no part of the job any more.
func (l *launch) onLeave(why string, drained bool) {
	l.later(func() {
		if drained {
			l.leave(nil)
		} else {
			l.leave(fmt.Errorf("this host is no part of job %s any more: %s", l.name(), why))
		}
	})
}

// failedElsewhere is why this host's part in a job ends that has failed; nil for one that has not.
func failedElsewhere(name, why string) error {
	if why == "" {
		return nil
	}
	return fmt.Errorf("job %s failed, and this host has left it: %s", name, why)
}

// leave ends this host's part in the job: with an error if there is one, else when its workers have
// ended.
func (l *launch) leave(err error) {
	l.mu.Lock()
	l.over = true
	if l.fatal == nil { // with the same lock: who sees that it is over ends with it
		l.fatal = err
	}
	l.mu.Unlock()
	l.wake()
}

// onEnd is told that nobody is left to carry on.
func (l *launch) onEnd(ok bool, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = !ok
	if l.leader != l.host { // that the head goes now is no news
		l.over, l.muted = ok, true
	}
	// it says next whether the job has failed, or somebody has stopped it
	if !ok && l.leader != l.host {
		l.group.Go("last words", func(ctx context.Context) error {
			select {
			case <-time.After(dismissal):
				l.leave(failedElsewhere(l.name(), why))
			case <-ctx.Done():
			}
			return nil
		})
	}
	l.wake()
}

// sayLeaving asks for this host to be left, and who leads next if nobody leads now, or who does is
// lost before it has heard. A job that has no other host ends; one of which the others cannot hold
// the state trains on.
func (l *launch) sayLeaving() {
	l.mu.Lock()
	l.leaving = true
	leader := l.leader
	l.mu.Unlock()
	switch leader {
	case "": // follow asks
	case l.host:
		if err := l.agent.Drain(l.host, l.host); errors.Is(err, head.ErrNotHead) {
			l.soon(l.sayLeaving)
		} else if err != nil {
			l.console.Note(fmt.Sprintf("this host cannot leave: %v", err))
			unfit, needed := new(head.UnfitError), new(member.NeededError)
			if l.cfg.CannotLeave != nil && !errors.As(err, &unfit) && !errors.As(err, &needed) {
				l.cfg.CannotLeave(err)
			} else {
				l.deny(l.host)
			}
		}
	default:
		l.agent.Tell(leader, (&note{Leaving: &reasonNote{"it was asked to stop"}}).encode())
	}
}

// deny notes that the job needs a host which was asked to leave.
func (l *launch) deny(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.denied == nil {
		l.denied = map[string]bool{}
	}
	l.denied[host] = true
}

// releaseDenied asks again for hosts that were asked to leave and were needed, when the job may do
// without them: it has other members, or another host. Who leads anew is asked by the hosts.
func (l *launch) releaseDenied() {
	l.mu.Lock()
	hosts := slices.Sorted(maps.Keys(l.denied))
	l.mu.Unlock()
	for _, host := range hosts {
		if l.agent.Drain(host, host) != nil {
			continue
		}
		l.mu.Lock()
		delete(l.denied, host)
		l.mu.Unlock()
		l.console.Note(fmt.Sprintf("host %s, which was asked to leave, is not needed any more", host))
	}
}

// recovering is how long who leads anew is left alone with what others report, until it is asked
// again.
const recovering = 50 * time.Millisecond

// soon has attend ask again what a host that leads anew could not be asked yet: it learns first
// what was decided before.
func (l *launch) soon(errand func()) {
	l.group.Go("ask again", func(ctx context.Context) error {
		select {
		case <-time.After(recovering):
			l.later(errand)
		case <-ctx.Done():
		}
		return nil
	})
}

// hosts lists the hosts of the job, also those that have joined since its generation was decided.
func (l *launch) hosts(s agent.Status) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := slices.Concat(s.Hosts, slices.Collect(maps.Keys(l.rooms)), []string{l.host})
	slices.Sort(list)
	return slices.Compact(list)
}

// drainHost lets the workers of a host go when their step ends.
func (l *launch) drainHost(name, who string) error {
	host, err := l.called(name, l.hosts(l.agent.Status()))
	if err != nil {
		return err
	}
	return l.agent.Drain(host, who)
}

// called finds the host of the job that has a name there, else the one that calls itself so.
func (l *launch) called(name string, hosts []string) (host string, err error) {
	if slices.Contains(hosts, name) {
		return name, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var own []string
	for _, h := range hosts {
		if name != "" && (l.machines[h] == name || h == l.host && l.machine == name) {
			own = append(own, h)
		}
	}
	switch len(own) {
	case 0:
		return "", fmt.Errorf("no host called %q belongs to the job; its hosts are %s", name,
			strings.Join(hosts, ", "))
	case 1:
		return own[0], nil
	}
	return "", fmt.Errorf("%d hosts call themselves %s; in the job they are %s", len(own), name,
		strings.Join(own, ", "))
}

// dismissal is how long other hosts may take to leave a job that is over.
const dismissal = 3 * time.Second

// sayGoodbye tells the other hosts that the job is over, and why if it has failed, and waits until
// they have left.
func (l *launch) sayGoodbye(why string) {
	l.mu.Lock()
	l.muted = true
	hosts := slices.Collect(maps.Keys(l.rooms))
	leads := l.leader == l.host
	l.mu.Unlock()
	if !leads {
		return
	}
	l.needRoom()
	for _, host := range hosts {
		l.agent.Tell(host, (&note{Over: &reasonNote{why}}).encode())
	}
	late, cancel := context.WithTimeout(context.Background(), dismissal)
	defer cancel()
	for {
		l.mu.Lock()
		waiting := len(l.rooms) > 0
		l.mu.Unlock()
		if !waiting {
			return
		}
		select {
		case <-l.changed:
		case <-late.Done():
			return
		}
	}
}
