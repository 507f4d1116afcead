package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/world/job"
)

// Lines about what happens to a job, and about what is expected. The methods of parser run within
// Parse, on its goroutine; what is wrong with a line stays in the line.

// whats are the events of a scenario by their words.
var whats = map[string]job.What{"cable": job.Cable, "slow": job.Slow, "notice": job.Notice,
	"lose": job.Lose, "join": job.Join, "disk": job.Disk,
	"cables": job.Cables}

// readEvent reads what follows "at", in a line whose words are text.
func (p *parser) readEvent(l *line, text string) {
	e := job.Event{Text: text}
	if l.peek() == "step" {
		l.next++
		if l.peek() == "0" {
			l.next++
		} else {
			e.Step = l.readWhole("a number of committed steps, such as 200", maxSteps)
		}
	} else {
		e.Timed = true
		e.At = l.readQuantity("a time or a step, such as 30s or step 200", times)
	}
	p.due = append(p.due, due{l.number, e.Step, e.At, e.Timed})
	word := l.nextOf("cable", "cables", "slow", "notice", "lose", "join", "disk", "set")
	if word == "set" {
		p.Asked = append(p.Asked, Ask{e.Step, e.At, e.Timed, p.readSetting(l)})
		return
	}
	e.What = whats[word]
	if e.What == job.Cables {
		e.Value = secondsPerByte(l)
	} else {
		e.Host = p.readHost(l)
	}
	switch {
	case l.err != nil:
	case e.What == job.Cable:
		e.Value = secondsPerByte(l)
	case e.What == job.Slow:
		e.Value = readFactor(l)
	case e.What == job.Disk:
		e.Value = secondsPerSample(l)
	case e.What == job.Notice:
		e.Value = l.readQuantity("the time until the host is lost, such as 120s", times)
	}
	p.Job.Events = append(p.Job.Events, e)
	p.eventLines = append(p.eventLines, l.number)
}

// due is when something happens, and the line that says so.
type due struct {
	line  int
	step  uint64  // after so many committed steps
	at    float64 // or, where timed is true, after so many seconds
	timed bool
}

// checkDue returns which line is about what does not happen, because the job ends before.
func (p *parser) checkDue() error {
	end := "without a line run"
	if line := p.seen["run"]; line > 0 {
		end = fmt.Sprintf("by line %d", line)
	}
	for _, d := range p.due {
		switch {
		case !d.timed && d.step >= p.Steps:
			return fmt.Errorf("line %d: this does not happen: %s the job ends after %d steps",
				d.line, end, p.Steps)
		case d.timed && p.Seconds > 0 && d.at >= p.Seconds:
			return fmt.Errorf("line %d: this does not happen: %s the job ends after %v s", d.line,
				end, p.Seconds)
		}
	}
	return nil
}

// readFactor reads, as the next word of a line, how many times slower a host becomes, such as 2x.
func readFactor(l *line) float64 {
	factor := l.readQuantity("how many times slower, such as 3x", fold)
	if l.err == nil && factor == 0 {
		l.failf("a host that computes in no time")
	}
	return factor
}

// readSetting reads the parts of the setting that a person asks for.
func (p *parser) readSetting(l *line) string {
	text := l.nextWord("parts of the setting, such as batch=256")
	next, err := setting.Setting{}.WithRequested(text)
	if err == nil {
		err = p.whyRefused(next)
	}
	if err != nil {
		l.failf("%v", err)
	}
	return text
}

// whyRefused returns why the job does not take a setting that a person asks for. Only the batch,
// the size, the steps between checkpoints and rounds can be set here.
func (p *parser) whyRefused(next setting.Setting) error {
	if len(next.Shares) > 0 || next.Rate > 0 {
		return fmt.Errorf("a scenario knows what batch, size, save, round and sync change, and " +
			"no other part")
	}
	if next.Save > 0 && !p.Job.Levers.Save {
		return fmt.Errorf("a job has checkpoints where a line before says what one takes: costs " +
			"save 2s")
	}
	if p.seen["data"] == 0 || p.seen["hosts"] == 0 {
		return fmt.Errorf("the lines hosts and data come before those that set a size or a batch")
	}
	now := setting.Setting{}.WithStated(p.batch, p.Job.Levers)
	err := p.Job.Levers.CheckChange(now, next.WithStated(p.batch, p.Job.Levers))
	switch l := &p.Job.Levers; { // in words of a scenario, where those of a program open nothing
	case err == nil:
		return nil
	case next.Batch > 0 && !l.Batch.IsOpen():
		return fmt.Errorf("the batch is closed: a range in the line data opens it, such as " +
			"range 32-1024")
	case next.Size > 0 && !l.Size.IsOpen():
		return fmt.Errorf("the size is closed: a range in the line hosts opens it, such as " +
			"range 1-8")
	case (next.Round > 0 || next.Sync != "") && l.Sync == "":
		return fmt.Errorf("how workers synchronise is closed: round or sync in the line data " +
			"opens it, such as round 8")
	}
	return err
}

// readHost reads the name of a host, such as h2, and returns its index.
func (p *parser) readHost(l *line) int {
	const what = "the name of a host, such as h2"
	word := l.nextWord(what)
	number, is := strings.CutPrefix(word, "h")
	if !is {
		l.failf("%q is not %s", word, what)
	}
	return int(l.parseWhole(number, what, MaxHosts)) - 1
}

// measures are what can be expected of a scenario; samples, that each counts once, is apart.
var measures = []string{"goodput", "changes", "reverted", "batch", "size", "save", "cost",
	"steps/s", "samples/s", "time", "samples"}

// readExpectation reads what follows "expect", in a line whose words are text.
func (p *parser) readExpectation(l *line, text string) {
	e := Expectation{Line: l.number, Text: text, What: l.nextOf(measures...)}
	if e.What == "samples" {
		l.nextOf("once")
		p.Expected = append(p.Expected, e)
		return
	}
	e.Op = l.nextOf(">=", "<=", ">", "<", "=")
	if e.What == "time" {
		e.Value = l.readQuantity("a time, such as 300s", times)
	} else {
		e.Value = l.readQuantity("a number, such as 0.95", plain)
	}
	if e.What == "goodput" {
		l.nextOf("of")
		e.Of = l.nextOf("best", "first")
	}
	if l.hasNext() {
		l.nextOf("after")
		if late := []string{"goodput", "steps/s", "samples/s"}; !slices.Contains(late, e.What) {
			l.failf("after is for %s: %s is not a mean of steps, some of which could be left out",
				listText(late), e.What)
		}
		e.After = l.readWhole("a number of steps, such as 12", maxSteps)
		l.nextOf("steps", "step")
	}
	p.Expected = append(p.Expected, e)
}

// withExample returns an error of a line with an example of such a line.
func withExample(err error, kind string) error {
	return fmt.Errorf("%w; such a line is %q", err, examples[kind])
}
