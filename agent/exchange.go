package agent

import (
	"slices"
	"time"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/policy"
)

// exchange is a time in which transfers of this agent are under way, from the begin of one where
// there was none to where there is none again, and what it learns from that. Those that are under
// way together wait for each other's pieces, so that only the time of all is known: each has the
// share of it that it has of the bytes.
type exchange struct {
	open    int // transfers under way
	began   time.Time
	ended   time.Time // of those that are over, the last one
	bytes   int       // of all
	longest int       // bytes of the longest
	spoilt  bool      // it took what exchanges do not take
	reduces []cost.Sample
}

// begin adds a transfer; its Seconds are not known yet.
func (x *exchange) begin(s cost.Sample, kind collective.Kind, now time.Time) {
	if x.open++; x.open == 1 {
		*x = exchange{open: 1, began: now, ended: now, reduces: x.reduces[:0]}
	}
	x.bytes += s.Bytes
	x.longest = max(x.longest, s.Bytes)
	x.spoilt = x.spoilt || kind == collective.Reshape
	if kind == collective.AllReduce && s.Bytes > 0 &&
		!slices.ContainsFunc(x.reduces, func(o cost.Sample) bool {
			return alike(o, s)
		}) {
		x.reduces = append(x.reduces, s)
	}
}

// alike reports whether one of two all-reduces tells what the other one takes.
func alike(a, b cost.Sample) bool {
	return a.Route == b.Route &&
		policy.ClassOf(a.Hosts, a.Bytes) == policy.ClassOf(b.Hosts, b.Bytes)
}

// abandon takes transfers out that were given up.
func (x *exchange) abandon(transfers int) {
	x.open -= transfers
	x.spoilt = x.spoilt || transfers > 0
}

// end takes transfers out that are over. With the last one it tells what all-reduces took, one of
// each class and route. Of those less than half as long as the longest nothing is known: their
// steps count, and not their bytes.
func (x *exchange) end(transfers int, at time.Time, took func(cost.Sample)) {
	if transfers == 0 {
		return
	}
	if at.After(x.ended) {
		x.ended = at
	}
	if x.open -= transfers; x.open > 0 || x.spoilt {
		return
	}
	for _, s := range x.reduces {
		if 2*s.Bytes >= x.longest {
			s.Seconds = x.ended.Sub(x.began).Seconds() * float64(s.Bytes) / float64(x.bytes)
			took(s)
		}
	}
}
