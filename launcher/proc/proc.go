// Package proc supervises the worker processes of one run on one host: it starts them, carries
// their output line by line, tells how they ended, and sees to it that nothing of a run outlives
// its launcher.
//
// Three mechanisms share that last duty. The kernel kills a worker whose launcher dies
// (parent-death signal). Every process of a run inherits SHOAL_RUN, so a sweep over /proc finds
// what a worker left behind, also in other sessions. And a guard process waits for the lock of the
// run (Place): it gets the lock when the launcher is gone, however it died, and sweeps.
package proc

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// RunVariable is the environment variable that marks the processes of a run. Its value is a path of
// run ids: a run that is started inside another one is swept with it.
const RunVariable = "SHOAL_RUN"

// Exit says how a process ended.
type Exit struct {
	PID     int
	Code    int            // exit code; meaningless unless Signal is 0
	Signal  syscall.Signal // signal that killed the process; 0 = none did
	Started time.Time
	Ended   time.Time
	// Lost says how the process was lost with its host, when nothing else is known of its end:
	// "was lost with its host b"; "" = the end was seen.
	Lost string
	// Parked says that the process waited for its end, after a checkpoint, and was ended.
	Parked bool
}

// OK reports whether the process ended by itself with exit code 0, or was parked.
func (e Exit) OK() bool { return e.Parked || e.Signal == 0 && e.Code == 0 && e.Lost == "" }

// String continues a sentence: "exited with code 3", "was killed by SIGKILL".
func (e Exit) String() string {
	if e.Parked {
		return "was parked"
	}
	if e.Lost != "" {
		return e.Lost
	}
	if e.Signal == 0 {
		return fmt.Sprintf("exited with code %d", e.Code)
	}
	return "was killed by " + SignalName(e.Signal)
}

// SignalName is the name of a signal, such as "SIGKILL", or "signal 40" for one without a name.
func SignalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}

// needsLinuxError is an error that says what is missing on another operating system, and what works
// there.
func needsLinuxError(system string) error {
	return fmt.Errorf(`running a job needs Linux, and this is %s
  missing  memfd segments and eventfd bells, so workers could not share memory with their agent;
           parent-death signals and /proc, so nothing could keep them from outliving the job
  works    shoal version, checking a job (shoal run --dry-run -f job.yaml), and a training script
           without the launcher: python3 train.py is a job of one
  next     run the job on a Linux machine, or in a Linux container on this one`, system)
}
