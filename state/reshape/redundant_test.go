package reshape_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/layout/layouttest"
	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/state/reshape"
)

// bytesByHolders returns how many bytes of the state each set of ranks has, by a bit for each rank,
// as an oracle says.
func bytesByHolders(spec *layout.Spec, tensors []layout.Tensor) map[uint]int {
	who := map[layouttest.Element]uint{}
	for rank, arrays := range layouttest.ExpectedArrays(spec, tensors) {
		for _, a := range arrays {
			for _, e := range a.Data {
				if e != layouttest.Padding {
					who[e] |= 1 << rank
				}
			}
		}
	}
	bytes := map[uint]int{}
	for e, ranks := range who {
		bytes[ranks] += tensors[e.Tensor].DType.Size()
	}
	return bytes
}

// bytesOnOneHost returns how many of the bytes, which bytesByHolders has counted, ranks of one host
// have and no others; host is that of each rank.
func bytesOnOneHost(bytes map[uint]int, host []int) (n int) {
	for ranks, b := range bytes {
		one, more := -1, false
		for r, h := range host {
			if ranks>>r&1 == 1 {
				one, more = h, more || one >= 0 && one != h
			}
		}
		if !more {
			n += b
		}
	}
	return n
}

// leastOnOneHost tries all ways to give so many ranks to hosts, where room is the number of ranks
// that each host can take and may says which ranks a host may take, and returns the least bytes
// that are on one host alone. It leaves room as it was.
func leastOnOneHost(bytes map[uint]int, ranks int, room []int,
	may func(rank, host int) bool) int {
	host, best := make([]int, ranks), math.MaxInt
	var walk func(r int)
	walk = func(r int) {
		if r == ranks {
			best = min(best, bytesOnOneHost(bytes, host))
			return
		}
		for h := range room {
			if room[h] > 0 && may(r, h) {
				room[h]--
				host[r] = h
				walk(r + 1)
				room[h]++
			}
		}
	}
	walk(0)
	return best
}

// onAnyHost is for leastOnOneHost: any host may take any rank.
func onAnyHost(int, int) bool { return true }

// hostOfRanks returns the host of each rank of the new mesh of a change that was planned from a
// placement.
func hostOfRanks(c *reshape.Change, at reshape.Placement) (host []int) {
	for _, w := range c.Workers {
		host = append(host, at.Hosts[w])
	}
	return host
}

// TestRedundant changes between random layouts: what is on one host alone is the least that any
// placing has, no more than without asking for it, and planned again from there nothing moves.
func TestRedundant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := layouttest.DrawModel(t)
		from, to := layouttest.DrawSpec(t, model), layouttest.DrawSpec(t, model)
		_, old := newState(t, model, from)
		_, new := newState(t, model, to)
		at := drawPlacement(t, old.Ranks, max(old.Ranks, new.Ranks)+
			rapid.IntRange(0, 2).Draw(t, "spare"))
		ordinary, err := reshape.PlanChange(old, new, at)
		var lost *plan.LostError
		if errors.As(err, &lost) {
			return
		}
		at.Redundant = true
		c, err := reshape.PlanChange(old, new, at)
		if err != nil {
			t.Fatal(err)
		}
		has := bytesByHolders(to, model.Tensors)
		before, after := bytesOnOneHost(has, hostOfRanks(ordinary, at)),
			bytesOnOneHost(has, hostOfRanks(c, at))
		if after > before || after == before && !slices.Equal(c.Workers, ordinary.Workers) &&
			old.Mesh.String() != new.Mesh.String() {
			t.Fatalf("%d bytes are on one host with %v, and %d without asking with %v", after,
				c.Workers, before, ordinary.Workers)
		}
		if said, where := c.Unreplicated(); where == "host" && said != after {
			t.Fatalf("the change says that %d bytes are on one host, and %d are", said, after)
		}
		again, err := reshape.PlanChange(new, new,
			reshape.Placement{Hosts: at.Hosts, Ranks: c.Workers, Leaving: at.Leaving,
				Redundant: true})
		if err != nil || !slices.Equal(again.Workers, c.Workers) || again.Plan.Stats.Device != 0 {
			t.Fatalf("%v becomes %v when it is planned again, %d bytes move; %v", c.Workers,
				again.Workers, again.Plan.Stats.Device, err)
		}
		if new.Ranks > 6 {
			return // too many placings to try
		}
		room := make([]int, 3)
		for _, h := range at.Hosts {
			room[h]++
		}
		for _, h := range at.Leaving {
			room[h] = 0
		}
		if least := leastOnOneHost(has, new.Ranks, room, onAnyHost); after != least {
			t.Fatalf("%d bytes are on one host with %v, and %d need to be; the hosts are %v, "+
				"the mesh is %s", after, c.Workers, least, at.Hosts, new.Mesh)
		}
	})
}
