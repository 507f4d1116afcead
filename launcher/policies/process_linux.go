package policies

import "golang.org/x/sys/unix"

// limitMemory bounds the memory of a process, in which a policy runs, by maxMemory; Start calls it
// once the process runs. Where that cannot be done, the process runs all the same.
func limitMemory(pid int) {
	limit := unix.Rlimit{Cur: maxMemory, Max: maxMemory}
	_ = unix.Prlimit(pid, unix.RLIMIT_DATA, &limit, nil)
}

// HasEnded reports whether a program that this process has started, and not waited for, has ended.
// It does not wait for it either: the number stays that of the program.
func HasEnded(pid int) bool {
	var end unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &end, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err == nil && end.Signo != 0 // 0 = it runs
		}
	}
}
