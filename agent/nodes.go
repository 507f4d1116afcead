package agent

import (
	"fmt"

	"github.com/shoal-ml/shoal/internal/numa"
)

// The memory nodes (NUMA) of a host, on which the agent places what it gives workers. The functions
// change nothing, so any goroutine may call them.

// memoryNodes lists the memory nodes on which a worker's memory is to lie: the node that its
// process is bound to, by whomever, else all nodes in turns. The list is empty where the host
// has no choice of nodes. pid gives the number of the process. memoryNodes reads /proc, and any
// goroutine may call it.
func (a *Agent) memoryNodes(pid func() int) (ids []int) {
	if len(a.cfg.Nodes) == 0 {
		return nil
	}
	if id, kept := numa.Home(a.cfg.Nodes, fmt.Sprintf("/proc/%d/status", pid())); kept {
		return []int{id}
	}
	return allNodes(a.cfg.Nodes)
}

// allNodes lists the numbers of the nodes, for memory that all workers read; nil for no nodes.
func allNodes(nodes []numa.Node) (ids []int) {
	for _, n := range nodes {
		ids = append(ids, n.ID)
	}
	return ids
}
