package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/gpu"
	"github.com/shoal-ml/shoal/internal/rundir"
)

// Which GPU a worker of this host takes: one that no other worker of this user has, in whatever
// job, as long as there is one. A worker finds it where programs look for it, at cuda:LOCAL_RANK.
// The methods of gpus lock files and wait for nobody; the lock of the supervisor is held.

// gpus are the GPUs that workers may take. In the zero value there are none.
type gpus struct {
	list  []device
	of    map[int]int // by worker: the place in list of what it has
	began []int       // those of the workers that begin with the job, by LOCAL_RANK; -1 = none
}

// device is a GPU.
type device struct {
	name    string   // as gpu.Variable has it
	file    string   // that is locked as long as a worker of this user has it; "" = none can be
	lock    *os.File // while workers of this launcher have it; nil = it has no file, or they do not
	workers int      // of this launcher
}

// findGPUs returns the GPUs that the variables of workers name, or else those of this machine, of
// which the folders and device files are given; none where a container has some of them, since only
// CUDA knows which those are.
func findGPUs(env, folders, devices []string) gpus {
	var names []string
	if seen, set := lookupVariable(env, gpu.Variable); set {
		names = gpu.Named(seen)
	} else if len(folders) == len(devices) {
		for i := range folders {
			names = append(names, strconv.Itoa(i))
		}
	}
	if len(names) == 0 {
		return gpus{}
	}
	folder, err := rundir.Path()
	g := gpus{of: map[int]int{}}
	for _, name := range names {
		d := device{name: name}
		if err == nil { // else workers of other jobs are not known
			d.file = filepath.Join(folder, "gpu-"+strings.ReplaceAll(name, "/", "_")+".lock")
		}
		g.list = append(g.list, d)
	}
	return g
}

// takeFirst gives a GPU to a worker that begins with the job, whose LOCAL_RANK is the next one. It
// returns the entry of its environment in which its GPU has this place, "" where it has it already
// or there are fewer GPUs than workers, which the program divides; and what people are told.
func (g *gpus) takeFirst(worker int) (entry, text string) {
	local := len(g.began)
	mine, text := g.take(worker)
	g.began = append(g.began, mine)
	if mine < 0 || local >= len(g.list) {
		return "", text
	}
	var seen []int // first what others that begin have, then any
	for _, i := range slices.Concat(g.began[:local], g.places()) {
		if i >= 0 && i != mine && !slices.Contains(seen, i) {
			seen = append(seen, i)
		}
	}
	if seen = append(seen[:local], mine); slices.Equal(seen, g.places()[:local+1]) {
		if g.list[mine].workers == 1 {
			text = "" // it is where one would look for it
		}
		return "", text
	}
	return g.entry(seen), text
}

// takeLate gives a GPU to a worker that comes later, whose LOCAL_RANK is 0, and returns the entry
// of its environment by which it sees no other, "" where there is none to choose; and what people
// are told.
func (g *gpus) takeLate(worker int) (entry, text string) {
	mine, text := g.take(worker)
	if mine < 0 || len(g.list) == 1 {
		return "", text
	}
	return g.entry([]int{mine}), text
}

// places returns the places of all in list.
func (g *gpus) places() []int {
	all := make([]int, len(g.list))
	for i := range all {
		all[i] = i
	}
	return all
}

// entry returns an entry of an environment by which a worker sees these GPUs, in this order.
func (g *gpus) entry(places []int) string {
	var names []string
	for _, i := range places {
		names = append(names, g.list[i].name)
	}
	return gpu.Variable + "=" + strings.Join(names, ",")
}

// take gives a worker the first GPU that nobody has, or else one of those that the fewest workers
// of this launcher have, and returns its place, -1 = there is none; and what people are told.
func (g *gpus) take(worker int) (place int, text string) {
	place = -1
	for i := range g.list {
		d := &g.list[i]
		if d.workers == 0 && d.tryLock() {
			place = i
			break
		}
		if d.workers > 0 && (place < 0 || d.workers < g.list[place].workers) {
			place = i
		}
	}
	switch {
	case len(g.list) == 0:
		return -1, ""
	case place < 0:
		return -1, fmt.Sprintf("worker %d: other jobs have all GPUs", worker)
	}
	d := &g.list[place]
	d.workers++
	g.of[worker] = place
	if d.workers > 1 {
		return place, fmt.Sprintf("worker %d shares GPU %s: no other is free", worker, d.name)
	}
	return place, fmt.Sprintf("worker %d has GPU %s", worker, d.name)
}

// tryLock locks the file of a GPU, if it has one, and reports whether nobody else has.
func (d *device) tryLock() bool {
	if d.file == "" {
		return true
	}
	f, err := os.OpenFile(d.file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return true // workers of other jobs are not known
	}
	if durable.Flock(f, syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		_ = f.Close()
		return false
	}
	d.lock = f
	return true
}

// release takes the GPU, if it has one, from a worker that has ended, or that the job has let go.
func (g *gpus) release(worker int) {
	place, has := g.of[worker]
	if !has {
		return
	}
	delete(g.of, worker)
	d := &g.list[place]
	if d.workers--; d.workers == 0 && d.lock != nil {
		_ = d.lock.Close()
		d.lock = nil
	}
}

// releaseGPUs takes the GPUs from workers that the job has let go: those who get the room on this
// host may begin before these have ended. It locks s.mu.
func (s *supervisor) releaseGPUs(workers ...int) {
	if len(workers) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range workers {
		s.gpus.release(w)
	}
}

// gpusText says in words which workers of an order have which GPU; "" = there are none. It locks
// s.mu, and any goroutine may call it.
func (s *supervisor) gpusText(o agent.StartOrder) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts []string
	for worker := o.First; worker < o.First+o.Count; worker++ {
		if p := s.processes[worker]; p != nil && p.gpu != "" {
			parts = append(parts, p.gpu)
		}
	}
	return strings.Join(parts, ", ")
}
