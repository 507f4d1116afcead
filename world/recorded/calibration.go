package recorded

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense/history"
	"github.com/shoal-ml/shoal/world/job"
	"github.com/shoal-ml/shoal/world/scenario"
)

// How a job in virtual time is found that does what the lines of a run have recorded: calibrate
// makes a calibration, by which report.go plays. All of it runs on the goroutine that calls Play;
// methods of period change nothing.

const (
	// maxWeight is how many steps of a period count at most in the fit.
	maxWeight = 256
	// guessLow, guessMid and guessHigh are which part of the compute goes with the samples, where
	// one number of them was seen; as in package twin.
	guessLow, guessMid, guessHigh = 0.05, 0.5, 0.95
	// cableError is by which factor the measured rate of a cable may be wrong.
	cableError = 1.33
	// hiddenGuess is up to which part of the compute may be hidden behind it, where the rate of the
	// cables is not known.
	hiddenGuess = 0.3
)

// model is a job in virtual time, as its lines say it. It is a value.
type model struct {
	hosts, workers int       // workers of each host
	local          bool      // the job was on one host: all hosts here are on one machine
	fixed, each    float64   // seconds of a worker's compute: a + b·samples
	deviation      float64   // standard deviation of the logarithm of the compute
	wait           float64   // seconds a step for which a worker waits for its samples
	gradients      uint64    // bytes; 0 = communication is part of fixed
	cable          float64   // bytes a second; 0 = not known
	hidden         float64   // communication that a step hides at most, as a part of the compute
	slow           []float64 // by host, how many times longer than usual it computes
	samples, batch uint64    // of an epoch, and of a step; 0 = not known
	round          uint32    // optimizer steps from one exchange to the next
	sync           string    // how a what-if has workers synchronise; "" = as they do
	noise          float64   // samples; 0 = not known
}

// calibration is what fits to a run. One goroutine uses it.
type calibration struct {
	base     period
	periods  []period // those with the most steps, and base
	mid      model
	variants []model // what fits as well; mid is none of them
	misfit   float64 // how far off, in logarithms, the worst of its periods is played
	guess    bool    // only one number of samples of a worker was seen
	least    float64 // samples of a worker that were seen
	most     float64
	names    []string // by host of the model
	notes    []string // what is not known, in words
}

// notef adds to c.notes, for people, something that is not known.
func (c *calibration) notef(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// calibrate returns what fits to rows; nil = no step was measured that tells anything.
func calibrate(rows []history.Row) *calibration {
	periods, newest := periodsOf(rows)
	if len(periods) == 0 {
		return nil
	}
	c := &calibration{base: periods[newest], periods: withMostSteps(periods, newest)}
	m := &c.mid
	m.batch, m.wait, m.round = c.base.batch, c.base.data, c.base.round
	m.deviation, _ = c.base.stepDeviation()
	m.deviation = min(m.deviation*math.Sqrt(float64(m.round)), 0.9) // a round is the mean of steps
	if m.round > 1 {
		c.notef("how workers synchronised is not recorded: rounds of %d steps are played as "+
			"sync=local", m.round)
	}
	for _, r := range rows {
		if r.Data != nil {
			m.samples = r.Data.Samples
		}
		if r.Cable > 0 {
			m.cable = r.Cable
		}
		if r.Noise != nil && r.Noise.Scale != nil && r.Noise.Scale.Mid >= 1 {
			m.noise = r.Noise.Scale.Mid
		}
	}
	if m.batch == 0 {
		c.notef("the program states no data, so what a sample costs is not known")
	}
	c.placeHosts()
	low, mid, high := c.fitCompute()
	m.fixed, m.each = mid[0], mid[1]
	c.fitNetwork(m)
	for _, line := range [][2]float64{low, high} {
		v := *m
		v.fixed, v.each = line[0]+m.fixed-mid[0], line[1]
		c.variants = append(c.variants, v)
	}
	if _, longer := c.base.stepDeviation(); longer > 1 && m.hosts*m.workers > 1 {
		// All workers may be slow at the same time, as where others use their machine.
		v := *m
		v.deviation, v.fixed, v.each = 0, v.fixed+float64((longer-1)*mid[0]), v.each*longer
		c.variants = append(c.variants, v)
	}
	c.varyNetwork()
	return c
}

// placeHosts finds the hosts of the model and how slow they are. On one host, each worker becomes
// one of its own on the same machine; so does it where hosts have different numbers of workers.
func (c *calibration) placeHosts() {
	hosts, m := c.base.hosts, &c.mid
	if hosts == nil {
		c.notef("which hosts the job had is not known: it is played as on one")
	}
	m.local = len(hosts) < 2
	even := !m.local
	for _, h := range hosts {
		even = even && len(h.Ranks) == len(hosts[0].Ranks)
	}
	slow := c.base.slowness()
	if slow == nil {
		slow = slices.Repeat([]float64{1}, c.base.size)
	}
	if even {
		m.hosts, m.workers = len(hosts), len(hosts[0].Ranks)
		for _, h := range hosts {
			c.names = append(c.names, h.Name)
			worst := 0.0
			for _, r := range h.Ranks {
				worst = max(worst, slow[r])
			}
			m.slow = append(m.slow, worst)
		}
		return
	}
	m.hosts, m.workers, m.slow = c.base.size, 1, slow
	c.names = make([]string, c.base.size)
	for i := range c.names {
		c.names[i] = "rank " + strconv.Itoa(i)
	}
	if !m.local {
		c.notef("the hosts have different numbers of workers: each worker is played as on a host " +
			"of its own")
	}
}

// computeSeconds returns what a usual worker computes in a step of a period, in seconds.
func (p *period) computeSeconds() float64 {
	_, longer := p.stepDeviation()
	slowest := p.median - p.exposed - p.data
	if s := p.slowness(); s != nil {
		longer *= slices.Max(s)
	}
	return slowest / longer
}

// fitCompute returns the line a + b·samples that fits best to what workers compute (Theil and Sen,
// by weights), and two others between which it is in 80 of 100 cases: those with the least and the
// largest b go through what was measured last.
func (c *calibration) fitCompute() (low, mid, high [2]float64) {
	x, y := c.base.samplesOfBusiestWorker(), c.base.computeSeconds()
	c.least, c.most = x, x
	var slopes []weighted
	computes, errors := make([]float64, len(c.periods)), make([]float64, len(c.periods))
	for i, p := range c.periods {
		computes[i], errors[i] = p.computeSeconds(), p.computeError()
		samples := p.samplesOfBusiestWorker()
		c.least, c.most = min(c.least, samples), max(c.most, samples)
		for j, q := range c.periods[:i] {
			run := p.samplesOfBusiestWorker() - q.samplesOfBusiestWorker()
			if run == 0 {
				continue
			}
			slope := (computes[i] - computes[j]) / run
			weight := math.Sqrt(min(p.steps, maxWeight)*min(q.steps, maxWeight)) * math.Abs(run)
			wrong := portable.Hypot(errors[i], errors[j]) / math.Abs(run)
			// a normal distribution has about a quarter below -0.67, and a tenth below -1.28
			for _, sigmas := range [...]float64{-1.28, -0.67, 0, 0.67, 1.28} {
				slopes = append(slopes, weighted{max(slope+float64(sigmas*wrong), 0), weight})
			}
		}
	}
	// through returns the line with a slope through what was measured last.
	through := func(slope float64) [2]float64 {
		slope = min(slope, y/x)
		return [2]float64{max(y-float64(slope*x), 0), slope}
	}
	if c.mid.batch == 0 {
		return through(0), through(0), through(0)
	}
	if slopes == nil {
		c.guess = true
		c.notef("only steps with %s a worker were seen, so which part of the compute goes with "+
			"the samples is a guess: between %.0f and %.0f %%", plural.Of(int(x), "sample"),
			100*guessLow, 100*guessHigh)
		return through(guessLow * y / x), through(guessMid * y / x), through(guessHigh * y / x)
	}
	slope := weightedMedian(slopes)
	var fixed []weighted
	for i, p := range c.periods {
		fixed = append(fixed, weighted{computes[i] - float64(slope*p.samplesOfBusiestWorker()),
			min(p.steps, maxWeight)})
	}
	mid = [2]float64{weightedMedian(fixed), slope}
	if mid[0] < 0 {
		mid = through(y / x)
	}
	return through(weightedQuantile(slopes, 0.1)), mid, through(weightedQuantile(slopes, 0.9))
}

// computeError returns the standard error of what a period says of the compute, in seconds.
func (p *period) computeError() float64 {
	deviation, _ := p.stepDeviation()
	return 1.25 * max(deviation, 0.005) / math.Sqrt(p.steps) * p.computeSeconds()
}

// fitNetwork has model m spend as much time with exposed communication as was measured. Where no
// network of package cost does that, it becomes a part of the compute, m.fixed.
func (c *calibration) fitNetwork(m *model) {
	m.gradients = c.base.gradients
	exposed := float64(c.base.exposed * float64(m.round)) // of the exchange at the end of a round
	switch {
	case m.hosts < 2:
		c.notef("a worker that is alone exchanges nothing: what more of them take for that is " +
			"not known, and they are played without it")
		m.gradients = 0
	case exposed == 0:
		m.gradients = 0
	case m.gradients == 0:
		c.notef("how many bytes workers exchange is not known: the time for that stays as it is")
	case !m.local && m.cable > 0 && m.round == 1 && m.communicationSeconds() >= exposed:
		m.hidden = (m.communicationSeconds() - exposed) / c.base.computeSeconds()
		return
	default:
		measured := m.cable
		if c.findCable(m, exposed) {
			switch {
			case m.local || m.round > 1:
			case measured > 0:
				c.notef("cables that are as fast as was measured, %s Mbit, do not explain the "+
					"exposed communication: they are played slower", numberText(measured*8/1e6))
			default:
				c.notef("how fast cables are is not known: they are played as fast as explains " +
					"the exposed communication")
			}
			return
		}
		m.gradients = 0
		if !m.local {
			c.notef("no network explains the exposed communication: it stays as it is")
		}
	}
	m.fixed += c.base.exposed
}

// findCable sets m.cable to the rate, in bytes a second, at which the communication of the model
// takes so many seconds; false = there is none, and the cable is 0.
func (c *calibration) findCable(m *model, seconds float64) bool {
	low, high := portable.Log(1e3), portable.Log(1e13) // bytes a second
	// at sets a rate, and returns by how much the communication takes longer.
	at := func(log float64) float64 {
		m.cable = portable.Exp(log)
		return m.communicationSeconds() - seconds
	}
	if at(low) < 0 || at(high) > 0 {
		m.cable = 0
		return false
	}
	for range 40 {
		if middle := (low + high) / 2; at(middle) > 0 {
			low = middle
		} else {
			high = middle
		}
	}
	return true
}

// communicationSeconds returns the seconds for which the gradients of a model are under way; 0 = it
// cannot be played.
func (m model) communicationSeconds() float64 {
	m.hidden, m.fixed, m.each, m.wait, m.slow, m.deviation = 0, 0, 0, 0, nil, 0
	s, err := scenario.Parse(m.scenarioText(1), nil, "")
	if err != nil {
		return 0
	}
	w, err := job.New(s.Job)
	if err != nil {
		return 0
	}
	step, _ := w.Step()
	return step.Seconds
}

// varyNetwork adds models whose network explains what was measured as well.
func (c *calibration) varyNetwork() {
	if c.mid.gradients == 0 {
		return
	}
	if c.mid.hidden > 0 {
		for _, factor := range [...]float64{1 / cableError, cableError} {
			v := c.mid
			v.cable *= factor
			if whole := v.communicationSeconds(); whole >= c.base.exposed {
				v.hidden = (whole - c.base.exposed) / c.base.computeSeconds()
				c.variants = append(c.variants, v)
			}
		}
		return
	}
	if c.mid.round > 1 { // nothing of it is hidden
		return
	}
	v := c.mid
	v.hidden = hiddenGuess
	if c.findCable(&v, c.base.exposed+float64(hiddenGuess*c.base.computeSeconds())) {
		c.variants = append(c.variants, v)
	}
}

// scenarioText returns the model as the lines of a scenario of so many steps.
func (m *model) scenarioText(steps int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "hosts %d", m.hosts)
	if m.workers > 1 {
		fmt.Fprintf(&b, " workers %d", m.workers)
	}
	if m.cable > 0 && m.gradients > 0 {
		fmt.Fprintf(&b, " cable %skbit", numberText(m.cable*8/1e3))
	}
	if m.local {
		b.WriteString(" machines 1")
	}
	fmt.Fprintf(&b, "\ncompute %sms + %sms/sample", numberText(m.fixed*1e3), numberText(m.each*1e3))
	if m.deviation > 0 {
		fmt.Fprintf(&b, " sd %s%%", numberText(100*m.deviation))
	}
	if m.wait > 0 {
		fmt.Fprintf(&b, "\nwait %sms", numberText(m.wait*1e3))
	}
	if m.gradients > 0 {
		fmt.Fprintf(&b, "\ngradients %dB", m.gradients)
		if m.hidden > 0 {
			fmt.Fprintf(&b, " hidden %s%%", numberText(100*m.hidden))
		}
	}
	if m.local {
		b.WriteString("\nlatency 0us")
	}
	batch := m.batch
	if batch == 0 {
		batch = uint64(m.hosts * m.workers)
	}
	least := batch * uint64(max(m.round, 1))
	fmt.Fprintf(&b, "\ndata %d batch %d", max(m.samples, least, 1), batch)
	if m.round > 1 {
		fmt.Fprintf(&b, " round %d", m.round)
	}
	b.WriteString("\n")
	if m.noise > 0 {
		fmt.Fprintf(&b, "noise %s\n", numberText(m.noise))
	}
	for i, f := range m.slow[:min(len(m.slow), m.hosts)] {
		if f != 1 {
			fmt.Fprintf(&b, "at step 0 slow h%d %sx\n", i+1, numberText(f))
		}
	}
	fmt.Fprintf(&b, "run %d steps\n", steps)
	return b.String()
}

// numberText writes a number with five digits and without an exponent.
func numberText(x float64) string {
	short, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 5, 64), 64)
	return strconv.FormatFloat(short, 'f', -1, 64)
}
