package watch

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/setting"
)

// What a Run takes from the ledger of its run, events.jsonl, and makes of it. Like all of Run, the
// methods are for one goroutine at a time; nothing here does I/O.

// event is a line of events.jsonl.
type event struct {
	Time       time.Time       `json:"time"`
	What       string          `json:"what"`
	Generation uint64          `json:"generation"`
	Size       int             `json:"size"`
	Joined     []int           `json:"joined"`
	Lost       []int           `json:"lost"`
	Finished   []int           `json:"finished"`
	Released   []int           `json:"released"`
	Awaited    []int           `json:"awaited"`
	Samples    uint64          `json:"lost_samples"`
	Step       uint64          `json:"step"`
	Optimizer  uint64          `json:"optimizer_steps"`
	Because    string          `json:"because"`
	Change     *setting.Change `json:"change"`
}

// AddEvent takes a line of events.jsonl, and keeps nothing of its memory. One that cannot be read
// is counted, and told to those who watch.
func (r *Run) AddEvent(line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		r.countBadLine(fileEvents, err)
		return
	}
	if e.What == "" || e.Time.IsZero() {
		r.countBadLine(fileEvents, fmt.Errorf("an entry that does not say what or when"))
		return
	}
	m := Mark{Time: Seconds(e.Time), Step: e.Step, OptimizerSteps: e.Optimizer, Kind: e.markKind(),
		Title: e.markTitle(), Text: e.Because}
	if e.Change != nil {
		r.recordChange(*e.Change, m.Time)
		m.Change, m.Text = e.Change.Name(), firstNonEmpty(e.Change.Because, e.Change.Why)
		if e.Change.Phase.IsEnd() {
			m.Text = firstNonEmpty(e.Change.Why, measuredText(*e.Change))
		}
	}
	r.addMark(m)
}

// markKind returns the kind of the mark of an event.
func (e *event) markKind() string {
	switch e.What {
	case "generation":
		switch {
		case len(e.Lost) > 0:
			return "loss"
		case len(e.Joined) > 0:
			return "join"
		case len(e.Released)+len(e.Finished) > 0:
			return "leave"
		}
		return "generation"
	case "pause", "resume", "stop", "park", "mesh", "wait", "change", "route", "policy":
		return e.What
	case "waited":
		return "wait"
	}
	return "other"
}

// markTitle returns the event in a few words.
func (e *event) markTitle() string {
	if e.Change != nil {
		return fmt.Sprintf("change %s %s: %s", e.Change.Name(), e.Change.Phase, e.Change.DiffText())
	}
	if e.What != "generation" {
		if len(e.Awaited) > 0 {
			return fmt.Sprintf("%s for %s %s", e.What,
				plural.Verb(len(e.Awaited), "worker", "workers"), workersText(e.Awaited))
		}
		return e.What
	}
	text := fmt.Sprintf("generation %d: %s", e.Generation, plural.Of(e.Size, "worker"))
	for _, part := range []struct {
		what string
		list []int
	}{{"lost", e.Lost}, {"joined", e.Joined}, {"released", e.Released},
		{"finished", e.Finished}} {
		if len(part.list) > 0 {
			text += fmt.Sprintf(", %s %s", part.what, workersText(part.list))
		}
	}
	if e.Samples > 0 {
		text += fmt.Sprintf("; the effect of about %d samples went with replicas", e.Samples)
	}
	return text
}

// workersText returns the numbers of some workers, of many the first ones.
func workersText(list []int) string {
	const most = 12
	var words []string
	for _, w := range list[:min(len(list), most)] {
		words = append(words, fmt.Sprint(w))
	}
	text := strings.Join(words, ", ")
	if n := len(list) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// measuredText says by which factor something has grown, and what was predicted of that; "" = it
// was not measured.
func measuredText(c setting.Change) string {
	if c.Measured == 0 {
		return ""
	}
	text := fmt.Sprintf("%.3gx %s", c.Measured, c.FactorText())
	if !c.Predicted.IsKnown() {
		return text
	}
	return fmt.Sprintf("%s, predicted %.3g to %.3g", text, c.Predicted.Low, c.Predicted.High)
}

// recordChange keeps a change as an entry of the ledger at a time has it.
func (r *Run) recordChange(c setting.Change, now float64) {
	name := c.Name()
	i := slices.IndexFunc(r.changes, func(v ChangeView) bool { return v.Name == name })
	if i < 0 {
		if len(r.changes) >= maxChanges {
			r.changes = slices.Clone(r.changes[maxChanges/8:])
		}
		i, r.changes = len(r.changes), append(r.changes, ChangeView{Name: name, Entered: now})
	}
	v := &r.changes[i]
	if c.Phase.IsEnd() && v.Ended == 0 {
		r.ends[changeEnd{firstNonEmpty(c.Policy, "person"), c.Phase}]++
	}
	v.Change, v.What, v.Inside = c, c.DiffText(), nil
	if c.Phase.IsEnd() {
		v.Ended = now
		if c.Measured > 0 && c.Predicted.Mid > 0 {
			r.ratios[firstNonEmpty(c.Policy, "person")] = c.Measured / c.Predicted.Mid
		}
	}
	if c.Predicted.IsKnown() && c.Measured > 0 {
		inside := c.Predicted.Contains(c.Measured)
		v.Inside = &inside
	}
	r.keepRecent(item{change: name})
}

// coverage returns how often the bands of each policy held what was measured.
func (r *Run) coverage() []CoverageView {
	list := []CoverageView{}
	for _, c := range r.changes {
		if c.Inside == nil {
			continue
		}
		i := slices.IndexFunc(list, func(v CoverageView) bool { return v.Policy == c.Policy })
		if i < 0 {
			i, list = len(list), append(list, CoverageView{Policy: c.Policy})
		}
		list[i].Of++
		if *c.Inside {
			list[i].Inside++
		}
	}
	return list
}
