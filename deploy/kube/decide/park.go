package decide

import (
	"fmt"
	"slices"
)

// Jobs that are to have no pods while they have some.

// lost reports whether the job is gone though pods of it run: all that do wait for one to join.
func (v View) lost() bool {
	first := find(v.Pods, v.State.Run, 0)
	return v.Live.Waiting && (first == nil || first.Ended)
}

// stands reports whether a job waits to be parked in vain, since no step of it ends: it is stuck,
// or it is paused, and nobody has asked for that, or its state lies on a mesh, whose step does not
// end without others.
func (v View) stands() bool {
	return v.Live.Answers && !v.Live.Parked && (v.Live.Stuck ||
		v.Live.Paused && (v.Live.ParkedBy == "" || v.Live.Mesh))
}

// park has the job parked. Pods of a job that has not begun, or is gone, have nothing to save.
func (d *Decision) park(v View) {
	d.State.Phase = Parking
	if v.State.Phase != Parking {
		text := "the job makes a checkpoint at the end of its step"
		if v.Live.Silent {
			text = "the job is asked for a checkpoint when one of its pods answers the operator"
		}
		d.say("Parking", "%s: %s", v.why(), text)
	} else if v.Live.ParkError != "" && d.State.ParkAgain == 0 {
		d.Events = append(d.Events, d.State.ParkFailed(v.Live.ParkError, v.Now))
	}
	running := slices.ContainsFunc(v.Pods, func(p Pod) bool {
		return p.Run == v.State.Run && p.Running && !p.Ended
	})
	ask := v.Live.Answers && v.Live.ParkedBy == "" && !v.Live.Parked && v.Now >= d.State.ParkAgain
	switch {
	case countLive(v.Pods) == 0:
		d.setParked(v)
	case !running || v.lost() || v.Live.Answers && v.Live.Early:
		d.deleteAll(v.Pods, false)
	case v.stands() && !v.Limited && !v.Live.Stuck:
		d.keepSize(v) // on a mesh it is parked when it has the pod that it lacks
		d.State.Phase, d.Park = Parking, ask && !v.Live.Mesh
	case v.stands() && (v.Live.Stuck || v.Live.Mesh || v.Live.ParkError == "") && d.outlasts(v):
		d.deleteAll(v.Pods, false)
		if len(d.Delete) > 0 {
			how := "paused"
			if v.Live.Stuck {
				how = "stuck"
			}
			d.warn("StepsLost", "the job has been %s for %d s and cannot be parked, since no "+
				"step ends, and it may have no pods: they are deleted, and the steps since its "+
				"newest checkpoint are lost; %s", how, v.Grace, v.why())
		}
	default:
		d.Park = ask && !v.Live.Stuck && !(v.Live.Paused && v.Live.Mesh)
	}
	if d.Park {
		d.State.ParkAgain = 0
	}
}

// ParkRefused is the reason of the event that says why a job could not be parked.
const ParkRefused = "ParkRefused"

// boundParkAgain has a job that is to be parked be asked again in time, though the clock was put
// back. It forgets the failures of any other.
func (s *State) boundParkAgain(now int64) {
	if s.ParkAgain = min(s.ParkAgain, now+longestDelay); s.Phase != Parking {
		s.ParkFailures, s.ParkAgain = 0, 0
	}
}

// ParkFailed notes that a job could not be parked when it was asked, and returns what people should
// know of that: a checkpoint that fails costs the job a pause, so it is asked again ever later.
func (s *State) ParkFailed(why string, now int64) Event {
	pause := growing(s.ParkFailures)
	s.ParkFailures, s.ParkAgain = s.ParkFailures+1, now+pause
	return Event{ParkRefused, fmt.Sprintf("the job trains on, since it could not be parked, and "+
		"is asked again in %d s: %s", pause, why), true}
}

// outlasts notes since when a job stands, and reports whether it has for as long as its pods get to
// leave.
func (d *Decision) outlasts(v View) bool {
	since := min(v.State.PausedSince, v.Now)
	if v.State.PausedSince == 0 {
		since = v.Now
		switch {
		case v.Live.Stuck:
			d.say("Stuck", "too few pods of the job are left to be sure that no others go on, so "+
				"that no step ends after which it can be parked: unless the others can be "+
				"reached in %d s, its pods are deleted, and the steps since its newest "+
				"checkpoint are lost", v.Grace)
		case v.Live.Mesh: // another one that is paused is parked as it is
			d.say("Paused", "the job is paused, so that no step ends after which it can be "+
				"parked: unless it gets the workers that it lacks in %d s, its pods are deleted, "+
				"and the steps since its newest checkpoint are lost", v.Grace)
		}
	}
	d.State.PausedSince = since
	return v.Now-since >= v.Grace
}

// setParked makes a job parked that has no pods any more, none of which has said that it is.
func (d *Decision) setParked(v View) {
	d.State.Phase, d.State.Members = Parked, nil
	lost := ""
	if v.State.Trained {
		lost = "; the steps since that are lost"
	}
	d.say("Parked", "the job has no pods any more; it goes on from its newest checkpoint when %s%s",
		v.until(), lost)
}
