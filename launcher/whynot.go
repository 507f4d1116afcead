package launcher

import (
	"cmp"
	"slices"
	"sync"

	api "github.com/shoal-ml/shoal/api/control"
)

// The reasons why policies leave things as they are, as tools ask for them and as the directory of
// the run keeps them. The methods of launcher in this file may be called on any goroutine but the
// engine's thread; they hold the lock of l.reasons for a moment, or while they write.

// keptWhyNots is how many reasons of a policy are kept, the newest.
const keptWhyNots = 3

// whyNots are the reasons why policies have left things as they were while other hosts led the job,
// as the one that led last has told them. The zero value has none. It is safe for concurrent use.
type whyNots struct {
	mu     sync.Mutex // guards what follows, and is held while a file with reasons is written
	before []api.WhyNot
}

// newestWhyNots returns, as a list of its own, the newest reasons of each policy, the newest last:
// of those of heads before, and of those of this one, which replace the same of the former.
func newestWhyNots(before, own []api.WhyNot) (list []api.WhyNot) {
	for _, w := range before {
		if !slices.ContainsFunc(own, func(o api.WhyNot) bool {
			return o.Policy == w.Policy && o.First == w.First
		}) {
			list = append(list, w)
		}
	}
	list = append(list, own...)
	slices.SortStableFunc(list, func(a, b api.WhyNot) int { return cmp.Compare(a.Last, b.Last) })
	newer := map[string]int{} // by policy, reasons that are kept
	slices.Reverse(list)
	list = slices.DeleteFunc(list, func(w api.WhyNot) bool {
		newer[w.Policy]++
		return newer[w.Policy] > keptWhyNots
	})
	slices.Reverse(list)
	return list
}

// whyNots returns why policies have left things as they are lately, as far as this host knows; nil
// where none decides. It waits for policies that decide.
func (l *launcher) whyNots() []api.WhyNot {
	if l.registry.jobSpec().Auto == "" {
		return nil
	}
	var own []api.WhyNot
	if l.registry.leads() {
		for _, w := range l.agent.WhyNot() {
			own = append(own, api.WhyNot{Policy: w.Policy, Why: w.Why, First: w.First,
				Last: w.Last, Times: w.Times})
		}
	}
	l.reasons.mu.Lock()
	defer l.reasons.mu.Unlock()
	return newestWhyNots(l.reasons.before, own)
}

// publishWhyNots writes into the directory of the run why policies have left things as they are,
// and tells the other hosts, whichever leads next. It is called where this host leads, and waits
// for policies that decide and for the engine's thread.
func (l *launcher) publishWhyNots() error {
	list := l.whyNots()
	if len(list) == 0 {
		return nil
	}
	for _, host := range l.registry.offeringHosts() {
		l.sendTo(host, &message{WhyNot: &whyNotMessage{list}})
	}
	return l.writeWhyNots(list)
}

// storeWhyNotsOfLeader keeps what the host that leads says of its policies, and writes it into
// the directory of the run. handleMessage calls it, on the goroutine of the queue l.tasks.
func (l *launcher) storeWhyNotsOfLeader(list []api.WhyNot) error {
	l.reasons.mu.Lock()
	l.reasons.before = newestWhyNots(nil, list)
	l.reasons.mu.Unlock()
	return l.writeWhyNots(list)
}

// writeWhyNots writes reasons into the directory of the run, if there is one, in place of those
// that are there. It locks l.reasons.
func (l *launcher) writeWhyNots(list []api.WhyNot) error {
	dir := l.reporter.directory()
	if dir == nil {
		return nil
	}
	l.reasons.mu.Lock()
	defer l.reasons.mu.Unlock()
	return dir.WriteWhyNots(list)
}
