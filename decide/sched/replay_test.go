package sched_test

import (
	"bytes"
	"compress/gzip"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/sim"
	"github.com/shoal-ml/shoal/sim/trace"
)

// replay is a trace that is played through a Machine, which knows how long jobs take up to an error
// that is drawn.
type replay struct {
	jobs   []sched.Job
	hosts  []sched.Host
	cfg    sched.Config
	sigma  float64 // of the logarithm of the error
	seed   uint64
	detail func(j *sched.Job, slots, free int) // checks after every decision; nil = none
}

// outcome is what a replay comes to.
type outcome struct {
	hours          []float64 // from arrival to end of each job that was not refused, by its number
	met, refused   int       // deadlines that were met, jobs that were refused
	missed, grants int       // deadlines that were missed by jobs that were not refused
	parks          int
	last           int64
}

// mean returns the mean time from arrival to end, in hours.
func (o *outcome) mean() float64 {
	sum := 0.0
	for _, x := range o.hours {
		sum += x
	}
	return sum / float64(len(o.hours))
}

// running is a job in truth.
type running struct {
	left    float64 // units of work
	since   int64   // when left was so much
	from    int64   // when it goes on
	rate    float64
	version int
	over    bool // whether it has ended or was refused
}

// end is an event: that a job ends, if nothing has changed since.
type end struct{ job, version int }

// play plays the replay.
func (r *replay) play(t testing.TB) (o outcome) {
	t.Helper()
	m := sched.New(r.cfg)
	for _, h := range r.hosts {
		if err := m.Host(h); err != nil {
			t.Fatal(err)
		}
	}
	numbers := make(map[sched.JobID]int, len(r.jobs))
	truth := make([]running, len(r.jobs))
	random := rand.New(rand.NewPCG(r.seed, 26))
	predicted := make([]float64, len(r.jobs))
	for i, j := range r.jobs {
		numbers[j.ID] = i
		truth[i].left = j.Left.Mean
		predicted[i] = j.Left.Mean * math.Exp(r.sigma*random.NormFloat64())
	}
	var queue sim.Queue[end]
	next := 0
	decide := func(now int64) {
		for _, g := range m.Ready() {
			o.grants++
			i := numbers[g.Job]
			x := &truth[i]
			x.left -= x.rate * float64(max(now-max(x.since, x.from), 0)) / 1000
			x.since, x.from, x.rate = now, now+g.Expect.Pause, m.Rate(g.Job)
			x.version++
			if g.Verb == sched.Park {
				o.parks++
			}
			if g.Verb == sched.Refuse {
				o.refused++
				x.over = true
			}
			if x.rate > 0 {
				at := float64(x.from) + math.Ceil(max(x.left, 0)/x.rate*1000)
				queue.Add(at, end{i, x.version})
			}
		}
	}
	for {
		now := m.Next()
		if next < len(r.jobs) {
			now = min(now, r.jobs[next].Arrived)
		}
		ends := false
		if queue.Len() > 0 {
			at, e := queue.Next()
			if x := truth[e.job]; x.over || e.version != x.version {
				continue
			}
			if ends = int64(at) <= now; ends {
				now = int64(at)
				m.Tick(now)
				j := r.jobs[e.job]
				if err := m.Ended(j.ID); err != nil {
					t.Fatal(err)
				}
				truth[e.job].over = true
				o.hours = append(o.hours, float64(now-j.Arrived)/float64(sched.Hour))
				if j.Deadline > 0 && now <= j.Deadline {
					o.met++
				} else if j.Deadline > 0 {
					o.missed++
				}
				o.last = now
			} else {
				queue.Add(at, e)
			}
		}
		if now == sched.Never {
			break
		}
		m.Tick(now)
		for !ends && next < len(r.jobs) && r.jobs[next].Arrived == now {
			j := r.jobs[next]
			j.Left.Mean = predicted[next]
			if err := m.Submit(j); err != nil {
				t.Fatal(err)
			}
			next++
		}
		if queue.Len() > 0 && ends {
			at, e := queue.Next()
			queue.Add(at, e)
			if int64(at) == now {
				continue // jobs that end together are told together
			}
		}
		if next < len(r.jobs) && r.jobs[next].Arrived == now {
			continue
		}
		decide(now)
	}
	if faults := m.Faults(); len(faults) > 0 {
		t.Errorf("faults: %v", faults)
	}
	if len(o.hours)+o.refused != len(r.jobs) {
		t.Fatalf("%d of %d jobs have ended, %d were refused", len(o.hours), len(r.jobs), o.refused)
	}
	return o
}

// readTrace returns the jobs of a file of a trace below the folder of SHOAL_DATA, rigid and such
// that they can be parked. Without the folder the test is skipped.
func readTrace(t testing.TB, slots int, names ...string) (jobs []sched.Job, raw []trace.Job) {
	t.Helper()
	text := readData(t, append([]string{"elasticflow-traces"}, names...)...)
	read, err := trace.Read(bytes.NewReader(text), trace.Options{GPUs: slots})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range read.Jobs {
		j := rigid(x.Name, x.Arrived, x.GPUs, float64(x.Duration)/1000)
		j.Deadline = x.Deadline
		jobs = append(jobs, j)
	}
	return jobs, read.Jobs
}

// readData returns a file below the folder of SHOAL_DATA, unpacked.
func readData(t testing.TB, names ...string) []byte {
	t.Helper()
	data := os.Getenv("SHOAL_DATA")
	if data == "" {
		t.Skip("SHOAL_DATA names no folder with public traces")
	}
	text, err := os.ReadFile(filepath.Join(append([]string{data}, names...)...))
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(names[len(names)-1]) != ".gz" {
		return text
	}
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := out.ReadFrom(z); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// oneHost returns a cluster whose slots are all on one host.
func oneHost(slots int) []sched.Host { return []sched.Host{{Name: "h", Slots: slots}} }

// TestCheckValues compares mean times from arrival to end with those of two simulators that know
// nothing of each other, which agree: rigid jobs, no placement, 30 s for each preemption.
func TestCheckValues(t *testing.T) {
	for _, c := range []struct {
		file  string
		slots int
		want  map[string]float64
	}{
		{"cluster04", 512, map[string]float64{"fifo": 41.20, "fifo-skip": 17.01, "sjf": 7.91,
			"las": 11.38, "srsf": 6.24}},
		{"cluster07", 288, map[string]float64{"fifo": 14.54, "fifo-skip": 11.75, "sjf": 9.08,
			"las": 8.44, "srsf": 7.81}},
	} {
		jobs, _ := readTrace(t, c.slots, "raw", c.file+".csv.gz")
		for policy, want := range c.want {
			p, err := sched.Named(policy)
			if err != nil {
				t.Fatal(err)
			}
			r := replay{jobs: jobs, hosts: oneHost(c.slots), cfg: sched.Config{Policy: p,
				Costs: sched.Costs{Resume: sched.Estimate{Mean: 30 * 1000}}}}
			o := r.play(t)
			t.Logf("%s@%d %s: %.2f h, want %.2f; %d parked", c.file, c.slots, policy, o.mean(),
				want, o.parks)
			if math.Abs(o.mean()/want-1) > 0.01 {
				t.Errorf("%s@%d %s: %.3f h, want %.2f", c.file, c.slots, policy, o.mean(), want)
			}
		}
	}
}
