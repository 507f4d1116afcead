package agent

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// Status is the state of a job as one of its agents knows it. Some fields are known on the head
// alone and are zero elsewhere. Who reads a Status must not change its slices: others read them
// too.
type Status struct {
	// Head is the host that leads; "" = not known yet.
	Head  string
	Hosts []member.Host
	// Generation is the number of the newest membership; 0 = the job has not begun.
	Generation uint64
	// Size counts the members. Want is how many there are to be; 0 = not known yet.
	Size, Want int
	// Spares is how many workers the job keeps beyond its size.
	Spares int
	// Progress is how far the training is. It may be newer than the rest.
	Progress
	// Members are the workers of the membership, by rank.
	Members []int
	// Entering counts the workers that become members when the step ends; on the head.
	Entering int
	// Waiting are these workers, and the spares that wait until they are needed; on the head.
	Waiting []int
	// Short counts the workers that are wanted and for which no host has room; on the head.
	Short int
	Room
	// Elastic says that losses do not end the job.
	Elastic bool
	// Paused says that the members wait for more workers; on the head.
	Paused bool
	// Mesh is how the ranks are arranged; "" = the job has no mesh.
	Mesh string
	// Reshaping is the mesh that the job goes to; "" = none.
	Reshaping string
	// Broken says why a job with a mesh cannot go on; "" = it can.
	Broken string
	// Lost says why the job must go back to a checkpoint; "" = it need not, or it has.
	Lost string
	// Back says how the job last went back to a checkpoint; "" = it never did.
	Back string
	// Setting is how the job trains, with the batch that counts; 0 = no worker has stated its data.
	Setting setting.Setting
	// Levers are the parts of it that the program has opened.
	Levers setting.Levers
	// Trying says that a change is measured which a policy has made.
	Trying bool
	// NextChange is the change that waits for the end of a step, on the head; Number 0 = none does.
	NextChange setting.Change
	// Stuck says that the head is lost, and that too few hosts are left to go on.
	Stuck bool
	// Ended says that the agent has ended: nothing else is known.
	Ended bool
}

// Room is for how many workers there is room.
type Room struct {
	// Slots is how many workers the hosts have room for; 0 = any number; on the head.
	Slots int
	// Allotment is how many workers somebody outside gives the job on each host; nil = nobody does.
	Allotment *member.Allotment
	// Growth says whether the job takes every slot of its hosts, where nobody allots them.
	Growth member.Growth
}

// Progress is how far a training is, and how fast.
type Progress struct {
	Steps          uint64 // those that are committed
	OptimizerSteps uint64 // those that the training has made; 0 = as many
	// Goal is how many optimizer steps the training has in all, as workers of this host have told;
	// 0 = they have not.
	Goal uint64
	Rates
}

// Rates are how fast a training is. They are found four times a second while it makes steps, and
// those of an earlier generation or setting are not known any more.
type Rates struct {
	// Pace is what steps take since the job has its mesh; without Steps it is not known.
	Pace sense.Pace
	// PaceSince is after how many committed steps the job got its mesh.
	PaceSince uint64
	// NetworkWaits is the part of a step, from 0 to 1, in which all workers wait for the network; 0
	// = it is not known; on the head.
	NetworkWaits float64
}

// HostNames lists the names of the hosts, in memory of its own.
func (s *Status) HostNames() (names []string) {
	for _, h := range s.Hosts {
		names = append(names, h.Name)
	}
	return names
}

// publisher holds the newest Status for readers on any goroutine. Only the engine's thread writes,
// and Agent.Run once that thread has ended.
//
// A Status is published when it has changed otherwise than by a step; the numbers of steps have
// places of their own, since a step allocates no memory.
type publisher struct {
	newest         atomic.Pointer[published]
	steps          atomic.Uint64
	optimizerSteps atomic.Uint64         // as Status.OptimizerSteps
	goal           atomic.Uint64         // as Status.Goal; the goroutine of any session writes it
	rates          atomic.Pointer[Rates] // nil = not known
	// key and changed are touched on the engine's thread only. key is the statusKey of the newest
	// Status; changed says that the Status may have changed otherwise than by a step.
	key     statusKey
	changed bool
	ratedAt uint64 // the number of the last step with which rates were found
}

// published is a Status, and a channel that tells when another one has followed.
type published struct {
	Status
	outdated chan struct{} // closed when another Status is published
}

// statusKey holds the parts of a Status that a step can change, the number of steps among them. To
// find a key allocates no memory.
type statusKey struct {
	steps, generation           uint64
	size, want, entering, short int
	elastic, paused             bool
	shape                       *head.Shape
	requested                   string
	levers                      setting.Levers
	first, batch                uint64
	wanted                      uint32 // the size of the setting
	trial                       *setting.Change
}

// read returns the newest Status, and a channel that is closed when it is no longer the newest. The
// steps are read last, so they are never older than the rest. The Status of an agent that has ended
// has no steps. Any goroutine may call it.
func (p *publisher) read() (s Status, outdated <-chan struct{}) {
	newest := p.newest.Load()
	if newest == nil {
		return Status{}, nil
	}
	if s = newest.Status; !s.Ended {
		s.Progress = Progress{Steps: p.steps.Load(), OptimizerSteps: p.optimizerSteps.Load(),
			Goal: p.goal.Load()}
		if r := p.rates.Load(); r != nil {
			s.Rates = *r
		}
	}
	return s, newest.outdated
}

// publish replaces the newest Status by one that differs from it, and wakes those who wait in
// Await. The engine's thread calls it, and Agent.Run once that has ended. The publisher owns s.
func (p *publisher) publish(s Status) {
	if !s.Ended {
		p.steps.Store(s.Steps)
		p.optimizerSteps.Store(s.OptimizerSteps)
	}
	s.Progress = Progress{}
	before := p.newest.Load()
	if before != nil && reflect.DeepEqual(before.Status, s) {
		return
	}
	p.newest.Store(&published{s, make(chan struct{})})
	if before != nil {
		close(before.outdated)
	}
}

// Status returns the newest snapshot of the state of the job, and never waits for the engine; any
// goroutine may call it, the engine's thread too. It has the effects of every method of Agent that
// has returned, of what the Orders were told, and of every step whose end a worker of this host has
// seen.
func (a *Agent) Status() Status {
	s, _ := a.driver.published.read()
	return s
}

// Await blocks until fits accepts a snapshot, and returns it: the newest one if that fits already,
// or the newest one and an error when ctx ends before. It does not see every step, so fits must not
// be about Steps, and it may miss what holds for a moment only. Any goroutine but the engine's
// thread may call it.
func (a *Agent) Await(ctx context.Context, fits func(Status) bool) (Status, error) {
	for {
		s, outdated := a.driver.published.read()
		if fits(s) {
			return s, nil
		}
		select {
		case <-outdated:
		case <-ctx.Done():
			return s, context.Cause(ctx)
		}
	}
}

// publishStatus replaces the newest Status if it has changed. The engine's thread calls it before
// workers and the launcher can learn of a change in another way.
func (d *driver) publishStatus() {
	key := d.newStatusKey()
	if !d.published.changed && key == d.published.key {
		return
	}
	before := d.published.key
	before.steps = key.steps
	d.published.key = key
	if !d.published.changed && key == before {
		d.published.steps.Store(key.steps)
		known := d.head.State()
		d.published.optimizerSteps.Store(known.OptimizerSteps())
		return
	}
	if before.generation != key.generation || before.trial != key.trial ||
		before.batch != key.batch || before.shape != key.shape {
		d.published.rates.Store(nil)
	}
	d.published.changed = false
	d.published.publish(d.newStatus())
}

// publishRates makes the rates of now those of the Status, if a step has ended since the last time.
// It runs on the engine's thread.
func (d *driver) publishRates() {
	known := d.head.State()
	if known.Steps == d.published.ratedAt {
		return
	}
	d.published.ratedAt = known.Steps
	r := &Rates{}
	r.Pace, r.PaceSince = d.engine.signals.Pace()
	if d.head.Leads() {
		r.NetworkWaits = d.engine.signals.WaitShare(known)
	}
	d.published.rates.Store(r)
}

// newStatusKey is the key of the Status as it is now. While no step has ended and nothing else has
// changed, it is the key of the newest Status. It runs on the engine's thread.
func (d *driver) newStatusKey() statusKey {
	known := d.head.State()
	if !d.published.changed && known.Steps == d.published.key.steps {
		return d.published.key
	}
	record := d.head.Record()
	key := statusKey{steps: known.Steps, generation: uint64(record.View.Generation),
		size: record.View.Size(), elastic: known.Elastic, shape: known.Shape,
		requested: d.head.RequestedMesh(), levers: d.engine.signals.Levers(known),
		first: known.First, batch: known.Setting.Batch, wanted: known.Setting.Size,
		trial: known.Trial}
	if m := d.head.Machine(); m != nil {
		key.want, key.entering, key.short, key.paused = m.Want(), m.CountEntering(), m.Unplaced(),
			m.IsPaused()
	}
	return key
}

// newStatus makes a Status of what this agent knows of the job, on the engine's thread.
func (d *driver) newStatus() Status {
	known, record := d.head.State(), d.head.Record()
	s := Status{Head: record.Head, Generation: d.generationNumber(record.View.Generation),
		Size: record.View.Size(), Want: record.Want, Elastic: known.Elastic,
		Stuck: d.head.Stuck(), Levers: d.engine.signals.Levers(known),
		Room: Room{Allotment: record.Allotment, Growth: record.Growth}}
	s.Steps, s.OptimizerSteps = known.Steps, known.OptimizerSteps()
	s.Setting = known.Setting.WithStated(known.First, known.Levers)
	s.NextChange, _ = d.head.RequestedChange()
	s.Trying = known.Trial != nil && known.Trial.Policy != ""
	if shape := known.Shape; shape != nil {
		s.Mesh, s.Reshaping, s.Broken, s.Lost, s.Back = shape.Mesh,
			cmp.Or(shape.Next, d.head.RequestedMesh()), shape.Broken, shape.Lost, shape.Back
	}
	if m := d.head.Machine(); m != nil {
		s.Want, s.Spares, s.Paused, s.Entering, s.Short, s.Waiting = m.Want(), m.Spares(),
			m.IsPaused(), m.CountEntering(), m.Unplaced(), workerIDs(m.WaitingWorkers())
		s.Slots, s.Allotment, s.Growth = m.TotalSlots(), m.Allotment(), m.Growth()
	}
	for _, m := range record.View.Members {
		s.Members = append(s.Members, int(m.Worker))
	}
	s.Hosts = slices.Clone(record.Hosts)
	return s
}

// giveOrder has f give the launcher an order on the engine's thread, when the inputs that are under
// way are dealt with: the launcher then finds in Status what the order follows from.
func (d *driver) giveOrder(f func(o *Orders)) {
	d.waiting = append(d.waiting, f)
	d.giveWaitingOrders()
}

// giveWaitingOrders gives the orders that wait, unless an input is under way. It runs on the
// engine's thread.
func (d *driver) giveWaitingOrders() {
	if d.depth > 0 {
		return
	}
	for len(d.waiting) > 0 {
		f := d.waiting[0]
		d.waiting = slices.Delete(d.waiting, 0, 1)
		f(&d.orders)
	}
}
