package agent

import (
	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/head/meshes"
)

// KnownWorkers counts the workers that the agent knows by what its launcher and they themselves
// have told it, for tests. Any goroutine may call it.
func (a *Agent) KnownWorkers() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.sessions)
}

// CountWaits counts the workers for which others wait in calls of the job, and those of them that
// the agent tells people of when it lasts, for tests. It waits for the engine's thread.
func (a *Agent) CountWaits() (all, told int) {
	_ = a.engine.runAndWait(func() {
		all, told = len(a.driver.head.Waits()), len(a.driver.headWaits())
	})
	return all, told
}

// TellStay has the agent of a host tell the head that workers have kept their way to synchronise.
func (a *Agent) TellStay(s act.Stay) { loopJob{a}.TellHead(s) }

// OnStay has f called, on the engine's thread, with what other hosts tell of their workers. It
// waits for the engine's thread.
func (a *Agent) OnStay(f func(act.Stay)) {
	_ = a.engine.runAndWait(func() { a.engine.stayed = f })
}

// ForgetLayout has the agent plan no reshape any more, for tests, until restore is called. Both
// wait for the engine's thread.
func (a *Agent) ForgetLayout() (restore func()) {
	var known meshes.Planner
	_ = a.engine.runAndWait(func() {
		known, a.driver.planner = a.driver.planner, meshes.Planner{}
	})
	return func() { _ = a.engine.runAndWait(func() { a.driver.planner = known }) }
}
