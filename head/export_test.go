package head

import (
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// KnownWorkers counts the workers of which this agent, which leads, knows anything, for tests, on
// the thread of the Agent.
func (a *Agent) KnownWorkers() int {
	known := map[topo.WorkerID]bool{}
	for w := range a.leader.home {
		known[w] = true
	}
	for w := range a.leader.dead {
		known[w] = true
	}
	for w := range a.leader.asked {
		known[w] = true
	}
	for w := range a.follower.workers {
		known[w] = true
	}
	return len(known)
}

// Groups returns how many groups the workers of this host have, for tests, on the thread of the
// Agent.
func (a *Agent) Groups() (n int) {
	for _, k := range a.follower.groups {
		if k.until == 0 {
			n++
		}
	}
	return n
}

// KnownGroups counts the groups of which this host knows anything, for tests, on the thread of the
// Agent.
func (a *Agent) KnownGroups() int { return len(a.follower.groups) }

// KnownLostLinks counts the lost links of which this agent knows anything, for tests, on the thread
// of the Agent.
func (a *Agent) KnownLostLinks() int {
	n := len(a.down)
	if a.leader != nil {
		n += len(a.leader.linksDown)
	}
	return n
}

// ReportData is ReportPlace for a program that begins anew, for tests, on the thread of the Agent.
func (a *Agent) ReportData(w topo.WorkerID, data cursor.Cursor, levers setting.Levers) {
	a.ReportPlace(w, data, setting.Setting{}, levers)
}
