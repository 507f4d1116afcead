package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/stall"
	"github.com/shoal-ml/shoal/topo"
)

// Who is waited for in the calls of the job, for the launcher and for shoal ps.

// listedAfter is how long a wait must have lasted to be listed: one worker is always the last.
const listedAfter = sense.Second

// manyWaits is how many awaited workers an event describes one by one.
const manyWaits = 4

// The methods of driver in this file run on the engine's thread.

// watchWaits has the engine's thread observe who is waited for, four times a second, until ctx
// ends. It is a goroutine of Run.
func (a *Agent) watchWaits(ctx context.Context) error {
	ticker := time.NewTicker(time.Duration(stall.Interval))
	defer ticker.Stop()
	look := a.driver.observeWaits
	for {
		select {
		case <-ticker.C:
			_ = a.engine.runLater(look)
		case <-ctx.Done():
			return nil
		}
	}
}

// Waits returns the workers for which others have waited a while, by their numbers, where the job
// is led. It waits for the engine's thread, so it must not be called there.
func (a *Agent) Waits() map[int]api.Wait {
	list := map[int]api.Wait{}
	_ = a.engine.runAndWait(func() {
		a.driver.observeWaits()
		for _, s := range a.driver.stalls.Stalls() {
			if a.driver.stalls.Waited(s) >= listedAfter {
				list[int(s.Worker)] = a.driver.describeWait(s)
			}
		}
	})
	return list
}

// observeWaits gives the stall detector the waits of now, and the launcher events about those that
// have become unusual, or have ended. It runs on the engine's thread.
func (d *driver) observeWaits() {
	if d.allReleased || d.left {
		d.endWaits()
		return
	}
	now := d.now()
	unusual, over := d.stalls.Observe(now, d.head.Leads(), d.head.AppliedIndex(),
		append(d.headWaits(), d.engine.streamWaits()...))
	d.reportWaits("waited", over, d.endedWaitText)
	d.reportWaits("wait", unusual, d.unusualWaitText)
	d.sendSignalsToHead()
	d.publishRates()
}

// headWaits lists the workers for which others wait in the calls of the job, where it is led: none
// before the job has begun while no host has room for all first workers, since the job waits for a
// host then. It runs on the engine's thread.
func (d *driver) headWaits() []collective.Wait {
	if m := d.head.Machine(); m != nil && m.Unplaced() > 0 &&
		d.head.Record().View.Generation == 0 {
		return nil
	}
	return d.head.Waits()
}

// endWaits has the stall detector forget all waits, and gives the launcher an event about those
// that were unusual, when the job or this agent ends. Called again, it does nothing. It runs on the
// engine's thread.
func (d *driver) endWaits() { d.reportWaits("waited", d.stalls.EndAll(), d.endedWaitText) }

// reportWaits gives the launcher an event about a list of waits, each of which say puts into words;
// none for an empty list. It runs on the engine's thread.
func (d *driver) reportWaits(what string, list []*stall.Stall,
	say func(s *stall.Stall) string) {
	if len(list) == 0 {
		return
	}
	known := d.head.State()
	e := Event{What: what, Generation: d.generationNumber(known.View.Generation),
		Size: known.View.Size(), Step: known.Steps, OptimizerSteps: known.OptimizerSteps()}
	var words []string
	for i, s := range list {
		e.Awaited = append(e.Awaited, int(s.Worker))
		if i < manyWaits {
			words = append(words, say(s))
		}
	}
	e.Because = strings.Join(words, "; ")
	if more := len(list) - manyWaits; more > 0 {
		e.Because += fmt.Sprintf("; and so for %d more", more)
	}
	d.giveOrder(func(o *Orders) { o.Event(e) })
}

// unusualWaitText says in words that a wait is unusual, for an event. It runs on the engine's
// thread.
func (d *driver) unusualWaitText(s *stall.Stall) string {
	others := "1 other has"
	if s.Waiters > 1 {
		others = fmt.Sprintf("%d others have", s.Waiters)
	}
	w := d.describeWait(s)
	text := fmt.Sprintf("%s waited %.0f s for %s in %s", others, d.stalls.Waited(s).Seconds(),
		d.describeWorker(s.Worker), w.Call)
	if w.OwnCall != "" {
		text += ", and its own call waits too: " + w.OwnCall
	}
	return text
}

// endedWaitText says in words that an unusual wait is over.
func (d *driver) endedWaitText(s *stall.Stall) string {
	return fmt.Sprintf("%s is waited for no more, after %.0f s", d.describeWorker(s.Worker),
		d.stalls.Lasted(s).Seconds())
}

// describeWorker names a worker, and its host where there are several hosts.
func (d *driver) describeWorker(w topo.WorkerID) string {
	text := fmt.Sprintf("worker %d", w)
	record := d.head.Record()
	if r, is := record.View.Rank(w); is && len(record.Hosts) > 1 {
		text += " on host " + record.View.Members[r].Host
	}
	return text
}

// describeWait is a wait in the form for tools. The calls are put into words at once, since their
// memory is used again.
func (d *driver) describeWait(s *stall.Stall) api.Wait {
	// The begin of the wait follows from its length: the clock of the time of day may have been
	// set since, and goes on while the machine sleeps.
	w := api.Wait{Since: time.Now().Add(-time.Duration(d.stalls.Waited(s))),
		Call: s.Call.Call.String(), Group: int(s.Group), Waiters: s.Waiters, Unusual: s.Unusual()}
	if s.OwnCall != nil {
		w.OwnCall = s.OwnCall.Call.String()
	}
	return w
}
