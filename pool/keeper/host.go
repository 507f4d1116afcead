package keeper

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/pool"
)

// host carries out the orders for one host of a pool, and reports what is there. Any goroutine may
// call its methods, which lock mu for what it guards; only find and reports wait.
type host struct {
	Config
	group   *group.Group
	changed chan struct{} // has room for one: there is something new to report
	found   chan struct{} // closed by find: the jobs of an earlier keeper are known

	mu     sync.Mutex
	jobsAt string           // address at which jobs listen for other hosts; "" = they do not
	acked  uint64           // number of the newest order that was taken on this link; 0 = none was
	parts  map[string]*part // by job
}

// newHost returns a host on which no job is known. Its goroutines are those of g.
func newHost(c Config, g *group.Group) *host {
	return &host{Config: c, group: g, changed: make(chan struct{}, 1),
		found: make(chan struct{}), parts: map[string]*part{}}
}

// Suffixes of the files about a job in the folder of the pool.
const (
	partSuffix = ".part" // what was started, as JSON
	lockSuffix = ".lock" // locked by the processes of the job, as long as there are any
	specSuffix = ".yaml" // the job
	logSuffix  = ".log"  // what its launcher says

	tokenSuffix = ".token" // lets hosts join; the launcher writes it
)

// path returns the path of a file about a job.
func (h *host) path(job, suffix string) string { return filepath.Join(h.Dir, job+suffix) }

// find finds the jobs that an earlier keeper of this host has started, and begins to watch them. It
// asks the launchers of this host first, for which it waits. It is called once, before orders are
// taken.
func (h *host) find(ctx context.Context) {
	files, _ := os.ReadDir(h.Dir) // no pattern: the path may have characters of one
	running, _ := control.List(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, file := range files {
		job, is := strings.CutSuffix(file.Name(), partSuffix)
		if !is {
			continue
		}
		p := newPart(h, job)
		if text, err := os.ReadFile(h.path(job, partSuffix)); err == nil {
			p.saved = parseSaved(text)
		}
		for _, j := range running {
			if p.isLauncher(j) {
				p.job, p.leads = j, true
			}
		}
		p.seen = pool.JobReport{Job: job, Attempt: p.saved.Attempt, Part: p.saved.Part, Live: true}
		h.parts[job] = p
		h.group.Go("watch job "+job, p.watch)
	}
	h.prune()
	close(h.found)
	h.tell()
}

// maxLogs bounds the logs of parts that are gone. The record says how each job has ended.
const maxLogs = 100

// prune removes the files of parts that are gone, but for the last logs. h.mu is held.
func (h *host) prune() {
	files, _ := os.ReadDir(h.Dir)
	var logs []fs.FileInfo
	for _, file := range files {
		suffix := filepath.Ext(file.Name())
		switch {
		case h.parts[strings.TrimSuffix(file.Name(), suffix)] != nil:
		case suffix == specSuffix || suffix == tokenSuffix:
			_ = os.Remove(filepath.Join(h.Dir, file.Name())) // one that stays is removed later
		case suffix == logSuffix:
			if info, err := file.Info(); err == nil {
				logs = append(logs, info)
			}
		}
	}
	slices.SortFunc(logs, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, log := range logs[min(maxLogs, len(logs)):] {
		_ = os.Remove(filepath.Join(h.Dir, log.Name()))
	}
}

// take takes an order, which the goroutine of the part carries out soon. One that was taken before,
// or is of an earlier start of the job, changes nothing.
func (h *host) take(o pool.Order) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.acked = max(h.acked, o.Seq)
	p := h.parts[o.Job]
	switch {
	case o.Verb == pool.StartRun || o.Verb == pool.JoinRun:
		if p != nil && (!p.over || p.seen.Attempt > o.Attempt ||
			p.seen.Attempt == o.Attempt && p.seen.Part >= o.Part) {
			break // it was begun before
		}
		p = newPart(h, o.Job)
		p.saved.Attempt, p.saved.Part, p.saved.Joins = o.Attempt, o.Part, o.Verb == pool.JoinRun
		p.seen = pool.JobReport{Job: o.Job, Attempt: o.Attempt, Part: o.Part, Live: true}
		p.orders = []pool.Order{o}
		h.parts[o.Job] = p
		h.group.Go("watch job "+o.Job, p.watch)
	case p == nil || p.seen.Attempt != o.Attempt || o.Part != 0 && p.seen.Part != o.Part:
	case o.Verb == pool.DropRun:
		if p.over {
			delete(h.parts, o.Job)
			_ = os.Remove(h.path(o.Job, partSuffix)) // one that stays is reported again
			_ = os.Remove(h.path(o.Job, lockSuffix))
			h.prune()
		}
	case !p.over:
		p.orders, p.seen.Refused = append(p.orders, o), ""
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
	h.tell()
}

// newLink forgets what an earlier link with a head has brought and is not carried out: another head
// counts its orders anew.
func (h *host) newLink() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.acked = 0
	for _, p := range h.parts {
		p.link++
		p.orders = slices.DeleteFunc(p.orders, func(o pool.Order) bool {
			return o.Verb != pool.StartRun && o.Verb != pool.JoinRun
		})
		p.seen = forgetOrders(p.seen)
	}
	h.tell()
}

// forgetOrders returns a report without what is said of orders. It is pure.
func forgetOrders(r pool.JobReport) pool.JobReport {
	r.Refused = ""
	if r.Led != nil {
		l := *r.Led
		l.Allotted, l.Invited, r.Led = 0, 0, &l
	}
	return r
}

// setJobsAt sets the address at which the jobs that are started from now on listen.
func (h *host) setJobsAt(address string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.jobsAt = address
}

// listensAt returns the address at which a job that is started now listens; "" = it does not.
func (h *host) listensAt() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.jobsAt
}

// tell has the goroutine of reports make a report soon. It does not wait, and h.mu may be held.
func (h *host) tell() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// reportEvery is after which time a report is made again that says nothing new: one that was lost,
// or came too early, does not matter then.
const reportEvery = time.Second

// reports calls f, which makes a report, whenever there is something new, until ctx ends. It begins
// when find has ended: a report from before lacks jobs, which the head would take for gone.
func (h *host) reports(ctx context.Context, f func()) error {
	select {
	case <-h.found:
	case <-ctx.Done():
		return nil
	}
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	for {
		select {
		case <-h.changed:
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		f()
	}
}

// report returns what is known of the jobs on this host, for the head.
func (h *host) report() pool.Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := pool.Report{Host: h.Host, Acked: h.acked}
	for _, job := range slices.Sorted(maps.Keys(h.parts)) {
		r.Jobs = append(r.Jobs, h.parts[job].seen)
	}
	return r
}

// show has host.report say of a part what seen says, and tells that there is something new if it
// differs. over says that the part is gone: its processes have ended. The goroutine of part.watch
// calls it.
func (h *host) show(p *part, seen pool.JobReport, over bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(p.orders) > 0 {
		seen.Refused = "" // it is of an order before these
	}
	if p.link != p.heard {
		seen = forgetOrders(seen)
	}
	if p.over = over; !reflect.DeepEqual(seen, p.seen) {
		p.seen = seen
		h.tell()
	}
}
