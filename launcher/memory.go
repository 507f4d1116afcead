package launcher

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/cgroup"
)

// memoryLimit says by which control group the memory of this host is limited to less than the
// machine has; "" = by none. A person who sees the machine's memory with other tools would
// otherwise not know why a job is refused memory, or killed. root is "/" of this machine.
func memoryLimit(root fs.FS) string {
	group, limited := cgroup.Read(root)
	if total, known := machineMemory(root); !limited || known && group.Limit >= total {
		return ""
	}
	return fmt.Sprintf("memory on this host is limited to %.1f GiB by control group /%s",
		float64(group.Limit)/(1<<30), group.Group)
}

// machineMemory is how many bytes of memory the machine has.
func machineMemory(root fs.FS) (n int64, known bool) {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if rest, is := strings.CutPrefix(line, "MemTotal:"); is {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(
				strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err == nil
		}
	}
	return 0, false
}
