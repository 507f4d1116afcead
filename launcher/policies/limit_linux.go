package policies

import "golang.org/x/sys/unix"

// limitMemory bounds the memory of a process, in which a policy runs, by maxMemory; Start calls it
// once the process runs. Where that cannot be done, the process runs all the same.
func limitMemory(pid int) {
	limit := unix.Rlimit{Cur: maxMemory, Max: maxMemory}
	_ = unix.Prlimit(pid, unix.RLIMIT_DATA, &limit, nil)
}
