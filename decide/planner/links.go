package planner

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
)

// What takes no less time over the links that there are, wherever workers are: for what is proved.
// The methods only read the problem, on the goroutine of the call of Solve or Judge that has it.

// fastest returns the seconds of a message over the fastest link that there is: no plan can send
// faster.
func (p *problem) fastest(bytes float64) float64 { return fastestOf(p.all.Links, bytes, 1) }

// fastestOf returns the seconds of a message over the fastest of some links, where a host sends so
// many messages at the same time.
func fastestOf(links []cluster.Link, bytes float64, messages int) float64 {
	seconds := math.Inf(1)
	for i := range links {
		seconds = min(seconds, links[i].SecondsTogether(bytes, messages))
	}
	return seconds
}

// linksOf lists the links that a worker on a kind of device, as its number, may have to one on any
// kind, or on that one if alike is set.
func (p *problem) linksOf(kind int, alike bool) (list []cluster.Link) {
	for _, l := range p.all.Links {
		of := len(l.Between) == 0
		others := 0
		for _, name := range l.Between {
			known := slices.ContainsFunc(p.all.Kinds, func(k cluster.Kind) bool {
				return k.Name == name
			})
			// A name that is no kind is that of a host or a zone, with devices of any kind.
			if !known || name == p.kinds[kind].Name {
				of = true
			} else {
				others++
			}
		}
		if of && (others == 0 || !alike) {
			list = append(list, l)
		}
	}
	return list
}

// ring returns a function that says in how many seconds replicas of a stage average so many bytes
// at least over some links, where so many ranks of each share its layers. Where one host has no
// places for all of them, links between hosts are part of every ring.
func (p *problem) ring(links []cluster.Link, replicas, tp int) func(bytes int64) float64 {
	most := 0 // places of a host
	for _, h := range p.all.Hosts {
		most = max(most, h.Places)
	}
	messages := 1
	if replicas*tp > most {
		messages = tp
		links = slices.DeleteFunc(slices.Clone(links), func(l cluster.Link) bool {
			return l.Inside
		})
	}
	return func(bytes int64) float64 {
		return cost.RingSeconds(replicas, bytes, func(part float64) float64 {
			return fastestOf(links, part, messages)
		})
	}
}
