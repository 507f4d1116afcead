package member

import (
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// The workers that are ordered on hosts and do not run yet. The methods do no I/O, and run on the
// one goroutine that uses the Machine.

// orders counts the workers that were ordered and have not started yet, by host; "" = the one host
// without a name.
type orders struct {
	wanted   map[string]int
	unwanted map[string]int // that were given up since: their hosts start them all the same
	strays   map[stray]bool // workers that run under the numbers of others
}

// stray is a worker that an earlier head ordered and that has the number of another one. It is
// ended, and has a slot until then.
type stray struct {
	number topo.WorkerID
	host   string
}

// newOrders returns the orders of a machine that has ordered nobody.
func newOrders() orders {
	return orders{wanted: map[string]int{}, unwanted: map[string]int{}, strays: map[stray]bool{}}
}

// markStarted takes one worker that has started on a host off what is ordered there, or on the one
// host without a name, and reports whether it was one that is wanted.
func (o orders) markStarted(host string) (wanted bool) {
	for _, h := range []string{host, ""} {
		if o.wanted[h] > 0 {
			o.wanted[h]--
			return true
		}
	}
	for _, h := range []string{host, ""} {
		if o.unwanted[h] > 0 {
			o.unwanted[h]--
			return false
		}
	}
	return false
}

// cancel gives up to n workers up that are ordered on a host, and returns how many.
func (o orders) cancel(host string, n int) int {
	n = max(min(n, o.wanted[host]), 0)
	o.wanted[host] -= n
	o.unwanted[host] += n
	return n
}

// cancelOne gives one worker up; false if there is none.
func (o orders) cancelOne() bool {
	for _, h := range slices.Sorted(maps.Keys(o.wanted)) {
		if o.cancel(h, 1) > 0 {
			return true
		}
	}
	return false
}

// addWanted wants n more workers on a host, and returns how many of them must be ordered there:
// those that were given up and will start all the same are taken first.
func (o orders) addWanted(host string, n int) int {
	again := min(n, o.unwanted[host])
	o.wanted[host] += n
	o.unwanted[host] -= again
	return n - again
}

// forget forgets what is ordered on a host that is gone.
func (o orders) forget(host string) {
	delete(o.wanted, host)
	delete(o.unwanted, host)
	maps.DeleteFunc(o.strays, func(s stray, _ bool) bool { return s.host == host })
}

// forgetStrays forgets those of a number, and reports whether there were any.
func (o orders) forgetStrays(w topo.WorkerID) bool {
	before := len(o.strays)
	maps.DeleteFunc(o.strays, func(s stray, _ bool) bool { return s.number == w })
	return len(o.strays) < before
}

// countStrays counts those on a host.
func (o orders) countStrays(host string) (n int) {
	for s := range o.strays {
		if s.host == host {
			n++
		}
	}
	return n
}

// total counts the workers that are wanted, on all hosts.
func (o orders) total() (n int) {
	for _, k := range o.wanted {
		n += k
	}
	return n
}
