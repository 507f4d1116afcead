// Package gpu finds the GPUs of this machine. Its functions read files of the kernel, and any
// goroutine may call them.
package gpu

import (
	"path/filepath"
	"strings"
)

// Variable is the variable by which CUDA knows which GPUs a process sees, and in which order.
const Variable = "CUDA_VISIBLE_DEVICES"

// Named returns the GPUs that a value of Variable names: by number, or by an identifier that begins
// with GPU- or MIG-. CUDA ignores what follows any other word, such as -1, or NoDevFiles, by which
// Slurm says that a job has none. It is pure.
func Named(seen string) (names []string) {
	for name := range strings.SplitSeq(seen, ",") {
		name = strings.TrimSpace(name)
		number := name != "" && name[0] >= '0' && name[0] <= '9'
		if !number && !strings.HasPrefix(name, "GPU-") && !strings.HasPrefix(name, "MIG-") {
			break
		}
		names = append(names, name)
	}
	return names
}

// Folders returns the folders of Nvidia's driver, one for each GPU of this machine.
func Folders() []string { return glob("/proc/driver/nvidia/gpus/*") }

// Devices returns the files by which processes reach GPUs of Nvidia, one for each. A container may
// have fewer of them than there are Folders.
func Devices() []string { return glob("/dev/nvidia[0-9]*") }

// AnyAMD reports whether this machine has GPUs of AMD.
func AnyAMD() bool { return len(glob("/dev/kfd")) > 0 }

// glob returns the files that match a pattern.
func glob(pattern string) []string {
	list, _ := filepath.Glob(pattern) // only a pattern can be wrong
	return list
}
