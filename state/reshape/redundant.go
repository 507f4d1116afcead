package reshape

import (
	"slices"

	"github.com/shoal-ml/shoal/state/plan"
)

// Unreplicated is how many bytes of the new state one host has alone; where all workers are on one
// host, one worker.
func (c *Change) Unreplicated() (bytes int, where string) {
	if slices.Min(c.placement.Hosts) == slices.Max(c.placement.Hosts) {
		return c.New.unreplicatedBytes(c.Workers), "worker"
	}
	return c.New.unreplicatedBytes(c.Plan.Host), "host"
}

// Redundant reports whether what several ranks have was to be on two hosts.
func (c *Change) Redundant() bool { return c.placement.Redundant }

// spreadReplicas plans again where less of the new state is on one host alone with other groups of
// ranks. The ranks stay where they are if that is as good; else the ordinary groups are the first
// choice, and then those that leave most neighbours together.
func (c *Change) spreadReplicas() error {
	var best *plan.Cluster
	// which host takes which group makes no difference
	least := c.New.unreplicatedBytes(c.Plan.Cluster.New)
	if stay, ok := c.keepRanks(); ok {
		if n := c.New.unreplicatedBytes(stay.New); n <= least {
			best, least = &stay, n
		}
	}
	single := c.New.SingleRankBytes()
	for _, neighbours := range c.New.groupSizes() {
		if least == single {
			break
		}
		if next, ok := c.Plan.AntiAffinity(neighbours); ok {
			if n := c.New.unreplicatedBytes(next.New); n < least {
				best, least = &next, n
			}
		}
	}
	if best == nil {
		return nil
	}
	return c.build(*best)
}

// keepRanks is the cluster in which every worker keeps its rank; false where the mesh is another
// one, or not all are left.
func (c *Change) keepRanks() (plan.Cluster, bool) {
	stay := c.Plan.Cluster
	stay.New, stay.Fixed = stay.Old, true
	for _, h := range stay.Old {
		if h == plan.Lost || slices.Contains(c.placement.Leaving, h) {
			return stay, false
		}
	}
	return stay, c.Old.Mesh.String() == c.New.Mesh.String()
}

// groupSizes lists how many neighbouring ranks have the same places on the first axes of the mesh,
// the most first: the ranks along the last axes.
func (l *Layout) groupSizes() (list []int) {
	n := l.Ranks
	for _, a := range l.Mesh {
		if n /= a.Size; a.Size > 1 {
			list = append(list, n)
		}
	}
	return list
}

// unreplicatedBytes is the bytes of Alone.
func (l *Layout) unreplicatedBytes(domain []int) int {
	bytes, _, _ := l.Unreplicated(domain)
	return bytes
}

// SingleRankBytes is how many bytes one rank has alone: those are on one host in any placing.
func (l *Layout) SingleRankBytes() int {
	own := make([]int, l.Ranks)
	for r := range own {
		own[r] = r
	}
	return l.unreplicatedBytes(own)
}
