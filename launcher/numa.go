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
func (s *supervisor) survey(nodes []numa.Node) {
	s.nodes, s.homes = nodes, nodes
	if nodes != nil {
		return // a test's
	}
	s.nodes = numa.Read(numa.System, numa.Self)
	nvidia, _ := filepath.Glob("/proc/driver/nvidia/gpus/*")
	amd, _ := filepath.Glob("/dev/kfd")
	if len(nvidia)+len(amd) == 0 {
		s.homes = s.nodes
	}
}

// home chooses the memory node that the next worker is bound to, so that neighbours in rank are so
// on nodes, and nodes have as many as they have processors for; and how many cores the environments
// of workers are to share, as if all had what this one has. Nil: the worker may run anywhere, since
// a node would have none, or since numactl is to bind it, which refuses what it is not allowed to
// begin with. s.mu is held.
func (s *supervisor) home(env environment) (home *numa.Node, cores int) {
	if len(s.homes) == 0 || env.here < len(s.homes) || filepath.Base(s.program) == "numactl" {
		return nil, env.cores
	}
	taken, first := map[int]int{}, map[int]int{}
	for _, p := range s.processes {
		if p.home != nil && !p.ended {
			taken[p.home.ID]++
		}
	}
	for range env.here {
		first[numa.Next(s.homes, first).ID]++
	}
	at := slices.IndexFunc(s.homes, func(n numa.Node) bool { return taken[n.ID] < first[n.ID] })
	n := numa.Next(s.homes, taken)
	if at >= 0 {
		n = s.homes[at]
	}
	return &n, min(env.cores, len(n.CPUs)/max(1, first[n.ID])*env.here)
}

// whereabouts says which of the workers of an order are bound to which memory node; "" = none.
func (s *supervisor) whereabouts(o agent.StartOrder) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts []string
	for _, n := range s.homes {
		who, many := "", "worker"
		for worker := o.First; worker < o.First+o.Count; worker++ {
			if p := s.processes[worker]; p != nil && p.home != nil && p.home.ID == n.ID {
				if who != "" {
					many = "workers"
				}
				who += fmt.Sprintf(" %d", worker)
			}
		}
		if who != "" {
			parts = append(parts, fmt.Sprintf("%s%s on memory node %d", many, who, n.ID))
		}
	}
	return strings.Join(parts, ", ")
}
