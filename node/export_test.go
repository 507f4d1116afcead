package node

// StartFar has another host start a worker, as the launcher does.
func (a *Agent) StartFar(seat int, host string, late bool) { a.startFar(seat, host, late) }

// IgnoreJob is an Errands.Job that does nothing.
func IgnoreJob(jobNote) {}
