package launcher

import "github.com/shoal-ml/shoal/launcher/proc"

// ending is the end of one worker process.
type ending struct {
	worker   int
	exit     proc.Exit
	survived bool // the job goes on without it
}

// fault is what a worker did wrong.
type fault int

const (
	noFault     fault = iota
	badExit           // it ended with a code other than 0, or by a signal
	neverJoined       // it ended well, but others count on it
	allLost           // it was the last of those that the job could have gone on without
)

// verdict is what the launcher has to do about the workers that have ended so far.
type verdict struct {
	done    bool // the job is over: all have ended, or one has failed
	culprit ending
	fault   fault
}

// judge decides from the endings so far, in their order: the first fault counts, those after it may
// be its effects. A failure that the job has survived is none; that all members were lost, nothing
// survives, however those end that were none any more. To end well without joining is a fault only
// when another has joined (awaited); where nobody joins, each process is a job of its own.
func judge(started int, ended []ending, joined func(worker int) bool, awaited, lost bool) verdict {
	well := 0
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
	if len(ended) == started && (well == 0 || lost && awaited) {
		last := ended[len(ended)-1]
		for _, e := range ended {
			if e.survived {
				last = e
			}
		}
		return verdict{done: true, culprit: last, fault: allLost}
	}
	return verdict{done: len(ended) == started}
}
