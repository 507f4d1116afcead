package machine_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/shoal-ml/shoal/sense/machine"
	"github.com/shoal-ml/shoal/sense/predict"
)

// Files of a machine with two processors, as its kernel (6.18) writes them. The numbers that %d
// stands for are those that grow.
const (
	statFile = "cpu  %d 2438044 1641461 %d 16400 0 47406 %d 0 0\n" +
		"cpu0 2800823 1205688 798590 1329089 5079 0 20573 7696 0 0\n" +
		"cpu1 2906700 1232356 842870 1141607 11321 0 26833 7945 0 0\nintr 1884 0 9\nctxt 4\n"
	memoryFile = "MemTotal:       24684092 kB\nMemFree:        16520016 kB\n" +
		"MemAvailable:   12342046 kB\nBuffers:          200696 kB\n"
	pressureFile = "some avg10=16.53 avg60=18.32 avg300=18.92 total=%d\n" +
		"full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
	deviceFile = "Inter-|   Receive                                                |  Transmit\n" +
		" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs " +
		"drop fifo colls carrier compressed\n" +
		"    lo: 372319289307 39678458    0    0    0     0          0         0 372319289307 " +
		"39678458    0    0    0     0       0          0\n" +
		"  eth0: %d 1056119    0    0    0     0          0         0 %d  735838    0    0    0 " +
		"    0       0          0\n"
	diskFile = "   7       0 loop0 0 0 0 0 0 0 0 0 0 %d 0 0 0 0 0 0 0\n" +
		" 254       0 vda 3224392 197460 %d 8864803 2700650 2646011 %d 4701386 0 %d 14081977 " +
		"2303936 256 570502160 355490 403737 160297\n" +
		" 254       1 vda1 3224392 197460 %[2]d 8864803 2700650 2646011 %[3]d 4701386 0 %[4]d " +
		"14081977\n"
	processFile = "%d (my (prog) x) R 10497 10497 3859 0 -1 4194304 100 0 0 0 %d %d 0 0 20 0 1 0 " +
		"6188109 3133440 %d 18446744073709551615 1 1 0 0 0\n"
)

// moment returns the files of a machine at a moment n.
func moment(n int) machine.Files {
	f := func(format string, list ...any) []byte { return fmt.Appendf(nil, format, list...) }
	return machine.Files{
		Stat:         f(statFile, 5707524+n*150, 2470697+n*40, 15641+n*10),
		MemInfo:      []byte(memoryFile),
		CPUPressure:  f(pressureFile, 41300119711+n*250000),
		DiskPressure: f(pressureFile, n*100000),
		NetDev:       f(deviceFile, 54575527692+n*1000000, 51098194+n*2500000),
		DiskStats:    f(diskFile, 7*n, 84972658+n*2000, 540846976+n*4000, 1001324+n*875),
		Speeds:       map[string]float64{"eth0": 1e7},
		Processes: []machine.Process{
			{Stat: f(processFile, 17, 100+n*60, 30+n*20, 1<<18), Worker: true,
				Status: f("Name:\tx\nVmHWM:\t 2097152 kB\nVmRSS:\t 1048576 kB\n")},
			{Stat: f(processFile, 18, 5+n*10, 7, 1000)},
		},
	}
}

// Two readings of a machine become rates, and what workers need of its memory.
func TestUsage(t *testing.T) {
	before, now := machine.Parse(moment(0), 4096), machine.Parse(moment(1), 4096)
	want := machine.Usage{CPU: 0.8, Own: 0.45, Steal: 0.05, Memory: 0.5, Disk: 0.875, NIC: 0.25,
		Pressure: [machine.Pressures]float64{0.25, -1, 0.1}, Received: 1e6, Sent: 2.5e6,
		Read: 2000 * 512, Written: 4000 * 512}
	near := cmpopts.EquateApprox(0, 1e-9)
	if diff := cmp.Diff(want, machine.Between(before, now, 1), near); diff != "" {
		t.Errorf("in a second (-want +got):\n%s", diff)
	}
	n := machine.NewNote(before, now, 1, 32, &machine.Memory{Used: 3, Samples: 1, Room: 4,
		Device: true})
	available := 12342046. * 1024
	if diff := cmp.Diff([]machine.Memory{{Used: 2 << 30, Samples: 32, Room: available + 1<<30},
		{Used: 3, Samples: 1, Room: 4, Device: true}}, n.Memory, near); diff != "" {
		t.Errorf("memory (-want +got):\n%s", diff)
	}
	if !n.Valid() {
		t.Errorf("%+v is refused", n)
	}
	limited := moment(1) // by a control group, which has half a GiB left
	limited.Limit, limited.Free = 4<<30, 1<<29
	n = machine.NewNote(before, machine.Parse(limited, 4096), 1, 32, nil)
	if n.Usage.Memory != 0.875 || n.Memory[0].Room != 1<<29+1<<30 {
		t.Errorf("in a control group: %+v", n)
	}
}

// What the kernel does not tell is not known, and no number of it is made up.
func TestMissingFiles(t *testing.T) {
	nothing := machine.Parse(machine.Files{}, 4096)
	for _, x := range []struct{ from, to machine.Reading }{{nothing, nothing},
		{machine.Parse(moment(0), 4096), nothing}} {
		if got := machine.Between(x.from, x.to, 1); got != machine.Unknown() {
			t.Errorf("of nothing: %+v", got)
		}
	}
	now := machine.Parse(moment(1), 4096)
	for _, seconds := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if got := machine.Between(now, now, seconds); got != machine.Unknown() {
			t.Errorf("in %v seconds: %+v", seconds, got)
		}
	}
	if n := machine.NewNote(nothing, nothing, 1, 8, nil); len(n.Memory) > 0 || !n.Valid() {
		t.Errorf("of nothing: %+v", n)
	}
	f := moment(1)
	f.Speeds, f.Processes = nil, nil
	got := machine.Between(machine.Parse(moment(0), 4096), machine.Parse(f, 4096), 1)
	if got.NIC != -1 || got.Own != -1 || got.CPU < 0 {
		t.Errorf("without speeds and processes: %+v", got)
	}
}

// Any content of the files gives a usage that can be, and the same each time.
func FuzzParse(f *testing.F) {
	files := moment(1)
	f.Add(files.Stat, files.MemInfo, files.NetDev, files.DiskStats, files.CPUPressure,
		files.Processes[0].Stat, files.Processes[0].Status)
	f.Add([]byte("cpu  1 2\n"), []byte("MemTotal: -5 kB"), []byte("eth0: 1"),
		[]byte("1 2 vda 3"), []byte("some total=x"), []byte("1 () 2"), []byte("VmHWM:"))
	jump := fmt.Appendf(nil, diskFile, 0, 84972658, uint64(1)<<60, 0)
	f.Add(files.Stat, files.MemInfo, files.NetDev, jump, files.CPUPressure,
		files.Processes[0].Stat, files.Processes[0].Status)
	huge := []byte("17 (x) R" + strings.Repeat(" 1", 20) + " 1844674407370955161 1 1")
	f.Add(files.Stat, files.MemInfo, files.NetDev, files.DiskStats, files.CPUPressure, huge,
		files.Processes[0].Status)
	f.Fuzz(func(t *testing.T, stat, memory, nets, disks, pressure, process, status []byte) {
		files := machine.Files{Stat: stat, MemInfo: memory, NetDev: nets, DiskStats: disks,
			CPUPressure: pressure, MemoryPressure: pressure, DiskPressure: pressure,
			Processes: []machine.Process{{Stat: process, Status: status, Worker: true}}}
		r := machine.Parse(files, 4096)
		for _, from := range []machine.Reading{machine.Parse(moment(0), 4096), r} {
			n := machine.NewNote(from, r, 1, 8, nil)
			if !n.Valid() {
				t.Fatalf("%+v", n)
			}
			if again := machine.NewNote(from, r, 1, 8, nil); !cmp.Equal(n, again) {
				t.Fatalf("%+v, and then %+v", n, again)
			}
		}
	})
}

// What cannot be is refused, wherever it stands.
func TestForeignNotes(t *testing.T) {
	ok := machine.Memory{Used: 1, Samples: 1, Room: 1}
	for _, n := range []machine.Note{{Usage: machine.Usage{CPU: 1.5}},
		{Usage: machine.Usage{Own: -2}}, {Usage: machine.Usage{Sent: math.NaN()}},
		{Usage: machine.Usage{Pressure: [machine.Pressures]float64{0, 0, 7}}},
		{Memory: []machine.Memory{{Used: -1, Samples: 1, Room: 1}}},
		{Memory: []machine.Memory{ok, ok, ok}},
		{Memory: []machine.Memory{{Used: 1, Samples: math.Inf(1), Room: 1}}}} {
		if n.Valid() {
			t.Errorf("%+v is taken", n)
		}
	}
}

// A machine that stays at a limit is said to be, by what it is at that limit.
func TestWatch(t *testing.T) {
	var w machine.Watch
	busy := machine.Unknown()
	busy.CPU, busy.Own, busy.Disk, busy.Pressure[2] = 0.97, 0.582, 0.2, 0.5
	calm := machine.Usage{CPU: 0.3, NIC: -1, Disk: -1}
	for i := range 8 {
		w.Add("h2", machine.Note{Usage: busy, Memory: []machine.Memory{{1, 2, 3, false}}})
		w.Add("h1", machine.Note{Usage: calm})
		found := w.Hosts()[1].Bottleneck != nil
		if found != (i >= 4) {
			t.Errorf("after %d notes: %v", i+1, found)
		}
	}
	w.Add("h3", machine.Note{})
	w.KeepOnly(func(host string) bool { return host != "h3" })
	list := w.Hosts()
	if len(list) != 2 || list[0].Name != "h1" || list[0].DescribeBottleneck() != "" ||
		list[0].Levels.String() != "-0-0" || len(list[1].Memory) != 1 {
		t.Fatalf("hosts: %+v", list)
	}
	if h := list[1]; h.Levels.String() != "--04" ||
		h.DescribeBottleneck() != "its processors are 97 % busy, 40 % of that by others" {
		t.Errorf("h2: %v, %s", h.Levels, h.DescribeBottleneck())
	}
	for r, want := range map[predict.Resource]string{
		predict.Disk: "busy 20 % of the time, and work waits for it 50 %", predict.NIC: "",
		predict.Memory: ""} {
		if got := busy.Describe(r); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%v: %q", r, got)
		}
	}
}
