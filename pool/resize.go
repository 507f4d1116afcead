package pool

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/internal/plural"
)

// How a Machine gives a running job the number of workers that a person has set. Machine.Resize
// calls this, on the goroutine that uses the Machine.

// resize gives a job n workers because a person says so, and has the policy leave that as it is; 0
// gives the job back to the policy.
func (m *Machine) resize(e *entry, n int, because string) error {
	have := e.Want.total()
	if n > 0 && have > 0 && n != have {
		want, err := m.placesFor(e, n)
		if err != nil {
			return err
		}
		m.seq++
		e.granted = m.seq
		m.recordChange(e, n, because, Expectation{Pause: int64(usualCosts.Resize.Mean)})
		e.Want = want
	}
	e.Asks, e.Because = n, because
	m.touch(e)
	e.intent = e.version
	return m.coreUpdate(e)
}

// placesFor returns the slots with which a running job has n: it leaves the hosts where it has the
// fewest, and gets slots where it is already, and then where most are free.
func (m *Machine) placesFor(e *entry, n int) (Slots, error) {
	want := e.Want.clone()
	list := want.places()
	slices.SortStableFunc(list, func(a, b place) int { return cmp.Compare(a.Slots, b.Slots) })
	for _, p := range list {
		less := min(want[p.Host], max(0, want.total()-n))
		want[p.Host] -= less
	}
	if want.total() == n {
		return want.clone(), nil
	}
	var hosts []place // those that have free slots
	for name, h := range m.hosts {
		if free := m.unwanted(h); free > 0 {
			hosts = append(hosts, place{Host: name, Slots: free})
		}
	}
	slices.SortFunc(hosts, func(a, b place) int {
		return cmp.Or(cmp.Compare(want[b.Host], want[a.Host]), cmp.Compare(b.Slots, a.Slots),
			cmp.Compare(a.Host, b.Host))
	})
	for _, p := range hosts {
		want[p.Host] += min(p.Slots, n-want.total())
	}
	if missing := n - want.total(); missing > 0 {
		return nil, fmt.Errorf("job %s cannot have %s: %s more would have to be free; make "+
			"another job smaller first", e.ID, plural.Of(n, "worker"), plural.Of(missing, "slot"))
	}
	return want.clone(), nil
}

// unwanted returns the slots of a host that are decided for nobody.
func (m *Machine) unwanted(h *Host) int {
	if !h.Up || h.Leaving || h.Forgot {
		return 0
	}
	return max(h.Slots-m.wanted(h.Name), 0)
}
