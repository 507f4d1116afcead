package decide

// Jobs whose spec has become wrong while they run. What they have goes on, and is taken in as ever.

// freeze takes back the pods that are to be made of a job whose spec is wrong. One that has no pods
// any more is parked until that is right.
func (d Decision) freeze(v View) Decision {
	if !v.Frozen {
		return d
	}
	d.Create = nil
	switch d.State.Phase {
	case Starting, Running, Parking:
		if countLive(v.Pods) == 0 {
			d.setParked(v)
		}
	}
	return d
}

// freeze gives back of the claims of a job whose spec is wrong what the queue takes, and keeps the
// others.
func (d *QueueDecision) freeze(v QueueView, usable int) {
	for _, c := range v.Claims {
		if c.leaves() {
			d.leave(v, c, usable)
		}
	}
}
