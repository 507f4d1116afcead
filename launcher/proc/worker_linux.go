package proc

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// workerAttr gives a worker a process group of its own, and has it killed when the thread that
// starts it ends.
func workerAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit blocks until a child has ended and leaves it a zombie.
func awaitExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// Supported returns why this operating system cannot run jobs; nil = it can.
func Supported() error { return nil }
