package pool

import (
	"bufio"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/scenariotest"
)

// Each scenario is a text of commands; under each command stand, indented, the orders to which it
// leads, and what has changed of jobs.
func TestScenarios(t *testing.T) {
	scenariotest.Run(t, func(_ *testing.T, script string) string { return playScript(script) })
}

// player plays a scenario. The store has at once what is to be written.
type player struct {
	out   strings.Builder // the scenario with what follows, so far
	cfg   Config
	m     *Machine // nil before the command "pool"
	now   int64
	store map[string][]byte
	shown map[string]string // by job, what was said of it last
}

// playScript runs the commands of a scenario, and returns them with what follows from each.
func playScript(script string) string {
	p := &player{}
	for in := bufio.NewScanner(strings.NewReader(script)); in.Scan(); {
		line := in.Text()
		if strings.HasPrefix(line, "  ") {
			continue // what followed in an earlier run
		}
		fmt.Fprintln(&p.out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := p.runCommand(strings.Fields(line)); err != nil {
			fmt.Fprintf(&p.out, "  error: %v\n", err)
		}
		p.settle()
	}
	return p.out.String()
}

// settle has the machine decide, write and order until there is nothing more to do, and prints it.
func (p *player) settle() {
	for again := true; again; {
		p.now++
		p.m.Settle(p.now)
		if err := p.m.Check(); err != nil {
			fmt.Fprintf(&p.out, "  broken: %v\n", err)
		}
		list := p.m.TakeWrites()
		for _, w := range list {
			p.store[w.Key] = w.Value
			p.m.Written(p.now, w)
		}
		for _, o := range p.m.TakeOrders() {
			fmt.Fprintf(&p.out, "  %s %s on %s, attempt %d", o.Verb, o.Job, o.Host, o.Attempt)
			if o.Part > 0 {
				fmt.Fprintf(&p.out, ", part %d", o.Part)
			}
			if o.Allot != nil {
				fmt.Fprintf(&p.out, ": %v", o.Allot)
			}
			fmt.Fprintln(&p.out)
		}
		again = len(list) > 0
	}
	for _, id := range slices.Sorted(maps.Keys(p.m.jobs)) {
		if text := describeJob(p.m.jobs[id]); text != p.shown[id] {
			fmt.Fprintf(&p.out, "  %s\n", text)
			p.shown[id] = text
		}
	}
}

// describeJob says how a job is and what came of its last change.
func describeJob(e *entry) string {
	slots := func(s Slots) string { return strings.TrimPrefix(fmt.Sprint(s), "map") }
	text := fmt.Sprintf("%s %s: wants %s, holds %s", e.ID, e.State, slots(e.Want), slots(e.Held))
	if e.Fails > 0 {
		text += fmt.Sprintf(", fails %d", e.Fails)
	}
	if n := len(e.Changes); n > 0 {
		c := e.Changes[n-1]
		text += fmt.Sprintf("; %d to %d", c.From, c.To)
		switch {
		case c.Outcome != "":
			text += ", not so: " + c.Outcome
		case c.Done > 0:
			text += ", done"
		}
	}
	return fmt.Sprintf("%s: %s%s", text, e.Because, strings.TrimRight(": "+e.Error, ": "))
}

// runCommand gives the machine what a command of a scenario says.
func (p *player) runCommand(words []string) error {
	p.now++
	text := func(prefix string) (value string) {
		for _, w := range words[1:] {
			if rest, ok := strings.CutPrefix(w, prefix); ok {
				value = rest
			}
		}
		return value
	}
	number := func(prefix string) int {
		n, _ := strconv.Atoi(text(prefix))
		return n
	}
	arg := ""
	if len(words) > 1 {
		arg = words[1]
	}
	switch words[0] {
	case "pool":
		p.cfg = Config{Name: "lab", Policy: arg}
		p.store, p.shown = map[string][]byte{}, map[string]string{}
		m, err := New(p.cfg, p.now)
		p.m = m
		return err
	case "up":
		p.m.HostUp(p.now, arg, number("slots="), arg+":1")
	case "down":
		p.m.HostDown(p.now, arg)
	case "drain":
		return p.m.Leave(p.now, arg, true)
	case "forget":
		return p.m.Forget(p.now, arg)
	case "submit":
		_, err := p.m.Submit(p.now, Submission{Name: arg, Spec: "x", Min: number("min="),
			Max: number("max="), Asked: number("max="), Priority: number("priority="),
			Kind: text("kind="), Deadline: int64(number("deadline="))})
		return err
	case "stop":
		return p.m.Stop(p.now, arg, "you", false)
	case "park":
		return p.m.Park(p.now, arg, "you")
	case "resize":
		return p.m.Resize(p.now, arg, number("workers="), "you")
	case "report":
		return p.report(arg, words[2:])
	case "wait":
		p.now += int64(number("ms="))
	case "restart": // another head goes on with what the store has
		m, err := Restore(p.cfg, p.now, p.store)
		if err != nil {
			return err
		}
		for _, id := range m.order {
			old, _ := p.m.core.History(jobID(p.m.jobs[id]))
			if h, _ := m.core.History(jobID(m.jobs[id])); h != old {
				fmt.Fprintf(&p.out, "  the history of %s was %+v, and is %+v\n", id, old, h)
			}
		}
		p.m = m
	default:
		return fmt.Errorf("no command %q", words[0])
	}
	return nil
}

// report gives the machine the report of a keeper who has carried out all orders, or with the word
// "late" none: what it says of one part after another, each of which begins with the job. A job
// that is led from the host says so with led=WORKERS, and with the word "before" that this was so
// before an order to invite was carried out.
func (p *player) report(host string, words []string) error {
	r := Report{Host: host, Acked: p.m.seq}
	var j *JobReport
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		if e := p.m.jobs[word]; e != nil {
			r.Jobs = append(r.Jobs, JobReport{Job: word, Attempt: e.Attempt, Part: e.Parts[host],
				Live: true})
			j = &r.Jobs[len(r.Jobs)-1]
			continue
		}
		switch {
		case key == "late":
			r.Acked = 0
		case j == nil:
			return fmt.Errorf("%q is said of no job", word)
		case key == "led":
			j.Led = p.led(j.Job, host, value)
		case key == "fixed": // it does not train in steps
			j.Led.Elastic = false
		case key == "before": // an order to invite was carried out
			j.Led.Invited = 0
		case key == "steps":
			j.Led.Steps, _ = strconv.ParseUint(value, 10, 64)
		case key == "stuck":
			j.Stuck = true
		case key == "refuses":
			j.Refused = strings.ReplaceAll(value, "_", " ")
		case key == "killed":
			j.Live, j.End = false, &End{}
		case key == "fails":
			j.Live, j.End = false, &End{Error: strings.ReplaceAll(value, "_", " ")}
		case key == "lost":
			j.Live, j.End = false, &End{Lost: true}
		case key == "ended":
			j.Live, j.End = false, &End{Final: true, OK: true}
		default:
			return fmt.Errorf("nothing is known of %q", word)
		}
	}
	for i := range r.Jobs {
		if l := r.Jobs[i].Led; l != nil {
			l.Invited = min(l.Invited, r.Acked)
		}
	}
	p.m.Reported(p.now, r)
	return nil
}

// led returns what the host that leads a job says of so many workers, of which it has some on each
// host where it holds slots.
func (p *player) led(job, host, workers string) *Led {
	e := p.m.jobs[job]
	if e.Names[host] == "" { // as its launcher calls it
		e.Names[host] = "host-" + host
	}
	l := &Led{Host: e.Names[host], Want: e.Target.total(), Join: "x", Token: "y",
		Workers: map[string]int{}}
	l.Size, _ = strconv.Atoi(workers)
	l.Elastic = l.Size > 0
	left := l.Size
	for _, at := range e.Held.places() {
		n := min(at.Slots, left)
		l.Workers[e.Names[at.Host]] = n
		left -= n
	}
	if s, told := e.sent[sentKey{host, toLead}]; told && s.verb == AllotRun {
		l.Allotted = s.seq
	}
	if s, told := e.sent[sentKey{host, toAsk}]; told {
		l.Invited = s.seq
	}
	return l
}
