package jobs

import "golang.org/x/sys/unix"

// The requests that read and set how a terminal treats keys.
const (
	getTermios = unix.TIOCGETA
	setTermios = unix.TIOCSETA
)
