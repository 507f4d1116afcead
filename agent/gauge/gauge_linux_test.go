package gauge

import (
	"fmt"
	"os"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/sense/machine"
)

// This machine tells how much of its processors and its memory is in use, and what this process
// needs of it.
func TestReadThisMachine(t *testing.T) {
	g := Gauge{Root: os.DirFS("/"), Workers: func() []int { return []int{os.Getpid()} }}
	page := os.Getpagesize()
	before := machine.Parse(g.files(), page)
	for { // until the kernel has counted some time
		n := machine.NewNote(before, machine.Parse(g.files(), page), 1, 8, nil)
		u := n.Usage
		if u.CPU < 0 {
			continue
		}
		if u.Own < 0 || u.Memory <= 0 || u.Received < 0 || len(n.Memory) != 1 ||
			n.Memory[0].Used < 1<<20 || n.Memory[0].Room < n.Memory[0].Used || !n.Valid() {
			t.Errorf("%+v", n)
		}
		return
	}
}

// Processes that workers have started count as theirs, the workers themselves once, and files that
// are missing as nothing.
func TestChildrenOfWorkers(t *testing.T) {
	line := func(id int) *fstest.MapFile {
		return &fstest.MapFile{Data: fmt.Appendf(nil, "%d (x) R 1 1 1", id)}
	}
	g := Gauge{Workers: func() []int { return []int{20, 30} }, Root: fstest.MapFS{
		"proc/20/stat": line(20), "proc/21/stat": line(21), "proc/22/stat": line(22),
		"proc/20/task/20/children":                              {Data: []byte("21 ")},
		"proc/21/task/21/children":                              {Data: []byte("22 x")},
		fmt.Sprintf("proc/%d/task/%[1]d/children", os.Getpid()): {Data: []byte("20 30")},
		"sys/class/net/a/speed":                                 {Data: []byte("1000\n")},
		"sys/class/net/b/speed":                                 {Data: []byte("-1\n")},
	}}
	f := g.files()
	var found []string
	for _, p := range f.Processes {
		if p.Stat != nil {
			found = append(found, fmt.Sprintf("%.2s %v", p.Stat, p.Worker))
		}
	}
	if got := fmt.Sprint(found); got != "[20 true 21 false 22 false]" {
		t.Errorf("processes: %v", got)
	}
	if f.Stat != nil || f.Limit != 0 || len(f.Speeds) != 1 || f.Speeds["a"] != 125e6 {
		t.Errorf("%+v", f)
	}
}

// BenchmarkRead is what a reading costs, which is made once a second, by the number of workers.
func BenchmarkRead(b *testing.B) {
	for _, workers := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(workers), func(b *testing.B) {
			list := make([]int, workers)
			for i := range list {
				list[i] = os.Getpid()
			}
			g := Gauge{Root: os.DirFS("/"), Workers: func() []int { return list }}
			before := machine.Parse(g.files(), os.Getpagesize())
			for b.Loop() {
				machine.NewNote(before, machine.Parse(g.files(), os.Getpagesize()), 1, 8, nil)
			}
		})
	}
}
