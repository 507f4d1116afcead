// Package meter turns the times at which transfers begin and end into samples of all-reduces.
package meter

import (
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/sense"
)

// AllReduces measures what the all-reduces of an agent take. It does so by busy periods: a busy
// period lasts from the begin of a transfer, where none was under way, to the next time at which
// none is. Transfers of one period wait for each other's pieces, so that only the time of the whole
// period is known: each has the share of it that it has of the bytes. The zero value is ready. One
// goroutine uses it at a time.
type AllReduces struct {
	open    int            // transfers under way; 0 = no period is under way
	began   sense.Duration // begin of the period
	ended   sense.Duration // end of the newest transfer that is over; began while there is none
	bytes   int            // bytes of all transfers of the period
	longest int            // bytes of the longest of these transfers
	invalid bool           // a transfer was given up, or is a reshape: the period tells nothing
	samples []cost.Sample  // all-reduces of the period, one of each class and route
}

// BeginTransfer adds a transfer of a kind that begins now to the busy period. The Seconds of its
// sample are not known yet.
func (m *AllReduces) BeginTransfer(s cost.Sample, kind collective.Kind, now sense.Duration) {
	if m.open++; m.open == 1 {
		*m = AllReduces{open: 1, began: now, ended: now, samples: m.samples[:0]}
	}
	m.bytes += s.Bytes
	m.longest = max(m.longest, s.Bytes)
	m.invalid = m.invalid || kind == collective.Reshape
	if kind == collective.AllReduce && s.Bytes > 0 &&
		!slices.ContainsFunc(m.samples, func(o cost.Sample) bool { return isAlike(o, s) }) {
		m.samples = append(m.samples, s)
	}
}

// isAlike reports whether one of two all-reduces tells what the other one takes.
func isAlike(a, b cost.Sample) bool {
	return a.Route == b.Route && cost.ClassOf(a.Hosts, a.Bytes) == cost.ClassOf(b.Hosts, b.Bytes)
}

// AbortTransfers removes transfers that were given up from the busy period, which then yields no
// samples. transfers is their number.
func (m *AllReduces) AbortTransfers(transfers int) {
	m.open -= transfers
	m.invalid = m.invalid || transfers > 0
}

// EndTransfers removes a number of transfers that ended at a time from the busy period. With the
// last one of a period it calls took with a sample of each class and route. Nothing is known of
// all-reduces less than half as long as the longest transfer: their time depends on their steps and
// not on their bytes.
func (m *AllReduces) EndTransfers(transfers int, at sense.Duration, took func(cost.Sample)) {
	if transfers == 0 {
		return
	}
	m.ended = max(m.ended, at)
	if m.open -= transfers; m.open > 0 || m.invalid {
		return
	}
	for _, s := range m.samples {
		if 2*s.Bytes >= m.longest {
			s.Seconds = (m.ended - m.began).Seconds() * float64(s.Bytes) / float64(m.bytes)
			took(s)
		}
	}
}
