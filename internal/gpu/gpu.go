// Package gpu finds the GPUs of this machine. Its functions read files of the kernel, and any
// goroutine may call them.
package gpu

import "path/filepath"

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
