package launcher_test

import (
	"context"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/client"
)

// reportNodes is a worker that says which processors it has, and where its memory and that of
// shared results is to lie. It runs in a process of its own, with the job that it has joined, which
// the caller closes; it waits for the other workers.
func reportNodes(ctx context.Context, j *client.Job) error {
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return err
	}
	on := fmt.Sprintf("on %d processors", cpus.Count())
	for cpu := range 1024 {
		if cpus.Count() == 1 && cpus.IsSet(cpu) {
			on = fmt.Sprintf("on processor %d", cpu)
		}
	}
	const huge = 2 << 20
	own, err := client.Empty[uint8](j, 16*huge) // a segment of its own
	if err != nil {
		return err
	}
	where, results := "as it comes", 0
	switch at := []bool{prefersNode0(own), prefersNode0(own[huge:])}; {
	case at[0] && at[1]:
		where = "preferred"
	case at[0] || at[1]:
		where = "in turns"
	}
	if err := client.Barrier(ctx, j); err != nil { // results alone are made now
		return err
	}
	for i := range 4 {
		shared, err := client.Shared[uint8](j, fmt.Sprint(i), 1)
		if err != nil {
			return err
		}
		if prefersNode0(shared) {
			results++
		}
		if err := client.Barrier(ctx, j); err != nil {
			return err
		}
	}
	fmt.Printf("%s, OMP_NUM_THREADS=%s, own memory %s, %d of 4 results\n", on,
		os.Getenv("OMP_NUM_THREADS"), where, results)
	return nil
}

// prefersNode0 reports whether the page with the first byte of mem is to lie on node 0, as the
// kernel says.
func prefersNode0(mem []byte) bool {
	var mode int32
	var nodes [16]uint64
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)),
		uintptr(unsafe.Pointer(&nodes)), 1024, uintptr(unsafe.Pointer(&mem[0])), unix.MPOL_F_ADDR,
		0)
	if errno != 0 {
		fmt.Println("no policies:", errno)
	}
	return mode == unix.MPOL_PREFERRED && nodes[0] == 1
}
