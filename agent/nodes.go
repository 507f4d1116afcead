package agent

import (
	"fmt"

	"github.com/shoal-ml/shoal/internal/numa"
)

// near lists the memory nodes on which a worker's memory is to lie: the one that its process is
// kept on, whoever did that, else all in turns. None: this host has no choice of them.
func (a *Agent) near(pid func() int) (ids []int) {
	if len(a.cfg.Nodes) == 0 {
		return nil
	}
	if id, kept := numa.Home(a.cfg.Nodes, fmt.Sprintf("/proc/%d/status", pid())); kept {
		return []int{id}
	}
	return everywhere(a.cfg.Nodes)
}

// everywhere is where memory lies that all have to do with.
func everywhere(nodes []numa.Node) (ids []int) {
	for _, n := range nodes {
		ids = append(ids, n.ID)
	}
	return ids
}
