package launcher

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/internal/numa"
)

// survey finds the memory nodes of this host. Workers are bound to them but where there are GPUs:
// which of these a worker takes, and so which node it should be near, is decided in the worker.
func (l *launch) survey(nodes []numa.Node) {
	l.nodes, l.homes = nodes, nodes
	if nodes != nil {
		return // a test's
	}
	l.nodes = numa.Read(numa.System, numa.Self)
	nvidia, _ := filepath.Glob("/proc/driver/nvidia/gpus/*")
	amd, _ := filepath.Glob("/dev/kfd")
	if len(nvidia)+len(amd) == 0 {
		l.homes = l.nodes
	}
}

// home chooses the memory node that the next worker is bound to, so that neighbours in rank are so
// on nodes, and nodes have as many as they have processors for; and how many cores the environments
// of workers are to share, as if all had what this one has. Nil: the worker may run anywhere, since
// a node would have none, or since numactl is to bind it, which refuses what it is not allowed to
// begin with. l.mu is held.
func (l *launch) home(around surroundings) (home *numa.Node, cores int) {
	if len(l.homes) == 0 || around.here < len(l.homes) || filepath.Base(l.program) == "numactl" {
		return nil, around.cores
	}
	taken, first := map[int]int{}, map[int]int{}
	for _, h := range l.hands {
		if h.home != nil && h.exit == nil {
			taken[h.home.ID]++
		}
	}
	for range around.here {
		first[numa.Next(l.homes, first).ID]++
	}
	at := slices.IndexFunc(l.homes, func(n numa.Node) bool { return taken[n.ID] < first[n.ID] })
	n := numa.Next(l.homes, taken)
	if at >= 0 {
		n = l.homes[at]
	}
	return &n, min(around.cores, len(n.CPUs)/max(1, first[n.ID])*around.here)
}

// whereabouts says which of the workers of an order are bound to which memory node; "" = none.
func (l *launch) whereabouts(o agent.StartOrder) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var parts []string
	for _, n := range l.homes {
		who, many := "", "worker"
		for seat := o.First; seat < o.First+o.Count; seat++ {
			if h := l.hands[seat]; h != nil && h.home != nil && h.home.ID == n.ID {
				if who != "" {
					many = "workers"
				}
				who += fmt.Sprintf(" %d", seat)
			}
		}
		if who != "" {
			parts = append(parts, fmt.Sprintf("%s%s on memory node %d", many, who, n.ID))
		}
	}
	return strings.Join(parts, ", ")
}
