// Package signals gathers what an agent sees of the training steps of its job: how long they take
// and what for, and the norms of their gradients. On the host that leads it also has what all hosts
// see, for the policies that decide about the job, and for the rows that are kept of its steps.
package signals

import (
	"cmp"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/agent/loop"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/kernel"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/cables"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/sense/saves"
	"github.com/shoal-ml/shoal/sense/stall"
	"github.com/shoal-ml/shoal/sense/steps"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// Signals are what a host sees of the steps of its job, and on the head what all hosts see. One
// thread uses them, that of the engine; but for AwaitRow.
type Signals struct {
	// Blind has nothing measured: what the rest costs, for benchmarks.
	Blind bool
	// Decides says that all policies decide about the job; else see act.Off.
	Decides bool
	// NewestSave returns the checkpoint of which this host has begun last to write parts; nil =
	// this host writes none. It does not block.
	NewestSave func() saves.Newest

	agent    Agent
	host     steps.Host
	gradient steps.Gradient   // of the batch that counts
	every    int              // one in so many chunks of the step under way is measured; 0 = none
	turn     int              // which of them
	under    sense.StepSample // what is known of the step under way
	drifts   bool             // what workers average at its end is no gradient but for samples
	deal     uint32           // dealOf the state in which it is made
	passed   int              // steps that have ended and are not added
	began    sense.Duration   // when the last step that was added has ended; 0 = there was none
	workers  []steps.Worker   // room for those of a step

	job    steps.Job        // notes of all hosts; empty where this host does not lead
	series sense.StepSeries // the newest steps
	mesh   mesh
	looks  int // calls of IsDue
	notes  int // notes that the head was told

	sums sums

	saves    saves.Meter
	rows     rows
	machines machines
	links    links
	changes  []act.Entry // where changes begin or end, which the loop has not seen
}

// sums is how much workers have summed up in the step under way, and whether that were gradients.
type sums struct {
	own     int    // elements that calls of the step have averaged
	other   int    // elements that other calls have summed up meanwhile, with all workers alike
	alikeAt uint64 // the newest step in which those were more; 0 = there is none
}

// mesh is the mesh of the job.
type mesh struct {
	text  string // "" = the job has none
	since uint64 // committed steps when the job got it
}

// links is what is known of the links between hosts.
type links struct {
	told cables.Rates // of those from this host, for the next note; nil = nothing new
	seen cables.Map   // of all hosts; empty where this host does not lead
}

// Agent is the agent of this host, which its Signals ask on its own thread.
type Agent interface {
	// Now is the time on the clock of the agent.
	Now() sense.Duration
	// Leads reports whether the agent leads the job.
	Leads() bool
	// Levers returns what may change of the setting, as head.Agent.Levers does.
	Levers() setting.Levers
	// GenerationNumber is the number of a generation for people; 0 = the job has not begun.
	GenerationNumber(g topo.Generation) uint64
	// NewestEnding returns the rank of a worker of this host and its newest call that ends a step;
	// nil = this host has no such worker.
	NewestEnding(w topo.WorkerID) (topo.Rank, *Ending)
}

// Ending is a worker's call that ends a step. The zero value is none.
type Ending struct {
	Ticket uint64
	At     sense.Duration // when it was taken, by the clock of the agent
	Told   arena.Told
}

const (
	// minGradient is how many elements a part of a gradient has at least. Shorter parts of a step
	// are losses and counters.
	minGradient = 64
	// looksPerNote is how many looks at the waits of a job go by from one note to the next.
	looksPerNote = int(sense.NoteInterval / stall.Interval)
	// earlyNotes is how many notes go with every look, so that something is known of noise soon: an
	// estimate takes some of them, however many steps each is of.
	earlyNotes = 16
	// alikeFor is for how many steps gradients count as averaged with all workers alike after one
	// in which they were: a program can do so in some steps only, after several backward passes.
	alikeFor = 64
)

// A note to the head has room for those of package steps.
const _ = uint(wire.MaxNote - steps.MaxNote)

// New returns the Signals of an agent that has seen nothing yet.
func New(a Agent) *Signals {
	return &Signals{agent: a, host: steps.Host{SecondsPerRead: secondsPerRead()}}
}

// secondsPerRead is what it takes to measure an element: measured, with room for slower machines.
func secondsPerRead() float64 {
	if kernel.Best().Name == "generic" {
		return 2e-9
	}
	return 5e-10
}

// isGradient reports whether a call is a part of the gradient of a step: a mean over the samples of
// all workers.
func isGradient(c *collective.Call) bool {
	return (c.More || c.Step) && c.Kind == collective.AllReduce && c.DType.Float() &&
		c.Reduction == collective.Mean && c.Tag != arena.NoGradient && c.InLen() >= minGradient
}

// isMeasured reports whether a call of the step under way is of gradients: where workers average
// how far each has come by itself, only samples are.
func (s *Signals) isMeasured(c *collective.Call) bool {
	return isGradient(c) && (c.Tag == arena.Sample || !s.drifts)
}

// Measure has an Executor or a Relay, whichever reduces the tensors of c, measure the part of a
// gradient that c is, as far as that is to be measured in this step.
func (s *Signals) Measure(c *collective.Call, by interface{ Measure(every, turn int) }) {
	if s.every > 0 && s.SensesStep() && s.isMeasured(c) {
		by.Measure(s.every, s.turn)
	}
}

// BeginBatch begins a batch that counts: AddNorms tells of its parts.
func (s *Signals) BeginBatch() { s.gradient.Reset() }

// AddCall adds a call of a batch that counts: whether what it sums up is weighted by samples. A
// call of a step is, or is made for one that is. Others can be of torch's own
// DistributedDataParallel.
func (s *Signals) AddCall(c *collective.Call) {
	switch {
	case !c.Kind.Reduces() || !c.DType.Float() || c.InLen() < minGradient:
	case c.More || c.Step || c.Aside:
		s.sums.own += c.InLen()
	default:
		s.sums.other += c.InLen()
	}
}

// Levers returns what may change of the setting, as far as this host knows.
func (s *Signals) Levers(known head.State) setting.Levers {
	l := s.agent.Levers()
	l.Alike = s.sums.alikeAt > 0 && known.Steps < s.sums.alikeAt+alikeFor
	return l
}

// AddNorms adds what an Executor or a Relay has measured of a part of a batch that counts.
func (s *Signals) AddNorms(part head.Part, by interface {
	Norms(in []float64) (result float64, elements int)
}) {
	if !s.SensesStep() {
		return
	}
	c := &part.Calls[0].Call
	switch {
	case isGradient(c):
		if c.Tag != arena.Sample {
			s.rows.gradients += uint64(c.InLen() * c.DType.Size())
		}
		if !s.isMeasured(c) {
			return
		}
	case (c.More || c.Step) && c.Kind.Reduces() && c.Kind != collective.AllReduce:
		// each rank gets a part of the gradient, and what all get is something else
		s.gradient.MarkUnusable()
		return
	default:
		return
	}
	for i, p := range part.Calls {
		s.gradient.AddMember(i, p.Call.Weight, p.Call.Far == nil)
	}
	if in := s.gradient.Norms(len(part.Calls)); in != nil {
		mean, measured := by.Norms(in)
		s.gradient.AddPart(c.InLen(), measured, mean)
	}
}

// SensesStep reports whether what there is to see of the step under way is to be told: of very
// short steps, only one in some.
func (s *Signals) SensesStep() bool { return !s.Blind && s.passed+1 >= s.host.Stride() }

// AddBatch adds the step that ends with a batch which counts, if one does: its calls are complete.
// errs says by part why the part could not be executed; nil = it was.
func (s *Signals) AddBatch(a *head.Apply, errs []error) {
	next := sense.StepSample{Size: a.View.Size(), Generation: uint64(a.View.Generation),
		Change: a.Setting.Number}
	if a.Data != nil {
		next.Samples, next.Batch = a.Data.Count(), a.Data.Batch
		if steps := a.Data.LocalSteps(); steps > 1 {
			next.Samples, next.Round = next.Samples/steps, uint32(steps)
		}
		next.Deal = sense.DealOf(a.Data.Shares)
	}
	if s.under.Size == 0 { // the job begins with a step
		s.under, s.deal = next, dealOf(&a.State)
	}
	i := 0
	for i < len(a.Parts) && !a.Parts[i].Calls[0].Call.Step {
		i++
	}
	if i < len(a.Parts) {
		if s.sums.other > s.sums.own {
			s.sums.alikeAt = a.Steps
		}
		s.sums.own, s.sums.other = 0, 0
	}
	if s.Blind {
		s.began = 0
	} else if i < len(a.Parts) && errs[i] == nil &&
		a.Parts[i].Calls[0].Call.Kind == collective.Reshape {
		s.addReshape(a, i, next)
	} else if i < len(a.Parts) && errs[i] == nil {
		full := s.SensesStep()
		s.passed++
		if full || a.Changed || s.under != next {
			s.addSteps(a, i, full, next)
		}
	}
	s.under, s.drifts, s.deal = next, !averagesGradients(&a.State), dealOf(&a.State)
	s.followMesh(a)
}

// addReshape adds what part i of a batch has taken, which brings the state to another mesh: it is
// no step. The arguments are those of addSteps.
func (s *Signals) addReshape(a *head.Apply, i int, next sense.StepSample) {
	if s.passed > 0 {
		s.addSteps(a, i, false, next)
	} else if now := s.agent.Now(); s.began > 0 {
		if s.agent.Leads() {
			s.rows.recorder.AddPause((now - s.began).Seconds())
		}
		s.began = now
	}
	s.host.AddEach()
}

// followMesh takes in which mesh the job has after a batch that counts.
func (s *Signals) followMesh(a *head.Apply) {
	text := ""
	if a.Shape != nil {
		text = a.Shape.Mesh
	}
	if text != s.mesh.text {
		s.mesh = mesh{text, a.Steps}
	}
}

// Pace returns what steps take since the job has its mesh, as far as they are kept, and the number
// of steps that were committed when it got the mesh. Those that a change of members has disturbed
// do not count.
func (s *Signals) Pace() (p sense.Pace, since uint64) {
	newest, _ := s.series.Newest()
	return sense.PaceOf(s.series.Between(s.mesh.since, newest.Step)), s.mesh.since
}

// addSteps adds the steps since the last that was added, of which the newest ends with part i of a
// batch. full says that what there is to see of that one was told, and next is what the step after
// it begins with.
func (s *Signals) addSteps(a *head.Apply, i int, full bool, next sense.StepSample) {
	each := uint64(max(s.under.Round, 1)) // optimizer steps of a round
	now, passed := s.agent.Now(), uint64(s.passed)
	s.passed = 0
	x := steps.Step{Generation: uint64(a.View.Generation), Size: a.View.Size(), Deal: s.deal,
		Alike: passed*each - 1}
	if s.began > 0 {
		x.Seconds = (now - s.began).Seconds() / float64(passed*each)
	}
	if full {
		x.Gradient, x.Reads = s.gradient.NoiseStep(s.under.Samples), s.gradient.ElementsRead()
		if !a.Changed { // else the ranks are not those of the step
			x.Workers = s.workersOf(a.Parts[i].Calls, now, float64(each))
		}
	}
	s.host.Add(x)
	sample := s.under
	sample.Step, sample.Seconds, sample.Alike = a.Steps, x.Seconds, passed-1
	s.series.Add(sample)
	s.recordStep(a, sample)
	s.countSamplesOfAlikeSteps(a, next, x.Workers)
	if last := s.under; a.Changed || last.Batch != next.Batch || last.Change != next.Change ||
		last.Deal != next.Deal {
		s.host.AddEach()
	}
	s.began = now
	s.host.Sparing = !s.Decides && a.Trial == nil && !a.Levers.Batch.IsOpen()
	s.every, s.turn = s.host.Sampling()
}

// mayDecide reports whether policies may decide about something of a job in a state.
func (s *Signals) mayDecide(of *head.State) bool {
	return s.Decides || setting.MeetsInPairs(cmp.Or(of.Setting.Sync, of.Levers.Sync))
}

// averagesGradients reports whether what workers of a job average are gradients, and not how far
// each has come by itself.
func averagesGradients(of *head.State) bool {
	sync := cmp.Or(of.Setting.Sync, of.Levers.Sync) // as Setting.WithStated, without its copies
	return sync == "" || sync == setting.Ssgd
}

// dealOf returns a number that tells how a job in a state divides work, and how its workers
// synchronise, from other ways: where the time of a step goes depends on both.
func dealOf(of *head.State) uint32 {
	if of.Data == nil {
		return 0
	}
	deal := sense.DealOf(of.Data.Shares)
	if averagesGradients(of) {
		return deal
	}
	return sense.DealUnder(deal, of.Data.Round, cmp.Or(of.Setting.Sync, of.Levers.Sync))
}

// workersOf returns what is known of the workers of this host that made calls which end a step, now
// that these are complete, or a round of so many steps, of which it is the mean. A step that ends
// with a barrier has averaged its gradients otherwise. In a round, workers may have waited for each
// other before its end too: there what they tell of their time counts, and for the rest of it they
// have waited. The slice is used again for the next step.
func (s *Signals) workersOf(calls []*collective.Posted, now sense.Duration,
	each float64) []steps.Worker {
	list := s.workers[:0]
	for _, p := range calls {
		if p.Call.Far != nil {
			continue
		}
		rank, ending := s.agent.NewestEnding(p.Worker)
		if ending == nil {
			continue
		}
		w := steps.Worker{Rank: int(rank), Wait: -1}
		if t := ending.Told; ending.Ticket == p.Ticket {
			tellsWaits := each > 1 && t.Compute > 0
			if p.Call.Kind != collective.Barrier && !tellsWaits { // else it waited before the call
				w.Wait = (now - ending.At).Seconds() / each
			}
			w.Data, w.Compute = float64(t.Data)/1e6/each, float64(t.Compute)/1e6/each
			w.Optimizer, w.Loss = float64(t.Optimizer)/1e6/each, float64(t.Loss)
		}
		list = append(list, w)
	}
	s.workers = list
	return list
}

// IsDue reports whether the head is to be told what this host has seen: once a second, and more
// often in the beginning. It is to be called with every look at the waits of the job.
func (s *Signals) IsDue() bool {
	s.looks++
	return s.looks%looksPerNote == 0 || s.notes < earlyNotes
}

// AddLinkRates takes in the newest rates of links from this host, for the next PopLinksNote; it
// keeps r. Where nothing is to be measured it does nothing.
func (s *Signals) AddLinkRates(r cables.Rates) {
	if !s.Blind {
		s.links.told = s.links.told.With(r)
	}
}

// LinkRate returns how many bytes per second the link between two hosts carries at least, on the
// head; 0 = that is not known.
func (s *Signals) LinkRate(a, b string) float64 { return s.links.seen.Between(a, b) }

// CableRates returns how many bytes per second the cable of each of some hosts carries at least, on
// the head; nil = that is not known. It forgets what hosts beside these have told.
func (s *Signals) CableRates(hosts []string) []float64 {
	s.links.seen.KeepOnly(hosts)
	return s.links.seen.Cables(hosts)
}

// PopLinksNote returns a note with the newest rates of links, which the caller owns; nil = there
// are none that were not taken. It is a note of its own, which may go at any time: those of steps
// go with those of other hosts, and have no room for links beside the waits of many workers.
func (s *Signals) PopLinksNote() []byte {
	n := steps.Note{Links: s.links.told}
	if s.links.told = nil; n.Links == nil {
		return nil
	}
	return n.Encode()
}

// PopStepsNote returns what the head is to be told of the steps and of the machine since the last
// note, which the caller owns; nil = nothing.
func (s *Signals) PopStepsNote() []byte {
	n := s.host.TakeNote()
	n.Machine, s.machines.told = s.machines.told, nil
	if n.Steps == 0 && n.Machine == nil {
		return nil
	}
	if n.Steps > 0 {
		s.notes++
	}
	return n.Encode()
}

// AddNote adds what a host has told of its steps, its machine and its links, on the head. What
// cannot be is ignored, such as steps of a generation after the newest: all that are true would be
// older. links = it has told of links.
func (s *Signals) AddNote(n head.Note, newest topo.Generation) (links bool) {
	note, err := steps.Parse(n.Data)
	if err != nil {
		return false
	}
	if note.Machine != nil {
		s.machines.watch.Add(n.Host, *note.Machine)
	}
	if note.Links != nil {
		s.links.seen.Add(n.Host, note.Links)
	}
	if note.Generation <= uint64(newest) {
		s.job.Add(n.Host, note)
	}
	return note.Links != nil
}

// NextLook returns what the loop is to know of the job in a state, and which changes have begun or
// ended since the last Look; false = nothing can change, or be measured, and where policies decide
// about a job on a mesh, which is led here, only that is known. Of the noise it returns
// what an estimate is made of, which takes longer than a short step. What it returns is the
// caller's.
func (s *Signals) NextLook(known head.State) (look loop.Look, of noise.Estimator, ok bool) {
	levers := s.Levers(known)
	if known.Data == nil || known.Shape != nil || !s.mayDecide(&known) && known.Trial == nil &&
		!levers.Batch.IsOpen() && !levers.Size.IsOpen() {
		s.changes = nil
		onMesh := known.Shape != nil && s.Decides && s.agent.Leads()
		return loop.Look{OnMesh: onMesh}, noise.Estimator{}, false
	}
	entry := loop.NewEntry(known, nil, s.agent.Leads())
	entry.Levers = levers
	if s.NewestSave != nil {
		s.saves.Observe(s.NewestSave(), &s.series)
	}
	o := s.observe(known)
	o.Step, o.Epoch, o.Now = known.Steps, known.Data.Epoch, s.agent.Now()
	o.Samples = known.Data.Samples
	o.Setting, o.First, o.Levers = entry.Setting, known.First, entry.Levers
	look = loop.Look{Entries: append(s.changes, entry), Observation: o}
	s.changes = nil
	return look, s.job.Noise(), true
}

// observe returns what is known of the members of the job in a state, of their machines and of the
// steps of which dealOf was as it is then, but for the noise. The job has data. What it returns is
// the caller's.
func (s *Signals) observe(known head.State) sense.Observation {
	series := s.series
	split := s.job.Split(uint64(known.View.Generation), dealOf(&known))
	o := sense.Observation{Size: known.View.Size(), Steps: &series, Split: split,
		Saves: s.saves.Means(), Machines: s.machines.watch.Hosts()}
	o.Loss, _ = s.job.Loss()
	for _, m := range known.View.Members {
		o.Hosts = append(o.Hosts, m.Host)
	}
	return o
}

// AddChange adds an entry of the log that begins or ends a change, for the loop.
func (s *Signals) AddChange(a *head.Apply) {
	s.changes = append(s.changes, loop.NewEntry(a.State, a.Change, s.agent.Leads()))
}
