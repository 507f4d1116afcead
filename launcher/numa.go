package launcher

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/internal/gpu"
	"github.com/shoal-ml/shoal/internal/numa"
)

// findNodes sets the memory nodes of this host, which it reads from the system unless a test has
// made some up: nil = it has not. Workers are bound to them unless there are GPUs: a worker itself
// decides which GPU it takes, and so which node it should be near. newSupervisor calls it, before
// others know s. No lock is needed then.
func (s *supervisor) findNodes(nodes []numa.Node) {
	s.nodes, s.homes = nodes, nodes
	if nodes != nil {
		return // a test made them up
	}
	s.nodes = numa.Read(numa.System, numa.Self)
	if len(gpu.Folders()) == 0 && !gpu.AnyAMD() {
		s.homes = s.nodes
	}
}

// chooseNode chooses the memory node that the next worker is bound to. Neighbours in rank share a
// node, and nodes get workers in proportion to their processors. nil = the worker may run anywhere:
// there are fewer workers than nodes, or the program is numactl, which binds it and refuses
// processors that it may not use itself. cores is how many cores the workers of this host are to
// share, as if all nodes were like this one. s.mu is held.
func (s *supervisor) chooseNode(env environment) (home *numa.Node, cores int) {
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

// bindingsText says in words which workers of an order are bound to which memory node; "" = none
// is. It locks s.mu, and any goroutine may call it.
func (s *supervisor) bindingsText(o agent.StartOrder) string {
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
