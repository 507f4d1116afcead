package agent

// KnownWorkers counts the workers that the agent knows by what its launcher and they themselves
// have told it, for tests. Any goroutine may call it.
func (a *Agent) KnownWorkers() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.sessions)
}
