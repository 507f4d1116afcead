package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/topo"
)

// noticed is after how long it is said who is waited for: one of the workers is always the last.
const noticed = time.Second

// manyWaits is how many of the workers that are waited for a line for a person describes.
const manyWaits = 4

// watch looks, now and then, who is waited for.
func (a *Agent) watch(ctx context.Context) error {
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	look := a.crew.lookOut
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
		a.crew.lookOut()
		for _, v := range a.crew.lookout.vigils {
			if a.crew.lookout.lasts(v) >= noticed {
				list[int(v.Worker)] = a.crew.wait(v)
			}
		}
	})
	return list
}

// lookOut tells of waits that have become unusual, and of their ends.
func (c *crew) lookOut() {
	if c.parted || c.left {
		c.lookAway()
		return
	}
	told, over := c.lookout.look(time.Since(c.began), c.agent.Leads(), c.agent.Applied(),
		append(c.agent.Waits(), c.engine.unfed()...))
	c.tellWaits("waited", over, c.waited)
	c.tellWaits("wait", told, c.waits)
}

// lookAway tells the end of the waits that the job ends.
func (c *crew) lookAway() { c.tellWaits("waited", c.lookout.end(), c.waited) }

func (c *crew) tellWaits(what string, list []*vigil, say func(v *vigil) string) {
	if len(list) == 0 {
		return
	}
	known := c.agent.Known()
	e := Event{What: what, Generation: c.number(known.View.Generation), Size: known.View.Size(),
		Step: known.Steps}
	var words []string
	for i, v := range list {
		e.Awaited = append(e.Awaited, int(v.Worker))
		if i < manyWaits {
			words = append(words, say(v))
		}
	}
	e.Because = strings.Join(words, "; ")
	if more := len(list) - manyWaits; more > 0 {
		e.Because += fmt.Sprintf("; and so for %d more", more)
	}
	c.orders.Event(e)
}

// waits says that a wait is unusual.
func (c *crew) waits(v *vigil) string {
	others := "1 other has"
	if v.By > 1 {
		others = fmt.Sprintf("%d others have", v.By)
	}
	w := c.wait(v)
	text := fmt.Sprintf("%s waited %.0f s for %s in %s", others, c.lookout.lasts(v).Seconds(),
		c.whom(v.Worker), w.Call)
	if w.OwnCall != "" {
		text += ", and its own call waits too: " + w.OwnCall
	}
	return text
}

// waited says that such a wait is over.
func (c *crew) waited(v *vigil) string {
	return fmt.Sprintf("%s is waited for no more, after %.0f s", c.whom(v.Worker),
		(c.lookout.before - v.begun).Seconds())
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
func (c *crew) wait(v *vigil) api.Wait {
	// Not by the time of day at which the lookout began: the clock may have been set since, and
	// does not stand still while the machine sleeps.
	w := api.Wait{Since: time.Now().Add(-c.lookout.lasts(v)), Call: v.In.Call.String(),
		Group: int(v.Group), Waiters: v.By, Unusual: v.told}
	if v.Own != nil {
		w.OwnCall = v.Own.Call.String()
	}
	return w
}
