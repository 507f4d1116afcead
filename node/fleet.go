package node

import (
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/node/proc"
	"github.com/shoal-ml/shoal/topo"
)

// Hosts is what the head's launcher has to do with other hosts. The functions run on the engine's thread: they must not wait for the
// agent.
type Hosts struct {
	Link    func(h fabric.Handler) (fabric.Mesh, error) // opens the mesh; nil = this host is alone
	Slots   int                                         // workers that this host takes
	Spec    job.Spec                                    // what the other hosts run
	Addr    string                                      // for MASTER_ADDR
	Port    int                                         // for MASTER_PORT
	Up      func(host string, slots int)                // a host offers room for workers
	Down    func(host, how string)                      // a host is lost, and all its workers
	Leaving func(host, why string)                      // a host asks to be relieved of its workers
	Started func(seat, pid int, problem string)
	Ended   func(seat int, e proc.Exit, tail []string, log string)
	Line    func(seat int, stderr bool, text string)
}

// Follow is what an agent that is not the head needs.
type Follow struct {
	Link    func(h fabric.Handler) (fabric.Mesh, error) // joins the mesh
	Slots   int                                         // workers that this host can run
	Size    func() int                                  // workers that the job begins with; asked when the head has told
	Errands Errands
}

// begin starts the first workers that there is room for: who waits for other hosts does it when they come, too.
func (a *Agent) begin() { _ = a.engine.later(func() { a.head.crew.carryOut() }) }

// startFar has another host start a worker; if that host is lost, so is the worker.
func (a *Agent) startFar(seat int, host string, late bool) {
	a.mu.Lock()
	a.seats[seat] = &presence{late: late}
	a.next = max(a.next, seat+1)
	a.mu.Unlock()
	_ = a.engine.do(func() {
		if r := a.head.known[fabric.Host(host)]; r != nil {
			r.send(&letter{Start: &startNote{Worker: topo.Worker(seat), Late: late}})
		}
		a.head.started(topo.Worker(seat), fabric.Host(host))
	})
}

// signal has another host send a worker a signal.
func (a *Agent) signal(seat int, host string, sig int) {
	_ = a.engine.later(func() {
		if r := a.head.known[fabric.Host(host)]; r != nil {
			r.send(&letter{Signal: &signalNote{topo.Worker(seat), sig}})
		}
	})
}

// Drain releases the workers of a host when their step ends, without a replacement if there is no room. why is what people read.
func (a *Agent) Drain(host, why string) (err error) {
	if e := a.engine.do(func() { err = a.head.crew.drain(host, why) }); e != nil {
		return e
	}
	return err
}

// Dismiss tells the other hosts that the job is over, and waits until they have left.
func (a *Agent) Dismiss() {
	if a.office == nil {
		return
	}
	gone := make(chan struct{})
	_ = a.engine.do(func() {
		a.office.dismissed = gone
		for _, r := range a.head.known {
			r.send(&letter{Over: &reason{}})
		}
		a.office.lookGone()
	})
	select {
	case <-gone:
	case <-time.After(dismissal):
	}
}

// dismissal is how long other hosts may take to leave a job that is over.
const dismissal = 3 * time.Second
