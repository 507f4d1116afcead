package pool

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/decide/price"
	"github.com/shoal-ml/shoal/internal/plural"
)

// How jobs share what the cards of hosts carry. Jobs with workers on several hosts, two of which
// share a host whose rate is known, are a market: package price says which rates bring the least
// sum of the seconds of their steps, times their weights. What that is to bring is compared with
// what steps take without limits, and what has come of it with both: limits that bring nothing end.
// A job that has not shown yet what it sends has no limit, nor have those that share hosts with it.
// The methods run within Machine.Settle, on the goroutine that uses the Machine.

// Share is the part of a job of what the cards of its hosts carry.
type Share struct {
	Limit    uint64  `json:"limit"` // bytes a second that each host sends at the most; 0 = any
	Because  string  `json:"because"`
	Before   float64 `json:"before"`   // seconds of a step before
	Expected float64 `json:"expected"` // that a step was to take
	Measured float64 `json:"measured"` // that steps have taken; 0 = not known yet
}

const (
	// dataPart is the part of what a cable carries that is data: 1448 of 1514 bytes of a packet.
	dataPart = 1448.0 / 1514
	// firstSteps are those that began before a limit did, as far as is known, and enoughSteps and
	// enoughTime, in milliseconds, what must have been seen after them.
	firstSteps, enoughSteps, enoughTime = 2, 16, 4000
	// leastGain is the part of the weighted seconds that limits must be expected to bring.
	leastGain = 0.02
)

// stage is how far the limits of a market are.
type stage int

// The stages.
const (
	measuring stage = iota // it is measured what jobs send without limits
	trying                 // limits are in force, and it is measured what they bring
	decided                // limits stay, or there are none
)

// traffic is what is known of what a job sends, and of the market in which it is.
type traffic struct {
	market string // who is in the market, and where; "" = it is in none
	stage  stage
	hosts  string // where its workers were when it was measured

	limit uint64 // the limit in force when it was measured, as the job said
	// at, steps and sent are where the measurement begins, once the job has made firstSteps steps
	// after from.
	at                int64
	from, steps, sent uint64
	begun             bool

	bytes   float64 // that each host sends a step; 0 = not known yet
	seconds float64 // of a step; 0 = not known yet
	waits   float64 // the part of these in which the workers wait for the network
}

// again begins to measure anew, from a number of steps on, under a limit.
func (t *traffic) again(steps, limit uint64) {
	t.limit, t.from, t.begun, t.seconds = limit, steps, false, 0
}

// watch takes what a job says of what it has sent.
func (t *traffic) watch(now int64, hosts string, l *Led) {
	switch {
	case hosts != t.hosts:
		t.hosts, t.bytes = hosts, 0
		t.again(l.Steps, l.Limit)
	case l.Limit != t.limit || l.Steps < t.from || t.begun && l.Sent < t.sent:
		t.again(l.Steps, l.Limit)
	case !t.begun && l.Steps >= t.from+firstSteps:
		t.begun, t.at, t.steps, t.sent = true, now, l.Steps, l.Sent
	case t.begun && l.Steps >= t.steps+enoughSteps && now >= t.at+enoughTime:
		n := float64(l.Steps - t.steps)
		t.seconds, t.bytes = float64(now-t.at)/1000/n, float64(l.Sent-t.sent)/n
		t.waits = min(max(l.Waits, 0), 1)
	}
}

// isKnown reports whether it is known what a job sends under a limit, and how long its steps take.
func (t *traffic) isKnown(limit uint64) bool {
	return t.limit == limit && t.seconds > 0 && t.bytes > 0
}

// SetLink tells how many bytes a second the card of a host carries in each direction; 0 = it is not
// known, and what jobs send there is not limited.
func (m *Machine) SetLink(now int64, name string, bytes float64) {
	m.at(now)
	if h := m.hosts[name]; h != nil {
		h.Link = max(bytes, 0)
	}
}

// settleMarkets decides what the jobs of each market may send, and that others may send anything.
func (m *Machine) settleMarkets() {
	links := false
	for _, h := range m.hosts {
		links = links || h.Link > 0
	}
	if !links && !m.shares {
		return
	}
	var apart []*entry // jobs on several hosts that are in no market yet
	for _, e := range m.busy {
		if e.started() && e.State != Stopping && len(e.Held) > 1 {
			apart = append(apart, e)
		} else {
			m.endShare(e, "it shares no host with another job")
		}
	}
	m.shares = false
	for len(apart) > 0 {
		group := []*entry{apart[0]}
		apart = apart[1:]
		for i := 0; i < len(group); i++ {
			apart = slices.DeleteFunc(apart, func(e *entry) bool {
				if m.sharedHosts(group[i], e) == "" {
					return false
				}
				group = append(group, e)
				return true
			})
		}
		if len(group) == 1 {
			m.endShare(group[0], "it shares no host with another job")
		} else {
			m.trade(group)
		}
		for _, e := range group {
			m.shares = m.shares || e.Share != nil && e.Share.Limit > 0
		}
	}
}

// sharedHosts names the hosts whose rate is known on which two jobs are; "" = there are none.
func (m *Machine) sharedHosts(a, b *entry) string {
	var names []string
	for _, host := range slices.Sorted(maps.Keys(a.Held)) {
		if h := m.hosts[host]; b.Held[host] > 0 && h != nil && h.Link > 0 {
			names = append(names, host)
		}
	}
	return strings.Join(names, ", ")
}

// endShare ends the limit of a job that is in no market any more.
func (m *Machine) endShare(e *entry, why string) {
	e.traffic.market, e.traffic.stage = "", measuring
	m.endLimit(e, why)
}

// endLimit ends the limit of a job.
func (m *Machine) endLimit(e *entry, why string) {
	if e.Share == nil || e.Share.Limit == 0 {
		return
	}
	e.Share.Limit, e.Share.Because = 0, why
	m.touch(e)
}

// trade brings the limits of jobs that share hosts one stage further.
func (m *Machine) trade(group []*entry) {
	market := ""
	for _, e := range group {
		market += fmt.Sprintf("%s %d %v %v;", e.ID, e.Attempt, e.Held.places(), e.Elastic)
	}
	same := true
	for _, e := range group {
		same = same && e.traffic.market == market && e.State == Running
	}
	if !same { // who shares, or where, has changed, and all that was measured is of before
		for _, e := range group {
			if e.State != Running {
				e.traffic.market = ""
			} else {
				e.traffic.market = market
			}
			e.traffic.stage = measuring
			e.traffic.again(e.Steps, e.traffic.limit)
			m.endLimit(e, "others share its hosts than before")
		}
		return
	}
	switch group[0].traffic.stage {
	case measuring:
		for _, e := range group {
			if !e.traffic.isKnown(0) {
				return
			}
		}
		m.setLimits(group)
	case trying:
		for _, e := range group {
			if !e.traffic.isKnown(e.Share.Limit) {
				return
			}
		}
		m.judgeLimits(group)
	}
}

// weight is what a second less of a step is worth to a job, compared with other jobs.
func (e *entry) weight() float64 {
	if v := e.Submission.Value; v > 0 {
		return v
	}
	return 1
}

// setLimits gives jobs that share hosts limits, if that is to bring enough.
func (m *Machine) setLimits(group []*entry) {
	at := map[string]int{}
	var links []price.Link
	for _, e := range group {
		for _, host := range slices.Sorted(maps.Keys(e.Held)) {
			if _, known := at[host]; !known && m.hosts[host].Link > 0 {
				at[host] = len(links)
				links = append(links, price.Link{Bytes: float64(m.hosts[host].Link * dataPart)})
			}
		}
	}
	var buyers []price.Buyer
	before := 0.0
	for _, e := range group {
		e.traffic.stage = decided
		b := price.Buyer{Weight: e.weight(), Bytes: make([]float64, len(links))}
		for host := range e.Held {
			if l, known := at[host]; known {
				b.Bytes[l] = e.traffic.bytes
			}
		}
		buyers = append(buyers, b)
		before += float64(b.Weight * e.traffic.seconds)
	}
	sold, err := price.Sell(links, buyers)
	if err != nil {
		m.notef("bandwidth: %v", err)
		return
	}
	after := 0.0
	var expected []float64
	for i, e := range group {
		x := float64(e.traffic.seconds*(1-e.traffic.waits)) + sold.Seconds[i]
		expected = append(expected, x)
		after += float64(buyers[i].Weight * x)
	}
	if after > float64((1-leastGain)*before) {
		return // each sends what it can, as before
	}
	for i, e := range group {
		t := &e.traffic
		t.stage = trying
		e.Share = &Share{Limit: max(uint64(slices.Max(sold.Rates[i])), 1),
			Because: m.shareText(e, group), Before: t.seconds, Expected: expected[i]}
		m.touch(e)
	}
}

// shareText says for people why a job has a limit.
func (m *Machine) shareText(e *entry, group []*entry) string {
	var others []string
	for _, o := range group {
		if shared := m.sharedHosts(e, o); o != e && shared != "" {
			others = append(others, fmt.Sprintf("%s (weights %g to %g) on %s", o.ID, e.weight(),
				o.weight(), shared))
		}
	}
	const most = 3
	if n := len(others) - most; n > 0 {
		others = append(others[:most], plural.Of(n, "other job"))
	}
	return "it shares the network with " + strings.Join(others, ", ")
}

// judgeLimits takes what limits have brought, and ends them if that is nothing.
func (m *Machine) judgeLimits(group []*entry) {
	before, after := 0.0, 0.0
	for _, e := range group {
		e.traffic.stage = decided
		e.Share.Measured = e.traffic.seconds
		before += float64(e.weight() * e.Share.Before)
		after += float64(e.weight() * e.Share.Measured)
		m.touch(e)
	}
	if after < before {
		return
	}
	for _, e := range group {
		m.endLimit(e, "limits brought nothing: without them steps took no longer")
	}
}
