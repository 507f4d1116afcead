package agent

import (
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/state/plan"
)

// turns says to whom each host sends what it has of its own, one after another, so that every host
// sends to one other at a time and hears from one: flows that share a cable get in each other's
// way. Where much is passed on there are none: who waits for its turn then keeps another one
// waiting.
func turns(moves []collective.Move, sites collective.Sites) [][]collective.Turn {
	elements, passedOn := collective.Traffic(moves, sites)
	all := 0
	for _, n := range elements {
		all += n
	}
	if passedOn > all/16 {
		return nil
	}
	list := make([][]collective.Turn, sites.N)
	for _, s := range plan.OnePort(elements) {
		list[s.From] = append(list[s.From], collective.Turn{To: s.To, N: s.Bytes})
	}
	return list
}

// proceed has a transfer send what is of its turn k, and what is of the next one when all of that
// has left. Hosts do not wait for each other: their turns take as long as each other's, and no
// longer than a cable is full. Later turns begin on a goroutine of the network, which has nothing
// else to send then: the engine's thread sums up the old state meanwhile.
func (ts *transfers) proceed(id uint64, k int) {
	ts.mu.Lock()
	t := ts.hold(id)
	ts.mu.Unlock()
	if t == nil {
		return // it was given up
	}
	y := trays.Get().(*tray)
	for i, end := t.relay.Turn(k); i < end; i++ {
		t.Chunk(i, y.scratch)
	}
	trays.Put(y)
	t.look()
	network, more := t.network, k+1 < t.relay.Turns()
	t.busy.RUnlock()
	if more {
		network.Unused(func() { ts.proceed(id, k+1) })
	}
}
