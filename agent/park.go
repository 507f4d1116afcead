package agent

import (
	"strings"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/topo"
)

// A job is parked: its members make a checkpoint at the end of a step, and are ended before their
// loops go on, so that nothing behind the loops runs. The launcher ends them.

// maxProblem bounds what a worker says of a checkpoint that there is not, in bytes.
const maxProblem = 1 << 10

// Park has the members make a checkpoint when their step ends, and then wait for their end, on the
// head; elsewhere it returns head.ErrNotHead. Config.OnPark tells what has come of it, on the hosts
// of the workers. who wants that is what people read. Any goroutine but the engine's thread, for
// which it waits, may call it.
func (a *Agent) Park(who string) error {
	return a.askHead(func() error { return a.driver.head.Park(who) })
}

// reportPark hands the launcher what a worker tells of its checkpoint, on the goroutine of the
// session.
func (a *Agent) reportPark(w topo.WorkerID, r *api.ParkRequest) {
	if a.cfg.OnPark != nil {
		problem := strings.ToValidUTF8(r.Problem[:min(len(r.Problem), maxProblem)], "?")
		a.cfg.OnPark(int(w), r.Step, problem)
	}
}
