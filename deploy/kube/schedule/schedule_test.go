package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/sched"
)

// testSpace is a namespace with jobs, and what there is for them.
type testSpace struct {
	rand     *rand.Rand
	now      int64
	capacity int
	jobs     []Job
	count    int
	log      []string
}

// used returns what all pods take that there are or may be.
func (s *testSpace) used() (n int) {
	for _, j := range s.jobs {
		n += j.Pods * j.Units
	}
	return n
}

// decide carries out a decision, and reports whether it changes anything.
func (s *testSpace) decide(t *testing.T) bool {
	d, err := Decide(View{Now: s.now, Capacity: s.capacity, Jobs: s.jobs})
	if err != nil || len(d.Faults) > 0 {
		t.Fatalf("%v, %q\n%s", err, d.Faults, s.tail())
	}
	for _, a := range d.Now {
		for i := range s.jobs {
			if s.jobs[i].Name == a.Name {
				s.log = append(s.log, fmt.Sprintf("%s: %d to %d pods: %s", a.Name,
					s.jobs[i].Has, a.Pods, a.Because))
				s.jobs[i].Has, s.jobs[i].History = a.Pods, a.History
			}
		}
	}
	return len(d.Now) > 0
}

// tail returns the last lines of the log and the jobs.
func (s *testSpace) tail() string {
	text := strings.Join(s.log[max(0, len(s.log)-12):], "\n")
	for _, j := range s.jobs {
		text += fmt.Sprintf("\n%s: %d-%d of %d units, has %d, %d pods, aside %v", j.Name, j.Min,
			j.Max, j.Units, j.Has, j.Pods, j.Aside)
	}
	return fmt.Sprintf("%s\ncapacity %d", text, s.capacity)
}

// move has the pods of a job come nearer to what it may have, by one, and reports whether they were
// not there yet.
func (s *testSpace) move(i int) bool {
	j := &s.jobs[i]
	want := j.Has
	if j.Aside {
		want = 0
	}
	change := max(-1, min(1, want-j.Pods))
	j.Pods += change
	return change != 0
}

// step has one thing happen, whichever.
func (s *testSpace) step(t *testing.T) {
	s.now += s.rand.Int64N(30000)
	switch n := s.rand.IntN(10); {
	case n == 0 && len(s.jobs) < 6:
		s.count++
		least := 1 + s.rand.IntN(3)
		j := Job{Name: fmt.Sprint("job", s.count), Arrived: s.now, Min: least,
			Max: least + s.rand.IntN(5), Units: 1 + s.rand.IntN(2), Priority: s.rand.IntN(3),
			Park: sched.ParkKind(s.rand.IntN(3)), History: NoHistory(s.now)}
		s.jobs = append(s.jobs, j)
	case n == 1 && len(s.jobs) > 0:
		j := &s.jobs[s.rand.IntN(len(s.jobs))]
		j.Aside, j.Has = true, 0
	case n == 2 && len(s.jobs) > 0:
		j := &s.jobs[s.rand.IntN(len(s.jobs))]
		j.Max = j.Min + s.rand.IntN(5)
	case n < 6 && len(s.jobs) > 0:
		i := s.rand.IntN(len(s.jobs))
		s.move(i)
		if j := s.jobs[i]; j.Aside && j.Pods == 0 {
			s.jobs = slices.Delete(s.jobs, i, i+1)
		} else if j.Pods > 0 && !j.Aside {
			s.jobs[i].Steps += 10
			s.jobs[i].Speed, s.jobs[i].Measured = 1+s.rand.Float64(), j.Pods
		}
	default:
		s.decide(t)
	}
}

// TestAtRandom has jobs come, change and go while pods follow what is decided with delay: they
// never take more than there is, and when nothing happens any more the decisions end, with pods for
// each job that fits.
func TestAtRandom(t *testing.T) {
	for seed := range uint64(1500) {
		s := &testSpace{rand: rand.New(rand.NewPCG(seed, 31)), capacity: 4 + int(seed%9),
			now: 1_700_000_000_000}
		for range 100 {
			s.step(t)
			if s.used() > s.capacity {
				t.Fatalf("seed %d: pods take %d of %d\n%s", seed, s.used(), s.capacity, s.tail())
			}
		}
		for n, moves := 0, true; moves; n++ {
			if n == 200 {
				t.Fatalf("seed %d: the decisions do not end\n%s", seed, s.tail())
			}
			s.now += 1000
			moves = s.decide(t)
			for i := range s.jobs {
				moves = s.move(i) || moves
			}
		}
		free := s.capacity - s.used()
		big := slices.ContainsFunc(s.jobs, func(j Job) bool { // who is overdue lets nobody pass
			return !j.Aside && j.Has == 0 && j.Min*j.Units > free && j.Min*j.Units <= s.capacity
		})
		for _, j := range s.jobs {
			if !big && !j.Aside && j.Has == 0 && j.Min*j.Units <= free {
				t.Fatalf("seed %d: %s waits, and %d are free\n%s", seed, j.Name, free, s.tail())
			}
		}
	}
}

// TestExtra has the pods of a job take more than its next ones will, since they are of an earlier
// template: what they take is not free.
func TestExtra(t *testing.T) {
	now := int64(1_700_000_000_000)
	for extra, want := range map[int]int{0: 1, 2: 0} {
		d, err := Decide(View{Now: now, Capacity: 4, Jobs: []Job{
			{Name: "a", Arrived: now - 1000, Min: 2, Max: 2, Units: 1, Has: 2, Pods: 2,
				Extra: extra, Park: sched.ParkNever, History: NoHistory(now - 1000)},
			{Name: "b", Arrived: now, Min: 2, Max: 2, Units: 1, History: NoHistory(now)}}})
		if err != nil || len(d.Now) != want {
			t.Errorf("with %d units more: %+v, %v", extra, d, err)
		}
	}
}

// TestSizes has a job that can use any number of pods get all that there are, with the numbers that
// are worth a look on the way.
func TestSizes(t *testing.T) {
	for _, capacity := range []int{1, 5, 6, 7, 9, 16, 19, 100, 189, 200, 1024} {
		j := Job{Name: "a", Arrived: 1, Min: 1, Max: 1024, Units: 1, Park: sched.ParkShrink,
			History: NoHistory(1)}
		d, err := Decide(View{Now: 2, Capacity: capacity, Jobs: []Job{j}})
		if err != nil || len(d.Now) != 1 || d.Now[0].Pods != capacity {
			t.Errorf("of %d the job gets %+v, %v", capacity, d, err)
		}
		if list := j.sizes(1, 1024, capacity); len(list) > 40 || !slices.IsSorted(list) {
			t.Errorf("sizes %v", list)
		}
	}
}

// TestDecide judges single situations.
func TestDecide(t *testing.T) {
	const now = 1_700_000_000_000
	job := func(name string, least, most int, edit func(*Job)) Job {
		j := Job{Name: name, Arrived: now - 1000, Min: least, Max: most, Units: 1,
			Park: sched.ParkShrink, History: NoHistory(now - 1000)}
		if edit != nil {
			edit(&j)
		}
		return j
	}
	running := func(pods int) func(*Job) {
		return func(j *Job) {
			j.Has, j.Pods = pods, pods
			j.History.Started, j.History.MovedAt = now-900, now-900
		}
	}
	urgent := func(j *Job) { j.Priority = 10 }
	for _, x := range []struct {
		what string
		jobs []Job
		want string
	}{
		{"one job gets what it can use", []Job{job("a", 1, 4, nil)}, "a 4"},
		{"one that could use more gets all", []Job{job("a", 1, 1000, nil)}, "a 8"},
		{"the urgent one gets what another gives up, when that is gone",
			[]Job{job("a", 1, 8, running(8)), job("b", 2, 2, urgent)}, "a 6, later b 2"},
		{"and then", []Job{job("a", 1, 8, func(j *Job) { running(6)(j) }),
			job("b", 2, 2, urgent)}, "b 2"},
		{"pods that are still there are in the way", []Job{job("a", 1, 8, func(j *Job) {
			running(6)(j)
			j.Pods = 8
		}), job("b", 2, 2, urgent)}, "later b 2"},
		{"so are those of a job that is suspended", []Job{job("a", 1, 8, func(j *Job) {
			j.Aside, j.Pods = true, 8
		}), job("b", 2, 2, nil)}, "b waits: it waits for 2 pods: others go first"},
		{"a job is too large", []Job{job("a", 9, 9, nil)},
			"a waits: it needs 9 pods at least, which take 9, and all that there is is 8"},
		{"none of the sizes is left", []Job{job("a", 3, 4, func(j *Job) { j.Sizes = []int{1, 8} }),
			job("b", 1, 1, nil)}, "b 1, a waits: job a: it asks for 0 slots, which is none of " +
			"its sizes: choose from 3 to 4"},
		{"there is less than before", []Job{job("a", 1, 20, running(12))}, "a 8"},
		{"there is less, and both give some", []Job{job("a", 5, 20, running(8)),
			job("b", 3, 3, running(3))}, "a 5"},
		{"there is too little for all, and none may be parked", []Job{job("a", 6, 20, running(8)),
			job("b", 3, 3, running(3))}, "a 6"},
		{"people want less", []Job{job("a", 1, 2, running(4))}, "a 2"},
		{"pods of several units", []Job{job("a", 1, 4, func(j *Job) { j.Units = 4 })}, "a 2"},
	} {
		d, err := Decide(View{Now: now, Capacity: 8, Jobs: x.jobs})
		if err != nil {
			t.Errorf("%s: %v", x.what, err)
		}
		var said []string
		for _, a := range d.Now {
			said = append(said, fmt.Sprintf("%s %d", a.Name, a.Pods))
		}
		for _, a := range d.Later {
			said = append(said, fmt.Sprintf("later %s %d", a.Name, a.Pods))
		}
		for _, a := range d.Waits {
			if len(d.Later) == 0 {
				said = append(said, fmt.Sprintf("%s waits: %s", a.Name, a.Because))
			}
		}
		if got := strings.Join(said, ", "); got != x.want {
			t.Errorf("%s: %q, want %q", x.what, got, x.want)
		}
	}
}
