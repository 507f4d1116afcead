package machine

import (
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/sense/predict"
)

// Note is what a host tells of its machine once a second.
type Note struct {
	Usage  Usage    `json:"usage"`
	Memory []Memory `json:"memory,omitempty"` // at most two: of the machine, and of a device
}

// Memory is how much memory the workers of a host need, and how much they may have.
type Memory struct {
	// Used is how many bytes a worker had at most, and Samples how many samples of a step it then
	// trained on: means over the workers of the host, or those of the device that is fullest.
	Used    float64 `json:"used"`
	Samples float64 `json:"samples"`
	// Room is how many bytes all workers of the host may have together, or the worker of the
	// device.
	Room   float64 `json:"room"`
	Device bool    `json:"device,omitempty"` // it is the memory of a GPU, and not the host's
}

// Valid reports whether a memory that another host has told can be.
func (m Memory) Valid() bool {
	return m.Used > 0 && m.Used < 1e18 && m.Samples > 0 && m.Samples < 1e18 && m.Room > 0 &&
		m.Room < 1e18
}

// Valid reports whether a note of another host can be.
func (n Note) Valid() bool {
	return n.Usage.Valid() && len(n.Memory) <= 2 &&
		!slices.ContainsFunc(n.Memory, func(m Memory) bool { return !m.Valid() })
}

// NewNote returns what a host tells after two readings, which are so many seconds apart. Samples is
// how many samples of a step a worker of the host trains on in the mean, with which it has made
// some steps; 0 = that is not known. Device is the memory of the fullest device; nil = there is
// none.
func NewNote(from, to Reading, seconds, samples float64, device *Memory) Note {
	n := Note{Usage: Between(from, to, seconds)}
	n.Usage.round()
	if to.workers > 0 {
		m := Memory{Used: to.peak / float64(to.workers), Samples: samples,
			Room: min(to.room-to.memory+to.resident, to.room)}
		if m.Valid() {
			n.Memory = append(n.Memory, m)
		}
	}
	if device != nil && device.Valid() {
		n.Memory = append(n.Memory, *device)
	}
	return n
}

const (
	// hold is for how many notes a resource must be predicted to be saturated to count as a
	// bottleneck.
	hold = 5
	// recent is of how many notes the usage of a machine is the mean.
	recent = 10
)

// Host is the machine of a host.
type Host struct {
	Name   string
	Usage  Usage          // mean of the newest notes, up to ten
	Levels predict.Levels // how close its resources are to their limits
	// Bottleneck is the resource that holds up work, by predictions; nil = none does.
	Bottleneck *predict.Bottleneck
	Memory     []Memory // the newest
}

// DescribeBottleneck says what of the machine holds up work, in words, such as "its processors are
// 97 % busy, 40 % of that by others"; "" = nothing does, or it is not known.
func (h Host) DescribeBottleneck() string {
	if h.Bottleneck == nil {
		return ""
	}
	return h.Usage.Describe(h.Bottleneck.Resource)
}

// Watch follows the machines of the hosts of a job. The zero value knows none. One goroutine uses
// it at a time.
type Watch struct{ hosts map[string]*watched }

// watched is what is known of a machine.
type watched struct {
	detector *predict.Detector
	usages   []Usage // the newest last, up to recent
	memory   []Memory
}

// Add adds a note of a host.
func (w *Watch) Add(host string, n Note) {
	if w.hosts == nil {
		w.hosts = map[string]*watched{}
	}
	h := w.hosts[host]
	if h == nil {
		h = &watched{detector: predict.NewDetector(hold, newPredictor)}
		w.hosts[host] = h
	}
	h.detector.Add(n.Usage.resourceUse())
	if len(h.usages) == recent {
		h.usages = slices.Delete(h.usages, 0, 1)
	}
	h.usages = append(h.usages, n.Usage)
	if len(n.Memory) > 0 {
		h.memory = n.Memory
	}
}

// newPredictor returns what predicts how much of a resource is in use.
func newPredictor() predict.Predictor { return &predict.EWMA{} }

// KeepOnly forgets the machines of all hosts but those that take part.
func (w *Watch) KeepOnly(takesPart func(host string) bool) {
	maps.DeleteFunc(w.hosts, func(name string, _ *watched) bool { return !takesPart(name) })
}

// Hosts returns the machines of all hosts, by name, in a new list.
func (w *Watch) Hosts() (list []Host) {
	for _, name := range slices.Sorted(maps.Keys(w.hosts)) {
		h := w.hosts[name]
		x := Host{Name: name, Usage: Mean(h.usages), Levels: h.detector.Levels(),
			Memory: h.memory}
		if b, found := h.detector.Bottleneck(); found {
			x.Bottleneck = &b
		}
		list = append(list, x)
	}
	return list
}
