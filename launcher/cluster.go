package launcher

import (
	"cmp"
	"net/http"
	"os"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/internal/cgroup"
)

// What a planner must know of the hosts of a running job and of the links between them.
// answerCluster calls the other functions of this file, on the goroutine of its request; they
// change nothing but what they return.

// cpuKind is the kind of a host that has not said which it is.
const cpuKind = "cpu"

const (
	// insideLatency and insideRate are of a link between workers of one host, about as measured on
	// small machines (docs/design/benchmarks-one-host.md). Nothing measures them in a job.
	insideLatency, insideRate = 50e-6, 4e9
	// unknownMemory is how many bytes a host has if nothing says how many.
	unknownMemory = 8 << 30
)

// answerCluster answers with what a planner must know of the hosts, where the job is led. It is an
// HTTP handler of the control socket, and waits for the engine's thread.
func (l *launcher) answerCluster(w http.ResponseWriter, r *http.Request) {
	if _, ok := l.awaitLed(w, r); !ok {
		return
	}
	m, err := l.agent.Machines()
	if err != nil {
		sendError(w, http.StatusServiceUnavailable, err)
		return
	}
	sendJSON(w, describeCluster(m, hostMemory()))
}

// hostMemory returns how many bytes of memory this host has, as far as its control groups allow. It
// reads files of the kernel.
func hostMemory() int64 {
	root := os.DirFS("/")
	bytes, known := cgroup.MemInfo(root, "MemTotal")
	if group, limited := cgroup.ReadLimit(root); limited && (!known || group.Limit < bytes) {
		bytes, known = group.Limit, true
	}
	if !known || bytes <= 0 {
		return unknownMemory
	}
	return bytes
}

// describeCluster returns the hosts of a job and the links between them in the form in which
// planners take them. A host of which nobody has told how much memory its workers may have counts
// as one with so many bytes of it.
func describeCluster(m agent.Machines, memory int64) *cluster.Cluster {
	c := &cluster.Cluster{Shoal: cluster.Version}
	for _, h := range m.Hosts {
		kind := cmp.Or(h.Kind, cpuKind)
		c.Hosts = append(c.Hosts, cluster.Host{Name: h.Name, Kind: kind, Places: h.Places})
		bytes := int64(h.Memory)
		if bytes <= 0 {
			bytes = max(memory/int64(h.Places), 1)
		}
		if i := slices.IndexFunc(c.Kinds, func(k cluster.Kind) bool {
			return k.Name == kind
		}); i < 0 {
			c.Kinds = append(c.Kinds, cluster.Kind{Name: kind, Memory: bytes})
		} else {
			c.Kinds[i].Memory = min(c.Kinds[i].Memory, bytes)
		}
	}
	names := hostNames(c)
	for i, h := range c.Hosts {
		c.Hosts[i].Name = names[h.Name]
	}
	assumed := false
	c.Links = []cluster.Link{{Inside: true, Measured: &assumed,
		Curve: cluster.Curve{Latency: insideLatency, Rate: insideRate}}}
	for _, l := range append(m.Links, m.Others) {
		link := cluster.Link{Measured: &l.Measured,
			Curve: cluster.Curve{Latency: roundToThreeDigits(l.Latency),
				Rate: roundToThreeDigits(l.Rate)}}
		link.Shared = &link.Curve // what was measured is of the whole cable of a host
		if l.From != "" {
			link.Between = []string{names[l.From], names[l.To]}
		}
		c.Links = append(c.Links, link)
	}
	return c
}

// hostNames returns how hosts are called in a cluster, by their names. A host that has the name of
// a kind gets another one there, since a link between such names could mean either.
func hostNames(c *cluster.Cluster) map[string]string {
	names, taken := map[string]string{}, map[string]bool{}
	for _, k := range c.Kinds {
		taken[k.Name] = true
	}
	for _, h := range c.Hosts {
		names[h.Name] = h.Name
	}
	for _, h := range c.Hosts {
		name := h.Name
		for taken[name] || name != h.Name && names[name] != "" {
			name = "host-" + name
		}
		names[h.Name], taken[name] = name, true
	}
	return names
}

// roundToThreeDigits returns a number with three digits, which is more than measurements have.
func roundToThreeDigits(x float64) float64 {
	y, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 3, 64), 64)
	return y
}
