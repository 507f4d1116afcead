package decide

import "slices"

// Jobs that are to have no pods while they have some.

// lost reports whether the job is gone though pods of it run: all that do wait for one to join.
func (v View) lost() bool {
	first := find(v.Pods, v.State.Run, 0)
	return v.Live.Waiting && (first == nil || first.Ended)
}

// park has the job parked. Pods of a job that has not begun, or is gone, have nothing to save.
func (d *Decision) park(v View) {
	d.State.Phase = Parking
	if v.State.Phase != Parking {
		d.say("Parking", "%s: the job makes a checkpoint at the end of its step", v.why())
	}
	running := slices.ContainsFunc(v.Pods, func(p Pod) bool {
		return p.Run == v.State.Run && p.Running && !p.Ended
	})
	switch {
	case countLive(v.Pods) == 0:
		d.State.Phase, d.State.Members = Parked, nil
		d.say("Parked", "the job has no pods any more; it goes on from its newest checkpoint when "+
			"%s", v.until())
	case !running || v.lost() || v.Live.Answers && v.Live.Early:
		d.deleteAll(v.Pods, false)
	case v.Live.Answers && v.Live.Paused && v.Because == "": // it ends no step without others
		d.keepSize(v)
		d.State.Phase = Parking
	case v.Live.Answers && v.Live.ParkedBy == "" && !v.Live.Parked:
		d.Park = true
	}
}
