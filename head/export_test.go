package head

// Groups is how many groups the workers of this host have.
func (a *Agent) Groups() int { return len(a.follower.groups) }
