// Package topo holds the values that say who takes part in a job: workers, ranks, generations,
// groups. It has no behaviour beyond them, so that every other package can share it. Its functions
// change nothing, so any goroutine may call them.
package topo

import (
	"fmt"
	"slices"
	"strings"
)

// Rank numbers the workers of one generation, from 0. It may change with the generation.
type Rank int

// WorkerID names a worker process for the whole life of a job. No two processes ever share one.
type WorkerID uint64

// Generation numbers the agreed memberships of a job, from 1.
type Generation uint64

// GroupID names a set of ranks that call collectives together. World is everyone.
type GroupID uint32

// World is the group of all ranks.
const World GroupID = 0

// Member is a worker and where it runs.
type Member struct {
	Worker WorkerID
	Host   string
}

// View is one agreed membership: the members in the order of their ranks.
type View struct {
	Generation Generation
	Members    []Member
}

// Size returns the number of ranks.
func (v View) Size() int { return len(v.Members) }

// Rank returns the rank of a worker; -1 and false if it is no member.
func (v View) Rank(w WorkerID) (Rank, bool) {
	i := slices.IndexFunc(v.Members, func(m Member) bool { return m.Worker == w })
	return Rank(i), i >= 0
}

// Workers lists the members by rank, in new memory.
func (v View) Workers() []WorkerID {
	list := make([]WorkerID, 0, v.Size())
	for _, m := range v.Members {
		list = append(list, m.Worker)
	}
	return list
}

// HasHost reports whether a member is on a host.
func (v View) HasHost(host string) bool {
	return slices.ContainsFunc(v.Members, func(m Member) bool { return m.Host == host })
}

// RanksIn lists, by rank in v, the ranks that the members have in another view; -1 = they are no
// members there.
func (v View) RanksIn(other View) []int {
	ranks := make([]int, v.Size())
	for i, m := range v.Members {
		rank, _ := other.Rank(m.Worker)
		ranks[i] = int(rank)
	}
	return ranks
}

// CountDifferent counts the workers of a list, each once.
func CountDifferent(list []WorkerID) int {
	seen := map[WorkerID]bool{}
	for _, w := range list {
		seen[w] = true
	}
	return len(seen)
}

// With returns the next generation with the joiners after the members. V stays as it is.
func (v View) With(joiners ...Member) View {
	return View{v.Generation + 1, append(slices.Clone(v.Members), joiners...)}
}

// Without returns the next generation less some workers; those after them move up. V stays as it
// is.
func (v View) Without(gone ...WorkerID) View {
	return View{v.Generation + 1, slices.DeleteFunc(slices.Clone(v.Members), func(m Member) bool {
		return slices.Contains(gone, m.Worker)
	})}
}

// String writes the view as "generation 3: w1 w2@hostB w5": the host only where it differs from the
// one before.
func (v View) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "generation %d:", v.Generation)
	host := ""
	for _, m := range v.Members {
		fmt.Fprintf(&b, " w%d", m.Worker)
		if m.Host != host {
			fmt.Fprintf(&b, "@%s", m.Host)
			host = m.Host
		}
	}
	return b.String()
}
