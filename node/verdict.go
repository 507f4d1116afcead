package node

import "github.com/shoal-ml/shoal/node/proc"

// ending is the end of one worker process.
type ending struct {
	rank int
	exit proc.Exit
}

// fault is what a worker did wrong.
type fault int

const (
	noFault     fault = iota
	badExit           // it ended with a code other than 0, or by a signal
	neverJoined       // it ended well, but others count on it
)

// verdict is what the launcher has to do about the workers that have ended so far.
type verdict struct {
	done    bool // the job is over: all have ended, or one has failed
	culprit ending
	fault   fault
}

// judge decides from the endings so far, in their order: the first fault counts, those after it may be its effects. To
// end well without joining is a fault only when another has joined; where nobody joins, each process is a job of its own.
func judge(size int, ended []ending, joined func(rank int) bool) verdict {
	awaited := anyJoined(size, joined)
	for _, e := range ended {
		switch {
		case !e.exit.OK():
			return verdict{done: true, culprit: e, fault: badExit}
		case awaited && !joined(e.rank):
			return verdict{done: true, culprit: e, fault: neverJoined}
		}
	}
	return verdict{done: len(ended) == size}
}

func anyJoined(size int, joined func(rank int) bool) bool {
	for rank := range size {
		if joined(rank) {
			return true
		}
	}
	return false
}
