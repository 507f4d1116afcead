package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/agent/transfers"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/queue"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/cables"
	"github.com/shoal-ml/shoal/sense/meter"
	"github.com/shoal-ml/shoal/sense/probe"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// routes is how the all-reduces of the job go between hosts, as this agent knows it: by the choice
// of its own tuner where it leads, else as the head has said. Only the engine's thread touches the
// fields above mu, but for the queue measured, which brings samples from that thread to tuneRoutes.
type routes struct {
	fixed    bool                            // routes follow from lengths alone
	chosen   map[cost.Class]collective.Route // a class without an entry goes the default route
	hosts    int                             // hosts of the newest all-reduce between hosts
	meter    meter.AllReduces
	measured queue.Queue[measurement]
	// members are the hosts of the members of a generation, as measurement has them.
	members   []string
	membersAt topo.Generation
	// cables are the bytes per second that the cables of the hosts of the members of a generation
	// carry at least, where this agent leads; nil = not known. Nobody changes the slice.
	cables   []float64
	cablesAt topo.Generation

	mu     sync.Mutex // guards what follows
	kungfu bool       // KungFu's rule changes them
	tuner  tuner      // nil before a job has use for it
}

// measurement is what an all-reduce took, and between which hosts.
type measurement struct {
	decide.Measurement[cost.Sample]
	hosts []string // by the least ranks of their members; nobody changes the list
}

// tuner changes the routes of all-reduces by what those before took, and knows from them what the
// network is like. It is a policy.Routes, or another one to compare with that.
type tuner interface {
	Decide(o decide.Measurement[cost.Sample]) (policy.RouteDecision, bool)
	Model(hosts int) (cost.Model, bool)
	CableSecondsPerByte() (float64, bool)
	CallSeconds() (float64, bool)
}

// FixRoutes has the routes of collectives follow from their lengths alone, on a host that learns
// what the job wants after it has joined the job. It does not wait, and any goroutine may call it.
func (a *Agent) FixRoutes() {
	_ = a.engine.runLater(func() { a.driver.routes.fixed = true }) // a stopped engine goes no way
}

// FollowKungFu has the routes of all-reduces change by KungFu's rule from the first measurement on,
// before which it is called. It does not wait, and any goroutine may call it.
func (a *Agent) FollowKungFu() {
	r := &a.driver.routes
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kungfu = true
}

// benchRoute is the route of all-reduces of more than benchBytes where routes are fixed; "" = that
// which follows from their length. Benchmarks that compare routes link it in, by -ldflags "-X …".
var benchRoute string

// benchBytes leaves losses and counters the route of their length.
const benchBytes = 4 << 10

// chooseRoute returns the route of a collective of so many bytes over so many hosts, where this
// agent leads. It runs on the engine's thread.
func (r *routes) chooseRoute(kind collective.Kind, hosts, bytes int) collective.Route {
	if r.fixed && benchRoute != "" && kind == collective.AllReduce && bytes > benchBytes {
		var route collective.Route
		if err := route.UnmarshalText([]byte(benchRoute)); err != nil {
			panic(err) // nobody links in another text by mistake
		}
		return route
	}
	if route, ok := r.chosen[cost.ClassOf(hosts, bytes)]; ok &&
		kind == collective.AllReduce && !r.fixed {
		return route
	}
	return collective.DefaultRoute(bytes)
}

// beginMeasuring begins to measure how long the transfers of a batch take that were begun, and
// learns their routes. It runs on the engine's thread.
func (d *driver) beginMeasuring(f *batch, begun []*transfers.Transfer) {
	if d.routes.fixed {
		return
	}
	now := d.now()
	for _, t := range begun {
		_, i := transfers.PositionOf(t.ID)
		part, kind := f.parts[i], t.Calls[0].Kind
		s := cost.Sample{Route: t.Route, Hosts: t.Sites.N,
			Bytes: collective.Ready{Calls: part.Calls}.MaxBytes()}
		if kind == collective.AllReduce {
			d.routes.learnRoute(s, d.head.Leads())
		}
		d.routes.meter.BeginTransfer(s, kind, now)
		f.timed++
	}
}

// learnRoute learns the route of an all-reduce that begins, with which this agent goes on if it
// comes to lead. Where it leads already, a transfer may go by a route that was chosen before the
// newest decision, which stays. It runs on the engine's thread.
func (r *routes) learnRoute(s cost.Sample, leads bool) {
	r.hosts = s.Hosts
	if !leads {
		r.chosen[cost.ClassOf(s.Hosts, s.Bytes)] = s.Route
	}
}

// endMeasuring ends, at a time, the measurement of n transfers: of one of a step that began ahead,
// or of all of a batch that counts. It passes the samples to tuneRoutes, and runs on the engine's
// thread.
func (d *driver) endMeasuring(f *batch, n int, at time.Time) {
	n = min(n, f.timed)
	f.timed -= n
	view := d.head.State().View
	if d.routes.membersAt != view.Generation {
		d.routes.members, d.routes.membersAt = hostsOf(view), view.Generation
	}
	known, hosts := d.routes.cablesAt == view.Generation, d.routes.members
	d.routes.meter.EndTransfers(n, sense.Duration(at.Sub(d.began)), func(s cost.Sample) {
		if known && len(d.routes.cables) == s.Hosts {
			s.Cables = d.routes.cables
		}
		d.routes.measured.Put(measurement{
			decide.Measurement[cost.Sample]{Sample: s, Leads: d.head.Leads()}, hosts})
	})
}

// tuneRoutes finds better routes from what all-reduces take, and has the engine's thread change to
// them, until ctx ends. Meanwhile it reads what links have carried. It is a goroutine of Run, since
// a decision takes milliseconds.
func (a *Agent) tuneRoutes(ctx context.Context) error {
	r := &a.driver.routes
	defer context.AfterFunc(ctx, r.measured.Close)()
	var meter cables.Meter
	var read time.Time
	for {
		o, ok := r.measured.Take()
		if !ok {
			return nil
		}
		now := time.Now()
		if o.Sample.Hosts <= cables.MaxHosts && now.Sub(read) > readLinks {
			read = now
			a.readLinks(&meter)
		}
		if change, is := r.decideRoutes(o.Measurement); is {
			// a stopped engine goes no way
			_ = a.engine.runLater(func() { a.driver.reroute(change, o.hosts) })
		}
	}
}

// readLinks is how long it takes at least from one reading of what links have carried to the next.
const readLinks = 250 * time.Millisecond

// readLinks finds by a meter what the links to other hosts carry, and has the engine's thread tell
// the head: at once where that has changed much, else with the next note. It asks the kernel about
// each stream, which takes microseconds; a network that does not know is asked nothing.
func (a *Agent) readLinks(by *cables.Meter) {
	network, is := a.network.(fabric.Counter)
	if !is {
		return
	}
	now := map[string][]cables.Sent{}
	for peer, streams := range network.Sent() {
		for _, s := range streams {
			now[string(peer)] = append(now[string(peer)],
				cables.Sent{Bytes: s.Bytes, Busy: sense.Duration(s.Busy),
					Held: sense.Duration(s.Held)})
		}
	}
	rates, news := by.Read(now)
	if rates == nil {
		return
	}
	// a stopped engine tells nobody
	_ = a.engine.runLater(func() {
		if a.engine.signals.AddLinkRates(rates); news {
			a.driver.sendLinkRates()
		}
	})
}

// decideRoutes gives the tuner a measurement, and makes the tuner before the first; true = the
// routes of a class are to change. It locks r.mu and takes milliseconds, on the goroutine of
// tuneRoutes.
func (r *routes) decideRoutes(o decide.Measurement[cost.Sample]) (policy.RouteDecision, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tuner == nil {
		start := cost.Default()
		start.Gamma = probe.MeasureAdd(newClock())
		if r.tuner = policy.NewRoutes(start); r.kungfu {
			r.tuner = policy.NewKungFuRoutes(start)
		}
	}
	return r.tuner.Decide(o)
}

// model is the model that explains the all-reduces over so many hosts; false as long as none was
// measured. It locks r.mu and fits the model, which is not for the engine's thread.
func (r *routes) model(hosts int) (cost.Model, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tuner == nil {
		return cost.Model{}, false
	}
	return r.tuner.Model(hosts)
}

// cableSecondsPerByte returns how many seconds a byte takes on the cable of a host; false as long
// as that is not known. It locks r.mu and fits a model, which is not for the engine's thread.
func (r *routes) cableSecondsPerByte() (float64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tuner == nil {
		return 0, false
	}
	return r.tuner.CableSecondsPerByte()
}

// callSeconds returns what a call of few bytes takes between hosts; false as long as that is not
// known. It locks r.mu.
func (r *routes) callSeconds() (float64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tuner == nil {
		return 0, false
	}
	return r.tuner.CallSeconds()
}

// reroute has all-reduces of a class that begin from now on go by a route, and tells the launcher
// of the changes that begin or end with it. hosts are those of the measurement that it was decided
// by, of which some may have left since. It runs on the engine's thread.
func (d *driver) reroute(decided policy.RouteDecision, hosts []string) {
	d.routes.chosen[decided.Class] = decided.Route
	known := d.head.State()
	for _, c := range decided.Changes {
		c.Step, c.OptimizerSteps = known.Steps, known.OptimizerSteps()
		if i := decided.Slow; 0 <= i && i < len(hosts) && c.Phase == setting.Entered {
			c.Because += "; the cable of " + hosts[i] + " is slow"
		}
		c = c.WithShortTexts()
		e := Event{What: "route", Generation: d.generationNumber(known.View.Generation),
			Size: known.View.Size(), Step: known.Steps, OptimizerSteps: c.OptimizerSteps,
			Because: c.Because, Change: &c}
		d.giveOrder(func(o *Orders) { o.Event(e) })
	}
}

// hostsOf returns the hosts of the members, by their least ranks, in a new list. It is pure.
func hostsOf(v topo.View) (hosts []string) {
	for _, m := range v.Members {
		if !slices.Contains(hosts, m.Host) {
			hosts = append(hosts, m.Host)
		}
	}
	return hosts
}
