package arena

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxStripes bounds how many policies a file has: each is a mapping of its own while they are set,
// and the kernel gives a process 65530.
const maxStripes = 1024

// This file says on which memory node of a host the pages of shared memory lie. Any goroutine may
// call its functions for memory of its own; they make system calls.

// stripedFiles counts the files that lie on several nodes. It decides on which node each begins, so
// that not all small files lie on the first.
var stripedFiles atomic.Uint32

// placePages says on which memory nodes the pages of a file of n bytes are to lie that are made
// from now on: on one, or on several in turns, huge page by huge page. The kernel's own turns
// (MPOL_INTERLEAVE) go by small pages: of two nodes, the first page of every huge one, which is the
// one that counts when it is collapsed, would lie on the same. It is a hint. A node that is full,
// and a kernel that refuses (a container's often does), leave pages where they come to lie. No
// nodes: not one system call.
func placePages(fd int, n int64, nodes []int) {
	if len(nodes) == 0 {
		return
	}
	mem, err := mapFile(fd, n, 0) // the policies stay with the file when this mapping is gone
	if err != nil {
		return
	}
	defer unmap(mem)
	stripe, turn := len(mem), 0
	if len(nodes) > 1 {
		stripe, turn = (len(mem)/maxStripes+hugeBytes)/hugeBytes*hugeBytes, int(stripedFiles.Add(1))
	}
	for i := 0; i*stripe < len(mem); i++ {
		_ = preferNode(mem[i*stripe:min((i+1)*stripe, len(mem))], nodes[(turn+i)%len(nodes)])
	}
}

// preferNode has the pages of mapped memory come from a node, as long as the node has free ones
// (mbind(2)).
func preferNode(mem []byte, node int) error {
	const bits = 1024 // more nodes than any kernel has
	var mask [bits / 64]uint64
	if node < 0 || node >= bits {
		return unix.EINVAL
	}
	mask[node/64] = 1 << (node % 64)
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(mem))),
		uintptr(len(mem)), unix.MPOL_PREFERRED,
		uintptr(unsafe.Pointer(&mask)), bits+1, 0) // the kernel takes one bit less than it is told
	if errno != 0 {
		return errno
	}
	return nil
}
