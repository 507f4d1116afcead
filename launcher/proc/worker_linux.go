package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// What Worker needs of Linux. The functions keep nothing, so any goroutine may call them; only
// awaitExit blocks.

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

// ignores reports whether a process ignores a signal, by what the kernel says of it; false where it
// says nothing.
func ignores(pid int, sig syscall.Signal) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, line, _ := strings.Cut(string(text), "\nSigIgn:")
	mask, _, _ := strings.Cut(line, "\n")
	bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
	return err == nil && bits>>(sig-1)&1 == 1
}

// Supported returns why this operating system cannot run jobs; nil = it can.
func Supported() error { return nil }
