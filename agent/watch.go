package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/stall"
	"github.com/shoal-ml/shoal/topo"
)

// noticed is after how long it is said who is waited for: one of the workers is always the last.
const noticed = sense.Second

// manyWaits is how many of the workers that are waited for a line for a person describes.
const manyWaits = 4

// watch observes who is waited for, four times a second.
func (a *Agent) watch(ctx context.Context) error {
	ticker := time.NewTicker(time.Duration(stall.Interval))
	defer ticker.Stop()
	look := a.crew.observeWaits
	for {
		select {
		case <-ticker.C:
			_ = a.engine.later(look)
		case <-ctx.Done():
			return nil
		}
	}
}

// Waits lists the workers for which others have waited a while, by their seats, where the job is
// led.
func (a *Agent) Waits() map[int]api.Wait {
	list := map[int]api.Wait{}
	_ = a.engine.do(func() {
		a.crew.observeWaits()
		for _, s := range a.crew.stalls.Stalls() {
			if a.crew.stalls.Waited(s) >= noticed {
				list[int(s.Worker)] = a.crew.wait(s)
			}
		}
	})
	return list
}

// observeWaits tells of waits that have become unusual, and of their ends.
func (c *crew) observeWaits() {
	if c.parted || c.left {
		c.endWaits()
		return
	}
	now := sense.Duration(time.Since(c.began))
	unusual, over := c.stalls.Observe(now, c.agent.Leads(), c.agent.Applied(),
		append(c.agent.Waits(), c.engine.unfed()...))
	c.tellWaits("waited", over, c.waited)
	c.tellWaits("wait", unusual, c.waits)
}

// endWaits tells the end of the waits that the job ends.
func (c *crew) endWaits() { c.tellWaits("waited", c.stalls.End(), c.waited) }

func (c *crew) tellWaits(what string, list []*stall.Stall,
	say func(s *stall.Stall) string) {
	if len(list) == 0 {
		return
	}
	known := c.agent.Known()
	e := Event{What: what, Generation: c.number(known.View.Generation), Size: known.View.Size(),
		Step: known.Steps}
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
	c.order(func(o *Orders) { o.Event(e) })
}

// waits says that a wait is unusual.
func (c *crew) waits(s *stall.Stall) string {
	others := "1 other has"
	if s.Waiters > 1 {
		others = fmt.Sprintf("%d others have", s.Waiters)
	}
	w := c.wait(s)
	text := fmt.Sprintf("%s waited %.0f s for %s in %s", others, c.stalls.Waited(s).Seconds(),
		c.whom(s.Worker), w.Call)
	if w.OwnCall != "" {
		text += ", and its own call waits too: " + w.OwnCall
	}
	return text
}

// waited says that such a wait is over.
func (c *crew) waited(s *stall.Stall) string {
	return fmt.Sprintf("%s is waited for no more, after %.0f s", c.whom(s.Worker),
		c.stalls.Took(s).Seconds())
}

// whom names a worker, and its host where there are several.
func (c *crew) whom(w topo.WorkerID) string {
	text := fmt.Sprintf("worker %d", w)
	record := c.agent.Record()
	if r, is := record.View.Rank(w); is && len(record.Hosts) > 1 {
		text += " on host " + record.View.Members[r].Host
	}
	return text
}

// wait is a wait as tools are told. What the calls are is put into words at once: they are used
// again.
func (c *crew) wait(s *stall.Stall) api.Wait {
	// The begin of the wait follows from its length: the clock of the time of day may have been
	// set since, and goes on while the machine sleeps.
	w := api.Wait{Since: time.Now().Add(-time.Duration(c.stalls.Waited(s))),
		Call: s.Call.Call.String(), Group: int(s.Group), Waiters: s.Waiters, Unusual: s.Unusual()}
	if s.OwnCall != nil {
		w.OwnCall = s.OwnCall.Call.String()
	}
	return w
}
