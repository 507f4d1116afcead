package head

// Groups returns how many groups the workers of this host have, for tests, on the thread of the
// Agent.
func (a *Agent) Groups() int { return len(a.follower.groups) }
