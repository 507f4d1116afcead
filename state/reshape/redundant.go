package reshape

import (
	"slices"

	"github.com/shoal-ml/shoal/state/plan"
)

// How replicas are kept on two hosts. Nothing here does I/O; but for spreadReplicas nothing changes
// a Change, so any goroutine may call the other methods.

// Unreplicated returns how many bytes of the new state lie on one host only, or, if all workers are
// on one host, on one worker only; where is "host" or "worker".
func (c *Change) Unreplicated() (bytes int, where string) {
	if slices.Min(c.placement.Hosts) == slices.Max(c.placement.Hosts) {
		return c.New.unreplicatedBytes(c.Workers), "worker"
	}
	return c.New.unreplicatedBytes(c.Plan.Host), "host"
}

// IsRedundant reports whether replicas were asked to lie on two hosts.
func (c *Change) IsRedundant() bool { return c.placement.Redundant }

// spreadReplicas replaces the plan by one with other groups of ranks if that leaves less of the new
// state on one host only. Keeping the ranks where they are is preferred if it is as good; then the
// ordinary groups, and then the groups that keep most neighbours together. PlanChange calls it,
// before others have the change.
func (c *Change) spreadReplicas() error {
	var best *plan.Cluster
	// It makes no difference which host takes which group.
	least := c.New.unreplicatedBytes(c.Plan.Cluster.New)
	if stay, ok := c.clusterKeepingRanks(); ok {
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
	return c.buildPlan(*best)
}

// clusterKeepingRanks returns the cluster in which every worker keeps its rank; false if the mesh
// changes, or a worker is gone, is leaving, or is on a host of another kind than the mesh says.
func (c *Change) clusterKeepingRanks() (plan.Cluster, bool) {
	stay := c.Plan.Cluster
	stay.New, stay.Fixed, stay.Allowed = stay.Old, true, nil
	for r, h := range stay.Old {
		if h == plan.Lost || slices.Contains(c.placement.Leaving, h) {
			return stay, false
		}
		if r < c.New.Ranks {
			if kind := c.New.Mesh.KindOf(r); kind != "" && kind != c.placement.kindOf(h) {
				return stay, false
			}
		}
	}
	return stay, c.Old.Mesh.String() == c.New.Mesh.String()
}

// groupSizes lists how many neighbouring ranks share their positions on the first axes of the mesh,
// the largest number first.
func (l *Layout) groupSizes() (list []int) {
	n := l.Ranks
	for _, a := range l.Mesh {
		if n /= a.Size; a.Size > 1 {
			list = append(list, n)
		}
	}
	return list
}

// unreplicatedBytes returns the bytes that Layout.Unreplicated returns; domain numbers the domains,
// such as hosts, by rank.
func (l *Layout) unreplicatedBytes(domain []int) int {
	bytes, _, _ := l.Unreplicated(domain)
	return bytes
}

// SingleRankBytes returns how many bytes only one rank holds: they are on one host in any
// placement.
func (l *Layout) SingleRankBytes() int {
	own := make([]int, l.Ranks)
	for r := range own {
		own[r] = r
	}
	return l.unreplicatedBytes(own)
}
