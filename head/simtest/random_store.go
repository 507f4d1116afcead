package simtest

import (
	"fmt"
	"math/rand/v2"
)

// storeGenerator chooses what becomes of calls to the store. It has random numbers of its own, and
// chooses beside the generator: a seed means the same schedule with the store and without. It only
// reads the Cluster, on its one goroutine; Random performs the events.
type storeGenerator struct {
	c    *Cluster
	rand *rand.Rand // the only source of chance
	kind string     // of the store: "folder", "servers", or "" for none
	bad  int        // how many of a hundred calls are not just served
}

// newStoreGenerator returns a storeGenerator that chooses by a seed; it also chooses the kind of
// the store.
func newStoreGenerator(c *Cluster, seed uint64) *storeGenerator {
	k := &storeGenerator{c: c, rand: rand.New(rand.NewPCG(seed, 11))}
	k.kind = []string{"", "folder", "servers", "servers"}[k.rand.IntN(4)]
	k.bad = []int{0, 20, 60, 90}[k.rand.IntN(4)]
	return k
}

// firstEvent returns an event in which the first host does not reach the store from the start, in
// some schedules: then it has yet to write that it leads when it does no more. "" = none.
func (k *storeGenerator) firstEvent() string {
	if k.kind != "servers" || k.rand.IntN(6) > 0 {
		return ""
	}
	return "store down A"
}

// nextEvent chooses an event of the store, in one of ten calls; "" = none.
func (k *storeGenerator) nextEvent() string {
	if k.kind == "" || k.rand.IntN(10) > 0 {
		return ""
	}
	s := &k.c.store
	switch n := k.rand.IntN(1000); {
	case n < 15 && !s.down:
		return "store down"
	case n < 80 && s.down:
		return "store up"
	case n < 84 && k.kind == "servers":
		return fmt.Sprintf("store %s %c", []string{"down", "down", "up"}[k.rand.IntN(3)],
			'A'+k.rand.IntN(len(k.c.hosts)))
	case n < 90:
		return fmt.Sprintf("deliver-call %d", k.rand.IntN(4))
	case n < 100 && len(s.apart) < 2:
		return fmt.Sprintf("rival R%d%s", s.last, []string{"", "", " force"}[k.rand.IntN(3)])
	case n < 105:
		return fmt.Sprintf("split %d", 1+int(k.c.newestRecord().View.Generation)+k.rand.IntN(2))
	}
	var who []string
	for _, x := range s.apart {
		who = append(who, x.name)
	}
	for _, h := range k.c.livingHosts() {
		if h.writer != nil {
			if _, asks := h.writer.Next(); asks {
				who = append(who, h.name)
			}
		}
	}
	if len(who) == 0 {
		return ""
	}
	what := "serve"
	if k.rand.IntN(100) < k.bad {
		what = []string{"lose-answer", "lose-call", "delay-call"}[k.rand.IntN(3)]
	}
	return what + " " + who[k.rand.IntN(len(who))]
}

// lastEvents returns events in which the first host is lost and begins anew, or the job ends; nil
// in most schedules.
func (k *storeGenerator) lastEvents() []string {
	switch first := k.c.hosts[0].name; {
	case k.kind == "folder" && k.rand.IntN(2) == 0:
		return []string{"crash " + first, "restart " + first}
	case k.kind == "servers" && k.rand.IntN(4) == 0:
		return []string{"release", "stabilize 5"}
	}
	return nil
}
