package policy

import (
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide"
)

// BestRoute returns the candidate that a model predicts to take least for an all-reduce of so many
// bytes over the hosts, and of several that take the same the one with the fewest streams.
func BestRoute(m cost.Model, hosts, bytes int) collective.Route {
	list := collective.Candidates(hosts, bytes)
	return decide.Prefer(list[0], list[1:], 1, func(r collective.Route) float64 {
		return m.AllReduceSeconds(r, hosts, bytes)
	}).To
}
