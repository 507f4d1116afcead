// Package gauge reads once a second what the kernel says of the machine of a host, for package
// sense/machine. The clock, the files and the goroutine are here; what the files mean is not.
package gauge

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/internal/cgroup"
	"github.com/shoal-ml/shoal/sense/machine"
)

const (
	// interval is the time from one reading to the next, for each processesEach processes of the
	// job, so that readings cost about as much of a second whatever their number.
	interval      = time.Second
	processesEach = 16
	// maxProcesses is of how many processes the files are read at most, workers first.
	maxProcesses = 256
)

// Gauge reads the files of a machine. One goroutine uses it.
type Gauge struct {
	Root fs.FS // "/" of the machine
	// Workers returns the process numbers of the workers of this host. It may be called on the
	// goroutine of Run at any time.
	Workers func() []int
	// Tell is called with two readings that follow each other, and the seconds between them. It
	// may keep them.
	Tell func(from, to machine.Reading, seconds float64)

	speeds map[string]float64 // of network devices; nil = not read yet
}

// Run reads the files once a second, or more rarely where the job has many processes, until ctx
// ends, and tells what has changed.
func (g *Gauge) Run(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var before machine.Reading
	var at time.Time
	for skip := 0; ; skip-- {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if skip > 0 {
			continue
		}
		now := time.Now()
		f := g.files()
		skip = (len(f.Processes) + processesEach - 1) / processesEach
		r := machine.Parse(f, os.Getpagesize())
		if !at.IsZero() {
			g.Tell(before, r, now.Sub(at).Seconds())
		}
		before, at = r, now
	}
}

// files reads the files of a moment. It blocks as long as the kernel takes to write them.
func (g *Gauge) files() machine.Files {
	f := machine.Files{Stat: g.read("proc/stat"), MemInfo: g.read("proc/meminfo"),
		NetDev: g.read("proc/net/dev"), DiskStats: g.read("proc/diskstats"),
		CPUPressure: g.read("proc/pressure/cpu"), MemoryPressure: g.read("proc/pressure/memory"),
		DiskPressure: g.read("proc/pressure/io"), Speeds: g.readSpeeds()}
	if m, limited := cgroup.Read(g.Root); limited {
		f.Limit, f.Free = m.Limit, m.Free
	}
	workers := g.Workers()
	list := append(slices.Clone(workers), os.Getpid())
	for i := 0; i < len(list) && i < maxProcesses; i++ {
		p := machine.Process{Stat: g.read(fmt.Sprintf("proc/%d/stat", list[i])),
			Worker: i < len(workers)}
		if p.Worker {
			p.Status = g.read(fmt.Sprintf("proc/%d/status", list[i]))
		}
		f.Processes = append(f.Processes, p)
		if i != len(workers) { // those of the agent are workers, or copies of them
			list = append(list, g.children(list[i])...)
		}
	}
	return f
}

// children returns the processes that the first thread of a process has started, such as those that
// load data; nil = none, or the kernel does not tell.
func (g *Gauge) children(process int) (list []int) {
	for _, word := range strings.Fields(string(g.read(fmt.Sprintf("proc/%d/task/%[1]d/children",
		process)))) {
		if n, err := strconv.Atoi(word); err == nil {
			list = append(list, n)
		}
	}
	return list
}

// readSpeeds returns what network devices carry, in bytes a second, as far as they say. It reads
// that once.
func (g *Gauge) readSpeeds() map[string]float64 {
	if g.speeds != nil {
		return g.speeds
	}
	g.speeds = map[string]float64{}
	const folder = "sys/class/net"
	devices, _ := fs.ReadDir(g.Root, folder) // nil without such a folder
	for _, d := range devices {
		text := g.read(path.Join(folder, d.Name(), "speed"))
		mbit, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		if err == nil && mbit > 0 {
			g.speeds[d.Name()] = mbit * 1e6 / 8
		}
	}
	return g.speeds
}

// read reads a file; nil = it is not there, or the kernel refuses to.
func (g *Gauge) read(name string) []byte {
	text, err := fs.ReadFile(g.Root, name)
	if err != nil {
		return nil
	}
	return text
}
