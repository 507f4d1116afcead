package scenario

import (
	"cmp"
	"math"
	"strings"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/world/job"
)

// Bounds of a scenario, so that it fits into memory and ends.
const (
	MaxHosts   = 10_000
	maxWorkers = 256
	maxSteps   = 100_000_000
	maxSamples = 1 << 40
	maxAudited = 1 << 32 // samples of which it is known how often each has counted, with a bit each
)

// noCores is how many processors a machine has that is not stated: as many as anybody wants.
var noCores = math.Inf(1)

// parser is what the lines read so far have said. One goroutine uses it.
type parser struct {
	Scenario
	policies []string
	seen     map[string]int // by the first word of lines: the number of the last one

	hosts      int
	machines   int     // 0 = each host is a machine of its own
	cores      float64 // of a machine
	host       job.Host
	deviation  float64 // of the logarithm of the compute
	samples    uint64
	batch      uint64
	spot       job.Spot
	epochs     float64 // until the target; 0 = there is none
	eventLines []int   // by event: its line
	due        []due   // when the lines "at" say that something happens
}

// examples has a line of each kind.
var examples = map[string]string{
	"hosts":     "hosts 4 cable 1Gbit",
	"compute":   "compute 30ms + 0.2ms/sample sd 5%",
	"wait":      "wait 2ms",
	"gradients": "gradients 100MB",
	"latency":   "latency 50us",
	"memory":    "memory 2GiB + 10MiB/sample of 16GiB",
	"data":      "data 50000 batch 128 range 32-1024",
	"local":     "local 85% less 10%",
	"spot":      "spot calm 4h storm 45min lose 20min back 5min",
	"slowdowns": "slowdowns every 1h for 20min cable 100Mbit",
	"noise":     "noise 600 growing to 4000",
	"target":    "target 10 epochs",
	"costs":     "costs join 2s start 20s release 100ms loss 1s change 50ms save 2s write 5s",
	"at":        "at step 200 cable h2 100Mbit",
	"policy":    "policy batch",
	"budget":    "budget 0.5 price 2",
	"seed":      "seed 1",
	"run":       "run 2000 steps",
	"expect":    "expect goodput >= 0.95 of best after 12 steps",
}

// kinds are the first words of lines, in the order in which errors list them. Those of the second
// list can stand on several lines.
var (
	kinds = []string{"hosts", "compute", "wait", "gradients", "latency", "memory", "data", "noise",
		"local", "spot", "slowdowns", "target", "costs", "at", "policy", "budget", "seed", "run",
		"expect"}
	several = map[string]bool{"at": true, "expect": true}
)

// readLine reads a line whose words are text.
func (p *parser) readLine(l *line, text string) {
	kind := l.nextOf(kinds...)
	if l.err != nil {
		return
	}
	if before := p.seen[kind]; before > 0 && !several[kind] {
		l.failf("line %d says %s already", before, kind)
		return
	}
	p.seen[kind] = l.number
	switch kind {
	case "hosts":
		p.readHosts(l)
	case "compute":
		p.readCompute(l)
	case "wait":
		p.host.Wait = l.readQuantity("a time, such as 2ms", times)
	case "gradients":
		p.readGradients(l)
	case "latency":
		p.Job.Network.Alpha = l.readQuantity("a time, such as 50us", times)
	case "memory":
		p.readMemory(l)
	case "data":
		p.readData(l)
	case "noise":
		p.readNoise(l)
	case "local":
		p.Job.Local.Own = l.readQuantity("what a local step brings, such as 85%", part)
		l.nextOf("less")
		p.Job.Local.Stale = l.readQuantity("how much less longer rounds bring, such as 10%", part)
		if own := p.Job.Local.Own; l.err == nil && (own == 0 || own > 1) {
			l.failf("a local step brings more than nothing, and at most 100%%")
		}
	case "spot", "slowdowns":
		p.readSpot(l, kind)
	case "target":
		p.epochs = l.readQuantity("a number of epochs, such as 10", plain)
		l.nextOf("epochs", "epoch")
	case "costs":
		p.readCosts(l)
	case "at":
		p.readEvent(l, text)
	case "policy":
		for l.hasNext() && l.err == nil {
			p.Policies = append(p.Policies, l.nextOf(p.policies...))
		}
		if len(p.Policies) == 0 {
			l.nextOf(p.policies...)
		}
	case "budget":
		p.Budget = l.readQuantity("the money that an epoch may cost, such as 0.5", plain)
		l.nextOf("price")
		p.Price = l.readQuantity("the money that a worker costs an hour, such as 2", plain)
		if l.err == nil && (p.Budget == 0 || p.Price == 0) {
			l.failf("a budget or a price of nothing")
		}
	case "seed":
		p.Job.Seed = l.readWhole("a seed, such as 1", math.MaxUint64)
	case "run":
		p.readRun(l)
	case "expect":
		p.readExpectation(l, text)
	}
	l.expectEnd()
	if l.err != nil && !strings.Contains(l.err.Error(), "did you mean") {
		l.err = withExample(l.err, kind)
	}
}

// readHosts reads what follows "hosts".
func (p *parser) readHosts(l *line) {
	p.hosts = int(l.readWhole("a number of hosts, such as 4", MaxHosts))
	p.host.Workers = 1
	for l.hasNext() {
		switch l.nextOf("range", "cable", "workers", "machines", "cores") {
		case "range":
			p.Job.Levers.Size = readRange(l, "the least and the most workers, such as 1-8",
				MaxHosts)
		case "cable":
			p.host.Cable = secondsPerByte(l)
		case "workers":
			p.host.Workers = int(l.readWhole("a number of workers of a host, such as 2",
				maxWorkers))
		case "machines":
			p.machines = int(l.readWhole("a number of machines, such as 1", MaxHosts))
		case "cores":
			p.cores = float64(l.readWhole("a number of processors, such as 2", 1<<20))
		}
	}
}

// secondsPerByte reads the rate of a cable.
func secondsPerByte(l *line) float64 {
	rate := l.readQuantity("a rate, such as 1Gbit", rates)
	if l.err == nil && rate == 0 {
		l.failf("a cable that carries nothing: cut hosts off with lose")
		return 0
	}
	return 1 / max(rate, 1e-9)
}

// secondsPerSample reads a time a sample.
func secondsPerSample(l *line) float64 {
	return perSample(l, "a time a sample, such as 0.2ms/sample", times)
}

// perSample reads a quantity a sample. what says what it is, with an example.
func perSample(l *line, what string, units []unit) float64 {
	word := l.nextWord(what)
	each, is := strings.CutSuffix(word, "/sample")
	if !is {
		l.failf("%q is not %s", word, what)
	}
	return l.parseQuantity(each, what, units)
}

// readMemory reads what follows "memory".
func (p *parser) readMemory(l *line) {
	p.host.Memory = l.readQuantity("what a worker needs, such as 2GiB", sizes)
	if l.nextOf("+", "of") == "+" {
		p.host.MemoryPerSample = perSample(l, "a size a sample, such as 10MiB/sample", sizes)
		l.nextOf("of")
	}
	p.host.Room = l.readQuantity("what the workers of a host have, such as 16GiB", sizes)
	if l.err == nil && p.host.Room == 0 {
		l.failf("hosts without memory")
	}
}

// readCompute reads what follows "compute".
func (p *parser) readCompute(l *line) {
	p.host.Fixed = l.readQuantity("a time, such as 30ms", times)
	for l.hasNext() {
		switch l.nextOf("+", "sd", "cpu") {
		case "+":
			p.host.PerSample = secondsPerSample(l)
		case "sd":
			p.deviation = l.readQuantity("a standard deviation, such as 5%", part)
			if p.deviation > 1 {
				l.failf("a standard deviation of more than 100%%")
			}
		case "cpu":
			p.host.Processors = l.readQuantity("a number of processors, such as 1", plain)
		}
	}
}

// readGradients reads what follows "gradients".
func (p *parser) readGradients(l *line) {
	p.Job.Gradients = int(l.readQuantity("a size, such as 100MB", sizes))
	for l.hasNext() {
		switch l.nextOf("hidden", "route") {
		case "hidden":
			p.Job.Hidden = l.readQuantity("a part of the compute, such as 60%", part)
		case "route":
			word := l.nextWord("a route, such as ring/256")
			if err := p.Job.Route.UnmarshalText([]byte(word)); err != nil && l.err == nil {
				l.failf("%q is no route, such as ring/256; the strategies are %s", word,
					listText(strategyNames()))
			}
		}
	}
}

// strategyNames returns the names of all strategies of routes.
func strategyNames() (names []string) {
	for _, s := range collective.Strategies() {
		names = append(names, s.String())
	}
	return names
}

// readData reads what follows "data".
func (p *parser) readData(l *line) {
	p.samples = l.readWhole("a number of samples, such as 50000", maxSamples)
	l.nextOf("batch")
	p.batch = l.readWhole("a batch, such as 128", maxSamples)
	levers, round := &p.Job.Levers, uint32(0)
	for l.hasNext() {
		switch l.nextOf("range", "round", "sync") {
		case "range":
			levers.Batch = readRange(l, "the least and the largest batch, such as 32-1024",
				maxSamples)
		case "round":
			round = uint32(l.readWhole("a number of steps, such as 16", setting.MaxRound))
		case "sync":
			p.readSync(l, "auto, or a way to synchronise, such as pair")
		}
	}
	if round > 0 {
		levers.Sync, levers.Round = cmp.Or(levers.Sync, "local"), round
		if err := levers.Validate(); err != nil {
			l.failf("%v", err)
		}
	}
}

// readSync reads, in one word, how workers synchronise, and after how many steps if that follows
// after a slash; without that rounds are as long as they were, and of one step with averages of
// gradients. what says what the word is.
func (p *parser) readSync(l *line, what string) {
	name, steps, is := strings.Cut(l.nextWord(what), "/")
	levers := &p.Job.Levers
	if levers.Auto = name == "auto"; levers.Auto {
		name, is = setting.Ssgd, false
	}
	if levers.Sync = name; name == setting.Ssgd {
		levers.Round = 1
	}
	if is {
		levers.Round = uint32(l.parseWhole(steps, "a number of steps, such as 16",
			setting.MaxRound))
	}
	if levers.Round == 0 {
		levers.Round = 1
	}
	if l.err == nil {
		if err := levers.Validate(); err != nil {
			l.failf("%v", err)
		}
	}
}

// readSpot reads what follows "spot" or "slowdowns".
func (p *parser) readSpot(l *line, kind string) {
	s := &p.spot
	// read reads a mean time behind a word.
	read := func(word string, x *float64) {
		l.nextOf(word)
		if *x = l.readQuantity("a mean time, such as 20min", times); l.err == nil && *x < 1 {
			l.failf("less than a second")
		}
	}
	if kind == "slowdowns" {
		read("every", &s.Every)
		read("for", &s.Slow)
		l.nextOf("cable")
		s.Cable = secondsPerByte(l)
		return
	}
	read("calm", &s.Calm)
	read("storm", &s.Storm)
	read("lose", &s.Lose)
	read("back", &s.Back)
	if l.hasNext() {
		read("all", &s.All)
	}
}

// readRange reads the least and the largest of some numbers, none of which is above most, from the
// next word of a line. what says what they are, with an example; an error stays in the line.
func readRange(l *line, what string, most uint64) setting.Range {
	word := l.nextWord(what)
	from, to, _ := strings.Cut(word, "-")
	r := setting.Range{From: l.parseWhole(from, what, most), To: l.parseWhole(to, what, most)}
	if l.err == nil && r.From > r.To {
		l.failf("%s is reversed: the least comes first", word)
	}
	return r
}

// readNoise reads what follows "noise".
func (p *parser) readNoise(l *line) {
	n := &p.Job.Noise
	n.From = l.readQuantity("a noise scale in samples, such as 600", plain)
	n.To = n.From
	for l.hasNext() {
		switch l.nextOf("growing", "dims") {
		case "growing":
			l.nextOf("to")
			n.To = l.readQuantity("a noise scale in samples, such as 4000", plain)
		case "dims":
			n.Dims = l.readQuantity("a number of coordinates, such as 300", plain)
		}
	}
	if l.err == nil && (n.From < 1 || n.To < 1) {
		l.failf("a noise scale below 1 sample")
	}
}

// readCosts reads what follows "costs".
func (p *parser) readCosts(l *line) {
	c := &p.Job.Costs
	costs := map[string]*float64{"join": &c.Join, "release": &c.Release, "loss": &c.Loss,
		"change": &c.Change, "start": &c.Start, "save": &c.Save, "write": &c.Write}
	for first := true; first || l.hasNext(); first = false {
		name := l.nextOf("join", "release", "loss", "change", "start", "save", "write")
		if cost := costs[name]; cost != nil {
			*cost = l.readQuantity("a time, such as 100ms", times)
		}
		if name == "save" || name == "write" {
			p.Job.Levers.Save = true
		}
	}
}

// readRun reads what follows "run".
func (p *parser) readRun(l *line) {
	word := l.nextWord("a number of steps or a time, such as 2000 steps or 300s")
	if l.hasNext() {
		p.Steps = l.parseWhole(word, "a number of steps, such as 2000", maxSteps)
		l.nextOf("steps", "step")
		return
	}
	p.Seconds = l.parseQuantity(word, "a number of steps or a time, such as 2000 steps or 300s",
		times)
	if l.err == nil && p.Seconds == 0 {
		l.failf("a run of no time")
	}
}
