package agent

import (
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head"
)

// What the head knows of the hosts of its job and of the links between them, for planners.

// Machines is the hosts of a job and the links between them.
type Machines struct {
	Hosts []Machine
	// Links are those on which enough was sent to show what they carry, and Others what counts for
	// any other.
	Links  []Link
	Others Link
}

// Machine is a host of a job.
type Machine struct {
	Name   string
	Kind   string // of the devices that its workers compute on; "" = not known
	Places int    // workers that it takes
	// Memory is how many bytes a worker may have there; 0 = that is not known.
	Memory float64
}

// Link is how bytes go between the workers of two hosts.
type Link struct {
	From, To string
	Latency  float64 // seconds that a call takes for the messages that begin and end it
	Rate     float64 // bytes a second that it carries at least
	Measured bool    // it follows from what the job has sent; else it is assumed
}

// Machines returns the hosts of the job and the links between them, on the head; elsewhere it fails
// with head.ErrNotHead. It waits for the engine's thread and fits a model: any goroutine but that
// thread may call it.
func (a *Agent) Machines() (m Machines, err error) {
	err = a.askHead(func() error {
		machine := a.driver.head.Machine()
		if machine == nil {
			return head.ErrNotHead
		}
		signals := a.engine.signals
		for _, h := range machine.Rooms() {
			m.Hosts = append(m.Hosts, Machine{h.Name, h.Kind, h.Slots,
				signals.MemoryPerWorker(h.Name, h.Slots)})
		}
		if m.Hosts == nil { // the job is on this host alone
			n := max(machine.CountExpected(), 1)
			m.Hosts = []Machine{{a.Host(), a.cfg.Kind, n, signals.MemoryPerWorker(a.Host(), n)}}
		}
		for i, from := range m.Hosts {
			for _, to := range m.Hosts[:i] {
				if rate := signals.LinkRate(from.Name, to.Name); rate > 0 {
					m.Links = append(m.Links, Link{From: from.Name, To: to.Name, Rate: rate})
				}
			}
		}
		return nil
	})
	if err == nil {
		a.driver.routes.fillInMeasuredLinks(&m)
	}
	return m, err
}

// fillInMeasuredLinks fills in what all-reduces have shown of links. It locks r.mu and fits a
// model, which is not for the engine's thread.
func (r *routes) fillInMeasuredLinks(m *Machines) {
	model := cost.Default()
	m.Others = Link{Latency: model.Fixed + model.Alpha, Rate: 1 / model.Beta}
	if call, known := r.callSeconds(); known {
		m.Others.Latency = call
	}
	// All links together carry what the slowest carries: each carries as much at least.
	if beta, is := r.cableSecondsPerByte(); is {
		m.Others.Rate, m.Others.Measured = 1/beta, true
	}
	for i := range m.Links {
		l := &m.Links[i]
		l.Latency, l.Measured = m.Others.Latency, true
		if m.Others.Measured {
			l.Rate = max(l.Rate, m.Others.Rate)
		}
	}
}

// BytesSent returns how many bytes of data this host has sent to others over the links that there
// are now. It does not wait for the engine's thread.
func (a *Agent) BytesSent() (sum uint64) {
	network, is := a.network.(fabric.Counter)
	if !is {
		return 0
	}
	for _, streams := range network.Sent() {
		for _, s := range streams {
			sum += s.Bytes
		}
	}
	return sum
}
