// Package job is a training job in virtual time: hosts that share processors, cables of their own,
// samples that are dealt out as package cursor does, gradients whose noise grows along the run, and
// what happens to all that. It is a performance model, as good as its numbers. What it shows of
// itself are the observations that a running job has; who decides by them is not known here.
//
// A step costs the time of its slowest worker, and of the communication that is not hidden. Between
// two events a step takes time with the number of workers, and no memory. Nothing blocks; one
// goroutine at a time uses a World.
package job

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/sense/steps"
	"github.com/shoal-ml/shoal/setting"
)

// World is a job in virtual time. New makes one, and Step lets it make a step.
type World struct {
	config Config
	steps  []Event // events by step that are to come, in their order
	timed  []Event // events by time that are to come, in their order
	hosts  []host  // by index in Config.Hosts
	ranks  []rank
	names  []string // by rank: the host, such as "h1"
	done   []bool   // by rank: whether it is part of the newest step
	stale  bool     // ranks and times do not follow from hosts any more
	events []Event  // that have happened since the step before

	cursor     cursor.Cursor
	setting    setting.Setting
	generation uint64  // counts changes of members
	now        float64 // seconds
	progress   float64 // samples at the batch that the program states
	pause      float64 // seconds that the next step waits for hosts that come, leave or are lost
	changing   float64 // seconds that the next step waits for a change of the setting
	conditions int     // counts what has changed the time of steps, but for the batch
	dealt      dealt   // which batch ranks are prepared for

	series  sense.StepSeries
	noise   gradients
	split   split
	network network
	joining joining
	saving  saving
	memory  memory
}

// network is how the hosts are joined now.
type network struct {
	slowdown float64 // seconds for a byte on all cables; 0 = each has its own
	whole    float64 // seconds of communication of a step
}

// host is a host and how it is now.
type host struct {
	Host
	there   bool // its workers can take part
	in      bool // some of them do
	workers int  // that take part; 0 unless in
	// starting is when each of the workers that start here has started, in seconds, ascending.
	// They join then.
	starting []float64
	lost     bool // it is lost in the next step
	back     bool // it is lost in the next step, and joins after that
	// end is when the host is lost, in seconds, if it has not left before; 0 = nobody has noticed.
	// It leaves when others have come; then it is not there, though its workers take part.
	end float64

	slow float64 // factor of its compute
	took float64 // factor of its compute by how its processors are shared
	lead uint64  // number of its first worker; workers keep their numbers
}

// rank is a worker that takes part, by its rank.
type rank struct {
	host    int
	worker  uint64
	compute float64 // seconds of the samples of this batch, without the residual
	load    float64 // of these, those in which it waits for the samples
	took    float64 // seconds of the newest round, without the exchange at its end
	met     float64 // of these, those in which it waited for partners and exchanged with them
}

// split is where the time of a step goes.
type split struct {
	known sense.Split // what the head knows of it
	head  steps.Job   // from what it knows that
	note  steps.Note  // of steps of which the head has none yet
	of    uint64      // the generation of the members
}

// dealt is what the samples of the ranks follow from.
type dealt struct {
	count, batch uint64
	round        uint32
	conditions   int
}

// gradients is what the job knows of the noise of its gradients.
type gradients struct {
	noise.Estimator
	known noise.Estimate // what the head knows
	noted float64        // seconds when it got notes last, of all there is in them; 0 = never
}

// Step is a step that was committed.
type Step struct {
	sense.StepSample
	At       float64 // seconds from the start of the job
	Pause    float64 // of its seconds, those in which the job stood still because of its hosts
	Changing float64 // of its seconds, those in which it stood still to change the setting
	Saving   float64 // of its seconds, those in which workers copied their state for a checkpoint
	GoneBack bool    // nobody had the state before it: a new run went on from a checkpoint
	Exposed  float64 // seconds of communication that were not hidden
	Hosts    int
	Progress float64 // samples of all steps, at the batch that the program states
	Noise    float64 // noise scale in samples; 0 = none was stated
	Events   []Event // what has happened right before it; the next Step overwrites the list
}

// New returns a job at its start. It fails when the configuration is none of a job.
func New(c Config) (*World, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("world/job: %w", err)
	}
	c.Local = c.Local.drawn(c.Seed)
	w := &World{config: c, cursor: c.Data, generation: 1}
	workers := uint64(0)
	for _, h := range c.Hosts {
		one := host{Host: h, there: !h.Out, in: !h.Out && !h.Spare, slow: 1, lead: workers}
		if one.in {
			one.workers = h.Workers
		}
		w.hosts = append(w.hosts, one)
		workers += uint64(h.Workers)
	}
	for _, e := range c.Events {
		if e.Timed {
			w.timed = append(w.timed, e)
		} else {
			w.steps = append(w.steps, e)
		}
	}
	slices.SortStableFunc(w.timed, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(w.steps, func(a, b Event) int { return cmp.Compare(a.Step, b.Step) })
	if c.Levers.Size.IsOpen() {
		w.setting.Size = uint32(w.memberCount())
		w.joining.start = w.setting.Size
		w.expectAll()
	}
	w.placeMembers()
	w.saving.newest, w.saving.whole = w.newSave(), w.newSave()
	return w, nil
}

// Step lets the job make one step. If there are fewer members than it takes, it first moves time on
// to when workers that start are ready or to the next timed event, until there are enough; it
// returns false when there is neither. It calls Config.Audit with the samples that count.
func (w *World) Step() (Step, bool) {
	waited, on := w.awaitMembers()
	if !on {
		return Step{}, false
	}
	back, saving := w.restartFromSave(), w.saveIfDue()
	w.dealSamples()
	steps := w.cursor.LocalSteps()
	slowest := w.drawComputeTimes(w.config.Seed, w.cursor.Step, steps)
	hidden := w.hiddenSeconds(slowest)
	exposed := w.network.whole - hidden
	s := Step{StepSample: sense.StepSample{Batch: w.cursor.Batch, Size: len(w.ranks),
		Seconds:    waited + w.pause + w.changing + saving + slowest + exposed,
		Generation: w.generation,
		Change:     w.setting.Number, Deal: sense.DealOf(w.cursor.Shares)},
		Pause: waited + w.pause, Changing: w.changing, Saving: saving, GoneBack: back,
		Exposed: exposed, Hosts: w.countHosts(),
		Noise: w.config.Noise.scaleAt(w.progress), Events: w.events}
	w.now, w.pause, w.changing = w.now+s.Seconds-waited, 0, 0
	if steps > 1 {
		s.Round = uint32(steps)
	}
	count := w.cursor.Count()
	s.Samples = w.commitStep()
	s.StepSample.Step = w.cursor.Step
	w.progress += w.progressOf(s.Samples, count, steps)
	s.At, s.Progress = w.now, w.progress
	w.recordObservations(s, slowest)
	w.measureSave()
	if w.stale {
		w.placeMembers()
	}
	return s, true
}

// awaitMembers lets all happen that is due before the next step, and then until there are enough
// members for it. It returns for how many seconds members have waited for others, and false if it
// would take for ever.
func (w *World) awaitMembers() (waited float64, on bool) {
	w.events = w.events[:0]
	w.runDueEvents()
	for len(w.ranks) < w.leastSize() {
		if w.hasLostHost() { // no step runs with which it could leave
			w.removeLost()
			w.runDueEvents()
			continue
		}
		next := w.nextReady()
		if len(w.timed) > 0 {
			next = min(next, w.timed[0].At)
		}
		if math.IsInf(next, 1) {
			return 0, false
		}
		if next = max(w.now, next); len(w.ranks) > 0 {
			waited += next - w.now
		}
		w.now = next
		w.runDueEvents()
	}
	return waited, true
}

// drawComputeTimes draws how many seconds each rank takes for so many steps of a round, sets
// rank.took to it, and returns that of the slowest. What is drawn follows from the seed and the
// number of the round.
func (w *World) drawComputeTimes(seed, number, steps uint64) (slowest float64) {
	for i := range w.ranks {
		w.ranks[i].took, w.ranks[i].met = 0, 0
	}
	pairs := setting.MeetsInPairs(w.currentSync())
	for step := range steps {
		numbers := drawsOf(seed^step<<32, number)
		for i := range w.ranks {
			r := &w.ranks[i]
			h := &w.hosts[r.host]
			r.took += h.Wait + float64(r.compute*pickElement(h.Residuals, numbers.at(r.worker)))
		}
		if pairs {
			w.averageInPairs(numbers)
		}
	}
	for i := range w.ranks {
		slowest = max(slowest, w.ranks[i].took)
	}
	return slowest
}

// hiddenSeconds returns how many seconds of the communication of a round are hidden, whose slowest
// worker takes so many: none where workers average at its end how far each has come.
func (w *World) hiddenSeconds(slowest float64) float64 {
	if w.makesLocalSteps() {
		return 0
	}
	return min(w.network.whole, w.config.Hidden*slowest)
}

// commitStep commits the step without those who are lost, who then leave. It returns how many
// samples the step has trained on.
func (w *World) commitStep() (samples uint64) {
	before := w.cursor
	for i, r := range w.ranks {
		w.done[i] = !w.hosts[r.host].lost
		if w.done[i] && w.config.Audit != nil {
			w.config.Audit(before.Epoch, before.Part(i, len(w.ranks)))
		}
	}
	w.cursor = before.Commit(len(w.ranks), w.done)
	w.cursor.Step = before.Step + 1 // commits are counted, as heads do
	if slices.Contains(w.done, false) {
		w.removeLost()
	}
	return w.cursor.Committed() - before.Committed()
}

// dealSamples gives the ranks their samples of the next batch, if others than those of the last
// one.
func (w *World) dealSamples() {
	next := dealt{w.cursor.Count(), w.cursor.Batch, w.cursor.Round, w.conditions}
	if next == w.dealt {
		return
	}
	w.dealt = next
	for i := range w.ranks {
		r, samples := &w.ranks[i], float64(w.cursor.PartLen(i, len(w.ranks)))
		samples /= float64(w.cursor.LocalSteps())
		r.compute, r.load = w.computeSeconds(r.host, samples), w.hosts[r.host].Load*samples
	}
}

// computeSeconds returns for how many seconds a worker of the host with index `of` computes on so
// many samples and waits for each of them, without its residual.
func (w *World) computeSeconds(of int, samples float64) float64 {
	h := &w.hosts[of]
	return float64((h.Fixed+float64(h.PerSample*samples))*h.slow*h.took) + float64(h.Load*samples)
}

// progressOf returns the progress of a round of so many steps, in samples at the batch that the
// program states, of whose samples, `of`, only some were committed: with who is lost goes its part,
// and as much again where workers keep replicas.
func (w *World) progressOf(samples, of, steps uint64) float64 {
	counts := float64(samples)
	if setting.KeepsReplicas(w.currentSync()) {
		counts -= float64(of - samples)
	}
	return counts * w.EfficiencyIn(w.currentSync(), uint32(steps), float64(samples)/float64(steps))
}

// Efficiency returns how much a sample of a batch brings now, compared with one in the batch that
// the program states in steps of synchronous SGD.
func (w *World) Efficiency(batch float64) float64 {
	return w.EfficiencyIn(w.currentSync(), w.cursor.Round, batch)
}

// meanDraws is of how many steps MeanSeconds takes the mean at least, in whole rounds.
const meanDraws = 64

// MeanSeconds returns what optimizer steps with a batch take in the mean, as the job is now: what
// whoever knows all about it would predict. Ideal divides the batch so that all workers compute for
// as long; else all have the same part. It does not change the job, and takes as long as 64 steps,
// or a round.
func (w *World) MeanSeconds(batch uint64, ideal bool) (mean float64) {
	whole := cursor.Cursor{Samples: cursor.MaxSamples, Batch: batch}
	compute := make([]float64, len(w.ranks))
	least := 0.0
	if ideal {
		least = w.idealSeconds(float64(batch))
	}
	for i, r := range w.ranks {
		compute[i] = w.computeSeconds(r.host, float64(whole.PartLen(i, len(w.ranks))))
		if ideal && w.hosts[r.host].PerSample > 0 {
			compute[i] = max(least, w.computeSeconds(r.host, 0))
		}
	}
	steps := uint64(max(w.cursor.Round, 1))
	c := *w
	c.ranks = slices.Clone(w.ranks)
	for i := range c.ranks {
		c.ranks[i].compute = compute[i]
	}
	rounds := (meanDraws + steps - 1) / steps
	for i := range rounds {
		slowest := c.drawComputeTimes(^w.config.Seed, i, steps)
		exposed := w.network.whole - w.hiddenSeconds(slowest)
		mean += float64((slowest + exposed) / float64(rounds*steps))
	}
	return mean
}

// idealSeconds returns how long workers compute that have as many samples of a batch as they can
// compute in the same time.
func (w *World) idealSeconds(batch float64) float64 {
	low, high := 0.0, 0.0
	for _, r := range w.ranks {
		high = max(high, w.computeSeconds(r.host, batch))
	}
	for range 50 { // bisection: with high they compute a batch at least, with low less
		middle, samples := float64((low+high)/2), 0.0
		for _, r := range w.ranks {
			fixed := w.computeSeconds(r.host, 0)
			if each := w.computeSeconds(r.host, 1) - fixed; each > 0 {
				samples += max(0, (middle-fixed)/each)
			}
		}
		if samples >= batch {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// Conditions returns a number that changes when what MeanSeconds returns may change.
func (w *World) Conditions() int { return w.conditions }

// countHosts returns the number of hosts that take part.
func (w *World) countHosts() (n int) {
	for i := range w.hosts {
		if w.hosts[i].in {
			n++
		}
	}
	return n
}

// Change has the job train by another setting from the next step on. It fails when the job is not
// open to it.
func (w *World) Change(next setting.Setting) error {
	now := w.setting.WithStated(w.config.Data.Batch, w.config.Levers)
	now.Batch, next = w.cursor.Batch, next.WithStated(w.config.Data.Batch, w.config.Levers)
	now.Size, next.Size = w.setting.Size, cmp.Or(next.Size, w.setting.Size)
	if err := w.config.Levers.CheckChange(now, next); err != nil {
		return err
	}
	if n := len(next.Shares); n > 0 && n != len(w.ranks) {
		return fmt.Errorf("%d shares for %d workers", n, len(w.ranks))
	}
	if !next.Equal(now) {
		w.changing += w.config.Costs.Change
	}
	if sense.DealOf(next.Shares) != sense.DealOf(w.cursor.Shares) ||
		next.Round != now.Round || next.Sync != now.Sync {
		w.conditions++ // also of the samples of the ranks
		w.forgetSplit()
	}
	if next.Size != now.Size {
		w.joining.expected = int(next.Size)
	}
	w.setting, w.cursor = next, w.cursor.WithBatch(next.Batch).WithRound(next.Round)
	w.cursor = w.cursor.WithShares(next.Shares)
	return nil
}

// Observation returns what is known of the job by whoever leads it. It is the caller's but for
// Steps, which the next Step changes, Slack and Hosts. Its time is that of the newest run. Of the
// noise and of where the time of a step goes it knows what hosts have told it.
func (w *World) Observation() sense.Observation {
	if every := sense.NoteInterval.Seconds(); w.noise.noted == 0 ||
		math.Floor(w.now/every) > math.Floor(w.noise.noted/every) {
		w.noise.known, w.noise.noted = w.noise.Estimate(), w.now
		w.split.takeNotes()
	}
	in := w.setting.WithStated(w.config.Data.Batch, w.config.Levers)
	in.Batch = w.cursor.Batch
	return sense.Observation{Step: w.cursor.Step, Epoch: w.cursor.Epoch,
		Samples: w.config.Data.Samples, Size: len(w.ranks),
		Now:     sense.Duration(math.Round((w.now - w.saving.began) * float64(sense.Second))),
		Setting: in, First: w.config.Data.Batch, Levers: w.Levers(), Steps: &w.series,
		Split: w.split.known, Noise: w.noise.known, Saves: w.saving.meter.Means(),
		Hosts: w.names, Machines: w.memory.machines}
}

// Setting returns how the job trains; its batch is 0, for the one that the program states, until
// the first Change.
func (w *World) Setting() setting.Setting { return w.setting }
