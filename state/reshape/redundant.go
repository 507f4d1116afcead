package reshape

import (
	"slices"

	"github.com/shoal-ml/shoal/state/plan"
)

// Alone is how many bytes of the new state one host has alone; where all workers are on one host,
// one worker.
func (c *Change) Alone() (bytes int, where string) {
	if slices.Min(c.place.Hosts) == slices.Max(c.place.Hosts) {
		return c.New.alone(c.Order), "worker"
	}
	return c.New.alone(c.Plan.Host), "host"
}

// Redundant reports whether what several ranks have was to be on two hosts.
func (c *Change) Redundant() bool { return c.place.Redundant }

// spread plans again where less of the new state is on one host alone with other groups of ranks.
// The ranks stay where they are if that is as good; else the ordinary groups are the first choice,
// and then those that leave most neighbours together.
func (c *Change) spread() error {
	var best *plan.Cluster
	least := c.New.alone(c.Plan.Cluster.New) // which host takes which group makes no difference
	if stay, ok := c.stay(); ok {
		if n := c.New.alone(stay.New); n <= least {
			best, least = &stay, n
		}
	}
	single := c.New.Single()
	for _, neighbours := range c.New.runs() {
		if least == single {
			break
		}
		if next, ok := c.Plan.AntiAffinity(neighbours); ok {
			if n := c.New.alone(next.New); n < least {
				best, least = &next, n
			}
		}
	}
	if best == nil {
		return nil
	}
	return c.build(*best)
}

// stay is the cluster in which every worker keeps its rank; false where the mesh is another one, or
// not all are left.
func (c *Change) stay() (plan.Cluster, bool) {
	stay := c.Plan.Cluster
	stay.New, stay.Fixed = stay.Old, true
	for _, h := range stay.Old {
		if h == plan.Lost || slices.Contains(c.place.Leaving, h) {
			return stay, false
		}
	}
	return stay, c.Old.Mesh.String() == c.New.Mesh.String()
}

// runs lists how many neighbouring ranks have the same places on the first axes of the mesh, the
// most first: the ranks along the last axes.
func (l *Layout) runs() (list []int) {
	n := l.Ranks
	for _, a := range l.Mesh {
		if n /= a.Size; a.Size > 1 {
			list = append(list, n)
		}
	}
	return list
}

// alone is the bytes of Alone.
func (l *Layout) alone(domain []int) int {
	bytes, _, _ := l.Alone(domain)
	return bytes
}

// Single is how many bytes one rank has alone: those are on one host in any placing.
func (l *Layout) Single() int {
	own := make([]int, l.Ranks)
	for r := range own {
		own[r] = r
	}
	return l.alone(own)
}
