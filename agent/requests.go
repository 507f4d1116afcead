package agent

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/topo"
)

// What the launcher, and people through it, want of an agent.

// The methods of Agent in this file may be called from any goroutine but the engine's thread, for
// which they wait; Host, Socket, ExpectWorker, TurnAway, LimitSending, CountGenerationsFrom and
// SuspectHost do not wait, and may be called there too. A worker is named by its number.

// Host is the name of this host in the job.
func (a *Agent) Host() string { return string(a.engine.name) }

// Socket is the path that workers connect to.
func (a *Agent) Socket() string { return a.cfg.Socket }

// ExpectWorker has a worker that the launcher is about to start be known, and returns the secret by
// which it joins. late says that the job runs already.
func (a *Agent) ExpectWorker(worker int, late bool) (token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	token = newToken()
	a.sessions[worker] = &workerSession{token: token, late: late}
	return token
}

// WorkerStarted tells the head that the process of a worker of this host runs, or is about to.
func (a *Agent) WorkerStarted(worker int) {
	_ = a.engine.runAndWait(func() {
		a.driver.runInput(func() { a.driver.head.WorkerStarted(topo.WorkerID(worker)) })
	})
}

// WorkerFinished tells the head that the process of a worker has ended well, and how ("exited with
// code 0"). An elastic job goes on without the worker; in another, calls that wait for it fail.
func (a *Agent) WorkerFinished(worker int, how string) {
	a.endProcess(worker)
	_ = a.engine.runAndWait(func() { a.driver.loseWorker(topo.WorkerID(worker), how, true) })
}

// WorkerLost tells the head that the process of a worker is gone in another way than by ending well
// ("was killed by SIGKILL").
func (a *Agent) WorkerLost(worker int, how string) {
	a.endProcess(worker)
	_ = a.engine.runAndWait(func() { a.driver.loseWorker(topo.WorkerID(worker), how, false) })
}

// TurnAway answers a worker that asks to take part and that was ordered to be stopped. Its program
// goes on if nothing has ended it. TurnAway does not wait, and the engine's thread may call it too.
func (a *Agent) TurnAway(worker int) {
	_ = a.engine.runLater(func() {
		if m := a.engine.byID[topo.WorkerID(worker)]; m != nil && m.enter != 0 {
			a.driver.turnAway(m)
		}
	})
}

// Resize asks for n workers, on the head; elsewhere it returns head.ErrNotHead. who asks is part of
// the reason that people read.
func (a *Agent) Resize(n int, who string) error {
	return a.askHead(func() error { return a.driver.head.Resize(n, who) })
}

// Allot asks for so many workers on each host, on the head; elsewhere it returns head.ErrNotHead.
// Without any slots, the hosts themselves say again how many they take. Who asks, and why, is part
// of the reason that people read.
func (a *Agent) Allot(slots map[string]int, who, why string) error {
	return a.askHead(func() error { return a.driver.head.Allot(slots, who, why) })
}

// ErrNoLimit says that a host has no network on which it could be held to a rate.
var ErrNoLimit = errors.New("the job was started without --listen and --hosts: it sends nothing " +
	"to other hosts")

// LimitSending holds what this host sends to the others of the job, of its data, to so many bytes a
// second altogether; 0 = there is no limit. It does not wait.
func (a *Agent) LimitSending(bytesPerSecond float64) error {
	network, is := a.network.(fabric.Limiter)
	if !is {
		return ErrNoLimit
	}
	network.Limit("", bytesPerSecond)
	return nil
}

// Drain releases the workers of a host when their step ends, without a replacement if there is no
// room, and on a mesh when others have their parts of the state; on the head, elsewhere it returns
// head.ErrNotHead. who asks is part of the reason that people read. After an error the host stays.
func (a *Agent) Drain(host, who string) error {
	return a.askHead(func() error { return a.driver.head.Drain(host, who) })
}

// askHead runs f, which gives the head's agent an input, on the engine's thread, waits for it, and
// returns its error.
func (a *Agent) askHead(f func() error) (err error) {
	if stopped := a.engine.runAndWait(func() {
		a.driver.runInput(func() { err = f() })
	}); stopped != nil {
		return stopped
	}
	return err
}

// ReleaseWorkers lets every worker go when the step ends that is under way: its training loop ends
// as at the end of the data. It returns false, and does nothing, in a job that does not train in
// steps, whose workers have no such moment, in one that has not begun, and where this agent does
// not lead. why is what people read.
func (a *Agent) ReleaseWorkers(why string) (ok bool) {
	_ = a.askHead(func() error { ok = a.driver.head.ReleaseWorkers(why); return nil })
	return ok
}

// CountGenerationsFrom numbers generations on from those that the job had before this start, on a
// host that learns that after it has joined the job. It does not wait.
func (a *Agent) CountGenerationsFrom(after topo.Generation) {
	_ = a.engine.runLater(func() { // a stopped engine tells nobody
		a.driver.runInput(func() { a.driver.after = after })
	})
}

// ForceHead makes this agent the head of a job whose other hosts a person knows to be gone.
func (a *Agent) ForceHead() {
	_ = a.askHead(func() error { a.driver.head.ForceHead(); return nil })
}

// SuspectHost takes the word of somebody that a host is gone: its silence counts sooner. It does
// not wait; without a link to such a host nothing happens.
func (a *Agent) SuspectHost(host string) {
	if a.network != nil {
		a.network.Suspect(fabric.Host(host))
	}
}

// SendToLauncher sends a message to the launcher of another host. The message is on its way when
// SendToLauncher returns: closing the links does not lose it.
func (a *Agent) SendToLauncher(host string, message []byte) {
	_ = a.engine.runAndWait(func() {
		a.driver.sendLauncherMessage(fabric.Host(host), wrapMessage(message))
	})
}

// sendLauncherMessage sends a message of this host's launcher, in parts if it is long. One that is
// too long for that ends the link. It runs on the engine's thread.
func (d *driver) sendLauncherMessage(to fabric.Host, message []byte) {
	switch {
	case len(message) <= fabric.MaxMessage:
		d.network.Send(to, message)
	case len(message) <= maxSaid:
		sendInParts(d.network, to, message)
	default:
		d.network.Drop(to, fmt.Errorf("it must be told of the job in %d MiB, and can be told %d "+
			"MiB at once: give the job a shorter command and environment", len(message)>>20,
			maxSaid>>20))
	}
}

// newToken returns a random secret by which an agent knows a worker, as 32 hexadecimal digits.
func newToken() string {
	var secret [16]byte
	rand.Read(secret[:])
	return hex.EncodeToString(secret[:])
}
