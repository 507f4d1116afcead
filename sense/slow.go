package sense

import (
	"fmt"
	"slices"
)

// slowPart is which part of a step the others must wait for a host that is called slow.
const slowPart = 0.1

// SlowHosts says in words for which hosts the others wait, and why if that is known, such as "host
// h2 is slow: the others wait for it 31 % of a step; its processors are 97 % busy, 40 % of that by
// others". In a job of one host it says so of its workers. It is empty where nobody is slow, or
// nothing is known. It only reads the Observation; agent/signals calls it, for people.
func (o *Observation) SlowHosts() (lines []string) {
	slack := o.Split.Slack
	if len(slack) != o.Size || len(o.Hosts) != o.Size || o.Size < 2 || !(o.Split.Seconds > 0) {
		return nil
	}
	name := slices.Clone(o.Hosts)
	word := "host"
	if !slices.ContainsFunc(name, func(h string) bool { return h != name[0] }) {
		word = "rank"
		for rank := range name {
			name[rank] = fmt.Sprint(rank)
		}
	}
	sorted := slices.Sorted(slices.Values(slack))
	waits := sorted[len(sorted)/2] // of most
	for rank, host := range name {
		if slices.Index(name, host) != rank || !(waits > slowPart*o.Split.Seconds) {
			continue
		}
		least := waits
		for other, s := range slack {
			if name[other] == host {
				least = min(least, s)
			}
		}
		if least > waits/2 {
			continue
		}
		line := fmt.Sprintf("%s %s is slow: the others wait for it %.0f %% of a step", word, host,
			100*(waits-least)/o.Split.Seconds)
		if why := o.WhySlow(o.Hosts[rank]); why != "" {
			line += "; " + why
		}
		lines = append(lines, line)
	}
	return lines
}
