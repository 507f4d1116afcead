// Package machine says how busy the machine of a host is, and how much of its memory the workers of
// a job use. Parse reads what the kernel writes into /proc, which comes in as bytes, and Between
// turns two readings into rates. A Watch, on the host that leads, follows the machines of all hosts
// and names what holds them up. It is pure, as package sense is.
package machine

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Files are the contents of files of the kernel at a moment, as proc(5) describes them.
// A file that is missing is nil: what it tells is then not known.
type Files struct {
	Stat, MemInfo, NetDev, DiskStats          []byte
	CPUPressure, MemoryPressure, DiskPressure []byte
	Processes                                 []Process
	// Speeds is what the network devices carry in each direction, in bytes a second, by name, as
	// far as they say.
	Speeds map[string]float64
	// Limit and Free are bytes: what the control groups allow this process and those beside it, and
	// how much of it is left; a Limit of 0 = they allow all that the machine has.
	Limit, Free int64
}

// Process is a process of the job on the host.
type Process struct {
	Stat   []byte // /proc/PID/stat
	Status []byte // /proc/PID/status; only of workers
	Worker bool   // it is a worker, and not a child of one or the agent
}

// Reading is what Parse finds: counters since the machine has started, and how much of the memory
// is in use. What is not known is below 0, or missing in a list. It is not altered.
type Reading struct {
	processors   int     // 0 = not known
	busy, all    float64 // seconds of all processors
	stolen       float64 // of busy, those that other virtual machines had
	pressure     [Pressures]float64
	memory, room float64 // bytes in use of those that can be, and these
	devices      []device
	disks        []disk
	processes    []process
	nets, stores bool    // the files of devices and disks are there
	resident     float64 // bytes of all workers now
	peak         float64 // bytes of all workers, of each when it had most
	workers      int     // of whom these are
}

// Pressures is the number of resources whose pressure the kernel measures: the part of the time in
// which some work waits for processors, for memory, or for disks.
const Pressures = 3

// device is a network device: its bytes, and how many it carries a second; 0 = not known.
type device struct {
	name                  string
	received, sent, speed float64
}

// disk is a disk: its bytes, and the seconds in which it had something to do.
type disk struct {
	name                string
	read, written, busy float64
}

// process is a process by its number and its start, and how many seconds of processors it has used.
type process struct {
	name    string
	seconds float64
}

// ticksPerSecond is in which part of a second the kernel counts times of processors. It is the same
// on all that Linux runs on (USER_HZ).
const ticksPerSecond = 100

// Parse reads the files of a moment. page is the size of a page of memory in bytes. What it does
// not understand is not known.
func Parse(f Files, page int) Reading {
	r := Reading{busy: -1, memory: -1, room: -1}
	r.parseStat(f.Stat)
	r.parseMemory(f.MemInfo, f.Limit, f.Free)
	for i, file := range [...][]byte{f.CPUPressure, f.MemoryPressure, f.DiskPressure} {
		r.pressure[i] = parsePressure(file)
	}
	r.parseDevices(f.NetDev, f.Speeds)
	r.parseDisks(f.DiskStats)
	for _, p := range f.Processes {
		r.parseProcess(p, page)
	}
	return r
}

// parseStat reads /proc/stat: lines of "cpu user nice system idle iowait irq softirq steal …", of
// all processors and then of each.
func (r *Reading) parseStat(file []byte) {
	for line := range strings.Lines(string(file)) {
		name, rest, _ := strings.Cut(line, " ")
		switch {
		case name == "cpu":
			list := numbers(strings.Fields(rest))
			if len(list) < 4 {
				return
			}
			list = append(list, 0, 0, 0, 0)[:8]
			idle := list[3] + list[4]
			r.all = 0
			for _, x := range list {
				r.all += x / ticksPerSecond
			}
			r.busy, r.stolen = r.all-idle/ticksPerSecond, list[7]/ticksPerSecond
		case strings.HasPrefix(name, "cpu"):
			r.processors++
		default:
			return
		}
	}
}

// parseMemory reads /proc/meminfo, with what control groups leave: limit and free are Files.Limit
// and Files.Free.
func (r *Reading) parseMemory(file []byte, limit, free int64) {
	total, available := -1., -1.
	for line := range strings.Lines(string(file)) {
		name, rest, _ := strings.Cut(line, ":")
		if list := strings.Fields(rest); len(list) > 0 && name == "MemTotal" {
			total = number(list[0]) * 1024
		} else if len(list) > 0 && name == "MemAvailable" {
			available = number(list[0]) * 1024
		}
	}
	if total > 0 && available >= 0 {
		r.room, r.memory = total, max(0, total-available)
	}
	if of, left := float64(limit), float64(free); limit > 0 && (r.room < 0 || left < available) {
		r.room, r.memory = of, min(max(0, of-left), of)
	}
}

// parsePressure reads a file of /proc/pressure, whose first line is "some avg10=… total=…" with
// microseconds, and returns these in seconds; below 0 = it is missing.
func parsePressure(file []byte) float64 {
	for line := range strings.Lines(string(file)) {
		if rest, is := strings.CutPrefix(line, "some "); is {
			if _, total, is := strings.Cut(rest, "total="); is {
				return number(strings.TrimSpace(total)) / 1e6
			}
		}
	}
	return -1
}

// parseDevices reads /proc/net/dev, without the device for traffic within the host.
func (r *Reading) parseDevices(file []byte, speeds map[string]float64) {
	r.nets = file != nil
	for line := range strings.Lines(string(file)) {
		name, rest, is := strings.Cut(line, ":")
		list := numbers(strings.Fields(rest))
		if name = strings.TrimSpace(name); is && len(list) >= 9 && name != "lo" {
			r.devices = append(r.devices, device{name, list[0], list[8], max(0, speeds[name])})
		}
	}
}

// parseDisks reads /proc/diskstats, without parts of disks, and devices that lie on others or in
// memory.
func (r *Reading) parseDisks(file []byte) {
	r.stores = file != nil
	var before string // the disk above
	for line := range strings.Lines(string(file)) {
		list := strings.Fields(line)
		if len(list) < 13 {
			continue
		}
		name := list[2]
		if part, is := strings.CutPrefix(name, before); is && before != "" &&
			strings.Trim(part, "0123456789") != part {
			continue
		}
		virtual := false
		for _, kind := range [...]string{"loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd"} {
			virtual = virtual || strings.HasPrefix(name, kind)
		}
		x := numbers(list[3:13])
		if virtual || len(x) < 10 {
			continue
		}
		before = name
		const sector = 512 // bytes, whatever the disk has
		r.disks = append(r.disks, disk{name, x[2] * sector, x[6] * sector, x[9] / 1e3})
	}
}

// parseProcess reads /proc/PID/stat. The name of the program stands in parentheses, and can have
// any characters.
func (r *Reading) parseProcess(p Process, page int) {
	at := bytes.LastIndexByte(p.Stat, ')')
	if at < 0 {
		return
	}
	id, _, _ := strings.Cut(string(p.Stat), " ")
	list := strings.Fields(string(p.Stat[at+1:]))
	if len(list) < 22 {
		return
	}
	user, system, pages := number(list[11]), number(list[12]), number(list[21])
	if user < 0 || system < 0 {
		return
	}
	r.processes = append(r.processes, process{id + " " + list[19],
		(user + system) / ticksPerSecond})
	if p.Worker && pages >= 0 {
		now := float64(pages * float64(page))
		r.workers++
		r.resident += now
		r.peak += max(now, parsePeak(p.Status))
	}
}

// parsePeak reads of /proc/PID/status how many bytes of memory the process had at most; below 0 =
// the kernel does not tell.
func parsePeak(file []byte) float64 {
	for line := range strings.Lines(string(file)) {
		if rest, is := strings.CutPrefix(line, "VmHWM:"); is {
			if list := strings.Fields(rest); len(list) > 0 {
				return number(list[0]) * 1024
			}
		}
	}
	return -1
}

// find returns the element of a list with a name; false = there is none.
func find[T any](list []T, name func(T) string, want string) (x T, found bool) {
	i := slices.IndexFunc(list, func(x T) bool { return name(x) == want })
	if i < 0 {
		return x, false
	}
	return list[i], true
}

// numbers returns the numbers that a list begins with.
func numbers(words []string) (list []float64) {
	for _, w := range words {
		x := number(w)
		if x < 0 {
			return list
		}
		list = append(list, x)
	}
	return list
}

// number returns a whole number that is not negative; -1 = the text has none.
func number(text string) float64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > math.MaxInt64 {
		return -1
	}
	return float64(n)
}
