package simtest

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// How a job comes to another setting, and what must hold then:
//
//   - the members train by the same batch, round and shares in the same round, what it counts is
//     what they have trained on, and what a host's workers are not told of is what they compute by
//     themselves (T1);
//   - the setting changes only with an entry that enters a change or reverts it, and batch and
//     round with it; a change is under trial from its entry to its end, which comes once, and a
//     policy's of the rate alone is entered beside no trial, and without one (T2);
//   - all hosts apply the same changes in the same entries (L1 says that);
//   - asked for without a fault, a change is entered, and ends (T3).
//
// One goroutine runs all of this, that of its Cluster. A check that fails is recorded in the
// invariants.

// parseLevers reads what the program has opened: the batch, as LEAST-MOST, and with it the steps
// between checkpoints; "" = nothing. Where it says so many steps a round, it has opened how workers
// synchronise; 0 = it has not.
func parseLevers(text string, round int) (levers setting.Levers) {
	if levers.Save = text != ""; round > 0 {
		levers.Sync, levers.Round = "local", uint32(round)
	}
	from, to, _ := strings.Cut(text, "-")
	levers.Batch.From, _ = strconv.ParseUint(from, 10, 32)
	levers.Batch.To, _ = strconv.ParseUint(to, 10, 32)
	return levers
}

// requestSetting asks for the parts of a setting that a text gives; of a policy that is the change
// of one, else that of a person.
func (c *Cluster) requestSetting(text, policy string) {
	c.askHead(func(h *host) error {
		next, err := h.agent.State().Setting.With(text)
		if err != nil {
			return err
		}
		change := setting.Change{Phase: setting.Entered, Policy: policy}
		if policy == "" {
			change.Who = "you"
		}
		return h.agent.Change(next, change)
	})
}

// endTrial asks for the end of the trial that there is: phase is Kept, Reverted or Void.
func (c *Cluster) endTrial(phase setting.Phase) {
	c.askHead(func(h *host) error {
		s := h.agent.State()
		if s.Trial == nil {
			return nil
		}
		next, err := s.Trial.Undo(s.Setting)
		if err != nil {
			return err
		}
		return h.agent.Change(next, setting.Change{Number: s.Trial.Number, Phase: phase})
	})
}

// settingText returns all that a state and an entry say of the setting, to be compared.
func settingText(a *head.Apply) string {
	return fmt.Sprint(a.First, a.Setting, a.Levers, a.Change) + changeText(a.Trial)
}

// changeText returns a change as text, to be compared; "" for none.
func changeText(c *setting.Change) string {
	if c == nil {
		return ""
	}
	return fmt.Sprint(*c)
}

// setAt is what a host knows of the setting after an entry of the log.
type setAt struct {
	setting setting.Setting
	trial   *setting.Change
	levers  setting.Levers
	data    *cursor.Cursor
	view    topo.Generation
}

// checkSetting checks what an entry of the log changes in the setting (T1, T2). members says that
// the host has some before and after it.
func (l *invariants) checkSetting(h *host, a *head.Apply, before place, members bool) {
	is, was := setAt{a.Setting, a.Trial, a.Levers, a.Data, a.View.Generation}, l.set[h.name]
	l.set[h.name] = is
	l.checkPlace(h, a)
	if a.Change != nil && h.agent.Leads() {
		h.cluster.print("change %d is %s by %s: from %s to %s", a.Change.Number, a.Change.Phase,
			h.name, a.Change.From, a.Change.To)
	}
	if !members || was.data == nil || h.cluster.mesh != "" {
		return
	}
	untold := was.data.Commit(1, []bool{true}) // what workers go on with that were told nothing
	if !a.Changed && a.Steps == before.steps+1 && !reflect.DeepEqual(untold, *a.Data) {
		l.fail("%s does not tell its workers in entry %d that they go on at %+v, not at %+v",
			h.name, a.Index, *a.Data, untold)
	}
	if n := len(a.Setting.Shares); n > 0 && a.Changed && n != a.View.Size() {
		l.fail("%s applies entry %d with %d shares for %v", h.name, a.Index, n, a.View)
	}
	if a.View.Generation != was.view { // the members have taken their shares with them
		was.setting.Shares = is.setting.Shares
	}
	c, why := a.Change, ""
	sized, ofSize := was, "" // the size is not the members' to know, and follows the membership
	sized.setting.Size = is.setting.Size
	if c != nil {
		ofSize = sizeFault(is, was, c)
	}
	was = sized
	switch {
	case a.Changed && a.View.Generation == was.view && a.Joined > 0 && a.AllReleased == "":
		why = "tells again who is new"
	case ofSize != "":
		why = ofSize
	case (a.Data.Batch != was.data.Batch || a.Data.Round != was.data.Round) && !a.Data.TakesBatch():
		why = "is another batch or round, and one before is incomplete"
	case is.levers.Sync != was.levers.Sync && a.Steps > 0:
		why = "opens how workers synchronise after the first step"
	case c == nil:
		if !is.setting.Equal(was.setting) || is.setting.Number != was.setting.Number ||
			changeText(is.trial) != changeText(was.trial) {
			why = "is another setting, and no change"
		}
	case c.IsAtOnce():
		if is.setting.Number != was.setting.Number+1 || c.Number != is.setting.Number ||
			is.trial != nil || was.trial != nil || c.Step != a.Steps || !a.Changed ||
			c.Phase != setting.Kept {
			why = "changes the rate in another way"
		}
	case c.Phase == setting.Entered:
		if is.setting.Number != was.setting.Number+1 || c.Number != is.setting.Number ||
			is.trial == nil || was.trial != nil || c.Step != a.Steps || !a.Changed {
			why = "enters a change in another way"
		}
	case is.trial != nil || was.trial == nil || was.trial.Number != c.Number:
		why = "ends a change that is not under trial"
	case c.Phase == setting.Reverted:
		if back, err := was.trial.Undo(was.setting); err != nil || !a.Changed ||
			!isAt(a, back) {
			why = "reverts a change in another way"
		}
	case !is.setting.Equal(was.setting):
		why = "ends a change with another setting"
	}
	if why != "" {
		l.fail("entry %d on %s %s: %+v follows %+v with %+v", a.Index, h.name, why, is, was, c)
	}
}

// checkPlace checks that the place in the data has the parts of the setting that belong to it (T2).
func (l *invariants) checkPlace(h *host, a *head.Apply) {
	if a.Data != nil && (!isAt(a, a.Setting) || !slices.Equal(a.Data.Shares, a.Setting.Shares)) {
		l.fail("%s applies entry %d with the data %+v, the setting %v and a first batch of %d",
			h.name, a.Index, *a.Data, a.Setting, a.First)
	}
}

// isAt reports whether the place in the data has the batch and the round of a setting.
func isAt(a *head.Apply, s setting.Setting) bool {
	return a.Data.Batch == cmp.Or(s.Batch, a.First) &&
		a.Data.Round == cmp.Or(s.Round, a.Levers.Round)
}

// checkBatches checks that the contributors of a round train on batches of the same size, in as
// many local steps, and that the round counts what they have trained on, and nothing else (T1).
func (l *invariants) checkBatches(step uint64, s *step) {
	total := uint64(0)
	for _, w := range s.contributors {
		for _, span := range l.claims[w][step].spans {
			total += span.Len()
		}
		first, mine := l.claims[s.contributors[0]][step], l.claims[w][step]
		if first.setting != mine.setting || first.epoch != mine.epoch {
			l.fail("in step %d w%d trains on %s in epoch %d, w%d on %s in epoch %d", step, w,
				mine.setting, mine.epoch, s.contributors[0], first.setting, first.epoch)
		}
	}
	if before := l.steps[s.follows]; s.data != nil && (before != nil || s.follows == 0) {
		count := s.data.Committed()
		if before != nil {
			count -= before.data.Committed()
		}
		if count != total {
			l.fail("step %d counts %d samples, and %v have trained on %d", step, count,
				s.contributors, total)
		}
	}
}

// checkChanges checks that a job that goes on changes its batch when a person asks for it, and back
// when the change is reverted (T3). A job that cannot change says why.
func (c *Cluster) checkChanges() {
	h := c.leadingHost()
	if !c.levers.Batch.IsOpen() || h == nil || c.invariants.broken != nil || !c.mustGoOn(1) ||
		!c.allLinked() || h.agent.State().Data == nil || h.agent.Machine().IsPaused() {
		return
	}
	before := h.agent.State()
	batch := c.levers.Batch.From
	if before.Data.Batch == batch {
		batch++
	}
	text := fmt.Sprintf("batch=%d", batch)
	if c.levers.Sync != "" {
		text += fmt.Sprintf(",sync=local,round=%d", before.Data.Round%3+2)
	}
	if _, waits := h.agent.RequestedChange(); !waits {
		c.requestSetting(text, "")
	}
	isSet := func(s head.State) bool { return s.Setting.Number > before.Setting.Number }
	if c.stabilizeUntil(h, isSet, fmt.Sprintf("come to batches of %d", batch)) {
		c.endTrial(setting.Reverted)
		c.stabilizeUntil(h, func(s head.State) bool { return s.Trial == nil }, "revert a change")
	}
}

// stabilizeUntil lets the job go on until its state on h, which leads, is as it must become; what
// says that in words. A loss may have left a batch incomplete, so that takes some steps. False: it
// is not, which is a fault unless h or the job has ended.
func (c *Cluster) stabilizeUntil(h *host, is func(head.State) bool, what string) bool {
	for range settling {
		c.Stabilize(1)
		if !h.alive || !h.agent.Leads() || !c.mustGoOn(1) {
			return false
		}
		if is(h.agent.State()) {
			return true
		}
	}
	c.invariants.fail("%s leads, and the job does not %s: %+v", h.name, what, h.agent.State())
	return false
}

// changeEvent returns an event in which a person or a policy asks for another batch, small ones
// more often, or for other shares of work, or a trial ends; "" = nobody leads, or a change waits.
// In some cases the job is let go on without faults up to the end of a step.
func (g *generator) changeEvent() string {
	h := g.c.leadingHost()
	if h == nil {
		return ""
	}
	if _, waits := h.agent.RequestedChange(); waits {
		return ""
	}
	if g.rand.IntN(3) == 0 {
		g.plan = append(g.plan, "stabilize 1")
	}
	if g.rand.IntN(4) == 0 {
		return g.sizeEvent()
	}
	ends := []string{"end kept", "end void", "end reverted", "end reverted"}
	if h.agent.State().Trial != nil && g.rand.IntN(3) > 0 {
		return ends[g.rand.IntN(len(ends))]
	}
	if g.rand.IntN(4) == 0 {
		return "set " + g.sharesText(h.agent.State().View.Size())
	}
	if g.rand.IntN(6) == 0 {
		return fmt.Sprintf("set rate=%d policy", 1+g.rand.IntN(9))
	}
	batch := 1 + g.rand.IntN(1+g.rand.IntN(13)) // the largest is out of range
	if g.round > 0 && g.rand.IntN(2) == 0 {
		return "set " + g.roundText(batch)
	}
	if g.rand.IntN(2) == 0 {
		return fmt.Sprintf("set batch=%d policy", batch)
	}
	return fmt.Sprintf("set batch=%d,save=%d", batch, 1+g.rand.IntN(9))
}

// sharesText chooses shares for so many ranks, and in half of the cases a round of one step with
// them, as parts of a setting.
func (g *generator) sharesText(size int) string {
	words := []string{strconv.Itoa(1 + g.rand.IntN(4))}
	for len(words) < size {
		words = append(words, strconv.Itoa(g.rand.IntN(5)))
	}
	return "shares=" + strings.Join(words, ":") + []string{"", ",round=1"}[g.rand.IntN(2)]
}

// roundText chooses another round, of up to five steps, or another way to synchronise, and in some
// cases a batch with it, as a part of a setting.
func (g *generator) roundText(batch int) string {
	text := fmt.Sprintf("round=%d", 1+g.rand.IntN(5))
	if ways := []string{"", "diloco:lr=0.7", "sma", "ssgd"}; g.rand.IntN(3) == 0 {
		text += ",sync=" + cmp.Or(ways[g.rand.IntN(len(ways))], "local")
	}
	if g.rand.IntN(3) == 0 {
		text += fmt.Sprintf(",batch=%d", batch)
	}
	return text + []string{"", " policy"}[g.rand.IntN(2)]
}

// isChanging reports whether a change waits for the end of a step, or is under trial.
func (g *generator) isChanging() bool {
	h := g.c.leadingHost()
	if h == nil {
		return false
	}
	_, waits := h.agent.RequestedChange()
	return waits || h.agent.State().Trial != nil
}

// isAhead reports whether the head has applied a change, or the end of one, of which another host
// has not heard.
func (g *generator) isAhead() bool {
	h := g.c.leadingHost()
	return h != nil && slices.ContainsFunc(g.c.livingHosts(), func(other *host) bool {
		mine, theirs := h.agent.State(), other.agent.State()
		return theirs.Setting.Number != mine.Setting.Number ||
			!theirs.Setting.Equal(mine.Setting) || (theirs.Trial == nil) != (mine.Trial == nil)
	})
}
