package launcher

import "github.com/shoal-ml/shoal/launcher/proc"

// This file has the rules by which the launcher decides, where the job is led, from the ends of the
// workers. Its function is pure.

// ending is the end of one worker process.
type ending struct {
	worker   int
	exit     proc.Exit
	survived bool // the job goes on without the worker
}

// fault is what a worker did wrong.
type fault int

const (
	noFault     fault = iota
	badExit           // the worker ended with a code other than 0, or by a signal
	neverJoined       // the worker ended well, but never joined, and others count on it
	allLost           // the worker was the last one, and the job cannot survive the loss of all
)

// verdict is what the launcher has to do about the workers that have ended so far.
type verdict struct {
	done    bool   // the job is over: all workers have ended, or one has failed
	culprit ending // the end that the fault is about; meaningless without a fault
	fault   fault
}

// judge decides from the endings so far, in their order and after those of the workers in old, out
// of that many started workers. The first fault counts, since later ones may be its effects. A
// failure that the job has survived is no fault. No job survives that all members were lost (lost),
// however the other workers end. To end well without joining is a fault only when another worker
// has joined (awaited); where nobody joins, each process is a job of its own.
// Nothing is decided where nobody has ended beside the old, as on a host without workers that has
// come to lead.
func judge(started int, old forgotten, ended []ending, joined func(worker int) bool,
	awaited, lost bool) verdict {
	well := old.well
	for _, e := range ended {
		switch {
		case e.survived:
		case !e.exit.OK():
			return verdict{done: true, culprit: e, fault: badExit}
		case awaited && !joined(e.worker):
			return verdict{done: true, culprit: e, fault: neverJoined}
		default:
			well++
		}
	}
	over := len(ended) > 0 && old.ended+len(ended) == started
	if over && (well == 0 || lost && awaited) {
		last := ended[len(ended)-1]
		for _, e := range ended {
			if e.survived {
				last = e
			}
		}
		return verdict{done: true, culprit: last, fault: allLost}
	}
	return verdict{done: over}
}
