package run

import (
	"cmp"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/gpu"
	"github.com/shoal-ml/shoal/topo"
)

// What the commands find out about the devices of this machine. The functions read files of the
// kernel, and any goroutine may call them.

// DefaultSlots returns the number of GPUs of this machine that this process sees, or of its cores
// if there are none.
func DefaultSlots() int {
	seen, set := os.LookupEnv(gpu.Variable)
	return cmp.Or(visibleGPUs(gpu.Folders(), gpu.Devices(), seen, set), runtime.NumCPU())
}

// visibleGPUs returns how many GPUs CUDA finds on a machine that has these folders of GPUs, and in
// a container that has these device files, where seen is the value of gpu.Variable, if that is set.
// Who sets it is believed where there is no device file: the first program that uses a GPU may make
// them. Where nobody does, there is no GPU: a container has the folders of its machine, whether it
// may use GPUs or not.
func visibleGPUs(folders, devices []string, seen string, set bool) int {
	here := min(len(folders), len(devices))
	if !set || len(folders) == 0 {
		return here
	}
	names := gpu.Named(seen)
	for i, name := range names { // CUDA ignores what follows a number that no GPU has
		if n, err := strconv.Atoi(name); err == nil && len(devices) > 0 && n >= here {
			return i
		}
	}
	return len(names)
}

// kindUsage is the help of the flag --kind.
const kindUsage = "`KIND` of this host, as the on= of a mesh and the kinds of shoal plan name it " +
	"(default: the name of its GPU, or cpu)"

// hostKind returns the kind of this host: the one that --kind has given, or if that is empty the
// name of the first GPU, or else cpu.
func hostKind(given string) (string, error) {
	if given == "" {
		return defaultKind(gpu.Folders()), nil
	}
	if err := topo.CheckKind(given); err != nil {
		return "", cli.Usagef("--kind: %v", err)
	}
	return given, nil
}

// defaultKind returns the name of the first GPU of which there is a folder, with hyphens for
// spaces, or cpu if there is none.
func defaultKind(folders []string) string {
	for _, folder := range folders {
		text, _ := os.ReadFile(filepath.Join(folder, "information"))
		for line := range strings.Lines(string(text)) {
			name, is := strings.CutPrefix(line, "Model:")
			if kind := topo.KindOf(name); is && kind != "" {
				return kind
			}
		}
	}
	return "cpu"
}
