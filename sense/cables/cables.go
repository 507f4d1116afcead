// Package cables tells what the cable of each host carries. A host counts what it has sent to each
// other host, and for how long that was on its way: the ratio is the rate at which the link carries
// bytes while it is busy, however seldom it is. A host tells its rates to the host that leads,
// which takes the fastest link of a host for what its cable carries at least. So a cable that is
// slow shows, though each host only sees the way to another one. It is pure, as package sense is.
package cables

import (
	"maps"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/sense"
)

const (
	// MaxHosts is on how many hosts a job may be for its links to be read: no policy asks for those
	// of more.
	MaxHosts = 16
	// MaxRates is how many rates a host tells at most.
	MaxRates = 16
	// minBytes is how much must have been sent on a link to show its rate. Less may have gone at
	// once, from what a cable has room for.
	minBytes = 128 << 10
	// resolution is how exactly the kernel counts how long a link was busy: a tick of its clock.
	resolution = sense.Second / 250
	// recentNotes is how many notes of a host, its newest, count for what its cable carries. A link
	// on which little is sent is not in each of them, and one that is used no more says nothing of
	// a cable that has become slow since.
	recentNotes = 8
	// changeFactor is by which factor a rate differs from the one that was told if the head is to
	// hear of it before the next note.
	changeFactor = 1.4
)

// Sent is what one stream of a link has carried so far.
type Sent struct {
	Bytes uint64         // bytes that have arrived at the other end
	Busy  sense.Duration // how long some were on their way, or waited in the kernel to be
	Held  sense.Duration // for how long a limit has held some, beside others that were on their way
}

// Rates are the bytes per second that links from a host carry while they are busy, by the host at
// the other end; nil = none is known.
type Rates map[string]float64

// Valid reports whether rates that another host has told can be.
func (r Rates) Valid() bool {
	for _, x := range r {
		if !(x > 0 && x < 1e15) {
			return false
		}
	}
	return len(r) <= MaxRates
}

// With returns rates with newer ones in their place, and those of other links; only the newer ones
// where they would be more than MaxRates. It changes neither.
func (r Rates) With(newer Rates) Rates {
	all := Rates{}
	maps.Copy(all, r)
	maps.Copy(all, newer)
	if len(all) > MaxRates {
		return newer
	}
	return all
}

// Meter finds the rates of the links of a host. The zero value has seen nothing. One goroutine uses
// it at a time.
type Meter struct {
	since map[string][]Sent // by peer: what the rate of the link is counted from
	told  Rates             // that Read has returned last as news
}

// Read takes in what the streams of each link have carried so far, and returns the rates of those
// on which enough was sent to tell, since the rate of the link was returned last; news = one has
// changed much since it was returned as news. The caller owns the rates, and must not change now
// any more.
func (m *Meter) Read(now map[string][]Sent) (rates Rates, news bool) {
	if m.since == nil {
		m.since = map[string][]Sent{}
	}
	maps.DeleteFunc(m.since, func(peer string, _ []Sent) bool { return now[peer] == nil })
	maps.DeleteFunc(m.told, func(peer string, _ float64) bool { return now[peer] == nil })
	for _, peer := range slices.Sorted(maps.Keys(now)) {
		streams, from := now[peer], m.since[peer]
		if len(from) != len(streams) || haveRestarted(from, streams) {
			m.since[peer] = streams
			continue
		}
		bytes, busy := uint64(0), resolution
		for i, s := range streams { // several share the cable, and are busy beside each other
			bytes += s.Bytes - from[i].Bytes
			busy = max(busy, s.Busy-from[i].Busy, s.Held-from[i].Held)
		}
		if bytes < minBytes || len(rates) == MaxRates {
			continue
		}
		m.since[peer] = streams
		if rates == nil {
			rates = Rates{}
		}
		rates[peer] = math.Round(float64(bytes) / busy.Seconds())
		was := m.told[peer]
		news = news || was > changeFactor*rates[peer] || rates[peer] > changeFactor*was
	}
	if news {
		if m.told == nil {
			m.told = Rates{}
		}
		maps.Copy(m.told, rates)
	}
	return rates, news
}

// haveRestarted reports whether streams are others than those that were read before, as where the
// host at the other end has come back: one of them has carried less than the one in its place had.
func haveRestarted(before, now []Sent) bool {
	for i, s := range now {
		if was := before[i]; s.Bytes < was.Bytes || s.Busy < was.Busy || s.Held < was.Held {
			return true
		}
	}
	return false
}

// Map is what the hosts of a job have told of their links. The zero value is empty. One goroutine
// uses it at a time.
type Map struct {
	hosts map[string]*links
}

// links are the newest rates of the links from a host, by the host at the other end.
type links struct {
	rates Rates
	notes int            // notes of the host
	told  map[string]int // notes when the rate of a link was told last
}

// Add takes in a note of a host: the newest rates of some of the links from it.
func (m *Map) Add(host string, r Rates) {
	if m.hosts == nil {
		m.hosts = map[string]*links{}
	}
	l := m.hosts[host]
	if l == nil {
		l = &links{rates: Rates{}, told: map[string]int{}}
		m.hosts[host] = l
	}
	l.notes++
	for peer, rate := range r {
		l.rates[peer], l.told[peer] = rate, l.notes
	}
}

// KeepOnly forgets all hosts but those of a list, and the links to them.
func (m *Map) KeepOnly(hosts []string) {
	isGone := func(host string) bool { return !slices.Contains(hosts, host) }
	maps.DeleteFunc(m.hosts, func(host string, _ *links) bool { return isGone(host) })
	for _, l := range m.hosts {
		maps.DeleteFunc(l.rates, func(peer string, _ float64) bool { return isGone(peer) })
		maps.DeleteFunc(l.told, func(peer string, _ int) bool { return isGone(peer) })
	}
}

// Between returns how many bytes per second the link between two hosts carries at least: what it
// has carried in the direction in which that was more; 0 = that is not known.
func (m *Map) Between(a, b string) float64 { return max(m.rate(a, b), m.rate(b, a)) }

// rate returns the newest rate of the link from a host to another one; 0 = it is not known.
func (m *Map) rate(from, to string) float64 {
	if l := m.hosts[from]; l != nil {
		return l.rates[to]
	}
	return 0
}

// recentRate is rate where that was told in one of the recentNotes; else 0.
func (m *Map) recentRate(from, to string) float64 {
	if l := m.hosts[from]; l != nil && l.told[to] > l.notes-recentNotes {
		return l.rates[to]
	}
	return 0
}

// Cables returns how many bytes per second the cable of each of some hosts carries at least: what
// the fastest link from it or to it has done lately; nil = of one that is not known.
func (m *Map) Cables(hosts []string) []float64 {
	list := make([]float64, len(hosts))
	for i, from := range hosts {
		for j, to := range hosts {
			rate := m.recentRate(from, to)
			list[i], list[j] = max(list[i], rate), max(list[j], rate)
		}
	}
	if slices.Contains(list, 0) {
		return nil
	}
	return list
}
