package member

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// Record is what the hosts of a job decide on: a generation, who leads it, and what the head that
// comes next must know. It is a value. The methods of Machine in this file, as all of them, are for
// one goroutine at a time.
type Record struct {
	View   topo.View
	Head   string          // the host that leads
	Since  topo.Generation // the generation with which that host began to lead
	Hosts  []Host          // the hosts of the job, with members or without
	Want   int             // the size that the job is asked to have
	Min    int             // members below which the job waits
	Max    int             // the largest size; 0 = no limit
	Spares int             // workers beyond the size that wait to be let in
	Sized  uint64          // as Machine.SetSized has set it, behind which Want is
	Next   topo.WorkerID   // the next number: no worker has had it or a higher one
	Done   int             // members that have finished
	// Allotment says how many workers the job may have on each host; nil = the hosts do.
	Allotment *Allotment
	Growth    Growth // whether the job takes every slot of its hosts, where nobody allots them
}

// Voters are the hosts that decide on the generation after r: those of its members, and its head.
// Where these are an even number, which could part into halves, one more host of the job is a
// witness: so of three hosts any one can be lost, wherever the members are.
func (r Record) Voters() (hosts []string) {
	for _, x := range r.View.Members {
		if !slices.Contains(hosts, x.Host) {
			hosts = append(hosts, x.Host)
		}
	}
	if !slices.Contains(hosts, r.Head) {
		hosts = append(hosts, r.Head)
	}
	if len(hosts)%2 == 0 {
		for _, h := range r.Hosts {
			if !r.IsToBeLeft(h) && !slices.Contains(hosts, h.Name) {
				return append(hosts, h.Name)
			}
		}
	}
	return hosts
}

// IsToBeLeft reports whether a host is to be left: it is drained, or has no slots any more where
// somebody allots them.
func (r Record) IsToBeLeft(h Host) bool {
	return h.Draining ||
		r.Allotment != nil && h.Slots != NoSlots && r.Allotment.slotsOn(h.Name) == 0
}

// IsQuorum reports whether hosts, given by name, are enough to decide on the generation after r:
// more than half of the voters, where the head of r has one and a half votes. So any two quorums
// share a host, and of two hosts the head alone can go on when the other is lost.
func (r Record) IsQuorum(hosts []string) bool {
	all, have := 1, 0 // in half votes
	for _, v := range r.Voters() {
		all += 2
		if slices.Contains(hosts, v) {
			have += 2
			if v == r.Head {
				have++
			}
		}
	}
	return 2*have > all
}

// Belongs reports whether a host is one of the job's.
func (r Record) Belongs(host string) bool {
	return slices.ContainsFunc(r.Hosts, func(h Host) bool { return h.Name == host })
}

// Gone is a host that is lost, and how.
type Gone struct{ Host, How string }

// Restore returns the membership as another head left it, for the host self to lead on, without the
// hosts that are gone. All members count as living until they are told with WorkerLost; other
// workers must be told again with WorkerStarted and WorkerAsks. One goroutine at a time may use the
// machine, which keeps r's members: the caller must not alter them.
func Restore(r Record, self string, gone ...Gone) *Machine {
	m := newMachine(Config{Want: r.Want, Min: r.Min, Max: r.Max, Spares: r.Spares, Sized: r.Sized,
		Hosts: r.Hosts, Allotment: r.Allotment, Growth: r.Growth})
	m.record, m.head, m.next, m.before = r, self, r.Next, r.Done
	m.because, m.restored = Because(self+" leads"), true
	for _, x := range r.View.Members {
		m.workers.put(&worker{x.Worker, x.Host, active, true})
	}
	for _, g := range gone {
		m.loseHost(g.Host, g.How)
	}
	m.decideNext()
	return m
}

// SetSized gives the size that the job is asked to have a number, which the records that come have:
// so a caller that writes sizes down elsewhere knows which of the two is newer.
func (m *Machine) SetSized(number uint64) { m.cfg.Sized = number }

// RestoreWant sets the size that the job is asked to have, and the number of that, as a head before
// this one has written them down and no record has them: less the members that are lost since this
// head has them, who are wanted no more, as WorkerLost says, unless there are too many. It orders
// nobody, and is called before workers are told again.
func (m *Machine) RestoreWant(n int, number uint64) {
	if m.cfg.Spares == 0 {
		n = min(n, max(n, m.workers.countIn(active)+m.lost)-m.lost)
	}
	m.cfg.Want, m.cfg.Sized, m.shrinks = max(n, m.cfg.Min), number, false
	m.ranks = m.cfg.Want
}

// newRecord returns the record of a generation that is to be decided, with the present size and
// hosts of the job. Like all methods of Machine it is for one goroutine at a time.
func (m *Machine) newRecord(v topo.View) Record {
	r := Record{View: v, Head: m.head, Since: m.record.Since, Want: m.cfg.Want, Min: m.cfg.Min,
		Max: m.cfg.Max, Spares: m.cfg.Spares, Sized: m.cfg.Sized, Next: m.next,
		Done: m.countFinished(), Allotment: m.cfg.Allotment, Growth: m.cfg.Growth}
	if r.Head != m.record.Head {
		r.Since = v.Generation
	}
	for _, h := range m.hosts {
		r.Hosts = append(r.Hosts, *h)
	}
	return r
}

// Record is the active generation. The caller must not alter what it refers to.
func (m *Machine) Record() Record { return m.record }

// Equal reports whether two records say the same.
func (r Record) Equal(o Record) bool {
	return r.View.Generation == o.View.Generation && slices.Equal(r.View.Members, o.View.Members) &&
		r.Head == o.Head && r.Since == o.Since &&
		slices.Equal(r.Hosts, o.Hosts) && r.Want == o.Want && r.Min == o.Min && r.Max == o.Max &&
		r.Spares == o.Spares && r.Sized == o.Sized && r.Next == o.Next && r.Done == o.Done &&
		r.Allotment.Equal(o.Allotment) && r.Growth == o.Growth
}

// ListsHostTwice reports whether two hosts have the same name, which no Machine proposes.
func (r *Record) ListsHostTwice() bool {
	names := map[string]bool{}
	for _, h := range r.Hosts {
		names[h.Name] = true
	}
	return len(names) != len(r.Hosts)
}

// What numbers of a record may be, well beyond what there is.
const (
	MaxGeneration = 1 << 32 // it is the upper half of the number of a batch
	MaxNumber     = 1 << 62 // of workers and of requests
	maxWorkers    = 1 << 30
)

// Check returns what is wrong with a record, but for its members, each of its hosts and its
// allotment; nil where nothing is.
func (r Record) Check() error {
	g := r.View.Generation
	switch {
	case r.Head == "" || g >= MaxGeneration || r.Since > g || r.Next > MaxNumber ||
		r.Sized > MaxNumber:
		return fmt.Errorf("generation %d of head %q since %d, next worker %d", g, r.Head, r.Since,
			r.Next)
	case r.ListsHostTwice():
		return fmt.Errorf("generation %d lists a host twice", g)
	case r.Done < 0:
		return fmt.Errorf("%d members have finished", r.Done)
	}
	names := []string{"want", "min", "max", "spares"}
	for i, n := range []int{r.Want, r.Min, r.Max, r.Spares} {
		if n < 0 || n > maxWorkers {
			return fmt.Errorf("%s: %d is not from 0 to %d", names[i], n, maxWorkers)
		}
	}
	return r.Growth.Validate()
}
