// Package scenario reads files that describe a job, what happens to it, who decides for it, and
// what is expected to come of that. docs/formats/scenario.md has all lines that can be. Reading is
// strict: an error names the line, the word, and what could stand there.
package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/world/job"
)

// Scenario is what a file describes. Parse makes one; it is its caller's.
type Scenario struct {
	Job      job.Config
	Asked    []Ask         // in the order of the file
	Policies []string      // names of those who decide; nil = nobody does
	Expected []Expectation // in the order of the file
	Budget   float64       // money that an epoch may cost; meaningful where somebody decides by it
	Price    float64       // money that a worker costs an hour; 0 = none was stated

	// The job ends after Steps steps, Seconds seconds or when it has made Progress, whichever
	// comes first; 0 = no such end. Parse always sets Steps, so that the job ends.
	Steps    uint64
	Seconds  float64
	Progress float64 // samples at the batch that the program states
}

// Ask is a change of the setting that a person asks for.
type Ask struct {
	Step  uint64  // after so many committed steps; meaningless if Timed is set
	At    float64 // seconds from the start; meaningless unless Timed is set
	Timed bool    // whether At says when
	To    string  // the parts that change, such as "batch=256"
}

// Expectation is a line that says what must come of a scenario.
type Expectation struct {
	Line  int     // in the file, from 1
	Text  string  // the line
	What  string  // what is measured, such as "goodput"
	Op    string  // ">=", "<=", ">", "<" or "="; "" for samples
	Value float64 // what is compared with; meaningless for samples
	Of    string  // "best" or "first", of which goodput is a part; "" for all else
	// After is how many steps after the last event, or else after the start, do not count.
	After uint64
}

// Holds reports whether the value that came of the scenario is as expected.
func (e Expectation) Holds(value float64) bool {
	switch e.Op {
	case ">=":
		return value >= e.Value
	case "<=":
		return value <= e.Value
	case ">":
		return value > e.Value
	case "<":
		return value < e.Value
	}
	return value == e.Value
}

// maxFaulty is how many faulty lines an error tells of: a file of another kind has millions.
const maxFaulty = 20

// usualSteps is how many steps a scenario takes that does not say when it ends.
const usualSteps = 1000

// Parse reads a scenario. policies are the names of those who can decide. what is a what-if, such
// as "size=8, link h2=100Mbit", by which the job differs from what the text says; "" = in nothing.
// The error joins what is wrong with each of the first faulty lines.
func Parse(text string, policies []string, what string) (*Scenario, error) {
	return parse(text, policies, what, nil)
}

// ParseSeeded is Parse, but all chance is drawn by this seed, whatever the text says.
func ParseSeeded(text string, policies []string, what string, seed uint64) (*Scenario, error) {
	return parse(text, policies, what, &seed)
}

// parse is Parse, with another seed than that of the text unless seed is nil.
func parse(text string, policies []string, what string, seed *uint64) (*Scenario, error) {
	p := &parser{policies: policies, seen: map[string]int{}, cores: noCores}
	p.Job.Network = cost.Default()
	p.Job.Seed = 1
	var errs []error
	for i, row := range strings.Split(text, "\n") {
		row, _, _ = strings.Cut(row, "#")
		l := &line{number: i + 1, words: strings.Fields(row)}
		if len(l.words) == 0 {
			continue
		}
		p.readLine(l, strings.Join(l.words, " "))
		if l.err == nil {
			continue
		}
		if len(errs) == maxFaulty {
			errs = append(errs, errors.New("lines after that are wrong too"))
			break
		}
		errs = append(errs, l.err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if what != "" {
		if err := p.readWhatIf(what); err != nil {
			return nil, err
		}
	}
	if seed != nil {
		p.Job.Seed = *seed
	}
	if err := p.completeScenario(); err != nil {
		return nil, err
	}
	return &p.Scenario, nil
}

// completeScenario makes the hosts and the end of what the lines have said, and returns what is
// missing.
func (p *parser) completeScenario() error {
	for _, name := range []string{"hosts", "compute", "data"} {
		if p.seen[name] == 0 {
			return fmt.Errorf("the scenario has no line %q: %s", name, examples[name])
		}
	}
	data, err := cursor.New(p.samples, p.batch, p.Job.Seed, true)
	if err != nil {
		return err
	}
	p.Job.Data = data.WithRound(p.Job.Levers.Round)
	if r := p.Job.Levers.Batch; r.IsOpen() && !r.Contains(p.batch) {
		return fmt.Errorf("line %d: a batch of %d is outside of its range, %v", p.seen["data"],
			p.batch, r)
	}
	if r := p.Job.Levers.Size; r.IsOpen() && !r.Contains(uint64(p.hosts*p.host.Workers)) {
		return fmt.Errorf("line %d: %d workers are outside of their range, %v", p.seen["hosts"],
			p.hosts*p.host.Workers, r)
	}
	if p.Price == 0 {
		if slices.Contains(p.Policies, "budget") {
			return fmt.Errorf("line %d: the policy budget needs numbers: write also %s",
				p.seen["policy"], examples["budget"])
		}
		for _, e := range p.Expected {
			if e.What == "cost" {
				return fmt.Errorf("line %d: nothing has a price: write also %s", e.Line,
					examples["budget"])
			}
		}
	}
	for _, e := range p.Expected {
		if e.What == "samples" && p.samples > maxAudited {
			return fmt.Errorf("line %d: of %d samples it is not counted how often each counts: "+
				"line %d can state %d at most", e.Line, p.samples, p.seen["data"], maxAudited)
		}
		if e.What == "samples" && p.Job.Levers.Save {
			return fmt.Errorf("line %d: what is trained again from a checkpoint counts again: it "+
				"is not counted where line %d has checkpoints", e.Line, p.seen["costs"])
		}
	}
	noise := &p.Job.Noise
	noise.Target = max(1, p.epochs*float64(p.samples))
	if p.epochs > 0 {
		p.Progress = noise.Target
	} else if noise.To != noise.From {
		return fmt.Errorf("line %d: noise grows on the way to a target: write also %s",
			p.seen["noise"], examples["target"])
	}
	if p.Steps == 0 && p.Seconds == 0 && p.Progress == 0 {
		p.Steps = usualSteps
	} else if p.Steps == 0 {
		p.Steps = maxSteps
	}
	if err := p.checkDue(); err != nil {
		return err
	}
	p.makeHosts()
	if err := p.drawEvents(); err != nil {
		return err
	}
	return p.checkHosts()
}

// drawEvents draws what happens by chance, and returns why that cannot be.
func (p *parser) drawEvents() error {
	if p.spot == (job.Spot{}) {
		return nil
	}
	line := max(p.seen["spot"], p.seen["slowdowns"])
	if p.Seconds == 0 {
		return fmt.Errorf("line %d: what happens by chance needs an end: write also run 10h", line)
	}
	list, err := p.spot.Events(p.Job.Seed, p.countHostsThere(), p.Seconds)
	if err != nil {
		return fmt.Errorf("line %d: %w", line, err)
	}
	p.Job.Events = append(p.Job.Events, list...)
	p.eventLines = append(p.eventLines, make([]int, len(list))...)
	return nil
}

// makeHosts makes the hosts that are there at the start, and those that join under a new number.
func (p *parser) makeHosts() {
	n := p.hosts
	spare := int(p.Job.Levers.Size.To+uint64(p.host.Workers)-1) / max(p.host.Workers, 1)
	n = max(n, spare)
	for _, e := range p.Job.Events {
		if e.What == job.Join {
			n = max(n, e.Host+1)
		}
	}
	for range p.machines {
		p.Job.Cores = append(p.Job.Cores, p.cores)
	}
	residuals := job.ResidualFactors(p.deviation)
	for i := range n {
		h := p.host
		h.Machine, h.Out, h.Residuals = i%max(p.machines, 1), i >= max(p.hosts, spare), residuals
		h.Spare = i >= p.hosts && !h.Out
		if p.machines == 0 {
			h.Machine = i
			p.Job.Cores = append(p.Job.Cores, p.cores)
		}
		p.Job.Hosts = append(p.Job.Hosts, h)
	}
}

// countHostsThere returns how many hosts are there at the start, also those that only have room for
// members: they are the first ones.
func (p *parser) countHostsThere() (n int) {
	for _, h := range p.Job.Hosts {
		if !h.Out {
			n++
		}
	}
	return n
}

// checkHosts returns which event is about a host that there never is.
func (p *parser) checkHosts() error {
	for i, e := range p.Job.Events {
		if e.Host < len(p.Job.Hosts) {
			continue
		}
		if p.eventLines[i] == 0 {
			return fmt.Errorf("%s: there are %d hosts", e.Text, len(p.Job.Hosts))
		}
		return fmt.Errorf("line %d: there is no h%d: the hosts are h1 to h%d, and those that join",
			p.eventLines[i], e.Host+1, len(p.Job.Hosts))
	}
	return nil
}
