package scenario

import (
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/world/job"
)

// A what-if, by which a job differs from what the lines say. Parse calls readWhatIf when it has
// read these, on its goroutine.

// whatExample is a what-if with most of its parts.
const whatExample = "size=8, batch=512, link h2=100Mbit, slow h3=2x, sync=local/16, policy=none"

// readWhatIf changes what the lines have said by a what-if, such as whatExample. All of it holds
// from the start.
func (p *parser) readWhatIf(text string) error {
	for i, item := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(item, "=")
		l := &line{number: i + 1, words: append(strings.Fields(name), strings.Fields(value)...)}
		if len(l.words) == 0 {
			l.words = []string{item}
		}
		p.readWhatIfItem(l)
		l.expectEnd()
		if l.err != nil {
			_, why, _ := strings.Cut(l.err.Error(), ": ")
			return fmt.Errorf("%q: %s; a what-if is such as %q", strings.TrimSpace(item), why,
				whatExample)
		}
	}
	return nil
}

// readWhatIfItem reads one part of a what-if.
func (p *parser) readWhatIfItem(l *line) {
	switch l.nextOf("size", "batch", "link", "slow", "sync", "policy") {
	case "size":
		p.hosts = int(l.readWhole("a number of hosts, such as 8", MaxHosts))
	case "batch":
		batch := l.readWhole("a batch, such as 512", maxSamples)
		p.Asked = append([]Ask{{To: fmt.Sprintf("batch=%d", batch)}}, p.Asked...)
		if r := p.Job.Levers.Batch; l.err == nil && batch != p.batch && !r.Contains(batch) {
			l.failf("the batch stays from %d to %d: data … range", r.From, r.To)
		}
	case "link":
		if !strings.HasPrefix(l.peek(), "h") {
			p.host.Cable = secondsPerByte(l)
			p.dropCablesAtStart()
			return
		}
		e := job.Event{What: job.Cable, Host: p.readHost(l)}
		e.Value = secondsPerByte(l)
		p.addEventAtStart(l, e)
	case "slow":
		e := job.Event{What: job.Slow, Host: p.readHost(l)}
		e.Value = readFactor(l)
		p.addEventAtStart(l, e)
	case "sync":
		p.readSync(l, "auto, or a way to synchronise, such as local/16")
	case "policy":
		p.Policies = nil
		if name := l.nextOf(append([]string{"none"}, p.policies...)...); name != "none" {
			p.Policies = []string{name}
			if name == "budget" && p.Price == 0 {
				l.failf("the policy budget needs numbers: write also the line %q",
					examples["budget"])
			}
		}
	}
}

// dropCablesAtStart drops what the lines say of cables at the start, which is not so where a part
// of a what-if says what all of them carry.
func (p *parser) dropCablesAtStart() {
	var events []job.Event
	var lines []int
	for i, e := range p.Job.Events {
		atStart := e.Timed && e.At == 0 || !e.Timed && e.Step == 0
		if p.eventLines[i] == 0 || !atStart || e.What != job.Cable && e.What != job.Cables {
			events, lines = append(events, e), append(lines, p.eventLines[i])
		}
	}
	p.Job.Events, p.eventLines = events, lines
}

// addEventAtStart lets an event that a part of a what-if says happen before the first step, and
// after all others there: what the lines say of the same thing at the start is not so then.
func (p *parser) addEventAtStart(l *line, e job.Event) {
	e.Timed, e.Text = true, "what if "+strings.Join(l.words, " ")
	p.Job.Events = append(p.Job.Events, e)
	p.eventLines = append(p.eventLines, 0)
}
