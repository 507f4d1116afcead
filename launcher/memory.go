package launcher

import (
	"fmt"
	"io/fs"

	"github.com/shoal-ml/shoal/internal/cgroup"
)

// memoryLimitText says by which control group the memory of this host is limited to less than the
// machine has; "" = by none. A person who sees the machine's memory with other tools would
// otherwise not know why a job is refused memory, or killed. root is "/" of this machine, of which
// it reads files. launcher.run calls it once, before workers are started.
func memoryLimitText(root fs.FS) string {
	group, limited := cgroup.ReadLimit(root)
	if total, known := cgroup.MemInfo(root, "MemTotal"); !limited || known && group.Limit >= total {
		return ""
	}
	return fmt.Sprintf("memory on this host is limited to %.1f GiB by control group /%s",
		float64(group.Limit)/(1<<30), group.Group)
}
